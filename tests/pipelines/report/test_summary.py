"""From rows to numbers: participants, sessions, order, corrections."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trinat.pipelines.report import measurements, summary
from trinat.pipelines.report.evaluation import _comparison_notices
from trinat.pipelines.report.measurements import metrics_frame, write_table
from trinat.pipelines.report.page import short_name
from trinat.segmentation.io.files import spreadsheet_safe, write_tsv
from trinat.segmentation.metrics.pair import Measurement
from trinat.segmentation.metrics.statistics import fewest_participants_for


def frame_of(rows: list[tuple[str, str, str, str, str, float]]) -> pd.DataFrame:
    """Return a table with subject, session, model, structure, metric and value."""
    return metrics_frame(
        ({"subject": s, "session": e, "model": m}, [Measurement(t, 1, k, v, "")])
        for s, e, m, t, k, v in rows
    )


def dice(model: str, values: dict[str, float], structure: str = "Brain-Stem") -> list:
    return [(s, "", model, structure, "dice", v) for s, v in values.items()]


def test_sessions_are_averaged_before_participants() -> None:
    """Two sessions of one participant, one of another: 0.7 and 0.9, not three values."""
    frame = frame_of(
        [
            ("a", "1", "m", "CSF", "dice", 0.6),
            ("a", "2", "m", "CSF", "dice", 0.8),
            ("b", "1", "m", "CSF", "dice", 0.9),
        ]
    )
    row = summary.structure_statistics(frame, {}).iloc[0]
    assert row["participants"] == 2
    assert row["mean"] == pytest.approx(0.8)
    assert row["sd"] == pytest.approx(0.2 / np.sqrt(2))


def test_undefined_values_are_counted() -> None:
    frame = frame_of(dice("m", {"a": 0.5, "b": np.nan, "c": 0.7}))
    row = summary.structure_statistics(frame, {}).iloc[0]
    assert (row["participants"], row["undefined"], row["mean"]) == (
        2,
        1,
        pytest.approx(0.6),
    )


def test_left_stands_beside_right() -> None:
    names = [
        "Left-Putamen",
        "Left-Caudate",
        "CSF",
        "Right-Putamen",
        "Right-Caudate",
        "group:all",
    ]
    frame = frame_of([("a", "", "m", name, "dice", 1.0) for name in names])
    expected = ["Left-Putamen", "Right-Putamen", "Left-Caudate", "Right-Caudate", "CSF"]
    assert measurements.structures_of(frame) == expected
    assert list(measurements.by_participant(frame, "m", "dice").columns) == [
        *expected,
        "group:all",
    ]


def test_a_right_side_alone_has_its_place() -> None:
    rows = [
        ("a", "", "m", name, "dice", 0.9) for name in ("Brain-Stem", "Right-Amygdala")
    ]
    assert measurements.structures_of(frame_of(rows)) == [
        "Brain-Stem",
        "Right-Amygdala",
    ]


def test_what_no_label_map_has_is_absent_everywhere_but_not_one_side_alone() -> None:
    frame = frame_of(
        [("a", "", "m", name, "dice", 1.0) for name in ("CSF", "Left-Putamen")]
        + [("a", "", "m", name, "dice", np.nan) for name in ("Right-Putamen", "Vessel")]
    )
    frame.loc[frame["value"].isna(), "note"] = "absent from both"
    assert summary.absent_everywhere(frame) == ["Vessel"]


def test_models_are_compared_on_the_participants_of_both() -> None:
    one = {f"s{n}": 0.5 for n in range(8)}
    other = {f"s{n}": 0.6 + n / 100 for n in range(1, 9)}
    table = summary.comparisons(frame_of(dice("one", one) + dice("other", other)), {})
    row = table[table["metric"] == "dice"].iloc[0]
    assert row["participants"] == 7
    assert row["mean_difference"] == pytest.approx(0.1 + 4 / 100)
    assert row["p"] == pytest.approx(2 / 2**7)
    assert row["low"] < row["mean_difference"] < row["high"]


def test_groups_are_corrected_apart_from_structures() -> None:
    """Three structures times p; the group is alone in its family and keeps its p."""
    values = {f"s{n}": n / 100 for n in range(1, 7)}
    rows = []
    for structure in ("A", "B", "C", "group:all"):
        rows += dice("one", dict.fromkeys(values, 0.0), structure) + dice(
            "two", values, structure
        )
    table = summary.comparisons(
        frame_of(rows), {"group:all": ["A", "B", "C"]}
    ).set_index("structure")
    p = 2 / 2**6
    assert table.loc["A", "p_holm"] == pytest.approx(3 * p)
    assert table.loc["group:all", "p_holm"] == pytest.approx(p)


def values_of(model: str, metric: str, structures: dict[str, list[float]]) -> list:
    """Return a value per participant and structure, with their mean as the group's value."""
    rows = [
        (f"s{n}", "", model, structure, metric, value)
        for structure, values in structures.items()
        for n, value in enumerate(values)
    ]
    means = np.nanmean(np.array(list(structures.values())), axis=0)
    return rows + [
        (f"s{n}", "", model, "group:all", metric, v) for n, v in enumerate(means)
    ]


