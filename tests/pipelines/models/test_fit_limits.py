"""Limits of the grade: their rule on values worked out by hand, and a whole fit on a small head."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.overfitted import miniature, random_model

from trinat.pipelines.models import fit_limits as module
from trinat.pipelines.models.fit import fit
from trinat.pipelines.models.fit_limits import (
    PHANTOMS,
    GradedPhantom,
    Point,
    cut,
    find_limits,
    noise,
    rates,
)
from trinat.pipelines.models.settings import FitSettings
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.checkpoint import read_info, save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.models.quicknat import QuickNatConfig
from trinat.segmentation.space.views import View

POINTS = [
    *(Point(agreement=n / 10, dice=0.4) for n in range(1, 10)),  # 0.1 to 0.9
    Point(agreement=0.05, dice=0.4),
    Point(agreement=0.75, dice=0.8),
    Point(agreement=0.65, dice=0.8),
    *[Point(agreement=0.95, dice=0.8)] * 10,
]


def test_look_catches_most_of_the_doubtful_and_reject_little_else() -> None:
    # Nine of the ten doubtful points are at 0.8 or below; seven of these are at 0.6 or below,
    # without a good one. Below 0.71 there are eight doubtful and one good point, and eight of
    # nine are less than nine of ten.
    assert find_limits(POINTS) == (0.81, 0.61)
    assert rates(POINTS, 0.81) == (0.9, pytest.approx(2 / 12))
    assert rates(POINTS, 0.61) == (0.7, 0)


def test_look_alarms_no_more_than_a_fifth_of_the_others() -> None:
    # One of five sound structures may raise an alarm: the one at 0.3, but not the one at 0.456.
    sound = [Point(agreement, dice=0.8) for agreement in (0.3, 0.456, 0.8, 0.8, 0.8)]
    look, _ = find_limits([*sound, Point(0.2, dice=0.4), Point(0.9, dice=0.4)])
    assert look == 0.45


def test_agreement_of_just_two_digits_has_its_own_hundredth() -> None:
    # In floats, 100 times 0.29 is less than 29.
    doubtful = [Point(0.29, dice=0.4)]
    assert find_limits(doubtful) == (0.3, 0.3)
    sound = [Point(0.29, dice=0.8)]
    assert find_limits([*sound, Point(0.9, dice=0.4)]) == (0.29, 0)


def test_without_doubtful_structures_there_is_no_limit() -> None:
    with pytest.raises(EvaluationError, match=r"no structure .* has a Dice below 0\.7"):
        find_limits([point for point in POINTS if point.dice == 0.8])


def test_nothing_is_rejected_where_no_limit_is_precise() -> None:
    sound = [Point(0.1, 0.8), *[Point(0.9, 0.8)] * 4]
    assert find_limits([*sound, Point(0.2, 0.6)]) == (0.21, 0)


def test_cases_have_names_of_their_own() -> None:
    assert len({graded.name for graded in PHANTOMS}) == len(PHANTOMS)


@pytest.mark.usefixtures("one_thread")
def test_limits_are_written_to_the_model_and_the_rest_of_it_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(random_model(), folder)
    before = read_info(folder)
    few = (
        GradedPhantom("noise", 1, noise, 0.05),
        GradedPhantom("cropped", 1, cut, 0.6),
    )
    monkeypatch.setattr(module, "PHANTOMS", few)
    monkeypatch.setattr(module, "_THALAMUS", (2, 41))  # the miniature has none
    monkeypatch.setattr(
        module, "middle", lambda seed: module._cut_out(*miniature(seed=seed))
    )
    found = fit(FitSettings(str(folder), device="cpu"))
    assert [line.partition(":")[0] for line in logged.messages] == ["noise", "cropped"]
    assert found.changed
    weights, odds, *limits = found.lines
    assert weights.startswith("weights: skipped, --scans")
    assert odds.startswith("odds: skipped, --scans")
    after = read_info(folder)
    assert after.quality is not None
    look, reject = after.quality.agreement
    assert 0 <= reject <= look <= 1
    lines = [line.removeprefix("limits: ") for line in limits]
    assert after.quality.origin == "trinat fit: " + "; ".join(lines)
    assert after.model_copy(update={"quality": before.quality}) == before


def test_structures_of_phantoms_that_a_model_does_not_know_are_background(
    tmp_path: Path,
) -> None:
    network = build(QuickNatConfig(classes=4, filters=4, kernel=3, depth=2))
    networks = dict.fromkeys((View.CORONAL, View.AXIAL), network)
    save_model(tmp_path / "m", Description(name="m", labels="left4"), networks)
    segmenter = Predictor(tmp_path / "m", device="cpu")
    points = module._measure(segmenter, "a phantom", *miniature())
    assert 0 < len(points) <= 3


def test_a_shipped_model_is_not_changed() -> None:
    with pytest.raises(ConfigError) as caught:
        fit(FitSettings("fast"))
    assert caught.value.remedy == "add --out FOLDER"
