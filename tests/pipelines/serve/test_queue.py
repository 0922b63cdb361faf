"""The queue: order, limits, restarts, deletion and full disks."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.serve.queue import EngineThread, FullError, Queue, Submission
from trinat.pipelines.serve.queue_study import study_of
from trinat.pipelines.serve.service import make_app
from trinat.pipelines.serve.settings import ServiceSettings
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.participants import Facts
from trinat.pipelines.study.record import ScanResult
from trinat.segmentation.errors import DiskFullError, InputError, OutputError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.zoo import find_model


def accepted(
    queue: Queue, client: str = "a", outputs: tuple[str, ...] = ()
) -> Submission:
    with queue.upload(client) as folder:
        scan = folder / "scan.nii"
        scan.write_bytes(b"scan")
        return queue.accept(scan, list(outputs))


def now(queue: Queue, job: Submission) -> Submission:
    """Return the present state of the scan in the queue."""
    found = queue.find(job.id)
    assert found is not None
    return found


def ids(queue: Queue) -> list[str]:
    return [submission.id for submission in queue.submissions]


def states(queue: Queue, *jobs: Submission) -> list[str]:
    return [now(queue, job).state for job in jobs]


def ended(queue: Queue, job: Submission, status: str = "done") -> None:
    staged = queue.folder / "staging" / job.id
    staged.mkdir()
    (staged / "labels").write_bytes(b"labels")
    where = str(staged) if status == "done" else ""
    entry = Entry(
        job.id, status, reason="why", result=ScanResult(grade="pass"), staged=where
    )  # type: ignore[arg-type]
    queue.finish(entry)


def test_turns_are_in_the_order_of_acceptance_and_survive_a_restart(
    tmp_path: Path,
) -> None:
    queue = Queue(tmp_path)
    first, second, third = (accepted(queue) for _ in range(3))
    assert [now(queue, job).place for job in (first, second, third)] == [1, 2, 3]
    case = queue.next()
    assert case is not None
    assert (case.id, case.path.read_bytes()) == (first.id, b"scan")
    queue.enter(first.id, "reading")
    queue.enter(first.id, "networks")
    assert (now(queue, first).state, now(queue, first).place) == ("running", 0)
    assert now(queue, second).place == 1
    ended(queue, first)
    queue.enter(second.id, "reading")

    again = Queue(tmp_path)
    assert states(again, first, second, third) == ["done", "queued", "queued"]
    assert (again.result(first) / "labels").read_bytes() == b"labels"
    turns = [case.id for case in iter(again.next, None)]
    assert turns == [second.id, third.id]


def test_a_scan_that_was_read_waits_until_the_networks_take_it(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    first, second, third = (accepted(queue) for _ in range(3))
    queue.enter(first.id, "reading")
    queue.enter(first.id, "networks")
    # The engine reads a scan in two steps.
    for _ in range(2):
        queue.enter(second.id, "reading")
        assert now(queue, second).stage == "reading"
        assert now(queue, second).seconds is None
        assert now(queue, second).starts == 1
    assert states(queue, first, second, third) == ["running", "queued", "queued"]
    assert [now(queue, job).place for job in (first, second, third)] == [0, 1, 2]
    queue.enter(second.id, "networks")
    assert now(queue, second).state == "running"
    assert now(queue, second).starts == 1


def test_what_was_not_accepted_is_gone_after_a_restart(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    with queue.upload("a") as folder:
        (folder / "scan.nii").write_bytes(b"half")
        Queue(tmp_path)
        assert not folder.exists()
    assert not list((tmp_path / "jobs").iterdir())


def test_a_scan_that_ends_the_server_again_and_again_fails(tmp_path: Path) -> None:
    job = accepted(Queue(tmp_path))
    for _ in range(5):
        queue = Queue(tmp_path)
        assert states(queue, job) == ["queued"]
        queue.next()
        queue.enter(job.id, "reading")
    last = now(Queue(tmp_path), job)
    assert (last.state, last.reason) == (
        "failed",
        "the server ended 5 times while it was at work",
    )


def test_a_scan_that_was_read_ahead_does_not_fail_with_the_running_one(
    tmp_path: Path,
) -> None:
    queue = Queue(tmp_path)
    killer, ahead = accepted(queue), accepted(queue)
    for _ in range(5):
        queue.enter(killer.id, "reading")
        queue.enter(killer.id, "networks")
        queue.enter(ahead.id, "reading")
        queue = Queue(tmp_path)
    assert states(queue, killer, ahead) == ["failed", "queued"]
    assert now(queue, ahead).starts == 0


class EndlessEngine:
    """Engine that does nothing until it is told to leave."""

    def run(self, _: Any, leave: Callable[[], bool]) -> Iterator[list[Entry]]:
        while not leave():
            time.sleep(0.01)
        yield [Entry("", "failed")]


def test_a_server_that_is_stopped_counts_as_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trinat.pipelines.serve.queue.local_engine", lambda *_, **__: EndlessEngine()
    )
    queue = Queue(tmp_path)
    running, ahead, done = (accepted(queue) for _ in range(3))
    ended(queue, done)
    queue.enter(running.id, "reading")
    queue.enter(running.id, "networks")
    queue.enter(ahead.id, "reading")
    engine = EngineThread(queue, PredictRequest((), tmp_path), find_model("fast"))
    engine.start()
    engine.stop()
    assert states(queue, running, ahead, done) == ["queued", "queued", "done"]
    again = Queue(tmp_path)
    assert [now(again, job).starts for job in (running, ahead)] == [0, 0]


def test_a_full_queue_and_a_greedy_client_are_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path, queued=3, per_client=2)
    first = accepted(queue)
    accepted(queue)
    with pytest.raises(FullError, match="you have"), queue.upload("a"):
        pass
    with (
        queue.upload("b"),
        pytest.raises(FullError, match="the queue is full"),
        queue.upload("c"),
    ):
        pass
    queue.enter(first.id, "reading")
    ended(queue, first)
    accepted(queue)


class Clock:
    now = 1_800_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the queue's clock, which a test then moves."""
    clock = Clock()
    monkeypatch.setattr("trinat.pipelines.serve.queue.time", clock)
    return clock


