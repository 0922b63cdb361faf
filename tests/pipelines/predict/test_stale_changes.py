"""Tables of changes after scans were removed, renamed, moved or replaced, also after kills.

Each expected table is that of a run in an empty folder, with the scans as they are now.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.serial import QUICK, run_serially

from trinat.pipelines.predict import changes
from trinat.pipelines.predict.run import merge
from trinat.pipelines.predict.settings import CaseNames, RunSettings, Shard
from trinat.pipelines.study.cases import Case, Participant
from trinat.pipelines.study.entry import Entry, digest_of
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.record import ScanResult
from trinat.pipelines.study.study import Study
from trinat.segmentation.io.files import sha256_of

pytestmark = pytest.mark.usefixtures("without_figures")

TOGETHER = replace(QUICK, longitudinal=True)
TABLES = ("changes.tsv", "timepoints.tsv")


class Killed(BaseException):
    """The end of a run by a signal that nothing can catch."""


@dataclass
class EngineByContent:
    """Makes label maps and volumes that depend on all scans that are segmented together."""

    settings: RunSettings

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[list[Entry]]:
        for case in cases:
            if case is None or stop():
                continue
            scans = case.scans
            digests = {scan.id: str(digest_of(scan.path)) for scan in scans}
            parts = []
            for number, scan in enumerate(scans):
                facts = None
                if isinstance(case, Participant):
                    facts = {
                        "participant": case.name,
                        "group": case.group,
                        "year": case.years[number],
                        "scans": digests,
                    }
                parts.append(self._entry(scan, digests, facts))
            yield parts

    def _entry(
        self, scan: Case, digests: dict[str, str], facts: dict[str, Any] | None
    ) -> Entry:
        content = repr((digests[scan.id], sorted(digests.values()))).encode()
        volume = 1000 + int(hashlib.sha256(content).hexdigest()[:4], 16)
        result: dict[str, Any] = {"model": "own", "grade": "pass"}
        if facts is not None:
            result["longitudinal"] = {**facts, "volumes_mm3": {"Brain-Stem": volume}}
        staged = self.settings.staging / scan.id.replace("/", "-")
        path = CaseNames(staged, scan.id, {}, bids=False).labels(
            self.settings.output, scan.path
        )
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        return replace(
            Entry.of(scan, self.settings, "done"),
            input_sha256=digests[scan.id],
            outputs={path.relative_to(staged).as_posix(): sha256_of(path)},
            result=ScanResult(**result),
            staged=str(staged),
        )


def remove_one(scans: Path) -> None:
    (scans / "P0_MR3.nii.gz").unlink()


def remove_all_but_one(scans: Path) -> None:
    (scans / "P0_MR2.nii.gz").unlink()
    (scans / "P0_MR3.nii.gz").unlink()


def rename_one(scans: Path) -> None:
    (scans / "P0_MR3.nii.gz").rename(scans / "P0_MR9.nii.gz")


def rename_the_participant(scans: Path) -> None:
    for path in sorted(scans.glob("P0_*")):
        path.rename(path.with_name(path.name.replace("P0", "P7")))


def move_the_participant(scans: Path) -> None:
    (scans / "first").mkdir()
    for path in sorted(scans.glob("P0_*")):
        path.rename(scans / "first" / path.name)


def replace_one(scans: Path) -> None:
    (scans / "P0_MR3.nii.gz").write_text("P0, the third again")


Change = Callable[[Path], None]
CHANGES: tuple[Change, ...] = (
    remove_one,
    remove_all_but_one,
    rename_one,
    rename_the_participant,
    move_the_participant,
    replace_one,
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Segment a participant with three scans and one with two, whole and in shards."""
    (tmp_path / "in").mkdir()
    for name in ("P0_MR1", "P0_MR2", "P0_MR3", "P1_MR1", "P1_MR2"):
        (tmp_path / "in" / f"{name}.nii.gz").write_text(name)
    run(tmp_path, "whole")
    run_shards(tmp_path, "shards")
    merge(tmp_path / "shards")
    return tmp_path


def run(root: Path, out: str, shard: Shard | None = None) -> None:
    run_serially(
        root / "in",
        root / out,
        output=TOGETHER,
        engine=EngineByContent,
        shard=shard,
    )


def run_shards(root: Path, out: str) -> None:
    for part in (1, 2):
        run(root, out, Shard(part, 2))


def tables(out: Path) -> dict[str, str]:
    """Return the text of the existing tables."""
    return {name: (out / name).read_text() for name in TABLES if (out / name).exists()}


