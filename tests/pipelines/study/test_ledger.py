"""The ledger: entries persist, torn lines are ignored, and results are current by their hash."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from helpers.refusals import refusal

from trinat.pipelines.predict.run import held
from trinat.pipelines.predict.settings import OutputSettings, RunSettings
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.entry import Entry, Status, find_moved
from trinat.pipelines.study.ledger import (
    Ledger,
    LedgerContents,
    ledgers_in,
    read_entries,
    read_ledgers,
)
from trinat.pipelines.study.naming import LEFT_OUT
from trinat.segmentation.errors import DiskFullError, IntegrityError, OutputError
from trinat.segmentation.io.files import sha256_of

DONE = Entry(
    "a", "done", input_sha256="i", model="m", settings="s", finished="2026-01-01"
)


def test_the_last_attempt_at_a_case_holds_over_all_ledgers(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.shard-1-of-2.jsonl") as ledger:
        ledger.add(replace(DONE, attempt=2, finished="2025-01-01", reason="newer"))
    with Ledger(tmp_path / "run.shard-2-of-2.jsonl") as ledger:
        ledger.add(DONE)
        ledger.add(replace(DONE, case="b"))
    entries = read_entries(ledgers_in(tmp_path))
    assert {case: entry.reason for case, entry in entries.items()} == {
        "a": "newer",
        "b": "",
    }
    assert set(read_ledgers(ledgers_in(tmp_path), {"b", "c"}).entries) == {"b"}


def test_torn_line_is_ignored_and_the_next_run_appends_after_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Ledger(path) as ledger:
        ledger.add(DONE)
        ledger.add(replace(DONE, case="b"))
    path.write_bytes(path.read_bytes()[:-20])
    assert set(read_entries([path])) == {"a"}
    with Ledger(path) as ledger:
        ledger.add(replace(DONE, case="c"))
    assert set(read_entries([path])) == {"a", "c"}


def test_a_whole_line_that_is_no_entry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text('{"case":"a","stat":"done"}\n')
    with pytest.raises(IntegrityError, match="line 1"):
        read_entries([tmp_path / "run.jsonl"])


def test_a_name_with_a_newline_stays_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Ledger(path) as ledger:
        ledger.add(replace(DONE, input="a\nb \udcff.nii"))
    assert path.read_bytes().count(b"\n") == 1
    assert read_entries([path])["a"].input == "a\nb \udcff.nii"


@pytest.fixture
def run(tmp_path: Path) -> tuple[Case, RunSettings, Entry]:
    """Return a scan, the settings of a run, and the entry of its result."""
    for name in ("scan", "o"):
        (tmp_path / name).write_bytes(b"x")
    case = Case("a", tmp_path / "scan", "scan")
    settings = RunSettings(tmp_path, Path("model"), "m", tmp_path / "staging")
    digest = sha256_of(tmp_path / "o")
    entry = replace(
        Entry.of(case, settings, "done"), input_sha256=digest, outputs={"o": digest}
    )
    return case, settings, entry


def test_done_means_same_input_model_settings_and_output(run) -> None:
    case, settings, entry = run
    assert entry.is_current(case, settings)
    assert not replace(entry, status="failed").is_current(case, settings)
    assert not entry.is_current(case, replace(settings, model_sha256="other"))
    assert not entry.is_current(
        case, replace(settings, output=OutputSettings(clean=True))
    )


@dataclass(frozen=True)
class LaterSettings(OutputSettings):
    """Output settings of a later version, with one more."""

    stars: bool = False


def test_a_new_setting_leaves_results_current_until_it_is_used(run) -> None:
    case, settings, entry = run
    assert entry.is_current(case, replace(settings, output=LaterSettings()))
    assert not entry.is_current(
        case, replace(settings, output=LaterSettings(stars=True))
    )


@pytest.mark.parametrize("file", ["scan", "o"])
@pytest.mark.parametrize("content", [b"changed", None])
def test_what_was_changed_or_removed_since_is_not_current(
    run, file: str, content
) -> None:
    case, settings, entry = run
    (settings.out / file).unlink()
    if content:
        (settings.out / file).write_bytes(content)
    assert not entry.is_current(case, settings)


def series(place: str, name: str, content: str, finished: str) -> Entry:
    return Entry(
        f"{place}/{name}",
        "done",
        scan=f"../dicom/{place}",
        input_sha256=content,
        finished=finished,
    )


@pytest.mark.parametrize(
    ("second", "third", "content"),
    [
        # Moved to another folder while the first still exists, and copied.
        ("p1/mprage", "p2/t1", "a"),
        # Other files of the series were put beside the folder, and then taken away again.
        ("p1", "p1/t1/all", "b"),
    ],
)
def test_a_series_that_was_moved_split_or_copied_counts_where_it_was_last(
    tmp_path: Path, second: str, third: str, content: str
) -> None:
    name = "series-5-0123abcd"
    for place in ("p1/t1", second, third):
        (tmp_path / "dicom" / place).mkdir(parents=True, exist_ok=True)
    entries = [
        series("p1/t1", name, "a", "2026-01-01"),
        series(second, name, content, "2026-01-02"),
        series(third, name, "a", "2026-01-03"),
    ]
    last = f"{third}/{name}"
    expected = {f"p1/t1/{name}": last, f"{second}/{name}": last}
    assert find_moved(entries, tmp_path / "out") == expected


def test_a_series_counts_where_it_still_exists(tmp_path: Path) -> None:
    name = "series-5-0123abcd"
    (tmp_path / "dicom/p1/t1").mkdir(parents=True)
    entries = [
        series("p1/t1", name, "a", "2026-01-01"),
        series("p1/mprage", name, "a", "2026-01-02"),
    ]
    moved = find_moved(entries, tmp_path / "out")
    assert moved == {f"p1/mprage/{name}": f"p1/t1/{name}"}


def test_series_of_one_name_in_separate_folders_are_two_scans(tmp_path: Path) -> None:
    # The name has a part of a hash, and anonymisers may give all series one identifier.
    name = "series-5-0123abcd"
    entries = [
        series("p1/t1", name, "a", "2026-01-01"),
        series("p2/t1", name, "b", "2026-01-02"),
        series("p1", "series-6-4567abcd", "c", "2026-01-03"),
    ]
    assert find_moved(entries, tmp_path / "out") == {}


def test_in_one_ledger_the_last_entry_holds_whatever_the_clock_said(
    tmp_path: Path,
) -> None:
    with Ledger(tmp_path / "run.jsonl") as ledger:
        ledger.add(replace(DONE, finished="2027-01-01"))
        ledger.add(replace(DONE, reason="newer"))
        held = ledger.entries
    assert read_entries([tmp_path / "run.jsonl"]) == held
    assert held["a"].reason == "newer"


@pytest.mark.parametrize("attempt", [1, 5])
def test_between_ledgers_what_is_written_holds_whatever_the_clock_said(
    tmp_path: Path, attempt: int
) -> None:
    (tmp_path / "o").write_bytes(b"x")
    there = replace(DONE, outputs={"o": sha256_of(tmp_path / "o")})
    gone = replace(DONE, outputs={"o": ""}, attempt=attempt, finished="2027")
    for number, entry in enumerate((there, gone)):
        with Ledger(tmp_path / f"run.{number}.jsonl") as ledger:
            ledger.add(entry)
    ledgers = ledgers_in(tmp_path)
    found = read_entries(ledgers)
    assert found == read_entries(reversed(ledgers)) == {"a": replace(there, attempt=1)}


def test_attempts_are_counted_on_from_what_was_known(tmp_path: Path) -> None:
    contents = LedgerContents({"a": replace(DONE, attempt=4)})
    with Ledger(tmp_path / "run.jsonl", contents) as ledger:
        ledger.add(DONE)
        ledger.add(replace(DONE, case="b"))
        ledger.add(Entry("b", "writing"))
    attempts = {case: entry.attempt for case, entry in ledger.entries.items()}
    assert attempts == {"a": 5, "b": 1}
    assert read_entries([tmp_path / "run.jsonl"]) == ledger.entries


@pytest.mark.parametrize(
    ("content", "holds"), [(b"x", "done"), (b"y", "failed"), (None, "failed")]
)
def test_of_equal_attempts_the_result_of_the_scan_that_is_there_holds(
    tmp_path: Path, content: bytes | None, holds: str
) -> None:
    (tmp_path / "o").write_bytes(b"o")
    (tmp_path / "scan").write_bytes(b"x")
    digest = sha256_of(tmp_path / "scan")
    outputs = {"o": sha256_of(tmp_path / "o")}
    done = replace(
        DONE, scan="scan", input_sha256=digest, outputs=outputs, finished="2099"
    )
    for number, entry in enumerate((done, replace(DONE, status="failed"))):
        with Ledger(tmp_path / f"run.{number}.jsonl") as ledger:
            ledger.add(entry)
    (tmp_path / "scan").unlink()
    if content:
        (tmp_path / "scan").write_bytes(content)
    ledgers = ledgers_in(tmp_path)
    found = read_entries(ledgers)
    assert found == read_entries(reversed(ledgers))
    assert found["a"].status == holds


def test_a_whole_ledger_gets_no_empty_line_when_it_is_opened_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        with Ledger(path) as ledger:
            ledger.add(DONE)
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize(
    ("status", "reason", "is_left_out"),
    [
        ("skipped", f"{LEFT_OUT}a localiser", True),
        ("skipped", "changed by hand", False),
        ("failed", f"{LEFT_OUT}a localiser", False),
    ],
)
def test_what_is_left_out_is_skipped_for_being_no_scan(
    status: Status, reason: str, is_left_out: bool
) -> None:
    assert Entry("a", status, reason=reason).is_left_out is is_left_out


def test_a_ledger_that_is_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").symlink_to(tmp_path / "elsewhere")
    with (
        refusal(OutputError, tmp_path / "run.jsonl"),
        Ledger(tmp_path / "run.jsonl") as ledger,
    ):
        ledger.add(DONE)
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_told_with_the_ledgers_name(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(DiskFullError) as caught, Ledger(path) as ledger:
        ledger.add(DONE)
    assert str(caught.value).startswith(
        f"{path}: cannot be written (No space left on device): "
    )
    assert ledger.entries == {}


def test_a_file_of_the_users_with_a_ledgers_name_is_no_torn_ledger(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"by hand")
    with refusal(IntegrityError, path):
        read_entries([path])


def test_a_result_that_could_not_be_placed_wholly_leaves_nothing(
    tmp_path: Path,
) -> None:
    staged, out = tmp_path / "staged", tmp_path / "out"
    (staged / "later").mkdir(parents=True)
    out.mkdir()
    (staged / "first").write_text("first")
    (staged / "later" / "file").write_text("second")
    (out / "later").write_text("no folder: nothing can be placed in it")
    outputs = {name: sha256_of(staged / name) for name in ("first", "later/file")}
    with (
        Ledger(out / "run.jsonl") as ledger,
        refusal(OutputError, out / "later" / "file"),
    ):
        ledger.move_in(staged, replace(DONE, outputs=outputs))
    assert not (out / "first").exists()


def test_a_folder_of_results_on_another_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(source))

    (tmp_path / "staged").mkdir()
    (tmp_path / "staged/file").write_text("")
    monkeypatch.setattr(Path, "replace", refuse)
    with (
        Ledger(tmp_path / "run.jsonl") as ledger,
        refusal(OutputError, tmp_path / "file", remedy="another disk"),
    ):
        ledger.move_in(tmp_path / "staged")


@pytest.mark.parametrize("name", ["../victim.txt", "/etc/victim", "a/../../b", ""])
def test_a_ledger_lists_no_files_outside_its_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.jsonl"
    with Ledger(path) as ledger:
        ledger.add(replace(DONE, outputs={name: "0"}))
    with pytest.raises(IntegrityError, match="line 1 is no entry"):
        read_entries([path])


def test_what_a_link_leads_to_is_not_deleted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = elsewhere / "victim.txt"
    victim.write_text("mine")
    (out / "folder").symlink_to(elsewhere)
    (out / "link.txt").symlink_to(victim)
    digest = sha256_of(victim)
    written = {("folder/victim.txt", digest), ("link.txt", digest)}
    with Ledger(out / "run.jsonl", LedgerContents(written=written)) as ledger:
        ledger.remove("folder/victim.txt")
        ledger.remove("link.txt")
    assert victim.read_text() == "mine"
    assert (out / "link.txt").is_symlink()


def test_a_link_in_the_place_of_the_work_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".trinat-work").symlink_to(tmp_path / "elsewhere")
    with (
        refusal(OutputError, tmp_path / ".trinat-work"),
        held(tmp_path / ".trinat-work", ""),
    ):
        pass
