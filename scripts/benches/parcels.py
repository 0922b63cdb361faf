"""Accuracy of the cortical parcels of a model, and their cost, for docs/parcels.md.

`scripts/bench parcels MODEL FOLDER [SOURCE [NAME ...]]` takes a model with networks for parcels
and scans with parcels in the layout of a source of `trinat prepare`: FreeSurfer's subjects with
`aparc+aseg`, or `malc`. With NAMEs only these scans are used. It prints the mean Dice over all
parcels of each scan, with the model's own view weights, with each view alone and with other
weights; the processor seconds with and without parcels; the Dice of each parcel; the limits of
agreement between views that `trinat fit` would find in these scans; and odds of parcels that
bring the mean volumes nearer to the truth, with the effect on each scan of the odds fitted to
all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray

from trinat.pipelines.models.fit_limits import Point, find_limits, rates
from trinat.segmentation.data.sources.base import SourceOptions
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.inference.parcels import (
    join_views,
    likely_cortex,
    may_be_cortex,
    mean_of_views,
)
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.models.zoo import find_model, find_parcels_folder
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import View
from trinat.segmentation.training.odds_fit import DoubtfulVoxels

# Weights of the coronal, axial and sagittal view.
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
# Sources that store structures and parcels in separate files.
_LABEL_MAPS = {"freesurfer": "aparc+aseg.mgz"}
# Fits odds in this many steps and this far only: going all the way costs Dice in other
# participants.
_STEPS = 20
_SHARE = 0.5
_VIEWS = (View.CORONAL, View.AXIAL, View.SAGITTAL)


@dataclass(frozen=True, eq=False)
class Subject:
    """A subject's scan, its true labels and the true class of each voxel."""

    name: str
    scan: Volume
    labels: Volume
    fold: FoldingTable | None
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
    doubtful: list[DoubtfulVoxels] = []
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
        seen = Seen(plain, networks, subject)
        others.append(seen.by_weights())
        doubtful.append(seen.doubtful_voxels())
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
    if len(doubtful) > 1:
        _print_odds(doubtful, networks.model.scheme)


def _timed(predictor: Predictor, scan: Volume) -> tuple[Prediction, float]:
    """Return the prediction of a scan with all its label maps, and its processor seconds."""
    began = process_time()
    found = predictor.segment(scan)
    assert found.labels
    if found.parcel_map is not None:
        assert found.parcel_labels
    return found, process_time() - began


