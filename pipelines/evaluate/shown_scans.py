"""Selection of scans to show: the lowest Dice of an evaluation, the most unusual of a cohort."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from trinat.pipelines.evaluate.measuring import AlignedPair, Done, read_pair, scan_of
from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.study.files import find_images
from trinat.pipelines.study.images import read_image
from trinat.pipelines.study.pairing import partners_of
from trinat.segmentation.errors import TrinatError, some
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of

if TYPE_CHECKING:
    from trinat.pipelines.evaluate.gather import Inputs
    from trinat.pipelines.evaluate.sections import MeasuredScan
    from trinat.pipelines.report.cohort import Cohort
    from trinat.pipelines.report.evaluation import WorstScan

_MOST_PICTURES = 12
# Order of grades: rejected scans first; scans that passed or have no grade come last.
_RANKS = {"reject": 0, "look": 1}
_LAST_RANK = 2


def lowest_scans(
    inputs: Inputs, frame: pd.DataFrame, measured: Sequence[Done]
) -> tuple[list[WorstScan], list[str]]:
    """Return pictures of the five scans with the lowest mean Dice, and notices for the report.

    `frame` is the table of metrics.csv, and `measured` has the outcome of each pair. Slices of the
    MRI scans in `inputs.images` are shown with the labels; if that of a pair is missing or cannot
    be read, only the labels are shown, and a notice says so.
    """
    from trinat.pipelines.report.summary import worst_scans

    tasks = {}
    truths = {}
    for result in measured:
        task = result.task
        tasks[tuple(scan_of(task).values())] = task
        truths[task.pair.truth.path] = task.pair.truth
    image_of = partners_of(truths.values(), inputs.images)
    missing = len(truths) - len(image_of)
    notices = []
    if inputs.images and missing:
        notices.append(
            f"{missing} of {len(truths)} scans have no image to be shown on."
        )
    shown = []
    for row in worst_scans(frame).to_dict("records"):
        task = tasks[row["subject"], row["session"], row["model"]]
        pair = read_pair(task)
        image = None
        file = image_of.get(task.pair.truth.path)
        if file is not None:
            try:
                scan = read_image(
                    file.path,
                    task.pair.prediction.path,
                    axes=file.stored.axes,
                    trust_affine=inputs.settings.trust_affine,
                )
                image = on_grid_of(scan, pair.truth)[0]
            except (TrinatError, OSError) as error:
                notices.append(f"shown without its scan: {error}")
        left_out = task.made.left_out(
            inputs.scheme, pair.rejected, truth_csf=task.truth_csf
        )
        shown.append(_worst_scan(row, pair, image, inputs, left_out))
    return shown, notices


def _worst_scan(
    row: Mapping[Hashable, Any],
    pair: AlignedPair,
    image: Volume | None,
    inputs: Inputs,
    left_out: Collection[str],
) -> WorstScan:
    """Return the pictures, the title and the text of one scan for the report.

    `row` is the row of `worst_scans` with the scan, its model and its structure with the lowest
    Dice. `image` is the MRI scan on the grid of the labels; None if there is none. The structures
    in `left_out` are shown as not compared.
    """
    from trinat.pipelines.report.case_view import view_case
    from trinat.pipelines.report.evaluation import WorstScan
    from trinat.pipelines.report.page import short_name

    scheme = inputs.scheme
    scan = f"{row['subject']} {row['session']}".strip()
    structure = row["worst_structure"]
    if np.array_equal(pair.true, pair.predicted):
        text = "No voxel differs."
    else:
        worst = f"{short_name(structure)} ({row['worst_value']:.2f})"
        text = f"Lowest Dice: {worst}. The first slices shown pass through most of its errors."
    if left_out:
        names = some([short_name(name) for name in left_out])
        text += f" Not compared, and in no error: {names}."
    view = view_case(
        Volume(pair.true, pair.truth.affine),
        Volume(pair.predicted, pair.truth.affine),
        scheme,
        image=image,
        focus=scheme.names.index(structure),
        show_head=inputs.settings.show_heads,
        not_compared=[scheme.names.index(name) for name in left_out],
    )
    title = f"{scan}, {row['model']}: mean Dice {row['value']:.3f}"
    alt = f"Truth, prediction and errors of {scan} in three planes"
    return WorstScan(title, text, alt, view)


def cohort_pictures(
    settings: CohortSettings,
    scans: Sequence[MeasuredScan],
    scheme: LabelScheme,
    cohort: Cohort,
) -> list[tuple[str, str, bytes]]:
    """Return a picture of each of the most unusual scans: its title, a text and the PNG file.

    The text has the reason why the scan is left out, or its notes or grade. `scans` are all scans
    of the report, including those that are left out; `cohort` has the z-scores of the others. The
    picture is the one that `trinat predict` wrote, or else a new one if the folder
    `settings.images` has the scan. Scans without either are missing.
    """
    image_of = {}
    if settings.images is not None:
        files = [scan.file for scan in scans]
        found = find_images(settings.images, [file.path for file in files])
        image_of = partners_of(files, found)

    # Sorted by grade, then by the largest z-score. Scans that are left out have no z-score, because
    # they are not compared with the group.
    largest_z = np.zeros(len(scans))
    counted = [number for number, scan in enumerate(scans) if not scan.left_out]
    largest_z[counted] = np.nan_to_num(cohort.largest_z())
    most_unusual = sorted(
        range(len(scans)),
        key=lambda number: (
            _RANKS.get(scans[number].grade, _LAST_RANK),
            -largest_z[number],
        ),
    )
    pictures = []
    for number in most_unusual[:_MOST_PICTURES]:
        scan = scans[number]
        file = scan.file
        # `trinat predict` writes a picture next to each label map.
        stem, ending, _ = file.path.name.rpartition("_dseg")
        of_prediction = file.path.with_name(f"{stem}_qc.png")
        png = None
        if ending and of_prediction.is_file():
            png = of_prediction.read_bytes()
        elif file.path in image_of:
            png = _mosaic(
                image_of[file.path].path,
                file.path,
                scheme,
                settings.trust_affine,
            )
        if png:
            text = scan.left_out or scan.notes or scan.grade
            pictures.append((scan.name, text, png))
    return pictures


def _mosaic(
    image: Path,
    labels: Path,
    scheme: LabelScheme,
    trust_affine: TrustAffine | None,
) -> bytes | None:
    """Draw slices of a scan with its labels as one PNG picture, black away from the brain.

    Returns None if the scan or the labels cannot be read.
    """
    from trinat.pipelines.report.case_view import far_from_brain
    from trinat.segmentation.rendering.pictures import draw_mosaic, encoded
    from trinat.segmentation.space.conform import conform

    try:
        scan = conform(read_image(image, labels, trust_affine=trust_affine))
        label_map = Volume.read(labels, labels=True, trust_affine=trust_affine)
        # Before resampling, as in evaluation: parcels are outvoted by white matter one by one.
        indices = scheme.from_freesurfer(
            label_map.data, spacing_mm=label_map.spacing_mm
        )
        on_scan = replace(label_map, data=indices)
        classes = conform(on_scan, labels=True, plan=scan.plan).volume
    except (TrinatError, OSError):
        return None
    gray = np.where(far_from_brain(classes.data > 0), 0, scan.volume.data)
    brain = Volume(gray, scan.volume.affine)
    return encoded(draw_mosaic(brain, classes, scheme), "PNG")
