"""Definitions of metrics have one source; the documentation agrees with it."""

from __future__ import annotations

from pathlib import Path

from trinat.segmentation.metrics.definitions import BOUNDARY_WIDTH_MM, METRICS

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_documented_table_is_the_codes() -> None:
    documented = {}
    for line in DOCUMENT.read_text("utf-8").splitlines():
        if line.startswith("| ") and line.count(" | ") == 5 and "(`" in line:
            cells = [
                c.strip().replace("\\|", "|")
                for c in line.replace("\\|", "\0").split("|")
            ]
            cells = [cell.replace("\0", "|") for cell in cells]
            key = cells[1].partition("(`")[2].rstrip("`)")
            documented[key] = tuple(cells[1:-1])
    expected = {
        m.key: (
            f"{m.title} (`{m.key}`)",
            m.unit,
            m.definition,
            m.if_absent_from_both,
            m.if_missed,
            m.if_invented,
        )
        for m in METRICS.values()
    }
    assert documented == expected


def test_the_rims_are_as_wide_as_their_definition_says() -> None:
    assert f"within {BOUNDARY_WIDTH_MM:g} mm" in METRICS["boundary_iou"].definition


def test_a_title_names_its_unit_if_it_has_one() -> None:
    assert METRICS["hd95"].title_with_unit == "Hausdorff 95 % (mm)"
    assert METRICS["volume"].title_with_unit == "Volume (mm³)"
    assert METRICS["dice"].title_with_unit == "Dice"
