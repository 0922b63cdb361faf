"""The page of a run: the resources that it may load, and its content."""

from __future__ import annotations

import json
import re
from html import unescape
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.browser import Browser, find_chromium

from trinat.pipelines.predict.recorder import Recorder
from trinat.pipelines.predict.settings import RunSettings, slices_of
from trinat.pipelines.predict.tables import write_tables
from trinat.pipelines.study.entry import MOST_SHOWN, Entry
from trinat.pipelines.study.ledger import Ledger, LedgerContents
from trinat.pipelines.study.record import ScanResult

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
    write_tables(
        tmp_path,
        [
            Entry(EVIL, "done", result=ScanResult(**SEEN)),
            Entry("z", "failed", reason="torn"),
        ],
    )
    return tmp_path


def test_the_pages_policy_names_its_style_and_allows_no_other(out: Path) -> None:
    page = (out / "report.html").read_text()
    (policy,) = re.findall('Content-Security-Policy" content="([^"]+)"', unescape(page))
    assert policy.startswith(
        "default-src 'none'; img-src 'self' data:; style-src 'sha256-"
    )
    assert "unsafe" not in policy
    assert " style=" not in page


def test_qc_has_the_doubts_of_each_structure_and_samples_only_where_drawn(
    tmp_path: Path,
) -> None:
    stem = {
        "agreement": {"Brain-Stem": 0.9},
        "structure_grades": {"Brain-Stem": "pass"},
    }
    drawn = {"iou": {"Brain-Stem": 0.8}, "volume_cv": {"Brain-Stem": None}}
    entries = [
        Entry("a", "done", result=ScanResult(**SEEN | stem)),
        Entry("b", "done", result=ScanResult(**SEEN | drawn)),
    ]
    write_tables(tmp_path, entries)
    header, *rows = (
        line.split("\t") for line in (tmp_path / "qc.tsv").read_text().splitlines()
    )
    names = ("", "_agreement", "_iou", "_volume_cv")
    assert header[-4:] == [f"Brain-Stem{name}" for name in names]
    assert [row[-4:] for row in rows] == [
        ["pass", "0.9", "n/a", "n/a"],
        ["n/a", "n/a", "0.8", "n/a"],
    ]


def test_tables_of_a_bids_dataset_are_keyed_as_bids_has_it(tmp_path: Path) -> None:
    cases = ("sub-01/ses-a/anat/sub-01_ses-a_run-1", "sub-02/anat/sub-02")
    write_tables(
        tmp_path, [Entry(case, "done", result=ScanResult(**SEEN)) for case in cases]
    )
    for name in ("volumes.tsv", "qc.tsv"):
        rows = [
            line.split("\t")[:3] for line in (tmp_path / name).read_text().splitlines()
        ]
        assert rows == [
            ["participant_id", "session_id", "case"],
            ["sub-01", "ses-a", cases[0]],
            ["sub-02", "n/a", cases[1]],
        ]


URI = "data:image/png;base64,iVBORw0KGgo="
SLICES = {
    **{
        "shape": [4, 5, 6],
        "columns": 3,
        "start": [1, 2, 3],
        "gray": URI,
        "prediction": URI,
    },
    "palette": {"colors": [[0, 0, 0], [9, 8, 7]], "names": ["Background", EVIL]},
}


def write_slices(out: Path, case: str, content: str) -> None:
    path = out / slices_of(case)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_the_most_doubtful_scans_have_slices_and_their_place_in_the_batch(
    tmp_path: Path,
) -> None:
    entries = []
    for n, name in enumerate("abc"):
        seen = {"volumes_mm3": {"Brain-Stem": 100 * n}, "mean_agreement": 0.9 - n / 10}
        seen |= {
            "structure_grades": {"Brain-Stem": "look"},
            "agreement": {"Brain-Stem": 0.61},
        }
        entries.append(Entry(name, "done", result=ScanResult(**SEEN | seen)))
        write_slices(tmp_path, name, json.dumps(SLICES))
    write_tables(tmp_path, entries)
    page = (tmp_path / "report.html").read_text()
    assert page.count('class="viewer"') == 3
    assert re.findall(r"<h3>\d\. (\w): look", page) == ["c", "b", "a"]
    assert re.findall(r">(\d of 3)<svg", page) == ["3 of 3", "2 of 3", "1 of 3"]
    # Quartiles of 0, 100 and 200 in percent of their range, and the scan's own volume.
    assert '<rect x="25.0" y="2" width="50.0"' in page
    assert '<circle cx="100.0"' in page
    assert page.count("views agree by 0.61 only") == 2
    assert "not found" in page
    assert EVIL not in page


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", json.dumps(SLICES | {"gray": "https://example.org/a.png"})],
)
def test_slices_that_are_damaged_leave_the_picture(
    tmp_path: Path, content: str
) -> None:
    write_slices(tmp_path, "a", content)
    write_tables(tmp_path, [Entry("a", "done", result=ScanResult(**SEEN))])
    page = (tmp_path / "report.html").read_text()
    assert 'class="viewer"' not in page
    assert 'class="still" src="a%20b_qc.png"' in page


