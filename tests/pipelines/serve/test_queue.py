"""The queue by itself: what a restart finds, whose turn it is, what is refused and deleted."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from trinat.pipelines.serve.queue import FullError, Queue, Submission
from trinat.pipelines.serve.queue_study import study_of
from trinat.pipelines.serve.settings import ServiceSettings
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.record import ScanResult
from trinat.segmentation.data.people import Facts
from trinat.segmentation.errors import DiskFullError
from trinat.segmentation.labels.scheme import load_scheme


def accepted(
    queue: Queue, client: str = "a", outputs: tuple[str, ...] = ()
) -> Submission:
    with queue.upload(client) as folder:
        scan = folder / "scan.nii"
        scan.write_bytes(b"scan")
        return queue.submissions[queue.accept(scan, list(outputs), client).id]


def ended(queue: Queue, job: Submission, status: str = "done") -> None:
    staged = queue.folder / "staging" / job.id
    staged.mkdir()
    (staged / "labels").write_bytes(b"labels")
    where = str(staged) if status == "done" else ""
    queue.finish(
        Entry(
            job.id, status, reason="why", result=ScanResult(grade="pass"), staged=where
        )
    )  # type: ignore[arg-type]


def test_turns_are_in_the_order_of_acceptance_and_survive_a_restart(
    tmp_path: Path,
) -> None:
    queue = Queue(tmp_path)
    first, second, third = (accepted(queue) for _ in range(3))
    assert [queue.seen(job).place for job in (first, second, third)] == [1, 2, 3]
    case = queue.next()
    assert case is not None
    assert (case.id, case.path.read_bytes()) == (first.id, b"scan")
    queue.enter(first.id, "reading")
    queue.enter(first.id, "networks")
    assert (queue.seen(first).state, queue.seen(first).place) == ("running", 0)
    assert queue.seen(second).place == 1
    ended(queue, first)
    queue.enter(second.id, "reading")

    again = Queue(tmp_path)
    states = [again.submissions[job.id].state for job in (first, second, third)]
    assert states == ["done", "queued", "queued"]
    assert (again.result(first) / "labels").read_bytes() == b"labels"
    turns = [case.id for case in iter(again.next, None)]
    assert turns == [second.id, third.id]


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
        assert queue.submissions[job.id].state == "queued"
        queue.next()
        queue.enter(job.id, "reading")
    last = Queue(tmp_path).submissions[job.id]
    assert (last.state, last.reason) == (
        "failed",
        "the server ended 5 times while it was at work",
    )


def test_a_full_queue_and_a_greedy_client_are_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path, queued=3, per_client=2)
    first = accepted(queue)
    accepted(queue)
    with pytest.raises(FullError, match="your scans"), queue.upload("a"):
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


def test_a_corrected_scan_is_kept_from_its_correction_on(tmp_path: Path) -> None:
    queue = Queue(tmp_path, keep_s=100)
    corrected, other = accepted(queue), accepted(queue)
    for job in (corrected, other):
        ended(queue, job)
        job.ended = time.time() - 101
    queue.renew(corrected)
    queue.sweep()
    assert list(queue.submissions) == [corrected.id]
    assert list(Queue(tmp_path, keep_s=100).submissions) == [corrected.id]
    # What was deleted meanwhile does not come back.
    queue.renew(other)
    assert list(queue.submissions) == [corrected.id]


def test_what_ended_is_deleted_after_its_time(tmp_path: Path) -> None:
    queue = Queue(tmp_path, keep_s=100)
    old, new, waiting = (accepted(queue) for _ in range(3))
    for job in (old, new):
        ended(queue, job)
    old.ended = time.time() - 101
    queue.sweep()
    assert set(queue.submissions) == {new.id, waiting.id}
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
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_further_outputs_are_those_of_the_case(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    accepted(queue, outputs=("mgz", "probabilities", "dicom-seg"))
    case = queue.next()
    assert case is not None
    assert case.also == ("probabilities", "dicom_seg")


def test_age_and_sex_are_the_cases_where_there_are_norms(tmp_path: Path) -> None:
    queue = Queue(tmp_path, has_norms=True)
    person = Facts(age=70.5, sex="F")
    with queue.upload("") as folder:
        (folder / "scan.nii").touch()
        queue.accept(folder / "scan.nii", ["page"], "", person)
    # After a restart, too; of a service without norms nobody's.
    case = Queue(tmp_path, has_norms=True).next()
    assert case is not None
    assert (case.facts, case.also) == (person, ("page",))
    case = Queue(tmp_path).next()
    assert case is not None
    assert case.facts is None


def test_the_token_is_the_queues_and_for_its_owner_alone(tmp_path: Path) -> None:
    token = Queue(tmp_path).token()
    assert len(token) >= 40
    assert Queue(tmp_path).token() == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_a_damaged_record_is_a_failed_scan(tmp_path: Path) -> None:
    job = accepted(Queue(tmp_path))
    (tmp_path / "jobs" / job.id / "job.json").write_text("{")
    again = Queue(tmp_path)
    assert again.submissions[job.id].state == "failed"
    # What can still be used of it is kept as long as any other.
    again.sweep()
    assert (tmp_path / "jobs" / job.id).is_dir()


def full(path: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_does_not_end_the_service_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(tmp_path)
    first, second = accepted(queue), accepted(queue)
    with monkeypatch.context() as there:
        there.setattr("trinat.segmentation.io.files.sync", full)
        queue.enter(first.id, "reading")
        ended(queue, first)
        # There is no room for its volumes.
        assert (first.state, queue.seen(first).state) == ("failed", "failed")
        assert "No space left on device" in first.reason
        queue.enter(second.id, "reading")
        ended(queue, second, "failed")
    assert len(caplog.messages) == 2
    # The records before hold, so that a restart does both again.
    again = Queue(tmp_path)
    assert [again.submissions[job.id].state for job in (first, second)] == [
        "queued",
        "queued",
    ]
    # With room the records are brought up to date.
    queue.sweep()
    last = Queue(tmp_path)
    assert [last.submissions[job.id].state for job in (first, second)] == [
        "failed",
        "failed",
    ]
    with monkeypatch.context() as there:
        there.setattr("trinat.segmentation.io.files.sync", full)
        with pytest.raises(DiskFullError):
            accepted(queue)
    assert len(queue.submissions) == 2
    assert not list((tmp_path / "incoming").iterdir())


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


def test_of_a_running_scan_the_stage_and_the_seconds_left_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two scans took 30 s each; the third has been at work for 12 s, then for a minute.

    One that failed says nothing of how long a scan takes; one whose results cannot be stored does.
    """
    now = [100.0]
    monkeypatch.setattr("trinat.pipelines.serve.queue.time.monotonic", lambda: now[0])
    queue = Queue(tmp_path)
    first, second, third, broken, lost = (accepted(queue) for _ in range(5))
    queue.enter(first.id, "reading")
    assert queue.seen(first).stage == "reading"
    assert queue.seen(first).seconds_left is None
    assert queue.seen(second).seconds is None
    now[0] += 7
    assert queue.seen(first).seconds == 7
    queue.finish(Entry(broken.id, "failed"))
    assert queue.seen(first).seconds_left is None
    for job in (first, second):
        queue.finish(Entry(job.id, "done", timings_s={"a": 20.0, "b": 10.0}))
    gone = str(tmp_path / "gone")
    queue.finish(Entry(lost.id, "done", timings_s={"a": 30.0}, staged=gone))
    assert queue.ended == {"done": 2, "failed": 2}
    assert (queue.seen(first).stage, queue.seen(first).seconds_left) == ("", None)
    assert queue.seen(third).seconds_left is None
    queue.enter(third.id, "reading")
    queue.enter(third.id, "networks")
    now[0] += 12
    assert (queue.seen(third).stage, queue.seen(third).seconds_left) == ("networks", 18)
    now[0] += 48
    assert queue.seen(third).seconds_left == 1


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
