"""Attacks on measures: callosum and thickness of heads that show little of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from attacks.verdicts import wrong
from attacks.workshop import Try
from trinat.pipelines.predict.case_files import callosum_result
from trinat.segmentation.grid import Grid, grown, occupied_box
from trinat.segmentation.inference.measuring import grade_thickness
from trinat.segmentation.inference.parcels import (
    Parcels,
    likely_cortex,
    may_be_cortex,
)
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.thickness import THICKNESS_RANGE_MM
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import ConformPlan
from trinat.segmentation.synthetic.phantom import phantom

_SCHEME = load_scheme("quicknat33")
_PARCELLATION = Parcellation(_SCHEME, load_scheme("desikan34"))

Chance = np.random.Generator
Field = NDArray[np.float32]
# Image (X, Y, Z) and probabilities (X, Y, Z, K), float32.
Head = tuple[Field, Field]
Damage = Callable[[Field, Field, Chance], Head]


@functools.cache
def _head() -> Head:
    """Return a head of half the usual size, which is measured in a fraction of the time."""
    scan, labels = phantom(5, spacing_mm=(2.0, 2.0, 2.0))
    classes = _SCHEME.from_freesurfer(labels.data)
    box = grown(occupied_box(classes > 0), classes.shape, 4)
    image = scan.data[box].astype(np.float32)
    probabilities = np.eye(len(_SCHEME), dtype=np.float32)[classes[box]]
    return image / np.percentile(image, 99), probabilities


def _empty(image: Field, probabilities: Field, chance: Chance) -> Head:
    return image, np.broadcast_to(probabilities[:1, :1, :1], probabilities.shape)


def _dark(image: Field, probabilities: Field, chance: Chance) -> Head:
    return np.zeros_like(image), probabilities


def _noisy(image: Field, probabilities: Field, chance: Chance) -> Head:
    noise = chance.normal(0, chance.uniform(0.05, 1), image.shape)
    return image + noise.astype(np.float32), probabilities


def _blurred(image: Field, probabilities: Field, chance: Chance) -> Head:
    width = chance.uniform(0.5, 4)
    smooth = ndimage.gaussian_filter(probabilities, (width, width, width, 0))
    return ndimage.gaussian_filter(image, width), smooth


def _uncertain(image: Field, probabilities: Field, chance: Chance) -> Head:
    odds = probabilities + chance.random(probabilities.shape, np.float32)
    return image, odds / odds.sum(-1, keepdims=True)


def _one_sided(image: Field, probabilities: Field, chance: Chance) -> Head:
    other = probabilities.copy()
    side = chance.choice(("left", "right"))
    for label in _SCHEME.labels:
        if label.side == side:
            other[..., 0] += other[..., label.index]
            other[..., label.index] = 0
    return image, other


def _cropped(image: Field, probabilities: Field, chance: Chance) -> Head:
    """Keep a box anywhere in the head, often one or a few voxels wide."""
    box = []
    for length in image.shape:
        wanted = int(chance.choice((1, 2, 5, length // 2, length - 8, length)))
        wanted = min(max(wanted, 1), length)
        start = int(chance.integers(0, length - wanted + 1))
        box.append(slice(start, start + wanted))
    return image[tuple(box)], probabilities[tuple(box)]


_DAMAGES: tuple[Damage, ...] = (
    *(_empty, _dark, _noisy, _blurred, _uncertain, _one_sided),
    *(_cropped, _cropped),
)


def _segmented(attempt: Try) -> tuple[str, Prediction]:
    """Return a damaged head's segmentation, often of a scan with thick slices, and its name."""
    chance = np.random.default_rng(attempt.chance.getrandbits(32))
    image, probabilities = _head()
    chosen = chance.choice(len(_DAMAGES), chance.integers(1, 4), replace=False)
    names = []
    for number in sorted(chosen):
        damage = _DAMAGES[number]
        image, probabilities = damage(image, probabilities, chance)
        names.append(damage.__name__.strip("_"))
    working = Grid(image.shape, np.eye(4))
    spacing_mm = chance.choice((1.0, 1.0, 2.0, 7.0), 3)
    affine = np.diag([*spacing_mm, 1])
    affine[:3, 3] = (spacing_mm - 1) / 2
    shape = np.ceil(image.shape / spacing_mm).astype(int)
    scan = Grid(tuple(shape.tolist()), affine)
    fused = torch.from_numpy(np.array(probabilities, np.float16))
    places = may_be_cortex(likely_cortex(fused, _PARCELLATION)).numpy()
    parcels = chance.integers(1, len(_PARCELLATION.parcels), np.count_nonzero(places))
    found = Prediction(
        fused=fused,
        scheme=_SCHEME,
        plan=ConformPlan(scan, (1, 1), working),
        image=Volume(image, working.affine),
        notes=(),
        agreement=None,
        uncertainty=None,
        not_predicted=(),
        parcel_map=Parcels(_PARCELLATION, places, parcels.astype(np.uint8), {}),
    )
    return f"{', '.join(names)}, voxels of {spacing_mm} mm", found


