"""Faults during prepare: broken subjects, killed runs, dying workers, two runs at once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.miniatures import freesurfer_subject, head_image, head_labels, write_mgz
from helpers.refusals import refusal

import trinat.pipelines.prepare.making
import trinat.pipelines.prepare.subject_job
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.jobs.lock import run_lock
from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.pipelines.prepare.subject_job import Outcome, SubjectJob
from trinat.segmentation.data.preparing import Cut
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError, LockedError
from trinat.segmentation.io.files import read_rows

GRID = (64, 64, 64)


def config_of(root: Path, source: str = "freesurfer") -> PrepareConfig:
    return PrepareConfig(source=source, root=root, grid=GRID)


def contents(folder: Path) -> dict[str, str]:
    """Return name and digest of every file, hidden ones too; store.json without times of files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            re.sub(rb'"mtime_ns": \d+', b"", path.read_bytes())
        ).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def truncate(folder: Path) -> None:
    path = folder / "mri/orig.mgz"
    path.write_bytes(path.read_bytes()[:-500])


def flip_a_bit(folder: Path) -> None:
    path = folder / "mri/aseg.mgz"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 4  # in the gzip trailer's length or checksum
    path.write_bytes(raw)


def lose_labels(folder: Path) -> None:
    (folder / "mri/aseg.mgz").unlink()


def unknown_number(folder: Path) -> None:
    labels = head_labels().astype(np.int32)
    labels[20, 20, 20] = 3777
    write_mgz(folder / "mri/aseg.mgz", labels)


def other_grid(folder: Path) -> None:
    write_mgz(folder / "mri/aseg.mgz", head_labels()[:, :-2])


def nonfinite(folder: Path) -> None:
    image = head_image(head_labels()).astype(np.float32)
    image[5, 5, 5] = np.nan
    write_mgz(folder / "mri/orig.mgz", image)


BREAKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "s03": (truncate, "orig.mgz"),
    "s05": (flip_a_bit, "aseg.mgz"),
    "s08": (lose_labels, "no labels"),
    "s11": (unknown_number, "3777"),
    "s14": (other_grid, "labels have shape"),
    "s20": (nonfinite, "orig.mgz"),
}


