"""Changes of a scan that carry no meaning: offsets, factors, types, padding, axes, cuts, masks.

No network runs. A change that affects no tissue must give the very same working grid; one that
removes tissue must be found by the checks, given labels that are right.
"""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np

from attacks.verdicts import wrong
from attacks.workshop import Try
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.field import check_field_of_view
from trinat.segmentation.inference.checks.limits import LIMITS
from trinat.segmentation.inference.measuring import why_not_measured
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import reoriented

_AXES = [
    "".join(letters)
    for order in itertools.permutations(("RL", "AP", "SI"))
    for letters in itertools.product(*order)
]
_SHAPE = (76, 80, 74)
# Radii in voxels of 1 mm: the brain, the inside of the skull, and the head.
_BRAIN, _INSIDE, _HEAD = 22, 25, 34


@functools.cache
def _radius() -> np.ndarray:
    axes = np.ogrid[tuple(slice(n) for n in _SHAPE)]
    squares = [(axis - (n - 1) / 2) ** 2 for axis, n in zip(axes, _SHAPE, strict=True)]
    return np.sqrt(sum(squares))


@functools.cache
def _head(air: str) -> np.ndarray:
    """Return a brain in its head as integers; air is 0, or magnitude noise."""
    radius = _radius()
    draw = np.random.default_rng(5)
    values = np.where(radius < _HEAD, draw.integers(350, 700, _SHAPE), 0)
    if air == "noise":
        values = np.hypot(values + draw.normal(0, 6, _SHAPE), draw.normal(0, 6, _SHAPE))
    return np.rint(values).astype(np.int32)


def same_tissue(attempt: Try) -> None:
    """Apply some of offset, factor, padding, crop, axes and type.

    The working grid must not change.
    """
    chance = attempt.chance
    air = chance.choice(("zero", "noise"))
    plain = Volume(_head(air), np.eye(4))
    scan = plain
    done = []
    ways = [_offset, _factor, _padded, _other_axes]
    if air == "zero":
        ways.append(_cropped)
    for way in chance.sample(ways, chance.randint(1, len(ways))):
        scan, what = way(scan, chance)
        done.append(what)
    kind = chance.choice(("i4", "f4", "f8"))
    scan = Volume(scan.data.astype(kind), scan.affine)
    wanted = conform(plain, shape=None).volume
    found = conform(scan, shape=None).volume
    what = f"air of {air}, {', '.join(done)}, {kind}"
    if found.shape != wanted.shape or not np.allclose(found.affine, wanted.affine):
        raise wrong(f"{what}: another working grid")
    if not np.allclose(found.data, wanted.data, rtol=0, atol=1e-4):
        raise wrong(f"{what}: another image on the working grid")


def _offset(scan: Volume, chance: random.Random) -> tuple[Volume, str]:
    value = chance.choice((-1024, -1, 1, 2, 1000, chance.randint(-9999, 9999)))
    return Volume(scan.data + value, scan.affine), f"{value:+}"


def _factor(scan: Volume, chance: random.Random) -> tuple[Volume, str]:
    value = chance.randint(2, 9)
    return Volume(scan.data * value, scan.affine), f"times {value}"


def _padded(scan: Volume, chance: random.Random) -> tuple[Volume, str]:
    value = chance.choice((0, -60, chance.randint(-9999, 9999)))
    widths = [(chance.randint(0, 9), chance.randint(0, 9)) for _ in range(3)]
    data = np.pad(scan.data, widths, constant_values=value)
    affine = scan.affine.copy()
    affine[:3, 3] -= affine[:3, :3] @ [before for before, _ in widths]
    return Volume(data, affine), f"padded by {widths} of {value}"


def _cropped(scan: Volume, chance: random.Random) -> tuple[Volume, str]:
    """Crop some constant planes at the lower ends."""
    counts = [chance.randint(0, 3) for _ in range(3)]
    kept = []
    for axis, count in enumerate(counts):
        planes = np.moveaxis(scan.data, axis, 0)
        even = 0
        while even < count and np.ptp(planes[even]) == 0:
            even += 1
        kept.append(slice(even, planes.shape[0]))
    x, y, z = kept
    return Volume(
        scan.data[x, y, z], scan.grid.cut((x, y, z)).affine
    ), f"cropped by {counts}"


def _other_axes(scan: Volume, chance: random.Random) -> tuple[Volume, str]:
    axes = chance.choice(_AXES)
    return reoriented(scan, axes), axes


def missing_tissue(attempt: Try) -> None:
    """Cut or strip a head, whatever replaces the tissue: it needs a grade, or has no volume."""
    chance = attempt.chance
    draw = np.random.default_rng(chance.getrandbits(32))
    radius = _radius()
    scheme = load_scheme("quicknat33")
    labels = np.where(radius < _INSIDE, scheme.names.index("CSF"), 0)
    labels[radius < _BRAIN] = 1
    level = chance.choice((0.0, 0.001, 1.0, 5.0, 15.0))
    air = (
        draw.rayleigh(level, _SHAPE)
        if chance.random() < 0.5
        else np.full(_SHAPE, level)
    )
    stripped = chance.random() < 0.5
    gone = radius >= _INSIDE
    what = "stripped"
    if not stripped:
        axis = chance.randrange(3)
        # At least 10 mm of the brain, and so 10 cm² of its cross-section.
        place = chance.randint(_SHAPE[axis] // 2, _SHAPE[axis] // 2 + _BRAIN - 10)
        gone = np.moveaxis(np.zeros(_SHAPE, bool), axis, 0)
        gone[place:] = True
        gone = np.moveaxis(gone, 0, axis)
        what = f"axis {axis} cut at {place}"
    image = np.where(gone, air, _head("noise")).astype(np.float32)
    shift = chance.choice((0.0, -1024.0, 7.0))
    seen = conform(Volume(image + np.float32(shift), np.eye(4)), shape=None)
    left = np.where(gone, 0, labels).astype(np.uint8)
    classes = conform(Volume(left, np.eye(4)), labels=True, plan=seen.plan).volume
    volumes = {"CSF": 1.0, "Left-Cerebral-White-Matter": 1.0}
    evidence = Evidence(
        seen.volume, classes, seen.plan.scan, scheme, volumes, None, "intracranial"
    )
    what = f"{what}, {level:g} there, {shift:+g}"
    if not why_not_measured(evidence, classes.data > 0, LIMITS):
        raise wrong(f"{what}: an intracranial volume")
    if not stripped and not check_field_of_view(evidence, LIMITS):
        raise wrong(f"{what}: no cut is found")


ATTACKS = {
    "background: same tissue": same_tissue,
    "background: missing tissue": missing_tissue,
}
