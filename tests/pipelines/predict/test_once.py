"""Files that a run reads, and how often: each new scan once, each model once per process."""

from __future__ import annotations

import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.overfitted import random_model
from helpers.serial import run_serially, write_scans

from trinat.pipelines.predict.case import CaseWorker
from trinat.pipelines.predict.case_in_progress import CaseInProgress
from trinat.pipelines.predict.settings import SLICES, OutputSettings
from trinat.pipelines.study import entry
from trinat.pipelines.study.entry import Entry

_opened: list[str] | None = None


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    # A descriptor that is wrapped in a file object was recorded with its name before.
    if _opened is not None and event == "open" and not isinstance(arguments[0], int):
        _opened.append(Path(str(arguments[0])).name)


# Python's audit hooks cannot be removed.
sys.addaudithook(_hear)


@contextmanager
def opened() -> Iterator[Counter[str]]:
    """Count how often the block opens files, by name."""
    global _opened
    _opened, counts = [], Counter[str]()
    try:
        yield counts
    finally:
        counts.update(_opened)
        _opened = None


def test_a_new_scan_and_the_weights_are_read_once(tmp_path: Path) -> None:
    names = [f"sub-0{n}_T1w.nii.gz" for n in (1, 2)]
    raw = write_scans(tmp_path / "raw", *(f"{name[:6]}/anat/{name}" for name in names))
    model = random_model()
    with opened() as counts:
        assert run_serially(raw, tmp_path / "out").done == 2
    assert [counts[name] for name in names] == [1, 1]
    assert {counts[path.name] for path in model.glob("*.safetensors")} == {1}
    # Its contrast, its stripper and its hash by the run, its content by the process that
    # computes.
    assert counts["model.yaml"] == 4


def test_what_is_done_is_read_once_more_and_no_model_with_it(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    run_serially(scans, tmp_path / "out")
    with opened() as counts:
        assert run_serially(scans, tmp_path / "out").skipped == 1
    assert counts["a.nii.gz"] == counts["a_dseg.nii.gz"] == 1
    assert counts["model.yaml"] == 3
    assert counts["run.jsonl"] == 1  # nothing is added
    assert not any(name.endswith(".safetensors") for name in counts)


def test_slices_that_were_not_copied_with_the_results_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    with_pictures = OutputSettings(brain_mask=False)
    run_serially(scans, tmp_path / "out", output=with_pictures)
    assert SLICES not in caplog.text
    shutil.rmtree(tmp_path / "out" / SLICES)
    assert run_serially(scans, tmp_path / "out", output=with_pictures).skipped == 1
    assert SLICES in caplog.text


def test_slices_are_not_missed_if_the_doubtful_scans_were_made_without_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(entry, "MOST_SHOWN", 1)
    # Of two equal scans the earlier one is shown.
    for name, pictures in (("a.nii.gz", False), ("b.nii.gz", True)):
        scans = write_scans(tmp_path / name, name)
        settings = OutputSettings(brain_mask=False, picture=pictures)
        run_serially(scans, tmp_path / "out", output=settings)
    assert not list((tmp_path / "out").glob(f"{SLICES}/*"))
    assert SLICES not in caplog.text


def test_in_one_process_a_scan_is_written_while_the_next_is_in_the_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans, began, met = (
        write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz"),
        threading.Event(),
        [],
    )
    infer, write = CaseWorker.infer, CaseWorker.write

    def heard(self: CaseWorker, scan: CaseInProgress) -> CaseInProgress:
        if scan.case.id == "b":
            began.set()
        return infer(self, scan)

    def waits(self: CaseWorker, scan: CaseInProgress) -> list[Entry]:
        met.append(began.wait(30))
        return write(self, scan)

    monkeypatch.setattr(CaseWorker, "infer", heard)
    monkeypatch.setattr(CaseWorker, "write", waits)
    assert run_serially(scans, tmp_path / "out").done == 2
    assert met == [True, True]


def test_an_error_beyond_a_case_ends_the_run_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where memory ends in the thread that writes: no entry can be made there."""

    def write(worker: CaseWorker, scan: CaseInProgress) -> list[Entry]:
        raise MemoryError

    monkeypatch.setattr(CaseWorker, "write", write)
    with pytest.raises(MemoryError):
        run_serially(write_scans(tmp_path / "in", "a.nii.gz"), tmp_path / "out")
    assert "finish" not in [thread.name for thread in threading.enumerate()]