@pytest.mark.parametrize("jobs", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_six_broken_of_twenty_take_nothing_with_them(tmp_path: Path, jobs: int) -> None:
    for number in range(1, 21):
        name = f"s{number:02}"
        folder = freesurfer_subject(tmp_path / "in", name)
        if name in BREAKS:
            BREAKS[name][0](folder)
    summary = prepare_store(config_of(tmp_path / "in"), tmp_path / "out", jobs=jobs)
    assert summary.exit is Exit.SOME_FAILED == 3
    assert (summary.made, summary.failed, summary.skipped) == (14, 6, 0)
    assert len(list((tmp_path / "out/subjects").iterdir())) == 14
    reasons = {
        row.subject: row.reason for row in summary.rows if row.status == "failed"
    }
    assert sorted(reasons) == sorted(BREAKS)
    for name, (_, part) in BREAKS.items():
        assert part in reasons[name]
        assert "\n" not in reasons[name]
    store = Store(tmp_path / "out")
    assert len(store.subjects) == 14
    ledger = read_rows(tmp_path / "out/ledger.tsv", required=())
    assert ledger == [row.model_dump() for row in summary.rows]
    assert len(ledger) == 20


def test_a_subject_that_broke_later_loses_its_old_slices(tmp_path: Path) -> None:
    for name in ("a", "b"):
        freesurfer_subject(tmp_path / "in", name)
    prepare_store(config_of(tmp_path / "in"), tmp_path / "out")
    truncate(tmp_path / "in/a")
    summary = prepare_store(config_of(tmp_path / "in"), tmp_path / "out")
    assert (summary.current, summary.failed) == (1, 1)
    assert [p.name for p in (tmp_path / "out/subjects").iterdir()] == ["b.h5"]


def test_all_broken_is_another_status_and_still_told(tmp_path: Path) -> None:
    for name in ("a", "b"):
        truncate(freesurfer_subject(tmp_path / "in", name))
    summary = prepare_store(config_of(tmp_path / "in"), tmp_path / "out")
    assert summary.exit is Exit.ALL_FAILED
    for name in ("a", "b"):
        (tmp_path / "in" / name / "mri/orig.mgz").unlink()
    with refusal(DatasetError, tmp_path / "out/ledger.tsv"):
        prepare_store(config_of(tmp_path / "in"), tmp_path / "out")
    ledger = (tmp_path / "out/ledger.tsv").read_text()
    assert ledger.count("failed\tnone of these in mri/") == 2


def _prepare(root: Path, out: Path, jobs: int) -> None:
    prepare_store(config_of(root), out, jobs=jobs)


def _start(root: Path, out: Path, jobs: int = 1) -> multiprocessing.Process:
    """Run prepare in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trinat.pipelines.prepare.making"])
    process = context.Process(target=_prepare, args=(root, out, jobs))
    process.start()
    return process


def _kill_when(root: Path, out: Path, reached: Callable[[], bool]) -> bool:
    """Run prepare in a process of its own and kill it as soon as `reached` returns True."""
    process = _start(root, out)
    while process.is_alive() and not reached():
        time.sleep(0.0005)
    alive = process.is_alive()
    process.kill()
    process.join()
    return alive


@pytest.mark.slow
@pytest.mark.important
def test_a_run_that_was_killed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    for number in range(6):
        freesurfer_subject(root, f"s{number}")
    prepare_store(config_of(root), tmp_path / "undisturbed")

    def halves() -> list[Path]:
        return list(out.glob("subjects/.trinat-*.tmp"))

    def stores() -> int:
        return len(list(out.glob("subjects/*.h5")))

    killed = [
        _kill_when(
            root, out, lambda: bool(halves())
        ),  # while the first file is written
        _kill_when(root, out, lambda: stores() >= 2 and bool(halves())),
        _kill_when(
            root, out, lambda: stores() == 6
        ),  # before or while the tables are written
    ]
    assert killed[:2] == [True, True]
    prepare_store(config_of(root), out)
    assert contents(out) == contents(tmp_path / "undisturbed")


def _with_little_space(root: Path, out: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    summary = prepare_store(config_of(root), out)
    reasons = {row.reason for row in summary.rows}
    left = [path.name for path in (out / "subjects").iterdir()]
    os._exit(0 if all("cannot be written" in r for r in reasons) and not left else 1)


def test_a_disk_without_space_is_told_and_nothing_half_written_stays(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        freesurfer_subject(tmp_path / "in", name)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(
        target=_with_little_space, args=(tmp_path / "in", tmp_path / "out")
    )
    process.start()
    process.join()
    assert process.exitcode == 0


def test_an_error_that_nobody_foresaw_is_its_subjects_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        freesurfer_subject(tmp_path / "in", name)
    real = trinat.pipelines.prepare.subject_job.prepare_subject

    def stumbles(subject: Subject, path: Path, cut: Cut, fingerprint: str) -> None:
        if subject.id == "a":
            raise KeyError("of all things")
        real(subject, path, cut, fingerprint)

    monkeypatch.setattr(
        trinat.pipelines.prepare.subject_job, "prepare_subject", stumbles
    )
    summary = prepare_store(config_of(tmp_path / "in"), tmp_path / "out")
    assert (summary.made, summary.failed) == (1, 1)
    assert summary.rows[0].reason == "KeyError: 'of all things': a fault of trinat"


def test_until_it_is_complete_a_store_does_not_open(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "s")
    assert _kill_when(
        tmp_path / "in", tmp_path / "out", lambda: (tmp_path / "out/subjects").exists()
    )
    with refusal(DatasetError, tmp_path / "out"):
        Store(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.important
def test_workers_do_not_outlive_a_run_that_was_killed(tmp_path: Path) -> None:
    for number in range(8):
        freesurfer_subject(tmp_path / "in", f"s{number}")
    process = _start(tmp_path / "in", tmp_path / "out", jobs=2)
    while process.is_alive() and not list(tmp_path.glob("out/subjects/*.h5")):
        time.sleep(0.001)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.kill()
    process.join()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


def test_two_runs_do_not_share_a_store(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "s")
    (tmp_path / "out").mkdir()
    with run_lock(tmp_path / "out/.lock"), pytest.raises(LockedError):
        prepare_store(config_of(tmp_path / "in"), tmp_path / "out")


def _dies_on_s2(job: SubjectJob) -> Outcome:
    """Make a subject as `make_subject` does, but kill the process at s2, as if out of memory."""
    if job.subject.id == "s2":
        os.kill(os.getpid(), signal.SIGKILL)
    return _really_make(job)


_really_make = trinat.pipelines.prepare.subject_job.make_subject


def test_a_worker_that_dies_takes_its_own_subject_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        freesurfer_subject(tmp_path / "in", f"s{number}")
    monkeypatch.setattr(trinat.pipelines.prepare.making, "make_subject", _dies_on_s2)
    # Workers import this module by its name.
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    summary = prepare_store(config_of(tmp_path / "in"), tmp_path / "out", jobs=2)
    reasons = {
        row.subject: row.reason for row in summary.rows if row.status == "failed"
    }
    assert list(reasons) == ["s2"]
    assert "its process was killed" in reasons["s2"]
    assert summary.made == 4


def _dies_once_made(job: SubjectJob) -> Outcome:
    """Make a subject as `make_subject` does, but kill the first process before it reports it."""
    outcome = _really_make(job)
    try:
        (job.path.parent / "died").mkdir()
    except FileExistsError:
        return outcome
    os.kill(os.getpid(), signal.SIGKILL)
    return outcome


def test_what_a_worker_made_before_it_died_counts_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s0", "s1"):
        freesurfer_subject(tmp_path / "in", name)
    monkeypatch.setattr(
        trinat.pipelines.prepare.making, "make_subject", _dies_once_made
    )
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    summary = prepare_store(config_of(tmp_path / "in"), tmp_path / "out", jobs=2)
    assert (summary.made, summary.current, summary.failed) == (2, 0, 0)
    again = prepare_store(config_of(tmp_path / "in"), tmp_path / "out", jobs=2)
    assert (again.made, again.current, again.failed) == (0, 2, 0)
