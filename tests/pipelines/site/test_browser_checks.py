"""The browser's checks and measures equal Python's on the same head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from helpers.javascript import call, volume
from helpers.overfitted import random_model
from scipy import ndimage
from scipy.spatial.transform import Rotation

from trinat.pipelines.site.export import settings_of
from trinat.segmentation.grid import Grid
from trinat.segmentation.inference import measuring, quality
from trinat.segmentation.inference.checks import anatomy, brightness, field, lesions
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.limits import LIMITS
from trinat.segmentation.inference.graphs import fusion_of
from trinat.segmentation.inference.prediction import Prediction, find_inside
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.space.conform import ConformPlan

pytestmark = [pytest.mark.slow, pytest.mark.important]
CALLABLE = "../../../tests/helpers/callable.js"
SCHEME = load_scheme("quicknat33")
SHAPE = (72, 76, 80)
MIDDLE = (np.array(SHAPE) - 1) / 2
X, Y, Z = (
    np.arange(n).reshape(np.roll((n, 1, 1), axis)) for axis, n in enumerate(SHAPE)
)
X, Y, Z = X - MIDDLE[0], Y - MIDDLE[1], Z - MIDDLE[2]
RADIUS = np.sqrt(X**2 + Y**2 + Z**2)
# The volume of a voxel in mm³ that makes the brain as large as a participant's.
SIZE = 17.0


def class_of(name: str) -> int:
    return SCHEME.names.index(name)


WHITE_MATTER = [class_of(f"{side}-Cerebral-White-Matter") for side in ("Left", "Right")]


@dataclass
class Head:
    """Labels and image of a head of 1 mm, the agreement of views, and the grid of its scan."""

    labels: np.ndarray
    image: np.ndarray
    agreement: np.ndarray
    scan: Grid
    mm3_of_voxel: float = SIZE
    missing: tuple[str, ...] = ()

    def fill(self, where: np.ndarray, name: str, value: float) -> None:
        """Label and brighten a structure, or both sides of one."""
        is_left = np.broadcast_to(X < 0, SHAPE)
        for side, of_side in (("Left-", is_left), ("Right-", ~is_left)):
            sided = side + name if side + name in SCHEME.names else name
            self.labels[where & of_side] = class_of(sided)
        self.image[where] = value

    def found(self) -> Prediction:
        """Return the labels as the prediction of a model with all fluid."""
        classes = torch.from_numpy(self.labels).long()
        one_hot = torch.nn.functional.one_hot(classes, len(SCHEME))
        return Prediction(
            fused=one_hot.half(),
            scheme=SCHEME,
            plan=ConformPlan(self.scan, (1, 1), Grid(SHAPE, np.eye(4))),
            image=Volume(self.image.astype(np.float32), np.eye(4)),
            notes=(),
            agreement=self.agreement,
            uncertainty=None,
            not_predicted=(),
            csf="intracranial",
        )

    def evidence(self) -> Evidence:
        """Return the evidence of a head of adult size, with volumes of a sound head."""
        counts = np.bincount(self.labels.ravel(), minlength=len(SCHEME))
        volumes = {
            SCHEME.names[k]: self.mm3_of_voxel * float(counts[k])
            for k in np.unique(sound().labels)[1:]
        }
        volumes |= dict.fromkeys(self.missing, 0.0)
        return replace(self.found().evidence, volumes_mm3=volumes)


def from_middle(x: float, y: float, z: float) -> np.ndarray:
    """Return the distance of each voxel from a place."""
    return np.sqrt((X - x) ** 2 + (Y - y) ** 2 + (Z - z) ** 2)


def sound() -> Head:
    """Return a ball with two sides, a brain stem, a skull and an uneven scalp."""
    generator = np.random.default_rng(0)
    agreement = generator.uniform(0.85, 1, len(SCHEME))
    head = Head(
        np.zeros(SHAPE, np.uint8),
        np.zeros(SHAPE, np.float32),
        agreement,
        Grid(SHAPE, np.eye(4)),
    )
    thickness = 3 + 2 * np.sin(3 * np.arctan2(Y, X))
    head.image[(RADIUS > 30) & (RADIUS - thickness < 31)] = 0.8
    head.fill(RADIUS < 27, "CSF", 0.2)
    head.fill(RADIUS < 25, "Cerebral-Cortex", 0.7)
    head.fill(RADIUS < 20, "Cerebral-White-Matter", 1.0)
    head.fill(RADIUS < 5, "Lateral-Ventricle", 0.2)
    head.fill((RADIUS < 25) & (Z < -14), "Cerebellum-Cortex", 0.8)
    head.fill((np.hypot(X, Y) < 5) & (Z < -10) & (Z > -36), "Brain-Stem", 0.9)
    head.fill(from_middle(9, 0, 0) < 4, "Thalamus", 0.85)
    head.fill(from_middle(-9, 0, 0) < 4, "Thalamus", 0.85)
    noise = generator.standard_normal(SHAPE).astype(np.float32)
    head.image = np.maximum(head.image + 0.02 * noise, 0)
    return head


# ---- Faults of a head ----


def few_views_agree(head: Head) -> None:
    head.agreement = np.linspace(0, 0.7, len(SCHEME))
    head.agreement[class_of("Brain-Stem")] = np.nan


def cut(head: Head) -> None:
    head.scan = Grid((*SHAPE[:2], 54), np.eye(4))
    head.labels[:, :, 54:] = 0
    head.image[:, :, 54:] = 0


def cut_askew(head: Head) -> None:
    beyond = 0.5 * X + 0.3 * Y + Z > 12
    head.labels[beyond] = 0
    head.image[beyond] = 0


def small(head: Head) -> None:
    head.mm3_of_voxel = SIZE / 3


def in_pieces(head: Head) -> None:
    head.labels[2:9, 30:40, 60:70] = class_of("Left-Cerebral-Cortex")
    head.labels[3:6, 3:6, 3:6] = class_of("Left-Amygdala")


def cortex_around(head: Head) -> None:
    head.image[(RADIUS >= 24) & (RADIUS < 29)] = 0.7


def one_sided(head: Head) -> None:
    head.labels[np.broadcast_to(X > 4, SHAPE)] = 0


def grey(head: Head) -> None:
    head.image[np.isin(head.labels, WHITE_MATTER)] = 0.71


def without_a_structure(head: Head) -> None:
    head.missing = ("Left-Hippocampus",)


def without_a_side(head: Head) -> None:
    head.missing = ("Right-Thalamus",)


def small_on_one_side(head: Head) -> None:
    is_upper = (head.labels == class_of("Right-Thalamus")) & (Z > -1)
    head.labels[is_upper] = class_of("Right-Cerebral-White-Matter")


def dark_place(head: Head) -> None:
    place = from_middle(2, 9, 2) < 9
    head.image[place] = 0.2
    head.labels[place & (X > 6)] = 0


def bright_place(head: Head) -> None:
    head.image[from_middle(2, 9, 2) < 9] = 1.4


def grey_place(head: Head) -> None:
    head.image[from_middle(0, 0, 15) < 10] = 0.72


def lost_slices(head: Head) -> None:
    noise = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    head.image += 4 * ndimage.gaussian_filter(noise, 3) * (head.labels > 0)
    head.image[:, 40:-4] = head.image[:, 44:].copy()


def repeated_slice(head: Head) -> None:
    head.image[:, :, 44] = head.image[:, :, 43]


def banded(head: Head) -> None:
    head.image *= 1 + 0.15 * np.sin(2 * np.pi * Y / 12)


def blurred(head: Head) -> None:
    head.image = ndimage.gaussian_filter(head.image, 2.5)


def noisy(head: Head) -> None:
    head.image += 0.3 * np.random.default_rng(1).standard_normal(SHAPE)


def saturated(head: Head) -> None:
    head.image = np.minimum(head.image, 1)


def thick_slices(head: Head) -> None:
    head.scan = Grid((*SHAPE[:2], 32), np.diag([1, 1, 2.5, 1.0]))


def askew(head: Head) -> None:
    turn = Rotation.from_euler("xyz", (9, -7, 12), degrees=True).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([0.9, 1.1, 2.0])
    affine[:3, 3] = MIDDLE - affine[:3, :3] @ [40, 36, 20]
    head.scan = Grid((81, 73, 41), affine)


def halved(head: Head) -> None:
    """Halve the resolution of the scan, so that many voxels are partly set."""
    affine = np.diag([2, 2, 2, 1.0])
    affine[:3, 3] = 0.5
    head.scan = Grid((36, 38, 40), affine)


def stripped(head: Head) -> None:
    head.image[head.labels == 0] = 0


def stripped_with_a_margin(head: Head) -> None:
    head.image[RADIUS > 30] = 0
    head.image[(RADIUS > 27) & (RADIUS <= 36)] = 0.5


def nothing(head: Head) -> None:
    head.labels[:] = 0


# The check that finds each fault.
FAULTS: dict[Callable[[Head], None], str] = {
    few_views_agree: "check_agreement",
    cut: "check_field_of_view",
    cut_askew: "check_field_of_view",
    small: "check_brain_size",
    in_pieces: "check_pieces",
    cortex_around: "check_surroundings",
    one_sided: "check_symmetry",
    grey: "check_contrast",
    without_a_structure: "check_missing",
    without_a_side: "check_missing",
    small_on_one_side: "check_sides",
    dark_place: "check_lesions",
    bright_place: "check_lesions",
    grey_place: "check_lesions",
    lost_slices: "check_continuity",
    repeated_slice: "check_continuity",
    banded: "check_bands",
    blurred: "check_edges",
    noisy: "check_noise",
    saturated: "check_saturation",
    thick_slices: "check_resolution",
    nothing: "check_missing",
}


def head_with(fault: Callable[[Head], None]) -> Head:
    head = sound()
    fault(head)
    return head


@cache
def settings() -> dict[str, Any]:
    """Return the site's settings of a model."""
    model = load_model(random_model())
    return settings_of(model, fusion_of(model))


