"""The code that a report prints gives the report's numbers again, from metrics.csv alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from segmentation.metrics.pair import Measurement
from segmentation.report import summary
from segmentation.report.evaluation import Evaluation, evaluate_frame
from segmentation.report.snippets import snippets
from segmentation.report.tables import metrics_frame, write_table

STRUCTURES = ("Left-A", "Right-A", "B", "group:all", "group:x")
# Not in the order of numbers, which is another than that of texts.
PERSONS = ("10", "9", "01", "NA", "e", "f", "g", "h")
MODELS = ("-first", "2")


def measurements(person: int, session: int, model: int, rng: np.random.Generator) -> list[Any]:
    rows = []
    for number, structure in enumerate(STRUCTURES):
        dice = 0.8 + rng.uniform(-0.1, 0.1)
        if structure == "B":  # halves are exact: equal differences, and none for three persons
            dice = 0.5 + model * (person > 2) * 0.25
        if structure == "Right-A" and person in (1, 4):
            dice = np.nan  # in six persons left: just enough for a test
        if structure == "Left-A" and person < 3 and model:
            dice = np.nan  # and here too few
        note = "absent from both" if np.isnan(dice) else ""
        true = 1000.0 * (number + 1) + 100 * person
        predicted = true * rng.uniform(0.9, 1.2)
        rows += [
            Measurement(structure, number, "dice", dice, "", note),
            Measurement(structure, number, "truth_volume", true + 5 * session, "mm3"),
            Measurement(structure, number, "volume", predicted, "mm3"),
        ]
    for true_structure in ("background", *STRUCTURES[:3]):
        for label in ("background", *STRUCTURES[:3]):
            volume = rng.uniform(0, 9)
            rows.append(Measurement(true_structure, 1, f"labelled_as:{label}", volume, "mm3"))
    rows.append(Measurement("group:all", None, "side_swap", 0.1 + 0.8 * (person == 6), ""))
    return rows


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    rng = np.random.default_rng(0)
    frame = metrics_frame(
        (
            {"subject": name, "session": f"ses-{session}", "model": model},
            measurements(person, session, number, rng),
        )
        for number, model in enumerate(MODELS)
        for person, name in enumerate(PERSONS)
        for session in range(3 if person == 2 else 2 if person < 4 else 1)
    )
    pairs = pd.DataFrame({"status": ["measured"]})
    return evaluate_frame(frame, pairs)


@pytest.fixture
def run(
    evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Any]]:
    write_table(tmp_path / "metrics.csv", evaluation.frame)
    monkeypatch.chdir(tmp_path)

    def run(part: str, **other: str) -> list[Any]:
        """What a part's code prints, with other metrics than its own."""
        code = snippets(evaluation.models)[part].replace(".to_string()", "")
        for mine, theirs in other.items():
            code = code.replace(f'"{mine}"', f'"{theirs}"')
        printed: list[Any] = []
        exec(code, {"print": printed.append})
        return printed

    return run


def equal(again: pd.DataFrame, table: pd.DataFrame, **names: str) -> None:
    """Columns of the code's table, by name, are those of the report's; order does not matter."""
    assert set(again.index) == set(table.index)
    for theirs, ours in names.items():
        values = again.rename(columns=str)[theirs].reindex(table.index).to_numpy(float)
        expected = table[ours].to_numpy(float)
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12, err_msg=ours)


def of(table: pd.DataFrame, **where: str) -> pd.DataFrame:
    for column, value in where.items():
        table = table[table[column] == value]
    return table.set_index("structure")


def test_every_part_is_short() -> None:
    for part, code in snippets(["a", "b"]).items():
        lines = [line for line in code.splitlines() if line]
        assert len(lines) <= 14, part
        assert max(map(len, lines)) <= 100, part


@pytest.mark.parametrize("metric", ["dice", "volume"])
def test_statistics(evaluation: Evaluation, run: Callable[..., Any], metric: str) -> None:
    (again,) = run("statistics", dice=metric)
    table = of(evaluation.statistics, model=MODELS[0], metric=metric)
    names = {"count": "persons", "mean": "mean", "50%": "median", "std": "sd"}
    equal(again, table, **names, **{"0.025": "low", "0.975": "high"})


def test_absences_and_exchanged_sides(evaluation: Evaluation, run: Callable[..., Any]) -> None:
    absences, sides = run("absences")
    # Right-A: persons 1 and 4, scans 2 and 1; Left-A of the second: persons 0 to 2, scans 2, 2, 3.
    expected = {("'-first", "Right-A"): 3, ("2", "Right-A"): 3, ("2", "Left-A"): 7}
    assert {key[:2]: count for key, count in absences.items()} == expected
    assert sides["subject"].tolist() == summary.swapped(evaluation.frame)["subject"].tolist()


def test_scans(evaluation: Evaluation, run: Callable[..., Any]) -> None:
    (again,) = run("scans")
    table = summary.by_scan(evaluation.frame, MODELS[0], "dice").sort_values("group:all")
    pd.testing.assert_frame_equal(again[table.columns], table, check_names=False)


def test_differences_and_tests(evaluation: Evaluation, run: Callable[..., Any]) -> None:
    table = of(evaluation.comparisons, metric="dice")
    names = {"count": "persons", "mean": "mean_difference", "effect": "effect"}
    equal(run("differences")[0], table, **names, **{"0.025": "low", "0.975": "high"})
    assert table["p"].isna().sum() == 1, "a structure of five persons"
    equal(run("tests")[0], table.dropna(subset="p"), p="p", holm="p_holm")


def test_limits_of_agreement(evaluation: Evaluation, run: Callable[..., Any]) -> None:
    table = of(evaluation.agreement, model=MODELS[0])
    names = {name: name for name in ("bias", "sd", "lower", "upper", "icc")}
    equal(run("volumes")[0], table, **names)


@pytest.mark.parametrize("metric", ["volume", "truth_volume"])
def test_retest(evaluation: Evaluation, run: Callable[..., Any], metric: str) -> None:
    (again,) = run("retest", volume=metric)
    table = of(evaluation.retest, model=MODELS[0], metric=metric)
    assert set(table["persons"]) == {4}
    equal(again, table, cv_percent="cv_percent", icc="icc")


def test_confusions(evaluation: Evaluation, run: Callable[..., Any]) -> None:
    (again,) = run("confusions")
    table = 100 * summary.confusion(evaluation.frame, MODELS[0]).drop(index="background")
    assert len(again) == 3 * 3
    for (true, label), share in again.items():
        assert share == pytest.approx(table.loc[true, label])


def test_worst_cases(evaluation: Evaluation, run: Callable[..., Any]) -> None:
    (again,) = run("worst")
    table = summary.worst_scans(evaluation.frame)
    for theirs, ours in {
        "subject": "subject",
        "session": "session",
        "value": "value",
        "structure": "worst_structure",
        "value_lowest": "worst_value",
    }.items():
        assert again[theirs].tolist() == pytest.approx(table[ours].tolist())


def test_a_models_name_may_be_any_word_of_the_code() -> None:
    code = snippets(("the FIRST", "a SECOND MODEL"))["differences"]
    assert ".loc['a SECOND MODEL'] - rows.mean().unstack().loc['the FIRST']" in code