def scores(
    parcellation: Parcellation, truth: NDArray[np.uint8], found: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """Return the Dice of each parcel, in the order of the parcellation's names."""
    whole = parcellation.whole
    values = dice(joint_histogram(truth, found, len(whole)))
    places = [whole.names.index(name) for name in parcellation.names]
    return np.asarray(values)[places]


def _subjects(
    root: Path, parcellation: Parcellation, source: str, names: tuple[str, ...]
) -> list[Subject]:
    """Return all subjects of a dataset that have a scan and parcels, or those with these names."""
    whole = parcellation.whole
    labels = _LABEL_MAPS.get(source)
    options = SourceOptions(scheme=whole.name, labels=labels)
    subjects = []
    for found in list_subjects(source, root, options).subjects:
        assert found.image is not None
        if found.labels is None or (names and found.id not in names):
            continue
        scan = Volume.read(found.image)
        numbers = Volume.read(found.labels, labels=True)
        truth = whole.from_freesurfer(numbers.data, fold=found.fold)
        subjects.append(Subject(found.id, scan, numbers, found.fold, truth))
    return subjects


class Seen:
    """Network outputs of a subject, computed once."""

    def __init__(
        self, predictor: Predictor, networks: Predictor, subject: Subject
    ) -> None:
        self.predictor = predictor
        self.networks = networks
        self.subject = subject
        self.parcellation = Parcellation(predictor.model.scheme, networks.model.scheme)
        self.conformed = predictor.prepare(subject.scan)
        image = predictor.on_device(self.conformed)
        self.region, self.fused, self.maps = predictor.find_and_fuse(
            image, plan=self.conformed.plan
        )
        self.cortex = likely_cortex(self.fused, self.parcellation)
        within = may_be_cortex(self.cortex)
        image = image[self.region.box]
        self.parts = list(networks.each_view(image, within=within))

    def by_weights(self) -> list[float]:
        """Return the mean Dice for each of WEIGHTS."""
        means = []
        for weights in WEIGHTS:
            by_view = {}
            for view, weight in zip(_VIEWS, weights, strict=True):
                by_view[view] = weight / sum(weights)
            parcels = join_views(
                self.parts,
                self.cortex,
                self.networks.axes,
                by_view,
                self.networks.odds,
                self.parcellation,
            )
            found = self.predictor.conclude(
                self.conformed,
                self.region,
                self.fused,
                self.maps,
                parcels=parcels,
            )
            indices = found.parcel_indices.data
            values = scores(self.parcellation, self.subject.truth, indices)
            means.append(float(np.nanmean(values)))
        return means

    def doubtful_voxels(self) -> DoubtfulVoxels:
        """Return the voxels in the working grid that the odds of parcels decide on, sides alike."""
        logarithms, _ = mean_of_views(
            self.parts,
            self.cortex,
            self.networks.axes,
            self.networks.model.fusion_weights(self.networks.views),
            self.parcellation,
        )
        places = may_be_cortex(self.cortex)
        classes = self.fused.argmax(-1)
        is_cortex = torch.from_numpy(self.parcellation.is_cortex(classes.numpy()))
        shares = logarithms[is_cortex[places]].softmax(1)
        # The cortex is never background.
        shares = torch.nn.functional.pad(shares, (1, 0))
        truth = self._true_parcels()
        true_here = truth[self.region.box][(is_cortex & places).numpy()]
        count = len(self.parcellation.parcels)
        everywhere = np.bincount(truth.ravel(), minlength=count)
        here = np.bincount(true_here, minlength=count)
        return DoubtfulVoxels.of(
            shares[None, None], true_here[None, None], [0], beyond=everywhere - here
        )

    def _true_parcels(self) -> NDArray[np.uint8]:
        """Return the true parcels on the working grid (X, Y, Z), both sides alike."""
        subject = self.subject
        plan = self.conformed.plan
        numbers = conform(subject.labels, labels=True, plan=plan).volume.data
        return self.parcellation.parcels.from_freesurfer(numbers, fold=subject.fold)


def fit_to_volumes(seen: Sequence[DoubtfulVoxels]) -> NDArray[np.float64]:
    """Return log odds (K,) that correct half of the error of the mean volumes.

    Volumes are relative to that of all parcels: a common factor is no error of a single parcel.
    """
    logarithms = np.zeros(len(seen[0].decided))
    for _ in range(_STEPS):
        ratios = []
        for subject in seen:
            joint = subject.joint(logarithms)
            true = joint.sum(1)[1:].clip(min=1)
            found = joint.sum(0)[1:].clip(min=1)
            ratios.append(np.log(found / true))
        excess = np.mean(ratios, axis=0)
        logarithms[1:] -= excess - excess.mean()
    return _SHARE * logarithms


def _print_odds(seen: Sequence[DoubtfulVoxels], scheme: LabelScheme) -> None:
    """Print odds fitted to all subjects, and for each subject the effect of the others' odds."""
    rows = []
    for number, subject in enumerate(seen):
        fitted = fit_to_volumes([*seen[:number], *seen[number + 1 :]])
        row = []
        for logarithms in (np.zeros_like(fitted), fitted):
            joint = subject.joint(logarithms)
            true = joint.sum(1)[1:]
            found = joint.sum(0)[1:]
            difference = 2 * np.abs(found - true) / (found + true)
            row += [subject.mean_dice(logarithms, [0]), float(np.nanmean(difference))]
        rows.append(row)
    for row in [*rows, np.mean(rows, axis=0)]:
        before, differs, after, differs_after = row
        print(
            f"with odds of the others: Dice {before:.4f} to {after:.4f}, "
            f"volumes apart {differs:.1%} to {differs_after:.1%}"
        )
    odds = np.exp(fit_to_volumes(seen)).round(2)
    named = zip(scheme.names[1:], odds[1:], strict=True)
    print(", ".join(f"{name}: {factor}" for name, factor in named))
