"""trinat calibrate: how much a model's views must agree for a structure to be trusted.

Phantoms of graded difficulty are segmented; each structure's agreement between the views, which is
known without a truth, is held against its Dice. The limits are written to the model.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.pipelines.common.models import load_views
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels
from trinat.segmentation.errors import DatasetError, EvaluationError
from trinat.segmentation.inference.quality import ENOUGH_MM3
from trinat.segmentation.inference.segmentation import Segmentation
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.models.checkpoint import update_info
from trinat.segmentation.models.model_info import Quality
from trinat.segmentation.space.conform import conform
from trinat.segmentation.synthetic.phantom import phantom

DOUBTFUL = 0.7  # Dice
# Of the doubtful structures, so many are below the first limit; of those below the second, so many
# are doubtful.
SENSITIVITY, PRECISION = 0.9, 0.9
# Around the thalamus, in mm: parts of all structures, in a sixth of a whole head's time.
_FIELD_MM = (96, 112, 96)
_OFFSET_MM = (0, -8, -8)
_THALAMUS = (10, 49)
_WHITE_MATTER = (2, 41)

Floats = NDArray[np.float32]
Change = Callable[[Floats, np.random.Generator, Any], Floats]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """One structure of one scan."""

    agreement: float  # mean Dice between views; 0 where none found it
    dice: float


def noise(image: Floats, draw: np.random.Generator, share: float) -> Floats:
    """Magnitude noise, of the brightness of white matter (1)."""
    one, other = (
        share * draw.standard_normal(image.shape, np.float32) for _ in range(2)
    )
    return np.asarray(np.hypot(image + one, other))


def bias(image: Floats, _: np.random.Generator, strength: float) -> Floats:
    """A coil's gain, e^±strength from corner to corner."""
    ramps = np.meshgrid(*(np.linspace(-1, 1, n) for n in image.shape), indexing="ij")
    return np.asarray(image * np.exp(strength * sum(ramps) / 3), np.float32)


def blur(image: Floats, _: np.random.Generator, sd_mm: float) -> Floats:
    return np.asarray(ndimage.gaussian_filter(image, sd_mm))


def gamma(image: Floats, _: np.random.Generator, power: float) -> Floats:
    return np.asarray(image**power)


def inverted(image: Floats, _: np.random.Generator, share: float) -> Floats:
    """Towards the contrast of T2: tissue turned round by this share, air as dark as before."""
    turned = (1 - share) * image + share * (1.3 - image)
    return np.asarray(np.where(image > 0.1, turned, image).clip(0))


def thick(image: Floats, _: np.random.Generator, slices_mm: int) -> Floats:
    """Thick axial slices on a grid of thin ones."""
    means = ndimage.uniform_filter1d(image, slices_mm, axis=2)[
        :, :, slices_mm // 2 :: slices_mm
    ]
    return np.asarray(means.repeat(slices_mm, axis=2)[:, :, : image.shape[2]])


def cut(image: Floats, _: np.random.Generator, share: float) -> Floats:
    """The right part of the field lost, as in a scan that was planned badly."""
    kept = image.copy()
    kept[round(image.shape[0] * (1 - share)) :] = 0
    return kept


@dataclass(frozen=True)
class Case:
    """A phantom, changed for the worse by so much."""

    name: str
    seed: int
    change: Change
    amount: Any

    def read(self) -> tuple[Volume, Volume]:
        scan, truth = middle(self.seed)
        image = self.change(scan.data, np.random.default_rng(self.seed), self.amount)
        return Volume(np.asarray(image, np.float32), scan.affine), truth


CASES = (
    Case("clean", 1, gamma, 1),
    Case("noise 0.05", 2, noise, 0.05),
    Case("noise 0.12", 1, noise, 0.12),
    Case("noise 0.25", 2, noise, 0.25),
    Case("bias 0.6", 1, bias, 0.6),
    Case("bias 1.2", 2, bias, 1.2),
    Case("blur 1.2 mm", 2, blur, 1.2),
    Case("blur 2.5 mm", 1, blur, 2.5),
    Case("gamma 0.5", 1, gamma, 0.5),
    Case("gamma 2.5", 2, gamma, 2.5),
    Case("inverted by 0.4", 1, inverted, 0.4),
    Case("inverted by 1", 2, inverted, 1.0),
    Case("slices of 4 mm", 1, thick, 4),
    Case("slices of 7 mm", 2, thick, 7),
    Case("cut by 0.25", 2, cut, 0.25),
    Case("cut by 0.45", 1, cut, 0.45),
)


