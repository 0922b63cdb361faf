"""Definitions of metrics name the widths and the units that the code uses."""

from __future__ import annotations

from trinat.segmentation.metrics.definitions import BOUNDARY_WIDTH_MM, METRICS


def test_the_rims_are_as_wide_as_their_definition_says() -> None:
    assert f"within {BOUNDARY_WIDTH_MM:g} mm" in METRICS["boundary_iou"].definition


def test_a_title_names_its_unit_if_it_has_one() -> None:
    assert METRICS["hd95"].title_with_unit == "Hausdorff 95 % (mm)"
    assert METRICS["volume"].title_with_unit == "Volume (mm³)"
    assert METRICS["dice"].title_with_unit == "Dice"
