"""The noise of two scans of a person, as a table has it for a model."""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest
from scipy import stats

from trinat.segmentation.report.retest import retest_of


def test_few_measurements_have_a_wide_band() -> None:
    table = (files("trinat.configs") / "retest" / "fast.tsv").read_text("utf-8")
    row = next(csv.DictReader(table.splitlines(), delimiter="\t"))
    factor = stats.t.ppf(0.975, int(row["freedom"]))
    assert factor > 1.96
    expected = float(row["sd_percent"]) * factor
    assert retest_of("fast")[row["structure"]] == pytest.approx(expected)


def test_a_model_that_nobody_measured_has_none() -> None:
    assert retest_of("own") == {}
