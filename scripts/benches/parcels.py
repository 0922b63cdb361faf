"""Figures for docs/parcels.md: how well a model tells parcels of the cortex apart, and its cost.

`scripts/bench parcels MODEL FOLDER [SOURCE [NAME ...]]`, for a model with networks for parcels and
scans with parcels in the layout of a source of `trinat prepare`: FreeSurfer's subjects with
`aparc+aseg`, or `malc`. With NAMEs only those scans count. Printed are the mean Dice over all
parcels of each scan: by the model's own weights of views, by each view alone and by other weights;
the seconds of the processor with and without parcels; the Dice of each parcel; and the limits of
agreement between views that `trinat calibrate` would find in these scans.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray

from trinat.pipelines.models.calibrate import Point, find_limits, rates
from trinat.segmentation.data.sources.base import SourceOptions
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.inference.parcels import (
    join_views,
    likely_cortex,
    may_be_cortex,
)
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.models.zoo import find_model, find_parcels_folder
from trinat.segmentation.space.views import View

# Of the coronal, axial and sagittal view.
WEIGHTS = (
    (1.0, 0.0, 0.0),
    (0.0, 1.0, 0.0),
    (0.0, 0.0, 1.0),
    (1.0, 1.0, 1.0),
    (2.0, 1.0, 1.0),
    (2.0, 1.0, 2.0),
    (3.0, 1.0, 2.0),
    (4.0, 1.0, 1.0),
)
# Where a source has structures and parcels in files of their own.
_LABEL_MAPS = {"freesurfer": "aparc+aseg.mgz"}
_VIEWS = (View.CORONAL, View.AXIAL, View.SAGITTAL)


@dataclass(frozen=True, eq=False)
class Subject:
    """A subject's scan, and the true class of each voxel among those with parcels."""

    name: str
    scan: Volume
    truth: NDArray[np.uint8]


def run(model: str, folder: str, source: str = "freesurfer", *names: str) -> None:
    """Print a line for each subject, then the means, the parcels and the limits."""
    plain = Predictor(model)
    predictor = Predictor(model, parcels=True)
    networks = Predictor(find_parcels_folder(find_model(model)))
    parcellation = Parcellation(plain.model.scheme, networks.model.scheme)
    own: list[NDArray[np.float64]] = []
    others: list[list[float]] = []
    shares: list[float] = []
    points: list[Point] = []
    for subject in _subjects(Path(folder), parcellation, source, names):
        _, plain_s = _timed(plain, subject.scan)
        found, with_parcels_s = _timed(predictor, subject.scan)
        shares.append(with_parcels_s / plain_s)
        values = scores(parcellation, subject.truth, found.parcel_indices.data)
        own.append(values)
        agreement = found.parcel_agreement
        assert agreement is not None
        for name, value in zip(parcellation.names, values, strict=True):
            points.append(Point(float(np.nan_to_num(agreement[name])), float(value)))
        others.append(_by_weights(plain, networks, parcellation, subject))
        row = " ".join(f"{value:.4f}" for value in others[-1])
        print(
            f"{subject.name}  Dice {np.nanmean(values):.4f}  by weights {row}  "
            f"{plain_s:.1f} s, with parcels {with_parcels_s:.1f} s",
            flush=True,
        )
    print(f"mean Dice {np.nanmean(own):.4f} of {len(own)}")
    print(f"seconds with parcels over those without: {np.median(shares):.2f}")
    for weights, mean in zip(WEIGHTS, np.mean(others, axis=0), strict=True):
        print(f"weights {weights}: {mean:.4f}")
    by_parcel = np.nanmean(own, axis=0)
    for place in by_parcel.argsort():
        print(f"{parcellation.names[place]}\t{by_parcel[place]:.3f}")
    for limit in find_limits(points):
        caught, alarmed = rates(points, limit)
        print(
            f"limit {limit:.2f}: {caught:.0%} of Dice < 0.7 caught, {alarmed:.0%} alarmed"
        )


def _timed(predictor: Predictor, scan: Volume) -> tuple[Prediction, float]:
    """A scan's prediction with all its label maps, and the seconds of the processor for it."""
    began = process_time()
    found = predictor.segment(scan)
    assert found.labels
    if found.parcel_map is not None:
        assert found.parcel_labels
    return found, process_time() - began


def scores(
    parcellation: Parcellation, truth: NDArray[np.uint8], found: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """The Dice of each parcel, in the order of the parcellation's names."""
    whole = parcellation.whole
    values = dice(joint_histogram(truth, found, len(whole)))
    places = [whole.names.index(name) for name in parcellation.names]
    return np.asarray(values)[places]


def _subjects(
    root: Path, parcellation: Parcellation, source: str, names: tuple[str, ...]
) -> list[Subject]:
    """All subjects of a dataset that have a scan and parcels, or those of these names."""
    whole = parcellation.whole
    labels = _LABEL_MAPS.get(source)
    options = SourceOptions(scheme=whole.name, labels=labels)
    subjects = []
    for found in list_subjects(source, root, options).subjects:
        assert found.image is not None
        if found.labels is None or (names and found.id not in names):
            continue
        numbers = Volume.read(found.labels, labels=True).data
        truth = whole.from_freesurfer(numbers, fold=found.fold)
        subjects.append(Subject(found.id, Volume.read(found.image), truth))
    return subjects


def _by_weights(
    predictor: Predictor,
    networks: Predictor,
    parcellation: Parcellation,
    subject: Subject,
) -> list[float]:
    """The mean Dice by each of WEIGHTS; the networks see the scan once."""
    conformed = predictor.prepare(subject.scan)
    image = predictor.on_device(conformed)
    region, fusion, maps = predictor.find_and_fuse(image)
    cortex = likely_cortex(fusion.fused, parcellation)
    within = may_be_cortex(cortex)
    parts = list(networks.each_view(image[region.box], within=within))
    means = []
    for weights in WEIGHTS:
        by_view = {
            view: torch.full((len(parcellation.parcels),), weight)
            for view, weight in zip(_VIEWS, weights, strict=True)
        }
        parcels = join_views(parts, cortex, networks.axes, by_view, parcellation)
        found = predictor.conclude(
            conformed, region, fusion.fused, maps, parcels=parcels
        )
        values = scores(parcellation, subject.truth, found.parcel_indices.data)
        means.append(float(np.nanmean(values)))
    return means
