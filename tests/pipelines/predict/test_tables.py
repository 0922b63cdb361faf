"""The page of a run: what it may load, and what a reader sees."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.browser import Browser, find_chromium

from pipelines.predict.ledger import Entry
from pipelines.predict.tables import write_tables

EVIL = "<script>document.title='broken'</script>"
SEEN = {
    "grade": "look",
    "reasons": [EVIL],
    "notes": [],
    "total_brain_mm3": 1.2e6,
    "volumes_mm3": {"Brain-Stem": 2e4},
    "picture": "a b_qc.png",
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    plt.imsave(tmp_path / "a b_qc.png", np.zeros((4, 6)))
    write_tables(tmp_path, [Entry(EVIL, "done", result=SEEN), Entry("z", "failed", reason="torn")])
    return tmp_path


def test_the_pages_policy_names_its_style_and_allows_no_other(out: Path) -> None:
    page = (out / "report.html").read_text()
    (policy,) = re.findall('Content-Security-Policy" content="([^"]+)"', unescape(page))
    assert policy.startswith("default-src 'none'; img-src 'self'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert " style=" not in page


def test_qc_has_the_doubts_of_each_structure_and_samples_only_where_drawn(tmp_path: Path) -> None:
    stem = {"agreement": {"Brain-Stem": 0.9}, "structure_grades": {"Brain-Stem": "pass"}}
    drawn = {"iou": {"Brain-Stem": 0.8}, "volume_cv": {"Brain-Stem": None}}
    entries = [Entry("a", "done", result=SEEN | stem), Entry("b", "done", result=SEEN | drawn)]
    write_tables(tmp_path, entries)
    header, *rows = (line.split("\t") for line in (tmp_path / "qc.tsv").read_text().splitlines())
    names = ("", "_agreement", "_iou", "_volume_cv")
    assert header[-4:] == [f"Brain-Stem{name}" for name in names]
    assert [row[-4:] for row in rows] == [
        ["pass", "0.9", "n/a", "n/a"],
        ["n/a", "n/a", "0.8", "n/a"],
    ]


def test_tables_of_a_bids_dataset_are_keyed_as_bids_has_it(tmp_path: Path) -> None:
    cases = ("sub-01/ses-a/anat/sub-01_ses-a_run-1", "sub-02/anat/sub-02")
    write_tables(tmp_path, [Entry(case, "done", result=SEEN) for case in cases])
    for name in ("volumes.tsv", "qc.tsv"):
        rows = [line.split("\t")[:3] for line in (tmp_path / name).read_text().splitlines()]
        assert rows == [
            ["participant_id", "session_id", "case"],
            ["sub-01", "ses-a", cases[0]],
            ["sub-02", "n/a", cases[1]],
        ]


@pytest.mark.browser
def test_the_page_has_its_style_and_pictures_and_runs_no_script(out: Path) -> None:
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium is installed")
    browser = Browser(executable)
    try:
        browser.open(out / "report.html")
        browser.wait("document.images[0].complete")
        assert browser.evaluate("document.images[0].naturalWidth") == 6
        cell = "getComputedStyle(document.querySelector('td'))"
        assert browser.evaluate(f"{cell}.paddingLeft") == "9.6px"  # .6rem of 16 px
        assert browser.evaluate("document.title") == "trinat: 2 scans"
        assert browser.problems == []
    finally:
        browser.close()
