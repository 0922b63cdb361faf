"""The shipped model on phantoms: any orientation, oblique, anisotropic; brain is never cropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import permutations, product

import nibabel as nib
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial.transform import Rotation

from trinat.segmentation.grid import occupied_box
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.overlap import dice, joint_histogram, side_swap
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_labels
from trinat.segmentation.synthetic.anatomy import Anatomy, cells_of, load_anatomy
from trinat.segmentation.synthetic.phantom import phantom

SCHEME = load_scheme("quicknat33")
ORIENTATIONS = [
    "".join(axes)
    for order in permutations(("LR", "PA", "IS"))
    for axes in product(*order)
]
SPACINGS_MM = ((0.94, 0.94, 1.2), (0.8, 1.5, 0.8), (1.25, 1.0, 1.0))
FIELD_MM = (80, 96, 80)  # around the thalamus: parts of most structures
ENOUGH_MM3 = 500
THALAMUS = (10, 49)
SIDES = ("Left", "Right")


Head = tuple[Volume, Volume]  # scan and truth


@cache
def segmenter() -> Predictor:
    return Predictor("fast", device="cpu")


def middle(scan: Volume, truth: Volume) -> Head:
    """Return the same part of a head, whatever its axes."""
    world = nib.io_orientation(scan.affine)[:, 0].astype(int)
    centre = np.argwhere(np.isin(truth.data, THALAMUS)).mean(axis=0)
    half = np.array(FIELD_MM)[world] / scan.spacing_mm / 2
    box = tuple(
        slice(round(c - h), round(c + h)) for c, h in zip(centre, half, strict=True)
    )
    affine = scan.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ [side.start for side in box]
    return Volume(scan.data[box], affine), Volume(truth.data[box], affine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "axes"),
    [
        pytest.param(number, axes, marks=[] if number % 24 else pytest.mark.important)
        for number, axes in enumerate(ORIENTATIONS)
    ],
    ids=ORIENTATIONS,
)
def test_dice_in_the_scans_own_space_is_that_of_the_working_grid(
    number: int, axes: str
) -> None:
    spacing_mm = SPACINGS_MM[number % len(SPACINGS_MM)]
    scan, truth = middle(
        *phantom(
            number % 2,
            spacing_mm=spacing_mm,
            orientation=axes,
            oblique_deg=5 + number % 16,
        )
    )
    found = segmenter().segment(scan)
    to_working = GridMap.between(truth.grid, found.plan.working)
    own, working = (
        joint_histogram(SCHEME.from_freesurfer(true), predicted.data, len(SCHEME))
        for true, predicted in (
            (truth.data, found.indices),
            (resample_labels(truth.data, to_working), found.working),
        )
    )
    voxel_mm3 = np.prod(spacing_mm)
    kept = [
        label.index
        for label in SCHEME.labels[1:]
        if own[label.index].sum() * voxel_mm3 > ENOUGH_MM3
        and label.name not in found.not_predicted
    ]
    assert len(kept) > 20
    assert dice(own)[kept].mean() == pytest.approx(dice(working)[kept].mean(), abs=0.01)
    # Sides mixed only at the midline, not exchanged.
    assert np.nanmax(side_swap(own, SCHEME.partner_permutation)[kept]) < 0.2


def shifted(scan: Volume, truth: Volume) -> Head:
    """Move the head to a corner of a wider field of noise."""
    wide = (
        np.random.default_rng(1)
        .rayleigh(5, np.array(scan.shape) * 5 // 4)
        .astype(np.int16)
    )
    where = np.zeros(wide.shape, truth.data.dtype)
    corner = tuple(slice(0, n) for n in scan.shape)
    wide[corner], where[corner] = scan.data, truth.data
    return Volume(wide, scan.affine), Volume(where, scan.affine)


def rotated(scan: Volume, truth: Volume) -> Head:
    """Bend the head forward by 20° and turn it by as much."""
    turn = np.eye(4)
    turn[:3, :3] = Rotation.from_euler("xz", [-20, 20], degrees=True).as_matrix()
    return Volume(scan.data, turn @ scan.affine), Volume(truth.data, turn @ scan.affine)


def cut(scan: Volume, truth: Volume) -> Head:
    """Cut off the top quarter of the brain at the end of the scan."""
    side = occupied_box(truth.data > 0)[2]
    kept = side.stop - (side.stop - side.start) // 4
    return Volume(scan.data[..., :kept], scan.affine), Volume(
        truth.data[..., :kept], scan.affine
    )


def stripped(scan: Volume, truth: Volume) -> Head:
    return Volume(np.where(truth.data > 0, scan.data, 0), scan.affine), truth


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(rotated, marks=pytest.mark.important),
        pytest.param(cut, marks=pytest.mark.important),
        shifted,
        stripped,
    ],
)
def test_the_networks_box_never_cuts_brain(
    change: Callable[[Volume, Volume], Head],
) -> None:
    scan, truth = change(*phantom(3, spacing_mm=(2.0, 2.0, 2.0)))
    seen = segmenter().prepare(scan)
    brain = conform(truth, labels=True, plan=seen.plan).volume.data > 0
    region = segmenter().find_brain(torch.from_numpy(seen.volume.data))
    assert region.mask is not None
    assert brain[region.box][region.mask.numpy()].sum() == brain.sum() > 0.5e6
    assert int(region.mask.sum()) < brain.size


def with_tissues(anatomy: Anatomy, tissues: NDArray[np.uint8]) -> Anatomy:
    """Return the same head with other tissues in some places."""
    class_of = np.zeros(len(anatomy.contrast), np.uint8)
    class_of[anatomy.tissues] = anatomy.truth
    truth = class_of[tissues]
    return replace(anatomy, tissues=tissues, truth=truth, cells=cells_of(truth))


def widened_ventricles(anatomy: Anatomy) -> Anatomy:
    """Double the volume of the lateral ventricles at the expense of white matter."""
    tissues = anatomy.tissues.copy()
    for side in ("Left", "Right"):
        ventricle, white = (
            SCHEME.names.index(f"{side}-{name}")
            for name in ("Lateral-Ventricle", "Cerebral-White-Matter")
        )
        own = anatomy.truth == ventricle
        away = ndimage.distance_transform_edt(~own)
        free = np.flatnonzero((anatomy.truth == white).ravel())
        nearest = free[np.argsort(away.ravel()[free], kind="stable")[: own.sum()]]
        tissues.ravel()[nearest] = tissues[own][0]
    return with_tissues(anatomy, tissues)


def thinned_cortex(anatomy: Anatomy) -> Anatomy:
    """Replace the outermost millimetre of the cortex by fluid."""
    cortex = np.isin(
        anatomy.truth, [SCHEME.names.index(f"{s}-Cerebral-Cortex") for s in SIDES]
    )
    outside = anatomy.truth == 0
    fluid = np.bincount(
        anatomy.tissues[ndimage.binary_dilation(cortex) & outside]
    ).argmax()
    rim = cortex & ndimage.binary_dilation(outside)
    return with_tissues(anatomy, np.where(rim, np.uint8(fluid), anatomy.tissues))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "structure"),
    [
        (widened_ventricles, "Lateral-Ventricle"),
        pytest.param(
            thinned_cortex,
            "Cerebral-Cortex",
            # A limit of the model, stated in its card.
            marks=pytest.mark.xfail(
                reason="thin cortex is found 1.17 times its volume"
            ),
        ),
    ],
)
def test_an_old_brain_keeps_its_volumes(
    change: Callable[[Anatomy], Anatomy], structure: str
) -> None:
    scan, truth = phantom(0, anatomy=change(load_anatomy()))
    usual = phantom(0)[1]
    found = segmenter().segment(scan).volumes_mm3
    for side in SIDES:
        number = SCHEME.labels[SCHEME.names.index(f"{side}-{structure}")].fs_id
        true_mm3, usual_mm3 = ((each.data == number).sum() for each in (truth, usual))
        assert not 0.9 < true_mm3 / usual_mm3 < 1.1
        assert found[f"{side}-{structure}"] == pytest.approx(true_mm3, rel=0.1)
