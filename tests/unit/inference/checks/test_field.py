"""Fields of view that end inside the brain, and round brains that end by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.evidence import CORTEX, WHITE, ball, evidence

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.field import check_field_of_view, find_cut
from trinat.segmentation.inference.checks.limits import LIMITS

SHAPE = (80, 80, 80)
BRAIN = ball(SHAPE, 30)


def labels(mask: np.ndarray = BRAIN) -> np.ndarray:
    return np.where(mask, WHITE, 0).astype(np.uint8)


def test_a_brain_inside_its_field_of_view_is_not_cut() -> None:
    given = evidence(labels(), np.ones(SHAPE))
    assert find_cut(given) == (0, ())
    assert check_field_of_view(given, LIMITS) == []


def test_a_stripped_brain_ends_at_zeros_but_is_round() -> None:
    given = evidence(labels())
    area, _ = find_cut(given)
    # The cap of a ball of 30 mm that is 1 mm high: 2 pi 30 mm².
    assert area == pytest.approx(2 * np.pi * 30, rel=0.3)
    assert check_field_of_view(given, LIMITS) == []


def test_an_image_that_ends_in_the_brain_cuts_a_disc() -> None:
    kept = slice(0, 55)  # the brain reaches from 9.5 to 69.5
    area, names = find_cut(evidence(labels()[:, :, kept], np.ones((80, 80, 55))))
    assert area == np.count_nonzero(BRAIN[:, :, 54])
    assert names == ("white",)


def test_a_scan_that_ends_before_the_working_grid_does_cuts_as_well() -> None:
    found = labels()
    found[:, :, 55:] = 0
    scan = Grid((80, 80, 55), np.eye(4))
    area, _ = find_cut(evidence(found, np.ones(SHAPE), scan=scan))
    assert area == np.count_nonzero(BRAIN[:, :, 54])


def test_a_cut_is_seen_where_the_last_slice_has_no_labels() -> None:
    found = labels()[:, :, :55]
    found[:, :, 54] = 0
    given = evidence(found, np.ones((80, 80, 55)))
    assert find_cut(given)[0] == np.count_nonzero(BRAIN[:, :, 53])
    assert check_field_of_view(given, LIMITS) != []


@pytest.mark.parametrize("level", [0.0, 0.001, 0.03])
def test_a_background_that_begins_in_the_brain_cuts_it_too(level: float) -> None:
    found = labels()
    found[50:] = 0
    image = np.ones(SHAPE)
    image[50:] = np.random.default_rng(0).uniform(0, 2 * level, (30, 80, 80))
    area, _ = find_cut(evidence(found, image))
    assert area == np.count_nonzero(BRAIN[49])


def test_a_cut_need_not_be_along_an_axis() -> None:
    x, y, z = np.ogrid[tuple(slice(n) for n in SHAPE)]
    gone = (0.8 * z - 0.6 * y + 0 * x) > 0.2 * 39.5 + 10  # 10 mm above the middle
    image = np.where(gone, 0, 1)
    area, _ = find_cut(evidence(labels(BRAIN & ~gone), image))
    # A disc of radius sqrt(30² - 10²), of which a share of voxels lies on the steps of the
    # plane.
    assert 0.7 < area / (np.pi * 800) < 1.3


def test_a_cut_names_what_is_cut_and_how_much() -> None:
    found = labels()
    found[:40][found[:40] > 0] = CORTEX
    small, large = (replace(LIMITS, cut_mm2=(300.0, reject)) for reject in (9e3, 1e3))
    given = evidence(found[:, :, :40], np.ones((80, 80, 40)))
    looked, rejected = (
        check_field_of_view(given, limits)[0] for limits in (small, large)
    )
    assert (looked.rejects, rejected.rejects) == (False, True)
    assert set(looked.structures) == {"white", "cortex"}
    assert looked.reason.startswith(
        "the field of view ends inside the brain: 28 cm² of "
    )
