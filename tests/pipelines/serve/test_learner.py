"""Learning as a job of the queue: it waits its turn, survives a restart, and leaves a model."""

from __future__ import annotations

import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import shy_model

from trinat.pipelines.serve.learner import Learner, Learning
from trinat.pipelines.serve.queue import FullError, Queue, Submission
from trinat.pipelines.serve.queue_study import study_of
from trinat.pipelines.study.corrections import Saving, save_correction
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.naming import Product
from trinat.pipelines.study.record import ScanResult
from trinat.segmentation.errors import EvaluationError, InputError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

CORTEX = 3
WHITE_MATTER = 2


def sent(queue: Queue, seed: int) -> Submission:
    with queue.upload("a") as folder:
        scan = folder / "scan.nii.gz"
        write_nifti(scan, head_image(head_labels(seed), seed), "LIA")
        return queue.accept(scan, [])


def done(queue: Queue, job: Submission, seed: int) -> None:
    """Finish a scan with a correct label map."""
    staged = queue.folder / "staging" / job.id
    labels = staged / queue.file(job, Product.LABELS).name
    write_nifti(labels, head_labels(seed), "LIA")
    queue.finish(
        Entry(job.id, "done", result=ScanResult(grade="pass"), staged=str(staged))
    )


def correct(queue: Queue, job: Submission) -> None:
    """Change one voxel of the cortex."""
    path = queue.file(job, Product.LABELS)
    volume = Volume.read(path, labels=True)
    data = volume.data.copy()
    data[tuple(np.argwhere(data == CORTEX)[0])] = WHITE_MATTER
    save_correction(
        path,
        replace(volume, data=data),
        Saving(by="service", at="2026-11-27T00:00:00+00:00", minutes=5),
        builds_on=sha256_of(path),
        names={2: "Left-Cerebral-White-Matter", 3: "Left-Cerebral-Cortex"},
        lock=queue.folder / "lock.corrections",
    )


def learner_of(queue: Queue, model: str) -> Learner:
    return Learner(study_of(queue, load_scheme("quicknat33")), model, "cpu", 1)


def wait(learner: Learner, *states: str) -> None:
    end = time.monotonic() + 240
    while learner.job is not None and learner.job.state not in states:
        assert time.monotonic() < end, learner.job
        time.sleep(0.05)


def test_without_a_correction_nothing_is_learnt(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    learner = learner_of(queue, "fast")
    with pytest.raises(InputError, match="there are no corrections yet"):
        learner.ask()
    done(queue, sent(queue, 0), 0)
    with pytest.raises(InputError, match="there are no corrections yet"):
        learner.ask()
    assert learner.job is None


def test_a_job_waits_for_the_scans_before_it_and_for_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(tmp_path)
    first, second = sent(queue, 0), sent(queue, 1)
    done(queue, first, 0)
    correct(queue, first)

    def worked(_: Learner, job: Learning) -> None:
        raise EvaluationError("no better", where=tmp_path)

    monkeypatch.setattr(Learner, "_work", worked)
    learner = learner_of(queue, "fast")
    assert learner.ask().state == "queued"
    sent(queue, 2)
    with pytest.raises(FullError, match="a model is being learnt"):
        learner.ask()
    time.sleep(0.5)
    assert learner.job is not None
    assert learner.job.state == "queued"
    learner.stop()
    # The next server continues it.
    again = learner_of(queue, "fast")
    again.start()
    queue.finish(Entry(second.id, "failed", reason="broken"))
    wait(again, "failed", "done")
    assert again.job is not None
    assert again.job.reason == "no better"
    assert again.job.begun == 1
    again.delete()
    assert not (tmp_path / "learning").exists()


@pytest.mark.slow
def test_what_is_corrected_becomes_a_model(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    queue = Queue(tmp_path / "queue")
    for seed in (0, 1):
        job = sent(queue, seed)
        done(queue, job, seed)
        correct(queue, job)
    learner = learner_of(queue, str(shy_model(tmp_path / "shy", side=64)))
    assert learner.ask().scans == 2
    wait(learner, "failed", "done")
    assert learner.job is not None
    assert learner.job.state == "done", learner.job
    why, *_, judged = learner.job.lines
    assert why.startswith("2 corrected scans of 2 participants: factors")
    assert "participants that it has not seen" in judged
    with zipfile.ZipFile(learner.model) as archive:
        assert {"own/model.yaml", "own/coronal.safetensors"} <= set(archive.namelist())
    # A later server has it, too.
    later = learner_of(queue, "fast")
    assert later.job == learner.job
    assert later.model.is_file()
