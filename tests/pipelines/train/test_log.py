"""Logs of a training: one record per step, even after a kill."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from helpers.browser import Browser, assert_fits_desk_and_phone, find_chromium
from helpers.tiny_training import SILENT, tiny_recipe

from trinat.pipelines.train.log import Metrics, append_scores, read_curves
from trinat.pipelines.train.pages import draw_curves, summarise, write_page
from trinat.pipelines.train.run import train
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.space.views import View
from trinat.segmentation.training.loop import StepReport
from trinat.segmentation.training.validation import Scores

SCHEME = load_scheme("tissue4")


def scores(dice: float) -> Scores:
    values = np.array([np.nan, dice, np.nan, 0.5])
    return Scores(values, values / 2)


def report(step: int, loss: float) -> StepReport:
    return StepReport(step, 0, loss, 0.1, 1.0, 0.5, 4)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_scores_stand_once_for_each_step_and_defined_structure(tmp_path: Path) -> None:
    for step, dice in ((10, 0.25), (20, 0.5), (20, 0.75)):
        append_scores(tmp_path, step, View.AXIAL, scores(dice), SCHEME)
    found = [(row["step"], row["dice"]) for row in rows(tmp_path / "validations.csv")]
    assert found == [
        ("10", "0.2500"),
        ("10", "0.5000"),
        ("20", "0.7500"),
        ("20", "0.5000"),
    ]


def test_metrics_after_the_state_that_a_run_goes_on_from_are_dropped(
    tmp_path: Path,
) -> None:
    for step in (3, 6):
        Metrics(tmp_path, step - 3).add(report(step, 1.0), last=True)
    Metrics(tmp_path, 3).add(report(6, 2.0), last=True)
    found = [
        (row["step"], float(row["loss"])) for row in rows(tmp_path / "metrics.csv")
    ]
    assert found == [("3", 1.0), ("6", 2.0)]


@pytest.mark.parametrize(
    "torn",
    ["6,0,2.0", "6,0,2.0,0.1,1,8", "\r\n", "\0\0\0\0", "6,0,2.\0\0\0\0\0", "\xff\r\n"],
)
def test_a_line_that_a_power_cut_has_torn_is_left_out(
    tmp_path: Path, torn: str
) -> None:
    Metrics(tmp_path, 0).add(report(3, 1.0), last=True)
    path = tmp_path / "metrics.csv"
    path.write_bytes(path.read_bytes() + torn.encode("latin-1"))
    assert read_curves(tmp_path)["loss"] == ([3], [1])
    Metrics(tmp_path, 9).add(report(12, 2.0), last=True)
    assert [row["step"] for row in rows(path)] == ["3", "12"]


def test_metrics_that_a_power_cut_has_emptied_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").touch()
    assert read_curves(tmp_path)["loss"] == ([], [])
    Metrics(tmp_path, 9).add(report(12, 2.0), last=True)
    assert [row["step"] for row in rows(tmp_path / "metrics.csv")] == ["12"]


def test_a_line_is_the_mean_of_the_steps_since_the_last_and_skips_bad_ones(
    tmp_path: Path,
) -> None:
    metrics = Metrics(tmp_path, 0)
    for step, loss in ((1, 1.0), (2, float("nan")), (3, 2.0)):
        metrics.add(report(step, loss), last=step == 3)
    (row,) = rows(tmp_path / "metrics.csv")
    assert float(row["loss"]) == 1.5
    # 3 steps of 4 slices in half a second each.
    assert float(row["slices_per_second"]) == 8


def test_a_page_has_the_curves_and_the_last_score_of_each_structure(
    tmp_path: Path,
) -> None:
    Metrics(tmp_path, 0).add(report(1, 1.0), last=True)
    write_page(tmp_path, "job", SCHEME)
    assert "Validation at step" not in (tmp_path / "run.html").read_text()
    for step in (10, 20):
        append_scores(tmp_path, step, View.AXIAL, scores(step / 40), SCHEME)
    write_page(tmp_path, "job", SCHEME)
    page = (tmp_path / "run.html").read_text()
    assert "Validation at step 20" in page
    assert "Validation at step 10" not in page
    assert 'aria-label="Curves of training' in page


@pytest.mark.browser
def test_on_a_phone_nothing_is_wider_than_the_page_of_a_run(tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    Metrics(tmp_path, 0).add(report(1, 1.0), last=True)
    append_scores(tmp_path, 1, View.AXIAL, scores(0.5), SCHEME)
    write_page(tmp_path, "a run with a " + 30 * "long" + " name", SCHEME)
    assert_fits_desk_and_phone(chromium, tmp_path / "run.html")


@pytest.mark.browser
def test_curves_take_the_theme_and_are_read_on_a_phone(tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    Metrics(tmp_path, 0).add(report(1, 1.0), last=True)
    append_scores(tmp_path, 1, View.AXIAL, scores(0.5), SCHEME)
    write_page(tmp_path, "a run", SCHEME)
    browser = Browser(chromium)
    try:
        browser.emulate(color_scheme="dark")
        browser.resize(390)
        browser.open(tmp_path / "run.html")
        # A wide figure scrolls within itself, and the page does not.
        root = "document.documentElement"
        assert browser.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
        # Letters are as light as the page's, and at least 8 pixels high.
        texts = browser.evaluate(
            "[...document.querySelectorAll('.plot svg')].filter((s) => s.clientWidth)"
            ".flatMap((s) => [...s.querySelectorAll('text')].map((t) => {"
            " const style = getComputedStyle(t);"
            " const scale = s.clientWidth / s.viewBox.baseVal.width;"
            " return [style.fill, parseFloat(style.fontSize) * scale]; }))"
        )
        ink = browser.evaluate("getComputedStyle(document.body).color")
        assert {fill for fill, _ in texts} == {ink}
        assert min(size for _, size in texts) >= 8
    finally:
        browser.close()


def test_without_validation_there_are_two_panels_in_place_of_four(
    tmp_path: Path,
) -> None:
    panels = []
    for _ in range(2):
        drawn = draw_curves(read_curves(tmp_path))
        panels.append(len(drawn.figure.axes))
        append_scores(tmp_path, 10, View.AXIAL, scores(0.5), SCHEME)
    assert panels == [2, 4]


def test_a_run_of_a_minute_has_a_curve_and_one_of_hours_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one step per second: first a line per step, after an hour one per ten steps."""
    now = 0.0
    monkeypatch.setattr("trinat.pipelines.train.log.time.monotonic", lambda: now)
    metrics = Metrics(tmp_path, 0)
    lines_at = []
    for step in range(1, 4001):
        now = float(step)
        metrics.add(report(step, 1.0), last=False)
        if not metrics.pending:
            lines_at.append(step)
    assert lines_at[:5] == [1, 2, 3, 4, 5]
    assert lines_at[-1] - lines_at[-2] == 10
    assert sum(step <= 60 for step in lines_at) > 20


@pytest.mark.slow
@pytest.mark.important
def test_a_run_leaves_a_model_curves_and_its_settings(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        tmp_path,
        validation={"every_epochs": 2, "participants": 1},
        stages=[
            {"name": "first"},
            {"name": "second", "schedule": {"steps": 2}},
        ],
    )
    run = tmp_path / "run"
    model = load_model(train(recipe, run, SILENT))
    assert model.networks[View.SAGITTAL].config.classes == 19
    assert model.info.not_predicted == ("CSF",)
    # 8 steps, then 2, of 4 slices, for each view.
    assert model.info.training.slices_seen == 80
    steps = {
        **{"first/coronal": 8, "first/sagittal": 8},
        **{"second/coronal": 2, "second/sagittal": 2},
    }
    assert {job.name: job.steps for job in summarise(run)} == steps
    for job in steps:
        page = (run / job / "run.html").read_text()
        assert "Validation at step" in page