def test_a_corrected_scan_is_kept_from_its_correction_on(
    tmp_path: Path, clock: Clock
) -> None:
    queue = Queue(tmp_path, keep_s=100)
    corrected, other = accepted(queue), accepted(queue)
    for job in (corrected, other):
        ended(queue, job)
    clock.now += 101
    queue.renew(corrected)
    queue.sweep()
    assert ids(queue) == [corrected.id]
    assert ids(Queue(tmp_path, keep_s=100)) == [corrected.id]
    # A scan that was deleted in the meantime does not come back.
    queue.renew(other)
    assert ids(queue) == [corrected.id]


def test_what_ended_is_deleted_after_its_time(tmp_path: Path, clock: Clock) -> None:
    queue = Queue(tmp_path, keep_s=100)
    old, new, waiting = (accepted(queue) for _ in range(3))
    ended(queue, old)
    clock.now += 60
    ended(queue, new)
    clock.now += 41
    queue.sweep()
    assert ids(queue) == [new.id, waiting.id]
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == {new.id, waiting.id}


def test_what_is_deleted_while_it_is_done_leaves_nothing(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    job = accepted(queue)
    queue.enter(job.id, "reading")
    forgotten: list[bool] = []
    queue.forget = lambda: forgotten.append(True)
    queue.delete(job)
    ended(queue, job)
    assert forgotten
    assert not queue.submissions
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [
        tmp_path / "jobs.sqlite"
    ]
    assert job.id.encode() not in (tmp_path / "jobs.sqlite").read_bytes()


def test_further_outputs_are_those_of_the_case(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    accepted(queue, outputs=("mgz", "probabilities", "dicom-seg"))
    case = queue.next()
    assert case is not None
    assert case.also == ("probabilities", "dicom_seg")


def test_age_and_sex_are_the_cases_where_there_are_norms(tmp_path: Path) -> None:
    queue = Queue(tmp_path, has_norms=True)
    participant = Facts(age=70.5, sex="F")
    with queue.upload("") as folder:
        (folder / "scan.nii").touch()
        queue.accept(folder / "scan.nii", ["page"], participant)
    # After a restart, too; without norms no scan has age and sex.
    case = Queue(tmp_path, has_norms=True).next()
    assert case is not None
    assert (case.facts, case.also) == (participant, ("page",))
    case = Queue(tmp_path).next()
    assert case is not None
    assert case.facts is None


def test_the_token_is_the_queues_and_for_its_owner_alone(tmp_path: Path) -> None:
    token = Queue(tmp_path).token()
    assert len(token) >= 40
    assert Queue(tmp_path).token() == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_an_empty_token_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    token = Queue(tmp_path).token()
    assert len(token) >= 40
    assert Queue(tmp_path).token() == token


def test_a_damaged_table_is_refused_and_no_scan_is_deleted(tmp_path: Path) -> None:
    job = accepted(Queue(tmp_path))
    table = tmp_path / "jobs.sqlite"
    table.write_bytes(b"no table" * 1000)
    with pytest.raises(OutputError) as caught:
        Queue(tmp_path)
    assert caught.value.where == str(table)
    assert caught.value.remedy
    assert (tmp_path / "jobs" / job.id / "scan.nii").is_file()


@pytest.mark.parametrize(
    "name",
    ["jobs/mine", "staging/mine", "learning/mine", "labels.tsv", "parcel_labels.tsv"],
)
def test_a_folder_whose_files_a_new_queue_would_delete_is_refused_and_kept(
    tmp_path: Path, name: str
) -> None:
    mine = tmp_path / name
    mine.mkdir(parents=True)
    with pytest.raises(OutputError) as caught:
        Queue(tmp_path)
    assert caught.value.where == str(tmp_path)
    assert caught.value.remedy
    assert mine.is_dir()


def test_a_fresh_disk_with_a_token_of_its_owner_becomes_a_queue(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshot").mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / "token").write_text("secret\n")
    assert Queue(tmp_path).token() == "secret"


def test_uploads_and_deletions_that_were_cut_short_leave_nothing(
    tmp_path: Path,
) -> None:
    """A crash leaves a folder without a row, or a row without its folder."""
    queue = Queue(tmp_path)
    deleted, kept = accepted(queue), accepted(queue)
    (tmp_path / "jobs" / "upload").mkdir()
    shutil.rmtree(tmp_path / "jobs" / deleted.id)
    assert ids(Queue(tmp_path)) == [kept.id]
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == [kept.id]


def full(queue: Queue) -> None:
    """Let SQLite run out of room for another page of 4,096 bytes, as on a full disk."""
    queue._database.execute("PRAGMA max_page_count = 1")


def test_an_upload_for_which_there_is_no_room_is_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    full(queue)
    outputs = ("long" * 5000,)  # more than a page
    with pytest.raises(DiskFullError):
        accepted(queue, outputs=outputs)
    assert not ids(queue)
    assert not list((tmp_path / "jobs").iterdir())


def test_an_outcome_for_which_there_is_no_room_is_not_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(tmp_path)
    job = accepted(queue)
    full(queue)
    queue.next()
    queue.enter(job.id, "reading")
    long = ScanResult(grade="pass", notes=["long" * 5000])
    assert queue.finish(Entry(job.id, "done", result=long)) is None
    assert len(caplog.messages) == 1
    # The engine gets it again, from this server and from the next one.
    case = queue.next()
    assert case is not None
    assert case.id == job.id
    assert states(Queue(tmp_path), job) == ["queued"]
    queue._database.execute("PRAGMA max_page_count = 1000")
    queue.finish(Entry(job.id, "done", result=long))
    assert states(Queue(tmp_path), job) == ["done"]


def test_a_full_disk_does_not_keep_a_scan_from_being_deleted(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    job = accepted(queue)
    full(queue)
    queue.delete(job)
    assert not ids(Queue(tmp_path))


def test_scans_wait_while_the_disk_is_full_and_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(tmp_path)
    job = accepted(queue)
    engine: Any = SimpleNamespace(ready=True)
    service = make_app(queue, engine, "fast", load_scheme("quicknat33")).state.service
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("trinat.pipelines.serve.queue.MIN_FREE_BYTES", 2**80)
            assert service.why_not_ready
            assert queue.next() is None
            assert queue.next() is None
    assert len(caplog.messages) == 1
    assert not service.why_not_ready
    case = queue.next()
    assert case is not None
    assert case.id == job.id


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("", "home/.local/state/trinat/queue"),
        ("relative", "home/.local/state/trinat/queue"),
        ("{root}/state", "state/trinat/queue"),
    ],
)
def test_without_a_name_the_queue_is_in_the_users_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", given.format(root=tmp_path))
    assert ServiceSettings().folder == tmp_path / folder


def test_a_running_scan_has_a_stage_and_seconds_left(
    tmp_path: Path, clock: Clock
) -> None:
    """Two scans took 30 s each; the third has been running for 12 s, then for a minute.

    Failed scans do not count in the estimate.
    """
    queue = Queue(tmp_path)
    first, second, third, broken, lost = (accepted(queue) for _ in range(5))
    queue.enter(first.id, "networks")
    assert now(queue, first).stage == "networks"
    assert now(queue, first).seconds_left is None
    assert now(queue, second).seconds is None
    clock.now += 7
    assert now(queue, first).seconds == 7
    queue.finish(Entry(broken.id, "failed"))
    assert now(queue, first).seconds_left is None
    for job in (first, second):
        queue.finish(Entry(job.id, "done", timings_s={"a": 20.0, "b": 10.0}))
    gone = str(tmp_path / "gone")
    queue.finish(Entry(lost.id, "done", timings_s={"a": 3.0}, staged=gone))
    assert queue.ended == {"done": 2, "failed": 2}
    assert (now(queue, first).stage, now(queue, first).seconds_left) == ("", None)
    assert now(queue, third).seconds_left is None
    queue.enter(third.id, "reading")
    clock.now += 100
    queue.enter(third.id, "networks")
    clock.now += 12
    assert (now(queue, third).stage, now(queue, third).seconds_left) == ("networks", 18)
    clock.now += 48
    assert now(queue, third).seconds_left == 1


def test_a_number_beyond_those_of_the_table_is_no_scan(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    study = study_of(queue, load_scheme("quicknat33"))
    for number in (0, 2**63 - 1, 2**63, 10**26):
        assert queue.find(number=number) is None
        with pytest.raises(InputError):
            study[number]


def test_the_page_has_a_scan_from_its_acceptance_on_unless_it_failed(
    tmp_path: Path,
) -> None:
    queue = Queue(tmp_path)
    first, second = accepted(queue), accepted(queue)
    study = study_of(queue, load_scheme("quicknat33"))
    waiting = study[first.number]
    assert (waiting.labels, study.image(waiting)) == (None, queue.scan(first))
    assert study.detail(waiting)["scan"]
    queue.finish(Entry(second.id, "failed", reason="no head"))
    assert study.image(study[second.number]) is None
