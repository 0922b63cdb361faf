"""The figures on the page of a store: volumes of structures, and intensities of heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from trinat.pipelines.prepare.outliers import Outlier, name_of_volume, volumes_ml
from trinat.segmentation.data.statistics import Statistics
from trinat.segmentation.report import drawing
from trinat.segmentation.report.drawing import MODEL_COLORS, Drawing, canvas
from trinat.segmentation.report.svg import INK

_WIDTH = 8.6  # inches
# Intensities below are air or its noise; tissue is brighter.
_NOISE = 0.1
# The upper end of the last bin but one of a histogram, on the working scale.
_BRIGHTEST = 1.5


def volume_plot(
    names: Sequence[str],
    labelled: Mapping[str, Statistics],
    outliers: Collection[Outlier],
) -> Drawing:
    """A box a structure, relative to its median so that all share an axis; outliers in red.

    Structures whose median is 0 have no box.
    """
    volumes = {}
    for index, name in enumerate(names[1:], start=1):
        of_structure = volumes_ml(labelled, index)
        if np.median(of_structure) > 0:
            volumes[name] = of_structure
    far = {(outlier.subject, outlier.what) for outlier in outliers}
    colors = []
    marks = []
    for name, of_structure in volumes.items():
        for subject, volume in zip(labelled, of_structure, strict=True):
            color = MODEL_COLORS[0]
            if (subject, name_of_volume(name)) in far:
                color = drawing.WARNING_COLOR
            colors.append(color)
            marks.append(f"{subject}: {volume:.3g} ml")
    shares = [100 * values / np.median(values) for values in volumes.values()]
    rows = list(enumerate(shares))
    with canvas(_WIDTH, 0.24 * len(volumes) + 0.9) as (figure, axis):
        drawing.draw_boxes(axis, rows, 0.8, MODEL_COLORS[0])
        if rows:
            drawing.draw_dots(axis, rows, 0.6, colors, "volumes")
        drawing.name_rows(axis, volumes)
        axis.set_xlabel("volume, % of the median")
    return Drawing(
        "volumes",
        figure,
        "Volumes of the structures over subjects",
        {"volumes": marks},
        caption="Boxes span the quartiles, whiskers reach the last value within 1.5 quartile "
        "ranges; every dot is a subject, outliers are red.",
    )


def histogram_plot(imaged: Mapping[str, Statistics]) -> Drawing:
    """Intensities of every head, a line each, and the median of all."""
    histograms = [known.histogram for known in imaged.values()]
    counts = np.array(histograms, np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = 100 * counts / np.maximum(totals, 1)
    bins = counts.shape[1]
    middles = (np.arange(bins) + 0.5) * _BRIGHTEST / bins
    with canvas(_WIDTH, 3.2) as (figure, axis):
        faint = max(0.08, 1 / len(shares) ** 0.5)
        axis.plot(middles, shares.T, color=MODEL_COLORS[0], lw=0.6, alpha=faint)
        median = np.median(shares, axis=0)
        axis.plot(middles, median, color=INK, lw=1.6)
        axis.set_xlabel("intensity on the working scale")
        axis.set_ylabel("% of the head's voxels")
        # Not by the first bins: where air is noisy they hold half of all voxels.
        tallest = float(np.percentile(shares[:, middles > _NOISE], 99.5))
        axis.set_ylim(0, tallest * 1.2 or 1)
        axis.grid(axis="y")
    label = "Histograms of intensity, one line per subject"
    caption = (
        "One line per subject; the dark line is their median. The last bin holds all higher "
        "intensities. Noise around the head may exceed the plot at the left."
    )
    return Drawing("intensities", figure, label, caption=caption)