def compared(one: dict, other: dict, metric: str) -> pd.Series:
    """Return the row `group:all` for two models whose structures have these values."""
    frame = frame_of(values_of("a", metric, one) + values_of("b", metric, other))
    members = {"group:all": sorted({*one, *other})}
    table = summary.comparisons(frame, members)
    return table[table["structure"] == "group:all"].iloc[0]


def test_a_missed_structure_is_no_advantage() -> None:
    """Both are 1 mm off; a structure that A misses in all heads is 6 mm off in B."""
    found, nan = [1.0] * 8, float("nan")
    one = {"Left-Putamen": found, "Left-Hippocampus": [nan] * 8}
    other = {"Left-Putamen": found, "Left-Hippocampus": [6.0] * 8}
    row = compared(one, other, "hd95")
    assert (row["participants"], row["mean_difference"], row["p"]) == (8, 0, 1)
    assert row["left_out"] == 8
    frame = frame_of(values_of("a", "hd95", one))
    table = summary.structure_statistics(frame, {"group:all": list(one)}).set_index(
        "structure"
    )
    assert table["undefined"].to_dict() == {
        "Left-Putamen": 0,
        "Left-Hippocampus": 8,
        "group:all": 8,
    }


def test_a_rejected_structure_is_no_advantage() -> None:
    """A rater rejects the worst structure of A in 4 of 8 scans; otherwise both are equal."""
    good, bad, nan = [0.9] * 8, [0.8] * 8, float("nan")
    one = {"Left-Putamen": good, "Left-Hippocampus": [nan] * 4 + bad[4:]}
    row = compared(one, {"Left-Putamen": good, "Left-Hippocampus": bad}, "dice")
    assert (row["mean_difference"], row["p"], row["left_out"]) == (0, 1, 4)


def test_a_structure_that_one_model_invents_is_left_out_and_counted() -> None:
    """The truth has no third ventricle: Dice is 0 for A, which invents it, and undefined for B."""
    good, nan = [0.98] * 8, float("nan")
    one = {"Left-Putamen": good, "3rd-Ventricle": [0.0] * 8}
    row = compared(one, {"Left-Putamen": good, "3rd-Ventricle": [nan] * 8}, "dice")
    assert (row["mean_difference"], row["p"], row["left_out"]) == (0, 1, 8)


def test_a_structure_that_neither_has_is_left_out_of_nothing() -> None:
    found, nan = [1.0] * 8, float("nan")
    values = {"Left-Putamen": found, "Left-Hippocampus": [nan] * 8}
    assert compared(values, values, "hd95")["left_out"] == 0


def test_what_one_model_does_not_know_is_left_out_of_means_and_has_no_row() -> None:
    good, hard = [0.9, 0.8, 0.9, 0.8, 0.9, 0.8], [0.1] * 6
    one = {"Left-Putamen": good, "Left-Accumbens-area": hard}
    other = {"Left-Putamen": [value + 0.05 for value in good]}
    frame = frame_of(values_of("a", "dice", one) + values_of("b", "dice", other))
    table = summary.comparisons(frame, {"group:all": list(one)}).set_index("structure")
    assert set(table.index) == {"Left-Putamen", "group:all"}
    assert table.loc["group:all", "mean_difference"] == pytest.approx(0.05)
    assert table.loc["group:all", "left_out"] == 6


