"""Full disks: one line says so, nothing half-written stays, and the run resumes after a cleanup."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.disks import Disk, may_have_mounts, own_mounts
from helpers.serial import run_serially, write_heads

from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.pipelines.study.ledger import read_entries
from trinat.pipelines.study.naming import WORK
from trinat.segmentation.errors import DiskFullError
from trinat.segmentation.io.files import sha256_of

Check = Callable[[Path, Disk], None]


def on_a_disk(check: Check, folder: Path) -> None:
    """Run a check in a process of its own, whose mounts end with it."""
    if not may_have_mounts():
        pytest.skip("this system lets no process have mounts of its own")
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_with_disk, args=(check, folder))
    process.start()
    process.join()
    assert process.exitcode == 0


def _with_disk(check: Check, folder: Path) -> None:
    assert own_mounts()
    disk = Disk(folder / "disk")
    try:
        check(folder, disk)
    finally:
        disk.remove()


def _predicted(folder: Path, disk: Disk) -> None:
    write_heads(folder / "in", "a.nii.gz")
    out = disk.folder / "out"
    assert run_serially(folder / "in", out).done == 1
    whole = (out / "a_dseg.nii.gz").read_bytes()
    write_heads(folder / "in", "a.nii.gz", "b.nii.gz", "c.nii.gz")
    # No room, not even for the lock.
    disk.leave_room(0)
    with pytest.raises(DiskFullError, match=r"lock: cannot be written \(No space left"):
        run_serially(folder / "in", out)
    assert not (out / WORK).exists()
    # Room for the two locks, but not for a label map.
    disk.leave_room(2 * 4096)
    with pytest.raises(DiskFullError) as caught:
        run_serially(folder / "in", out)
    assert str(caught.value) == (
        f"{out}: no space left on its disk: free some and run again: "
        "the run continues where it stopped"
    )
    # The scan is not to blame, and no other scan was begun in vain.
    entries = read_entries([out / "run.jsonl"])
    assert {case: entry.status for case, entry in entries.items()} == {"a": "done"}
    assert (out / "a_dseg.nii.gz").read_bytes() == whole
    assert not (out / WORK).exists()
    disk.resize()
    outcome = run_serially(folder / "in", out)
    assert (outcome.done, outcome.skipped, outcome.failed) == (2, 1, 0)


def test_a_run_ends_when_its_disk_is_full_and_goes_on_where_it_stopped(
    tmp_path: Path,
) -> None:
    on_a_disk(_predicted, tmp_path)


def _prepared(folder: Path, disk: Disk) -> None:
    from helpers.miniatures import freesurfer_subject

    for name in ("a", "b"):
        freesurfer_subject(folder / "in", name)
    config = PrepareConfig(source="freesurfer", root=folder / "in", grid=(96, 96, 96))
    out = disk.folder / "out"
    prepare_store(config, out)
    whole = {path: sha256_of(path) for path in out.rglob("*") if path.is_file()}
    # Room for the lock only.
    disk.leave_room(4096)
    other = config.model_copy(update={"grid": (112, 112, 112)})
    with pytest.raises(
        DiskFullError, match=r"a\.h5: cannot be written \(No space left"
    ):
        prepare_store(other, out)
    assert {path: sha256_of(path) for path in out.rglob("*") if path.is_file()} == whole
    disk.resize()
    assert prepare_store(other, out).made == 2


def test_a_store_stays_as_it_is_where_there_is_no_room_for_another(
    tmp_path: Path,
) -> None:
    on_a_disk(_prepared, tmp_path)