def as_given(evidence: Evidence) -> dict[str, Any]:
    """Return evidence in the form of the modules."""
    return {
        "settings": {**settings(), "csf": evidence.csf, "measures": {}},
        "working": {
            "image": volume(evidence.image),
            "classes": evidence.indices.data,
        },
        "scan": {
            "shape": list(evidence.scan.shape),
            "affine": evidence.scan.affine.ravel().tolist(),
        },
        "volumesMm3": {"$map": dict(evidence.volumes_mm3)},
        "agreement": evidence.agreement,
    }


def test_every_check_has_a_head_that_it_finds_something_in() -> None:
    assert set(FAULTS.values()) == {check.__name__ for check in quality.CHECKS}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_check_finds_what_python_finds(fault: Callable[[Head], None]) -> None:
    evidence = head_with(fault).evidence()
    limits = LIMITS
    found = call(CALLABLE, "findingsOf", as_given(evidence))
    for check, of_browser in zip(quality.CHECKS, found["findings"], strict=True):
        name = check.__name__
        of_python = check(evidence, limits)
        assert [finding["reason"] for finding in of_browser] == [
            finding.reason for finding in of_python
        ], name
        for one, other in zip(of_browser, of_python, strict=True):
            assert one["rejects"] == other.rejects, name
            assert one["structures"] == list(other.structures), name
        if name == FAULTS[fault]:
            assert of_python
    grade = quality.grade(evidence, limits)
    assert found["grade"]["name"] == grade.name
    assert found["grade"]["reasons"] == list(grade.reasons)
    assert found["grade"]["structures"] == dict(grade.structures)