def test_two_scans_of_a_participant_are_compared_scan_by_scan() -> None:
    """A lacks a value in one of two scans, so B's value there must not count either."""
    rows = []
    for n in range(6):
        for session, one, other in (("1", 0.8, 0.8), ("2", np.nan, 0.2)):
            rows.append((f"s{n}", session, "a", "Left-Putamen", "dice", one))
            rows.append((f"s{n}", session, "b", "Left-Putamen", "dice", other))
    row = summary.comparisons(frame_of(rows), {}).iloc[0]
    assert (row["participants"], row["mean_difference"], row["left_out"]) == (6, 0, 6)


def test_intervals_stay_within_what_is_possible() -> None:
    shares = frame_of(dice("m", {"a": 1.0, "b": 0.7}))
    interval = summary.structure_statistics(shares, {}).iloc[0]
    assert 0 < interval["low"] < 0.85 < interval["high"] < 1
    distances = frame_of(
        [(p, "", "m", "A", "hd95", v) for p, v in (("a", 0.1), ("b", 9.0))]
    )
    assert summary.structure_statistics(distances, {}).iloc[0]["low"] == 0


def test_one_model_has_nothing_to_compare() -> None:
    assert summary.comparisons(frame_of(dice("only", {"a": 1.0})), {}).empty


def test_retest_takes_the_first_two_scans_of_those_who_have_two() -> None:
    rows = []
    for subject, volumes in {
        "a": (90.0, 110.0, 500.0),
        "b": (50.0, 50.0),
        "c": (7.0,),
    }.items():
        for n, volume in enumerate(volumes):
            rows += [
                (subject, f"ses-{n}", "m", "CSF", metric, volume)
                for metric in ("volume", "truth_volume")
            ]
    row = summary.retest(frame_of(rows)).iloc[0]
    assert row["participants"] == 2
    assert row["cv_percent"] == pytest.approx(10)


def test_retest_takes_the_second_session_before_the_tenth() -> None:
    rows = []
    for session, volume in (("MR10", 500.0), ("MR2", 110.0), ("MR1", 90.0)):
        rows.append(("a", session, "m", "CSF", "volume", volume))
        rows.append(("b", session, "m", "CSF", "volume", volume))
    row = summary.retest(frame_of(rows)).iloc[0]
    # SD 14.14 and mean 100 of each participant.
    assert row["cv_percent"] == pytest.approx(14.14, abs=0.01)


def test_volumes_agree_by_the_scans_that_have_both() -> None:
    """The true volume of the second session, whose structure was rejected, counts in no mean."""
    rows = []
    for participant, first in (("a", 4000.0), ("b", 5000.0), ("c", 4500.0)):
        rows.append((participant, "1", "m", "CSF", "volume", first))
        rows.append((participant, "1", "m", "CSF", "truth_volume", first))
        rows.append((participant, "2", "m", "CSF", "volume", np.nan))
        rows.append((participant, "2", "m", "CSF", "truth_volume", first - 400))
    row = summary.agreement(frame_of(rows)).iloc[0]
    assert row["bias"] == 0
    assert row["icc"] == pytest.approx(1)


def test_what_is_not_compared_is_still_what_others_were_labelled_as() -> None:
    rows = [
        ("a", "", "m", "A", "dice", 1.0),
        ("a", "", "m", "A", "labelled_as:A", 5.0),
        ("a", "", "m", "A", "labelled_as:CSF", 4.0),
        ("a", "", "m", "A", "labelled_as:background", 1.0),
    ]
    table = summary.confusion(frame_of(rows), "m")
    assert table.loc["A"].to_dict() == {"background": 0.1, "A": 0.5, "CSF": 0.4}
    assert table.loc["CSF"].isna().all()