def find_limits(points: Sequence[Point]) -> tuple[float, float]:
    """The lowest limit of agreement that is sensitive enough, and the highest that is precise."""
    bad = sorted(point.agreement for point in points if point.dice < DOUBTFUL)
    if not bad:
        what = f"no structure of the phantoms has a Dice below {DOUBTFUL}"
        raise EvaluationError(what, remedy="the model is graded by the general limits")
    look = _just_above(bad[int(np.ceil(SENSITIVITY * len(bad))) - 1])
    reject = 0.0
    for limit in sorted({_just_above(agreement) for agreement in bad}):
        below = [point.dice < DOUBTFUL for point in points if point.agreement < limit]
        if limit <= look and np.mean(below) >= PRECISION:
            reject = limit
    return look, reject


def _just_above(agreement: float) -> float:
    """To hundredths."""
    return float(np.floor(agreement * 100 + 1) / 100)


def rates(points: Sequence[Point], limit: float) -> tuple[float, float]:
    """Share of the doubtful structures that a limit catches, and of the others that it alarms."""
    bad = [point.agreement < limit for point in points if point.dice < DOUBTFUL]
    good = [point.agreement < limit for point in points if point.dice >= DOUBTFUL]
    return float(np.mean(bad or np.nan)), float(np.mean(good or np.nan))


def calibrate(
    model: str,
    subjects: Sequence[Path] = (),
    *,
    device: str = "auto",
    say: Say = lambda line: None,
) -> list[str]:
    """Write a model's limits, and say how good they are; real subjects are only held against them.

    A subject is a folder of FreeSurfer's: its own labels are the truth.
    """
    segmenter = load_views(model, device, "copy its folder, and calibrate the copy")

    def look(name: str, scan: Volume, truth: Volume) -> list[Point]:
        points = list(_compare(segmenter.segment(scan), truth))
        say(
            f"{name}: {len(points)} structures, Dice {np.mean([p.dice for p in points]):.2f}"
        )
        return points

    # First, so that what cannot be read is known before all the work.
    real = [point for path in subjects for point in look(path.name, *_subject(path))]
    points = [point for case in CASES for point in look(case.name, *case.read())]
    limits = find_limits(points)
    lines = [
        f"{len(points)} structures in {len(CASES)} phantoms",
        *_say_limits(limits, points),
    ]
    origin = "trinat calibrate: " + "; ".join(lines)
    update_info(
        segmenter.model.folder, quality=Quality(agreement=limits, origin=origin)
    )
    lines += [
        f"real scans, {line}" for line in (_say_limits(limits, real) if real else ())
    ]
    return lines


def _say_limits(limits: tuple[float, float], points: Sequence[Point]) -> Iterator[str]:
    for name, limit in zip(("look", "reject"), limits, strict=True):
        caught, alarmed = rates(points, limit)
        shares = f"{caught:.0%} of Dice < {DOUBTFUL} caught, {alarmed:.0%} of the others alarmed"
        yield f"{name} below {limit:.2f}: {shares}"


@cache
def middle(seed: int) -> tuple[Volume, Volume]:
    return _cut_out(*phantom(seed))


def _cut_out(scan: Volume, truth: Volume) -> tuple[Volume, Volume]:
    """Part of a head around the thalamus, white matter at 1, and its truth."""
    centre = np.argwhere(np.isin(truth.data, _THALAMUS)).mean(axis=0) + _OFFSET_MM
    box = tuple(
        slice(max(0, round(c - n / 2)), round(c + n / 2))
        for c, n in zip(centre, _FIELD_MM, strict=True)
    )
    white = np.median(scan.data[np.isin(truth.data, _WHITE_MATTER)])
    affine = scan.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ [side.start for side in box]
    image = scan.data[box].astype(np.float32) / np.float32(white)
    return Volume(image, affine), Volume(truth.data[box], affine)


def _subject(folder: Path) -> tuple[Volume, Volume]:
    """The same part of a real head, and FreeSurfer's labels of it."""
    image, labels = find_image(folder, "T1"), find_labels(folder, "aseg")
    if image is None or labels is None:
        raise DatasetError("has no mri/T1.mgz and mri/aseg.mgz", where=folder)
    # In RAS axes, as phantoms are, so that the same field is cut out.
    ras = conform(Volume.read(image))
    truth = conform(Volume.read(labels, labels=True), labels=True, plan=ras.plan)
    if not np.isin(truth.volume.data, _THALAMUS).any():
        raise DatasetError("has no thalamus", where=labels)
    return _cut_out(ras.volume, truth.volume)


def _compare(found: Segmentation, truth: Volume) -> Iterator[Point]:
    """Structures that are there, in truth or as found, with 100 mm³ of the truth."""
    assert found.agreement is not None
    classes = found.scheme.from_freesurfer(truth.data)
    joint = joint_histogram(classes, found.indices.data, len(found.scheme))
    enough = joint.sum(axis=1) * found.voxel_mm3 >= ENOUGH_MM3
    values = dice(joint)
    for label in found.scheme.labels[1:]:
        if enough[label.index] and label.name not in found.not_predicted:
            agreement = np.nan_to_num(found.agreement[label.index])
            yield Point(float(agreement), float(values[label.index]))
