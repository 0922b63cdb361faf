"""Contrast, saturation, noise, bands and edges of images whose figures are known."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.evidence import CORTEX, WHITE, evidence

from trinat.segmentation.inference.checks import brightness
from trinat.segmentation.inference.checks.brightness import (
    band_share,
    check_bands,
    check_contrast,
    check_edges,
    check_noise,
    check_saturation,
    edge_sharpness,
    noise_share,
    saturated_share,
    tissue_contrast,
)
from trinat.segmentation.inference.checks.limits import LIMITS

SHAPE = (48, 40, 40)
# White matter with a slab of cortex on one side of each axis.
LABELS = np.full(SHAPE, WHITE, np.uint8)
LABELS[:8] = LABELS[:, :8] = LABELS[:, :, :8] = CORTEX
IMAGE = np.where(LABELS == WHITE, 1.0, 0.6)


def noisy(image: np.ndarray, share: float) -> np.ndarray:
    return image + share * np.random.default_rng(0).standard_normal(SHAPE)


def test_an_even_image_with_sharp_edges_has_no_finding() -> None:
    given = evidence(LABELS, noisy(IMAGE, 0.01))
    for check in (
        check_contrast,
        check_saturation,
        check_noise,
        check_bands,
        check_edges,
    ):
        assert check(given, LIMITS) == []


def test_contrast_is_white_matter_over_cortex() -> None:
    assert tissue_contrast(evidence(LABELS, IMAGE)) == pytest.approx(1 / 0.6)
    without_cortex = np.full(SHAPE, WHITE, np.uint8)
    assert tissue_contrast(evidence(without_cortex, IMAGE)) is None


def test_saturation_is_the_share_of_white_matter_with_its_greatest_value() -> None:
    image = noisy(IMAGE, 0.1)
    limit = np.quantile(image[LABELS == WHITE], 0.7)
    given = evidence(LABELS, np.minimum(image, limit))
    assert saturated_share(given) == pytest.approx(0.3, abs=0.001)
    (finding,) = check_saturation(given, LIMITS)
    assert not finding.rejects
    assert "30% of the white matter" in finding.reason


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_noise_is_measured_against_the_difference_of_white_matter_and_cortex(
    share,
) -> None:
    assert noise_share(evidence(LABELS, noisy(IMAGE, share))) == pytest.approx(
        share / 0.4, rel=0.05
    )


def test_a_slope_is_no_noise() -> None:
    slope = np.linspace(0.8, 1.2, SHAPE[0])[:, None, None]
    assert noise_share(evidence(LABELS, IMAGE * slope)) == pytest.approx(0, abs=1e-3)


def test_stripes_are_bands_and_fine_noise_is_not() -> None:
    stripes = 0.1 * np.sin(2 * np.pi * np.arange(SHAPE[1]) / 16)[None, :, None]
    fine = band_share(evidence(LABELS, noisy(IMAGE, 0.1)))
    assert fine is not None
    assert fine < LIMITS.bands[0]
    (finding,) = check_bands(evidence(LABELS, IMAGE + stripes), LIMITS)
    assert "white matter is uneven" in finding.reason


def test_an_edge_is_as_sharp_as_along_its_worst_axis() -> None:
    assert edge_sharpness(evidence(LABELS, IMAGE)) == pytest.approx(1)
    # Steps of a quarter along the last axis: 0.6, 0.7, 0.8, 0.9, 1.
    ramp = IMAGE.copy()
    ramp[8:, 8:, 6:11] = [0.65, 0.75, 0.85, 0.95, 1.0]
    assert edge_sharpness(evidence(LABELS, ramp)) == pytest.approx(0.25, abs=0.02)


def test_white_matter_may_be_the_darker_one() -> None:
    dark = np.where(LABELS == WHITE, 0.6, 1.0)
    assert edge_sharpness(evidence(LABELS, dark)) == pytest.approx(1)
    assert noise_share(evidence(LABELS, noisy(dark, 0.1))) == pytest.approx(
        0.25, rel=0.05
    )
    bands = band_share(evidence(LABELS, noisy(dark, 0.01)))
    assert bands is not None
    assert 0 < bands < LIMITS.bands[0]


def test_without_white_matter_nothing_is_said() -> None:
    given = evidence(np.zeros(SHAPE, np.uint8))
    for measure in (
        tissue_contrast,
        saturated_share,
        noise_share,
        band_share,
        edge_sharpness,
    ):
        assert measure(given) is None


def test_edges_that_noise_turns_round_are_not_sharp_by_less_than_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brightness, "edge_sharpness", lambda evidence: -0.01)
    (finding,) = check_edges(None, LIMITS)  # type: ignore[arg-type]
    assert "are 0% sharp" in finding.reason