@pytest.mark.parametrize(
    "fault", [noisy, blurred, banded, saturated, dark_place, cut, cut_askew]
)
def test_what_checks_measure_is_what_python_measures(
    fault: Callable[[Head], None],
) -> None:
    evidence = head_with(fault).evidence()
    found = call(CALLABLE, "measuredBy", as_given(evidence))
    area, structures = field.find_cut(evidence, with_fluid=True)
    inside = find_inside(evidence.indices, SCHEME)
    expected = {
        "tissueContrast": brightness.tissue_contrast(evidence),
        "shareLikeCortex": anatomy.share_like_cortex(evidence),
        "saturatedShare": brightness.saturated_share(evidence),
        "noiseShare": brightness.noise_share(evidence),
        "bandShare": brightness.band_share(evidence),
        "edgeSharpness": brightness.edge_sharpness(evidence),
        "areaWithFluid": area,
        "evenness": measuring._evenness(evidence, inside),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=2e-3, abs=1e-4), name
    assert found["cutStructures"] == list(structures)
    np.testing.assert_allclose(
        found["skullShares"], measuring.skull_shares(evidence, inside)
    )
    places = lesions.find_regions(evidence)
    assert list(found["places"]) == list(places)
    for what, place in places.items():
        assert found["places"][what] == {
            "mm3": place.mm3,
            "structures": list(place.structures),
        }


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        (thick_slices, ""),
        (askew, ""),
        (halved, ""),
        (nothing, "no brain was found"),
        (stripped, "the scan shows no skull"),
        (cut, "the field of view ends inside the skull"),
        (stripped_with_a_margin, "ends at a mask, not at a scalp"),
    ],
)
def test_the_brain_mask_and_its_volume_are_those_of_python(
    fault: Callable[[Head], None], note: str
) -> None:
    head = head_with(fault)
    found = head.found()
    evidence = head.evidence()
    expected = measuring.measure(found)
    measured = call(CALLABLE, "maskAndMeasures", as_given(evidence))
    np.testing.assert_array_equal(measured["inside"], found.inside.ravel("F"))
    np.testing.assert_array_equal(measured["mask"], found.brain.data.ravel("F"))
    assert measured["note"] == expected.note
    assert note in expected.note
    (column,) = measured["mm3"]
    assert measured["mm3"][column] == pytest.approx(expected.mm3[column])


@pytest.mark.parametrize(
    ("value", "digits"),
    [(0.5, 0), (1.5, 0), (2.5, 0), (0.25, 1), (0.35, 1), (12.345, 2), (-0.3, 0)],
)
def test_numbers_are_rounded_as_in_python(value: float, digits: int) -> None:
    assert call("evidence.js", "fixed", value, digits) == f"{value:.{digits}f}"