def test_slices_of_the_most_doubtful_are_kept_in_whatever_order_scans_come(
    tmp_path: Path,
) -> None:
    """Also if a run continues another one: the page is the same."""
    pages = []
    for name, order in (
        ("up", range(9)),
        ("down", range(8, -1, -1)),
        ("twice", range(9)),
    ):
        out = tmp_path / name
        out.mkdir()
        contents = LedgerContents()
        parts = [order[:4], order[4:]] if name == "twice" else [order]
        for part in parts:
            with Ledger(out / "run.jsonl", contents) as ledger:
                recorder = Recorder(
                    RunSettings(out, Path("m"), "m", tmp_path), ledger, lambda _: None
                )
                for n in part:
                    write_slices(
                        tmp_path / f"{name}-{n}", f"scan/{n}", json.dumps(SLICES)
                    )
                    seen = SEEN | {"mean_agreement": n / 10}
                    staged = str(tmp_path / f"{name}-{n}")
                    recorder.note(
                        Entry(
                            f"scan/{n}",
                            "done",
                            result=ScanResult(**seen),
                            staged=staged,
                        )
                    )
        kept = {path.relative_to(out).as_posix() for path in out.glob(".trinat-page/*")}
        assert kept == {slices_of(f"scan/{n}") for n in range(MOST_SHOWN)}
        write_tables(out, contents.entries.values())
        pages.append((out / "report.html").read_bytes())
    assert pages[0] == pages[1] == pages[2]


@pytest.mark.browser
def test_the_page_has_its_style_and_pictures_and_runs_no_script_of_others(
    out: Path,
) -> None:
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium is installed")
    browser = Browser(executable)
    try:
        browser.open(out / "report.html")
        browser.wait("document.images[0].complete")
        assert browser.evaluate("document.images[0].naturalWidth") == 6
        cell = "getComputedStyle(document.querySelector('td'))"
        assert browser.evaluate(f"{cell}.paddingLeft") == "8.8px"  # .55rem of 16 px
        assert browser.evaluate("document.title") == "trinat: 2 scans"
        assert browser.problems == []
    finally:
        browser.close()


def test_a_rejected_volume_is_no_norm_of_the_others(tmp_path: Path) -> None:
    entries = []
    for case, grade, mm3 in (
        ("a", "reject", 900.0),
        ("b", "look", 100.0),
        ("c", "pass", 300.0),
    ):
        result = {"grade": grade, "volumes_mm3": {"Brain-Stem": mm3}}
        entries.append(Entry(case, "done", result=ScanResult(**result)))
    write_tables(tmp_path, entries)
    page = (tmp_path / "report.html").read_text()
    assert "2 of 2 smaller" in page
    assert "1 of 2<" in page
    assert "3 of 3" not in page


def test_the_page_says_how_it_was_made_and_leads_to_the_page_of_each_scan(
    tmp_path: Path,
) -> None:
    result = SEEN | {
        "model": "fast",
        "measures_mm3": {"EstimatedTotalIntraCranialVol": 1_500_000.0},
    }
    entries = [
        Entry(
            f"sub {n}",
            "done",
            model="abc",
            result=ScanResult(**result),
            outputs={f"sub {n}_page.html": "0", f"sub {n}_dseg.nii.gz": "0"},
            finished=f"2026-11-0{n}T10:00:00.000+00:00",
        )
        for n in (1, 2)
    ]
    write_tables(tmp_path, entries)
    page = (tmp_path / "report.html").read_text()
    assert '<a href="sub%201_page.html">sub 1</a>' in page
    assert "Intracranial (ml)" in page
    assert ">1,500</td>" in page
    facts = page[page.index("What was done") :]
    assert "<dd>fast (SHA-256 abc)</dd>" in facts
    assert "<dd>2026-11-01 to 2026-11-02</dd>" in facts
    assert f"<dd>{version('trinat')}</dd>" in facts


def test_a_result_whose_scan_is_gone_says_so(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.nii").touch()
    out = tmp_path / "out"
    out.mkdir()
    entries = [Entry(name, "done", scan=f"../in/{name}.nii") for name in "ab"]
    write_tables(out, entries)
    rows = (out / "summary.tsv").read_text().splitlines()[1:]
    reasons = [row.split("\t")[4] for row in rows]
    assert reasons == ["", "its scan is no longer where it was read"]