def test_confusions_are_shares_of_the_truth() -> None:
    rows = [
        ("a", "", "m", "A", "dice", 1.0),
        ("a", "", "m", "B", "dice", 1.0),
        ("a", "", "m", "A", "labelled_as:A", 6.0),
        ("b", "", "m", "A", "labelled_as:B", 2.0),
        ("b", "", "m", "background", "labelled_as:B", 5.0),
    ]
    table = summary.confusion(frame_of(rows), "m")
    assert table.loc["A"].to_dict() == {"background": 0, "A": 0.75, "B": 0.25}
    assert table.loc["background", "B"] == 1
    assert table.loc["B"].isna().all()


def test_the_worst_scans_come_with_their_worst_structure() -> None:
    rows = []
    for subject, (mean, low) in {
        "a": (0.9, 0.8),
        "b": (0.4, 0.1),
        "c": (0.6, 0.5),
    }.items():
        rows += dice("m", {subject: mean}, "group:all") + dice("m", {subject: low}, "A")
        rows += dice("m", {subject: 1.0}, "B")
    worst = summary.worst_scans(frame_of(rows), 2)
    assert worst["subject"].tolist() == ["b", "c"]
    assert worst["worst_structure"].tolist() == ["A", "A"]
    assert worst["worst_value"].tolist() == [0.1, 0.5]


def test_only_scans_with_most_of_the_overlap_on_the_wrong_side_are_swapped() -> None:
    frame = frame_of(
        [
            ("a", "", "m", "group:all", "side_swap", 0.9),
            ("b", "", "m", "group:all", "side_swap", 0.2),
        ]
    )
    assert summary.swapped(frame)["subject"].tolist() == ["a"]


@pytest.mark.parametrize(
    "cell", ["=1+1", "+a", "-1+1", "-x", "--1", "-1,2", "@x", "\tx"]
)
def test_cells_that_a_spreadsheet_would_run_are_quoted(cell: str) -> None:
    assert spreadsheet_safe(cell) == f"'{cell}"


@pytest.mark.parametrize(
    ("tests", "participants"),
    # 2/2⁶ is 0.03; 31 · 2/2¹⁰ is 0.061, 31 · 2/2¹¹ is 0.030.
    [(1, 6), (2, 7), (31, 11)],
)
def test_holm_needs_more_participants_for_more_structures(
    tests: int, participants: int
) -> None:
    assert fewest_participants_for(tests) == participants


def test_the_page_says_that_so_few_participants_cannot_show_anything() -> None:
    names = [f"s{n}" for n in range(31)]

    def notices(participants: int) -> list[str]:
        table = pd.DataFrame(
            {"structure": names, "p": 0.5, "participants": participants}
        )
        return _comparison_notices(table)

    (notice,) = notices(7)
    assert "With 7 participants and 31 structures no single structure" in notice
    assert "at least 0.48. It takes 11 participants" in notice
    assert notices(11) == []


@pytest.mark.parametrize("cell", ["-0.02", "+1", "-1.5e-3", "-.5", "7"])
def test_a_number_with_a_sign_is_no_formula(cell: str, tmp_path: Path) -> None:
    assert spreadsheet_safe(cell) == cell
    write_tsv(tmp_path / "table.tsv", ("x",), [(cell,)])
    assert (tmp_path / "table.tsv").read_text() == f"x\n{cell}\n"


def test_numbers_are_not_quoted(tmp_path: Path) -> None:
    frame = frame_of([("NA", "", "-m", "A", "volume_difference", -3.25)])
    write_table(tmp_path / "t.csv", frame)
    again = pd.read_csv(tmp_path / "t.csv", keep_default_na=False)
    assert again["value"].tolist() == [-3.25]
    assert again["subject"].tolist() == ["NA"]
    assert again["model"].tolist() == ["'-m"]


@pytest.mark.parametrize(
    ("structure", "name"),
    [
        ("Left-Cerebral-White-Matter", "L Cerebral White Matter"),
        ("3rd-Ventricle", "3rd Ventricle"),
        ("group:all", "All structures"),
        ("group:white-matter", "White matter, all"),
    ],
)
def test_names_are_short(structure: str, name: str) -> None:
    assert short_name(structure) == name
