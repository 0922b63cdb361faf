"""Training and accuracy of the network for lesions, for docs/lesions.md.

`scripts/bench lesions MODEL PAINTED MASKS OUT SCAN:MASK:PARTICIPANT ...` trains on the scans of
PAINTED (of `scripts/bench paint_lesions`; may be empty) and on scans with masks. MODEL finds their
structures, and MASKS has lesions in MNI space, from which follows how often lesions lie at a place.
For each PARTICIPANT it prints the Dice, lesions found, missed and invented, and the volumes, of a
network that learnt from all others; masks of these names in MASKS are left out. The network that
learnt from all is written to the file OUT.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file

from trinat.segmentation.inference.lesion_network import (
    Image,
    LesionNetwork,
    VoxelFeatures,
    features_of,
    groups_of,
    lesion_probability,
    prior_of,
)
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.lesions import MatchedLesions
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import reoriented
from trinat.segmentation.synthetic.lesions import LESION
from trinat.segmentation.training.lesion_fit import (
    VoxelSample,
    fit_lesion_network,
    sample_voxels,
)

_STEPS = 1000
# A scan of a patient counts as much as so many painted ones.
_REAL_WEIGHT = 5.0


@dataclass(frozen=True, eq=False)
class _Scan:
    """Features of a scan, and its lesions on the working grid (X, Y, Z)."""

    name: str
    participant: str
    features: VoxelFeatures
    lesions: NDArray[np.bool_]


def run(model: str, painted: str, masks: str, out: str, *pairs: str) -> None:
    """Print the accuracy in each participant, and write the network of all."""
    # Thick slices are sharp in this view only.
    predictor = Predictor(model, views=["axial"])
    rng = np.random.default_rng(0)
    # Features have the prior in them, so one prior without any of the participants serves all.
    participants = sorted({pair.rpartition(":")[2] for pair in pairs})
    prior = _prior(Path(masks), participants)
    samples = []
    for name in sorted(Path(painted, "images").glob("*.nii.gz")):
        labels = Path(painted, "labels", name.name)
        scan = _read(predictor, name, labels, "", prior)
        if scan is not None:
            samples.append(sample_voxels(scan.features, scan.lesions, rng))
    scans = list(_real(predictor, pairs, prior))
    every = [
        sample_voxels(scan.features, scan.lesions, rng, _REAL_WEIGHT) for scan in scans
    ]
    for participant in participants:
        others = [
            sample
            for scan, sample in zip(scans, every, strict=True)
            if scan.participant != participant
        ]
        network = _fit(samples + others, prior)
        for scan in scans:
            if scan.participant == participant:
                print(_row(scan, network))
    save_file(_fit(samples + every, prior).state_dict(), out)


def _fit(samples: Sequence[VoxelSample], prior: Image) -> LesionNetwork:
    return fit_lesion_network(samples, prior, steps=_STEPS)


def _prior(masks: Path, without: Collection[str]) -> Image:
    """Return how often lesions lie at a place, without the masks of some participants."""
    read = []
    for path in sorted(masks.glob("*.nii.gz")):
        if path.name.removesuffix(".nii.gz") not in without:
            mask = reoriented(Volume.read(path, labels=True), "RAS")
            read.append((mask.data > 0, mask.affine[:3, 3]))
    return prior_of(read)


def _real(predictor: Predictor, pairs: Sequence[str], prior: Image) -> Iterator[_Scan]:
    """Read the scans with masks; those in which no brain is found are left out."""
    for pair in pairs:
        image, mask, participant = pair.split(":")
        scan = _read(predictor, Path(image), Path(mask), participant, prior)
        if scan is not None:
            yield scan


def _read(
    predictor: Predictor, image: Path, labels: Path, participant: str, prior: Image
) -> _Scan | None:
    """Read a scan and find its structures; None if its features cannot be computed."""
    volume = Volume.read(image)
    conformed = predictor.prepare(volume)
    found = predictor.infer(conformed)
    box = found.plan.working
    seen = Volume(predictor.image_of(conformed).cpu().numpy(), conformed.volume.affine)
    corner = np.linalg.solve(seen.affine, box.affine)[:3, 3].round().astype(int)
    part = tuple(
        slice(start, start + length)
        for start, length in zip(corner, box.shape, strict=True)
    )
    features = features_of(
        seen.data[part],
        groups_of(found.fused, found.scheme),
        prior,
        max(volume.spacing_mm),
    )
    if features is None:
        return None
    numbers = Volume.read(labels, labels=True)
    # Painted label maps have structures, too.
    is_lesion = numbers.data == LESION if not participant else numbers.data > 0
    mask = Volume(is_lesion.astype(np.uint8), volume.affine)
    on_grid = conform(mask, labels=True, plan=found.plan).volume.data > 0
    return _Scan(f"{image.parent.name}/{image.name}", participant, features, on_grid)


def _row(scan: _Scan, network: LesionNetwork) -> str:
    """Return a row of a table in Markdown: overlap, lesions and volumes of a scan."""
    found = lesion_probability(network, scan.features) >= 0.5
    truth = scan.lesions
    both = np.count_nonzero(found & truth)
    dice = 2 * both / max(found.sum() + truth.sum(), 1)
    counts = MatchedLesions.between(truth, found, 1.0).counts
    return (
        f"| {scan.name} | {dice:.2f} | {counts.f1:.2f} | {counts.found} "
        f"| {counts.true - counts.found} | {counts.predicted - counts.right} "
        f"| {found.sum() / 1000:.1f} | {truth.sum() / 1000:.1f} |"
    )
