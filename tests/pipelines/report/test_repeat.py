"""Means over participants with two scans each, and their page."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.browser import assert_fits_desk_and_phone, find_chromium

from trinat.pipelines.report.repeat import (
    LABELS,
    OTHER_LABELS,
    PREDICTIONS,
    over_participants,
    repeat_page,
)
from trinat.segmentation.labels.scheme import load_scheme

HIPPOCAMPUS = ("Left-Hippocampus", 17)
INSULA = ("ctx-lh-insula", 1035)
CUNEUS = ("ctx-lh-cuneus", 1005)


def row(
    participant: str,
    comparison: str,
    structure: tuple[str, int],
    dice: float,
    percent: float = 0.0,
) -> dict[str, object]:
    name, fs_id = structure
    model = "" if comparison == LABELS else "fast"
    return {
        "participant": participant,
        "first": f"{participant}_1",
        "second": f"{participant}_2",
        "model": model,
        "comparison": comparison,
        "structure": name,
        "fs_id": fs_id,
        "dice": dice,
        "first_mm3": 100.0,
        "second_mm3": 100.0,
        "difference_percent": percent,
    }


def means_of(*rows: dict[str, object]) -> pd.DataFrame:
    means = over_participants(pd.DataFrame(rows), load_scheme("desikan"))
    return means.set_index(["structure", "comparison"])


def pairs_of(*participants: str, **facts: object) -> pd.DataFrame:
    rows = [
        {
            "participant": participant,
            "first": f"{participant}_1",
            "second": f"{participant}_2",
            "status": "measured",
            "note": "",
            "likeness": 0.98,
            "turned_deg": 3.2,
            "shifted_mm": 4.1,
            "stretch_percent": 0.0,
            **facts,
        }
        for participant in participants
    ]
    return pd.DataFrame(rows)


def page_of(*rows: dict[str, object], **facts: object) -> str:
    frame = pd.DataFrame(rows)
    scheme = load_scheme("desikan")
    participants = frame["participant"].unique()
    pairs = pairs_of(*participants, **facts)
    return repeat_page(over_participants(frame, scheme), frame, pairs, scheme, {})


def test_pairs_of_a_participant_are_averaged_before_participants() -> None:
    means = means_of(
        row("a", LABELS, HIPPOCAMPUS, 0.9, 4),
        row("a", LABELS, HIPPOCAMPUS, 0.7, -2),
        row("b", LABELS, HIPPOCAMPUS, 0.6, -5),
    )
    found = means.loc[(HIPPOCAMPUS[0], LABELS)]
    assert found.participants == 2
    assert found.dice == pytest.approx(0.7)
    assert found.absolute_difference_percent == pytest.approx(4)


def test_means_are_of_what_every_comparison_has() -> None:
    # The model does not predict the cuneus, so the mean of the limit leaves it out, too.
    means = means_of(
        row("a", LABELS, HIPPOCAMPUS, 0.9),
        row("a", LABELS, INSULA, 0.8),
        row("a", LABELS, CUNEUS, 0.2),
        row("a", PREDICTIONS, HIPPOCAMPUS, 0.95),
        row("a", PREDICTIONS, INSULA, 0.85),
    )
    assert means.dice[("group:structures", LABELS)] == pytest.approx(0.9)
    assert means.dice[("group:parcels", LABELS)] == pytest.approx(0.8)
    assert means.dice[("group:parcels", PREDICTIONS)] == pytest.approx(0.85)


def test_means_are_of_participants_whom_every_comparison_has() -> None:
    """A limit from the labels of an easy participant does not apply to a hard one."""
    means = means_of(
        row("easy", PREDICTIONS, HIPPOCAMPUS, 0.95),
        row("hard", PREDICTIONS, HIPPOCAMPUS, 0.55),
        row("easy", LABELS, HIPPOCAMPUS, 0.85),
    )
    group = means.loc[("group:structures", PREDICTIONS)]
    assert (group["participants"], group["dice"]) == (1, pytest.approx(0.95))
    structure = means.loc[("Left-Hippocampus", PREDICTIONS)]
    assert (structure["participants"], structure["dice"]) == (2, pytest.approx(0.75))


def test_a_structure_that_neither_map_has_is_in_no_mean() -> None:
    means = means_of(
        row("a", LABELS, HIPPOCAMPUS, 0.9), row("a", LABELS, INSULA, float("nan"))
    )
    assert INSULA[0] not in means.index.get_level_values("structure")
    assert "group:parcels" not in means.index.get_level_values("structure")


def test_the_page_has_the_limit_beside_the_result() -> None:
    page = page_of(
        row("a", LABELS, HIPPOCAMPUS, 0.857),
        row("a", OTHER_LABELS, HIPPOCAMPUS, 0.869),
        row("a", PREDICTIONS, HIPPOCAMPUS, 0.918),
    )
    glance = page[page.index('<section id="glance">') :].split("</section>")[0]
    places = [glance.index(value) for value in ("0.857", "0.869", "0.918")]
    assert places == sorted(places)
    assert "Labels with labels" in glance
    assert "fast with the other scan&#39;s labels" in glance
    assert "fast with fast" in glance


def test_without_labels_the_page_says_that_there_is_no_limit() -> None:
    page = page_of(row("a", PREDICTIONS, HIPPOCAMPUS, 0.918))
    assert "there is no limit to compare with" in page
    assert "Labels with labels" not in page.split("How each number is defined")[0]


def test_a_head_of_another_size_is_named() -> None:
    page = page_of(row("a", PREDICTIONS, HIPPOCAMPUS, 0.9), stretch_percent=-2.5)
    assert "a_1 and a_2: the head differs in size by 2.5 %" in page


@pytest.mark.browser
def test_on_a_phone_nothing_is_wider_than_the_page(tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    page = tmp_path / "repeat.html"
    participant = "participant-" + 40 * "long"
    kinds = (LABELS, OTHER_LABELS, PREDICTIONS)
    rows = [row(participant, kind, HIPPOCAMPUS, 0.9) for kind in kinds]
    page.write_text(page_of(*rows))
    assert_fits_desk_and_phone(chromium, page)
