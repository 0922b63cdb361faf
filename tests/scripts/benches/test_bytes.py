"""Masks of the table of hashes, and its comparison with another table."""

from __future__ import annotations

from pathlib import Path

import pytest
from benches.bytes import differences, hashes, mask_all, masked


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("a/run.jsonl", '"finished":"2026-11-26T20:40:06.042+00:00"', '"finished":"DATE"'),
        ("a/page.html", "<p>2026-11-26, 3 scans</p>", "<p>DATE, 3 scans</p>"),
        ("sessions.tsv", "anna\t2021-03-01\n", "anna\t2021-03-01\n"),
        ("a/run.jsonl", '"timings_s":{"read":0.03},"x":1', 'DURATIONS,"x":1'),
        ("printed/a.txt", "1/2 scan0: reading\n2 done, 5.3 scans/min\n", "2 done, SPEED\n"),
        ("a/notes.txt", "1/2 scan0: reading\n", "1/2 scan0: reading\n"),
        ("a/summary.tsv", "case\tseconds\nscan0\t9.457\n", "case\tseconds\nscan0\tSECONDS\n"),
        ("a/run.jsonl", '"qc.tsv":"916e","a.png":"38ce"', '"qc.tsv": DIGEST,"a.png":"38ce"'),
        ("a/x.dcm", "UI: 1.2.826.0.1.3680043.10.511.3.8851", "UI: NUMBER"),
        ("runs/a/done.json", '{"step": 4, "seconds": 4.09}', '{"step": 4, "seconds": SECONDS}'),
        ("runs/a/model/provenance.json", '{"commit": "8f0-dirty"}', '{"commit": "COMMIT"}'),
        ("runs/a/metrics.csv", "step,loss,speed\n1,9,7.6\n3,8,7.8\n", "step,loss,speed\n3,8\n"),
    ],
)  # fmt: skip
def test_what_no_two_runs_have_in_common_is_masked(
    name: str, text: str, left: str
) -> None:
    assert masked(name, text) == left


def test_where_the_folder_is_and_when_a_file_was_written_change_no_hash(
    tmp_path: Path,
) -> None:
    found = []
    for place, day in (("one", "2026-11-26"), ("two", "2026-12-31")):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "page.html").write_text(f"<p>{day}</p>")
        digest = hashes(folder)["page.html"]
        (folder / "ledger").write_text(f"{digest} of {folder}/page.html")
        mask_all(folder)
        found.append(hashes(folder))
        assert (folder / "ledger").read_text() == "page.html of FOLDER/page.html"
    assert found[0] == found[1]


def test_each_file_that_is_changed_gone_or_new_has_a_line() -> None:
    before = {"a": "1", "b": "1", "c": "1"}
    assert differences(before, {"a": "1", "b": "2", "d": "1"}) == [
        "changed  b",
        "gone     c",
        "new      d",
    ]
    assert differences(before, before) == []