def killed_after(
    monkeypatch: pytest.MonkeyPatch, files: int, work: Callable[[], None]
) -> bool:
    """Run work and kill it after this many files were put in place.

    Return True if it was killed.
    """
    placed = 0
    replaces = Path.replace

    def count(self: Path, target: Path) -> Path:
        nonlocal placed
        if placed == files:
            raise Killed
        placed += 1
        return replaces(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", count)
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("change", CHANGES)
def test_tables_are_those_of_a_first_run_with_what_is_there(
    study: Path, change: Change
) -> None:
    before = tables(study / "whole")
    assert list(before) == list(TABLES)
    change(study / "in")
    run(study, "whole")
    run(study, "fresh")
    assert tables(study / "whole") == tables(study / "fresh") != before
    run_shards(study, "shards")
    merge(study / "shards")
    assert tables(study / "shards") == tables(study / "fresh")


def test_a_table_of_changes_goes_with_the_last_participant_who_has_some(
    study: Path,
) -> None:
    remove_all_but_one(study / "in")
    (study / "in" / "P1_MR2.nii.gz").unlink()
    run_shards(study, "shards")
    merge(study / "shards")
    assert tables(study / "shards") == {}


def test_a_participant_who_got_the_old_name_back_has_no_other_one(study: Path) -> None:
    before = tables(study / "whole")
    rename_the_participant(study / "in")
    run(study, "whole")
    for path in sorted((study / "in").glob("P7_*")):
        path.rename(path.with_name(path.name.replace("P7", "P0")))
    run(study, "whole")
    assert tables(study / "whole") == before


def test_participants_whose_scans_are_all_gone_stay(study: Path) -> None:
    before = tables(study / "whole")
    for path in (study / "in").glob("P0_*"):
        path.unlink()
    run(study, "whole")
    assert tables(study / "whole") == before
    assert (
        "its scan is no longer where it was read"
        in (study / "whole" / "summary.tsv").read_text()
    )


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("out", ["whole", "shards"])
def test_after_a_kill_between_two_files_no_table_has_old_and_new(
    study: Path, change: Change, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other tests draw the page; here it is a file like any other.
    monkeypatch.setattr(changes, "changes_page", lambda *_: "page")
    before = tables(study / out)
    change(study / "in")
    run(study, "fresh")
    after = tables(study / "fresh")

    def work(there: str) -> None:
        if out == "whole":
            run(study, there)
        else:
            run_shards(study, there)

    def participant(text: str, name: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(name)]

    files = 0
    was_killed = True
    while was_killed:
        there = f"killed-{files}"
        shutil.copytree(study / out, study / there)
        was_killed = killed_after(monkeypatch, files, partial(work, there))
        merge(study / there)
        joined = tables(study / there)
        for name in TABLES:
            old, new = (
                participant(given.get(name, ""), "P0") for given in (before, after)
            )
            assert participant(joined.get(name, ""), "P0") in (old, new, [])
        work(there)
        merge(study / there)
        assert tables(study / there) == after
        files += 1
    assert files > 1


def test_scans_by_two_models_are_not_compared(tmp_path: Path) -> None:
    def entry(case: str, year: float, model: str, volume: float) -> Entry:
        together = {
            "participant": "anna",
            "group": "",
            "year": year,
            "scans": {"a": "digest of a", "b": "digest of b"},
            "volumes_mm3": {"Brain-Stem": volume},
        }
        result = {"model": model, "grade": "pass", "longitudinal": together}
        return Entry(case, "done", case, model=model, result=ScanResult(**result))

    shard = tmp_path / "run.shard-1-of-1.jsonl"
    with Ledger(shard) as ledger:
        ledger.add(entry("a", 2020, "one", 1000))
        ledger.add(entry("b", 2021, "one", 1000))
    merge(tmp_path)
    assert len((tmp_path / "changes.tsv").read_text().splitlines()) == 2
    # A run with another model ended between the two.
    with Ledger.resume(shard, []) as ledger:
        ledger.add(entry("a", 2020, "other", 2000))
    merge(tmp_path)
    assert not (tmp_path / "changes.tsv").exists()


def test_a_participant_is_removed_with_its_files_and_lines_in_the_ledger(
    study: Path,
) -> None:
    for path in study.rglob("P1_*"):
        path.unlink()
    for ledger in study.glob("*/run*.jsonl"):
        lines = ledger.read_text().splitlines(keepends=True)
        kept = [line for line in lines if '"case":"P1_' not in line]
        ledger.write_text("".join(kept))
    run(study, "whole")
    merge(study / "shards")
    run(study, "fresh")
    for out in (study / "whole", study / "shards"):
        assert tables(out) == tables(study / "fresh")
        assert "P1" not in (out / "summary.tsv").read_text()
        cases = {scan.case for scan in Study(out).scans}
        assert cases == {"P0_MR1", "P0_MR2", "P0_MR3"}
