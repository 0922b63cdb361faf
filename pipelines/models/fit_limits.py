"""Step of `trinat fit`: the agreement between the views below which a structure gets a bad grade.

Phantoms (synthetic heads of known anatomy) are segmented whose scans have noise, blur and other
defects of different strength. For each structure, the agreement between the views, which is known
without a true label map, is compared with its Dice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.inference.checks.evidence import ENOUGH_MM3
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.counted import Made
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.models.model_info import Quality
from trinat.segmentation.synthetic.phantom import phantom

_log = logging.getLogger(__name__)

DOUBTFUL = 0.7  # Dice below which a structure is doubtful
SENSITIVITY = 0.9  # share of the doubtful structures that the first limit must catch
MOST_ALARMED = (
    0.2  # maximum share of other structures below it, even if fewer are caught
)
# Limits to try: 0.00 to 1.01. The last one is above any agreement.
_LIMITS = [number / 100 for number in range(102)]
PRECISION = (
    0.9  # minimum share of doubtful structures among those below the second limit
)
# Field around the thalamus, in mm. It has parts of all structures, in a sixth of the time.
_FIELD_MM = (96, 112, 96)
_OFFSET_MM = (0, -8, -8)
_THALAMUS = (10, 49)
_WHITE_MATTER = (2, 41)

Floats = NDArray[np.float32]
Change = Callable[[Floats, np.random.Generator, Any], Floats]


@dataclass(frozen=True)
class Point:
    """Agreement between the views and Dice of one structure in one segmented phantom.

    `agreement` is the mean Dice between the views, 0 if no view found the structure. `dice` is the
    Dice of the fused segmentation with the true label map.
    """

    agreement: float
    dice: float


def noise(image: Floats, draw: np.random.Generator, share: float) -> Floats:
    """Add Rician noise; `share` is its standard deviation as a fraction of white matter (1).

    `draw` generates the random numbers.
    """
    real = share * draw.standard_normal(image.shape, np.float32)
    imaginary = share * draw.standard_normal(image.shape, np.float32)
    return np.asarray(np.hypot(image + real, imaginary))


def bias(image: Floats, _: np.random.Generator, strength: float) -> Floats:
    """Multiply a scan by a bias field: gains from e^-strength to e^strength, corner to corner."""
    lines = [np.linspace(-1, 1, length) for length in image.shape]
    ramps = np.meshgrid(*lines, indexing="ij")
    gain = np.exp(strength * sum(ramps) / 3)
    return np.asarray(image * gain, np.float32)


def blur(image: Floats, _: np.random.Generator, sd_mm: float) -> Floats:
    """Blur a scan by a Gaussian with the standard deviation `sd_mm`."""
    return np.asarray(ndimage.gaussian_filter(image, sd_mm))


def gamma(image: Floats, _: np.random.Generator, power: float) -> Floats:
    """Raise intensities to the exponent `power`, which changes the contrast.

    0 (air) and 1 (white matter) stay as they are.
    """
    return np.asarray(image**power)


def inverted(image: Floats, _: np.random.Generator, share: float) -> Floats:
    """Blend tissue with an inverted contrast like T2; `share` is its weight, 0 to 1.

    Air stays as it is.
    """
    turned = (1 - share) * image + share * (1.3 - image)
    return np.asarray(np.where(image > 0.1, turned, image).clip(0))


def thick(image: Floats, _: np.random.Generator, slices_mm: int) -> Floats:
    """Average axial slices over `slices_mm`; repeat each on the original grid of thin slices."""
    running_means = ndimage.uniform_filter1d(image, slices_mm, axis=2)
    thick_slices = running_means[:, :, slices_mm // 2 :: slices_mm]
    repeated = thick_slices.repeat(slices_mm, axis=2)
    return np.asarray(repeated[:, :, : image.shape[2]])


def cut(image: Floats, _: np.random.Generator, share: float) -> Floats:
    """Set the right part of the field to 0, as if the field of view had been planned badly.

    `share` is the part of the field that is lost, 0 to 1.
    """
    damaged = image.copy()
    first_lost = round(image.shape[0] * (1 - share))
    damaged[first_lost:] = 0
    return damaged


@dataclass(frozen=True)
class GradedPhantom:
    """A synthetic head of known anatomy whose scan is degraded: noise, blur, bias and others.

    `seed` determines the head. `change` is the function that degrades the scan, such as `noise`,
    and `amount` its strength, in the unit of that function.
    """

    name: str
    seed: int
    change: Change
    amount: Any

    def make(self) -> tuple[Volume, Volume]:
        """Make the degraded scan, in which white matter is about 1, and its true label map.

        Both show the part of the head around the thalamus. The label map has FreeSurfer's numbers.
        """
        scan, truth = middle(self.seed)
        rng = np.random.default_rng(self.seed)
        image = self.change(scan.data, rng, self.amount)
        return Volume(np.asarray(image, np.float32), scan.affine), truth


PHANTOMS = (
    GradedPhantom("clean", 1, gamma, 1),
    GradedPhantom("noise 0.05", 2, noise, 0.05),
    GradedPhantom("noise 0.12", 1, noise, 0.12),
    GradedPhantom("noise 0.25", 2, noise, 0.25),
    GradedPhantom("bias 0.6", 1, bias, 0.6),
    GradedPhantom("bias 1.2", 2, bias, 1.2),
    GradedPhantom("blur 1.2 mm", 2, blur, 1.2),
    GradedPhantom("blur 2.5 mm", 1, blur, 2.5),
    GradedPhantom("gamma 0.5", 1, gamma, 0.5),
    GradedPhantom("gamma 2.5", 2, gamma, 2.5),
    GradedPhantom("inverted by 0.4", 1, inverted, 0.4),
    GradedPhantom("inverted by 1", 2, inverted, 1.0),
    GradedPhantom("slices of 4 mm", 1, thick, 4),
    GradedPhantom("slices of 7 mm", 2, thick, 7),
    GradedPhantom("cut by 0.25", 2, cut, 0.25),
    GradedPhantom("cut by 0.45", 1, cut, 0.45),
)


def find_limits(points: Sequence[Point]) -> tuple[float, float]:
    """Return the agreements between views below which a structure is graded look, and reject.

    Both limits are from 0 to 1.01. A structure is doubtful if its Dice is below DOUBTFUL. The limit
    for look is the lower of two: the lowest that catches the share SENSITIVITY of the doubtful
    structures, and the highest below which at most the share MOST_ALARMED of the other structures
    lies. For the limit for reject, at least the share PRECISION of all structures below it must be
    doubtful. Of the limits for which this holds and that are not above the first, it is the lowest
    that catches most; 0 if there is none. EvaluationError is raised if no structure is doubtful.
    """
    if not any(point.dice < DOUBTFUL for point in points):
        raise EvaluationError(
            f"no structure of the phantoms has a Dice below {DOUBTFUL}",
            remedy="the model is graded by the general limits",
        )
    all_rates = {limit: rates(points, limit) for limit in _LIMITS}
    catching = [
        limit for limit, (caught, _) in all_rates.items() if caught >= SENSITIVITY
    ]
    # The share is NaN if there are no other structures; any limit is tolerable then.
    tolerable = [
        limit for limit, (_, alarmed) in all_rates.items() if not alarmed > MOST_ALARMED
    ]
    look = min(catching[0], tolerable[-1])
    reject = 0.0
    most_caught = 0.0
    for limit in _LIMITS:
        caught, _ = all_rates[limit]
        below = [point.dice < DOUBTFUL for point in points if point.agreement < limit]
        # If several limits catch equally many, the lowest is taken.
        if limit <= look and caught > most_caught and np.mean(below) >= PRECISION:
            reject = limit
            most_caught = caught
    return look, reject


def rates(points: Sequence[Point], limit: float) -> tuple[float, float]:
    """Return the shares of doubtful and of other structures with an agreement below `limit`.

    A structure is doubtful if its Dice is below DOUBTFUL. Shares are from 0 to 1; NaN if there are
    no such structures.
    """
    caught = [point.agreement < limit for point in points if point.dice < DOUBTFUL]
    alarmed = [point.agreement < limit for point in points if point.dice >= DOUBTFUL]
    return _share(caught), _share(alarmed)


def _share(flags: Sequence[bool]) -> float:
    if not flags:
        return float("nan")
    return float(np.mean(flags))


def fit_limits(model: Model, *, device: str) -> tuple[Quality, list[str]]:
    """Find the agreement between views below which a structure of a model is graded look or reject.

    It is found in the model's segmentations of all phantoms, in which the Dice of each structure is
    known. Returns both limits, and lines for the user: which share of the structures with a low
    Dice, and of the others, is below each limit. EvaluationError is raised if no structure of the
    phantoms has a low Dice.
    """
    segmenter = Predictor(model, device=device)
    points = []
    for graded in PHANTOMS:
        scan, truth = graded.make()
        points += _measure(segmenter, graded.name, scan, truth)
    limits = find_limits(points)
    lines = [f"{len(points)} structures in {len(PHANTOMS)} phantoms"]
    lines += _describe_limits(limits, points)
    origin = "trinat fit: " + "; ".join(lines)
    return Quality(agreement=limits, origin=origin), lines


def _measure(
    segmenter: Predictor,
    name: str,
    scan: Volume,
    truth: Volume,
) -> list[Point]:
    """Segment a phantom; return the agreement between views and the Dice of each structure.

    `name` is that of the phantom, for the log. `truth` is its exact label map, with FreeSurfer's
    numbers. Structures that the model does not predict are omitted, and so are structures of less
    than `ENOUGH_MM3` in the exact label map. There, CSF is a small region; it is omitted, too, if
    the model's CSF means all fluid.
    """
    found = segmenter.segment(scan)
    assert found.agreement is not None
    numbers = np.unique(truth.data).tolist()
    unknown = [one for one in numbers if not found.scheme.classes_of_number(one)]
    classes = found.scheme.from_freesurfer(truth.data, ignore=unknown)
    joint = joint_histogram(classes, found.indices.data, len(found.scheme))
    true_mm3 = joint.sum(axis=1) * found.voxel_mm3
    values = dice(joint)
    made = Made(source=found.scheme, not_predicted=found.not_predicted, csf=found.csf)
    left_out = made.left_out(found.scheme, truth_csf="region")
    points = []
    for label in found.scheme.labels[1:]:
        if true_mm3[label.index] < ENOUGH_MM3 or label.name in left_out:
            continue
        agreement = np.nan_to_num(found.agreement[label.index])
        points.append(Point(float(agreement), float(values[label.index])))
    mean_dice = np.mean([point.dice for point in points])
    _log.info("%s: %d structures, Dice %.2f", name, len(points), mean_dice)
    return points


def _describe_limits(
    limits: tuple[float, float], points: Sequence[Point]
) -> Iterator[str]:
    """Yield a line for each limit: which shares of bad and of good structures are below it.

    `limits` are the agreements for the grades look and reject. Bad is a Dice below DOUBTFUL.
    """
    for name, limit in zip(("look", "reject"), limits, strict=True):
        caught, alarmed = rates(points, limit)
        yield (
            f"{name} below {limit:.2f}: {caught:.0%} of Dice < {DOUBTFUL} caught, "
            f"{alarmed:.0%} of the others alarmed"
        )


@cache
def middle(seed: int) -> tuple[Volume, Volume]:
    """Make a phantom; return the part of its scan around the thalamus, and the same of its labels.

    The label map is exact and has FreeSurfer's numbers. The scan is scaled so that the median of
    white matter is 1.
    """
    return _cut_out(*phantom(seed))


def _cut_out(scan: Volume, truth: Volume) -> tuple[Volume, Volume]:
    """Return the part of a scan around the thalamus, and the same part of its label map.

    The scan is scaled so that the median of white matter is 1.
    """
    # Both are on RAS grids of 1 mm, so that voxels count as millimetres.
    thalamus = np.argwhere(np.isin(truth.data, _THALAMUS))
    centre = thalamus.mean(axis=0) + _OFFSET_MM
    sides = []
    for middle_voxel, length in zip(centre, _FIELD_MM, strict=True):
        first = max(0, round(middle_voxel - length / 2))
        end = round(middle_voxel + length / 2)
        sides.append(slice(first, end))
    box = tuple(sides)
    is_white_matter = np.isin(truth.data, _WHITE_MATTER)
    brightness = np.float32(np.median(scan.data[is_white_matter]))
    affine = scan.affine.copy()
    corner = [side.start for side in sides]
    affine[:3, 3] += affine[:3, :3] @ corner
    image = scan.data[box].astype(np.float32) / brightness
    return Volume(image, affine), Volume(truth.data[box], affine)
