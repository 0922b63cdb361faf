"""Volumes adjusted for the intracranial volume, and a page about the participants."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers.pages import rows_of

from trinat.pipelines.report.cohort import (
    Scan,
    Section,
    adjust,
    cohort_of,
    facts_of,
    participants_of,
)
from trinat.pipelines.report.cohort_page import cohort_drawings, cohort_page
from trinat.pipelines.report.page import UNDEFINED
from trinat.pipelines.report.participants import participants_plot
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics import norms as norms_module
from trinat.segmentation.metrics.norms import Curve, Norms

SCHEME = load_scheme("quicknat33")
STEM = "Brain-Stem"


def scan(number: int, volume: float, intracranial: float | None) -> Scan:
    return Scan(
        f"sub-{number}",
        "",
        {STEM: volume},
        age=20.0 + number,
        intracranial_mm3=intracranial,
    )


# Twice the intracranial volume plus 10; the last two lie 3 above and below.
LINE = [
    scan(0, 210.0, 100.0),
    scan(1, 410.0, 200.0),
    scan(2, 313.0, 150.0),
    scan(3, 307.0, 150.0),
]


def arrays(scans: list[Scan]) -> tuple[pd.DataFrame, np.ndarray]:
    """Return volumes by structure and intracranial volumes, NaN for unknown ones."""
    volumes = {STEM: [scan.volumes_mm3[STEM] for scan in scans]}
    return pd.DataFrame(volumes), np.array(
        [scan.intracranial_mm3 for scan in scans], float
    )


def test_residuals_are_what_a_line_through_the_group_leaves_at_its_mean() -> None:
    adjusted, done = adjust(*arrays(LINE), "residual")
    # Slope 2 at the mean of 150: 210 + 100, 410 - 100, and the other two unchanged.
    assert adjusted[STEM].tolist() == pytest.approx([310, 310, 313, 307])
    line = done.coefficients.loc[STEM]
    assert (line["slope"], line["intercept"], line["scans"]) == (
        pytest.approx(2),
        pytest.approx(10),
        4,
    )
    # 20,000 of 20,018 are explained.
    assert line["r2"] == pytest.approx(20000 / 20018)
    assert (done.mean_mm3, done.unit) == (150, "mm3")


def test_proportions_are_percent_and_need_no_line() -> None:
    adjusted, done = adjust(*arrays(LINE), "proportion")
    assert adjusted[STEM].tolist()[:2] == pytest.approx([210, 205])
    assert done.coefficients.empty
    assert done.unit == "%"


def test_a_scan_without_an_intracranial_volume_has_no_adjusted_volume() -> None:
    scans = [*LINE, scan(4, 500.0, None)]
    adjusted, done = adjust(*arrays(scans), "residual")
    assert np.isnan(adjusted[STEM][4])
    assert adjusted[STEM][0] == pytest.approx(310)
    assert (done.scans, done.without) == (4, 1)


def test_too_few_intracranial_volumes_are_refused() -> None:
    scans = [*LINE[:3], scan(3, 1.0, None)]
    with pytest.raises(EvaluationError, match="3 of 4 scans have an intracranial"):
        adjust(*arrays(scans), "proportion")


def test_the_frame_has_measured_and_adjusted_volumes() -> None:
    cohort = cohort_of(LINE, SCHEME, "residual")
    assert cohort.compared == "adjusted_volume"
    by = cohort.frame.set_index(["metric", "subject"])
    assert by.loc[("volume", "sub-1"), "value"] == 410
    assert by.loc[("adjusted_volume", "sub-1"), "value"] == pytest.approx(310)
    assert cohort.frame["metric"].tolist()[:2] == ["volume", "adjusted_volume"]


def test_z_scores_are_of_the_adjusted_volumes_alone() -> None:
    rng = np.random.default_rng(0)
    scans = [scan(n, 1000 + rng.normal(), 1e6 + 1e4 * rng.normal()) for n in range(9)]
    z = cohort_of(scans, SCHEME, "proportion").frame.groupby("metric")["z"].count()
    assert (z["volume"], z["adjusted_volume"]) == (0, 9)


def test_a_participants_value_is_the_mean_over_their_scans() -> None:
    twice = [replace(LINE[0], session="ses-1"), replace(LINE[0], session="ses-2")]
    scans = [twice[0], replace(twice[1], volumes_mm3={STEM: 230.0}), *LINE[1:]]
    participants = cohort_of(scans, SCHEME).participants
    assert len(participants) == 4
    assert participants.loc[participants["subject"] == "sub-0", "value"].item() == 220


def test_a_single_group_leaves_the_colours_to_the_sexes() -> None:
    facts = zip(LINE, ["patient", "patient", "", ""], "FMFM", strict=True)
    scans = [replace(one, group=group, sex=sex) for one, group, sex in facts]
    drawing = participants_plot(cohort_of(scans, SCHEME))
    assert drawing is not None
    assert [len(names) for names in drawing.marks.values()] == [2, 2]


@pytest.mark.parametrize("is_aged", [True, False])
def test_participants_without_a_group_are_drawn_by_themselves(is_aged: bool) -> None:
    groups = ["a", "a", "a", "b", "b", "b", "", "", ""]
    scans = [
        replace(
            scan(n, 100.0 + n, None), group=group, age=20.0 + n if is_aged else None
        )
        for n, group in enumerate(groups)
    ]
    drawing = participants_plot(cohort_of(scans, SCHEME))
    assert drawing is not None
    assert [len(names) for names in drawing.marks.values()] == [3, 3, 3]
    assert "not known" in drawing.inline()


def test_every_participant_is_drawn_however_many_groups_there_are() -> None:
    scans = [replace(scan(n, 100.0 + n, None), group=f"g{n}") for n in range(9)]
    drawing = participants_plot(cohort_of(scans, SCHEME))
    assert drawing is not None
    assert sum(len(names) for names in drawing.marks.values()) == 9


def test_the_page_shows_coefficients_effects_and_a_panel_for_each_structure() -> None:
    groups = ["control", "control", "patient", "patient", "control", "patient"]
    participants = [*LINE, scan(4, 310.0, 150.0), scan(5, 310.0, 150.0)]
    scans = [replace(s, group=g) for s, g in zip(participants, groups, strict=True)]
    cohort = cohort_of(scans, SCHEME, "residual", covariates=())
    drawings = cohort_drawings([Section.of_volumes(cohort)])
    page = cohort_page([Section.of_volumes(cohort)], drawings, [], {})
    assert [drawing.name for drawing in drawings] == [
        "effects",
        "participants",
        "residuals",
    ]
    # Slope (per ml) and intercept, as of LINE.
    assert rows_of(page, "adjustment-table") == [
        ["Brain Stem", "6", "+2,000.000", "+10", "1.00"]
    ]
    # Head size is a term of the model, and patients with the head size of controls have their
    # volumes.
    assert "volume ~ group + icv" in page
    (effect,) = rows_of(page, "effect-table-0")
    assert effect[:3] == ["Brain Stem", "3 + 3", "+0"]
    (participants,) = [
        drawing for drawing in drawings if drawing.name == "participants"
    ]
    shown = [name for names in participants.marks.values() for name in names]
    assert {name.partition(":")[0] for name in shown} == {s.subject for s in scans}
    assert all(f"<title>{name}</title>" in page for name in shown)
    plain = cohort_page([Section.of_volumes(cohort_of(scans, SCHEME))], [], [], {})
    assert "adjustment-table" not in plain


def test_a_participant_with_scans_at_two_sites_is_in_no_comparison_of_sites() -> None:
    """Scanned at A and then at B: the mean of both would count for A."""
    scans = []
    for number in range(4):
        at_b = scan(number, 4400.0 + number, None)
        scans.append(replace(at_b, session="2", site="B"))
        scans.append(replace(at_b, session="1", site="A", volumes_mm3={STEM: 4000.0}))
    for number in range(4, 8):
        scans.append(replace(scan(number, 4000.0 + number, None), site="A"))
        scans.append(replace(scan(number + 10, 4400.0 + number, None), site="B"))
    cohort = cohort_of(scans, SCHEME, covariates=())
    assert cohort.model is not None
    row = cohort.model.effects.iloc[0]
    assert (row["first"], row["second"]) == (4, 4)
    assert row["difference"] == pytest.approx(-400)
    page = cohort_page([Section.of_volumes(cohort)], [], [], {})
    named = "sub-0, sub-1, sub-2 and 1 more"
    assert "4 participants excluded from every comparison" in page
    assert named in page


def test_means_by_group_count_each_participant_once() -> None:
    """One patient has three scans of 1000, another one of 2000: the mean is 1500, not 1250."""
    scans = [
        replace(scan(0, 1000.0, None), session=str(session), group="patient")
        for session in range(3)
    ]
    scans.append(replace(scan(1, 2000.0, None), group="patient"))
    scans += [replace(scan(n, 3000.0, None), group="control") for n in (2, 3)]
    page = cohort_page([Section.of_volumes(cohort_of(scans, SCHEME))], [], [], {})
    assert rows_of(page, "group-table")[0][1:] == ["3,000 ± 0", "1,500 ± 707"]
    assert "Participants: control: 2, patient: 2." in page


def test_means_that_a_group_lacks_are_sorted_last() -> None:
    scans = [replace(scan(n, 3000.0, None), group="control") for n in (0, 1)]
    scans += [replace(scan(n, math.nan, None), group="patient") for n in (2, 3)]
    page = cohort_page([Section.of_volumes(cohort_of(scans, SCHEME))], [], [], {})
    groups = page[page.index('id="group-table"') :].split("</table>")[0]
    assert "nan" not in groups
    assert f'data-order="{UNDEFINED}"' in groups


def test_a_volume_of_0_is_below_all_percentiles() -> None:
    curve = Curve([20, 80], [1, 1], [4000, 4000], [0.1, 0.1], [50, 50], 50)
    norms = Norms.of(norms_module.rows_of(STEM, "F", curve, "model"))
    scans = [
        replace(scan(number, volume, None), sex="F", age=50.0)
        for number, volume in enumerate((0.0, 4000.0))
    ]
    cohort = cohort_of(scans, SCHEME, norms=norms)
    found = cohort.frame.set_index("subject")
    assert list(found["percentile"]) == [0, pytest.approx(50)]
    assert list(cohort.outliers()["subject"]) == ["sub-0"]


def test_the_age_of_a_participant_is_that_of_the_scans_with_a_value() -> None:
    scan = {
        **{"subject": "a", "sex": "F", "group": "x", "site": "", "metric": "volume"},
        "structure": "Left-Hippocampus",
        "family": "",
    }
    young = {**scan, "scan": 0, "age": 40.0, "intracranial_mm3": 1.4e6, "value": np.nan}
    old = {**scan, "scan": 1, "age": 60.0, "intracranial_mm3": 1.6e6, "value": 4000.0}
    (row,) = participants_of(pd.DataFrame([young, old]), "volume").to_dict("records")
    assert (row["age"], row["icv"], row["value"]) == (60, 1.6e6, 4000)


def test_the_facts_of_a_participant_are_those_of_all_scans() -> None:
    # Scans of which the first structure was rejected count too.
    first = Scan("P1", "1", {"Brain-Stem": 1.0}, age=40.0, site="A", group="x")
    second = Scan("P1", "2", {"Left-Hippocampus": 1.0}, age=61.0, site="B", family="F")
    third = replace(second, session="3", intracranial_mm3=1.5e6)
    cohort = cohort_of([first, second, third], SCHEME)
    (row,) = facts_of(cohort.frame).reset_index().to_dict("records")
    assert (row["subject"], row["age"], row["icv"]) == ("P1", 54, 1.5e6)
    assert (row["group"], row["site"], row["sex"]) == ("x", "", "")
    assert row["family"] == "F"