def callosum(attempt: Try) -> None:
    """Measure the callosum of a damaged head: it is white matter, or rejected as not found."""
    what, found = _segmented(attempt)
    measured = found.callosum
    parts = measured.labels.data
    if parts[~np.isin(found.labels.data, (2, 41))].any():
        raise wrong(f"{what}: callosum outside of white matter")
    if parts.any() and not measured.volume_mm3 > 0:
        raise wrong(f"{what}: a callosum in the map has no volume")
    if not parts.any() and measured.grade != "reject":
        raise wrong(f"{what}: an empty callosum is not rejected")
    if measured.grade != "pass" and not measured.reasons:
        raise wrong(f"{what}: graded {measured.grade} without a reason")
    values = measured.measures.values()
    if measured.section is None:
        is_sound = set(values) == {None}
    else:
        is_sound = all(
            value is not None and np.isfinite(value) and value > 0 for value in values
        )
    if not is_sound:
        raise wrong(f"{what}: measures {measured.measures}")
    callosum_result(measured)


def thickness(attempt: Try) -> None:
    """Measure the cortex of a damaged head: thickness on cortex only, and within its range."""
    what, found = _segmented(attempt)
    measured = found.cortex_thickness
    for hemisphere in measured.hemispheres:
        parcels = [one for one in measured.parcels if one.side == hemisphere.side]
        for name in ("volume_mm3", "area_mm2"):
            total = sum(getattr(parcel, name) for parcel in parcels)
            if not np.isclose(total, getattr(hemisphere, name)):
                raise wrong(f"{what}: {name} of parcels is not that of the hemisphere")
        for sheet in (hemisphere, *parcels):
            mean_mm = sheet.thickness_mm
            if (mean_mm is None) != (sheet.volume_mm3 == 0):
                raise wrong(f"{what}: {sheet}")
            if mean_mm is not None and not _in_range(np.array([mean_mm])):
                raise wrong(f"{what}: {sheet}")
    shown = found.thickness_map.data
    if shown[~np.isin(found.labels.data, (3, 42))].any():
        raise wrong(f"{what}: thickness outside of the cortex")
    if not _in_range(shown[shown != 0]):
        raise wrong(f"{what}: {shown.min()} to {shown.max()} mm thick")
    with_agreement = replace(found, agreement=np.ones(len(_SCHEME)))
    for one in (found, with_agreement):
        grade, reasons = grade_thickness(one.evidence)
        if (grade == "pass") == bool(reasons):
            raise wrong(f"{what}: graded {grade} for {reasons}")


def _in_range(thickness_mm: NDArray[np.floating]) -> bool:
    least, most = THICKNESS_RANGE_MM
    inside = (thickness_mm > least - 1e-3) & (thickness_mm < most + 1e-3)
    return bool(inside.all())


ATTACKS = {
    "callosum of damaged heads": callosum,
    "thickness of damaged heads": thickness,
}
