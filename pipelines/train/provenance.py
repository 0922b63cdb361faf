"""Provenance of trained weights: code, command, machine, time and data.

Each job has a file with an entry for each call that trained it; a model has the entries of all its
jobs. The file is next to model.yaml but not part of the model's identity: the same weights are the
same model, whenever and wherever they were trained. A model may be given to other people, so the
file contains no host name and no folder of this disk.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from trinat.segmentation.data.store import Store, StoredSubject
from trinat.segmentation.io.files import read_text, sha256_of, write_whole
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.models.hardware import describe_gpu
from trinat.segmentation.models.zoo import MODEL_FILE, PROVENANCE_FILE, find_model
from trinat.segmentation.training.config import StageConfig, StoreConfig

# Length of a subject's digest: enough to tell the subjects of all stores apart.
_DIGITS = 12
_CODE = Path(__file__).resolve().parents[2]


@contextmanager
def recorded(
    folder: Path, stage: StageConfig, model: Path | None, device: torch.device
) -> Iterator[None]:
    """Add an entry on this training of a job to its provenance.json: code, machine, data and time.

    The entry is written when the block begins and completed when it ends. `folder` is the folder of
    the job, `stage` the stage of the recipe, and `model` the model that the job starts from, if
    there is one. In the entry of a training that was killed, `ended` is null.
    """
    path = folder / PROVENANCE_FILE
    entries: list[dict[str, Any]] = []
    if path.is_file():
        entries = json.loads(read_text(path))
    began = datetime.now(UTC)
    start = None
    trained_on: set[str] = set()
    if model is not None:
        # The model.yaml of the model that a job starts from has the hashes of its weights.
        start = sha256_of(find_model(model) / MODEL_FILE)
        trained_on.update(_trained_on(find_model(model)))
    entry: dict[str, Any] = {
        "trinat": version("trinat"),
        "commit": commit(_CODE),
        "torch": torch.__version__,
        "command": command(sys.argv),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "gpu": _gpu(device),
        "start": start,
        "store": None,
        "trained_on": [],
        "began": began.isoformat(timespec="seconds"),
        "ended": None,
        "seconds": None,
    }
    if stage.data.store is not None:
        entry["store"] = _hashes_of_parts(stage.data.store)
    if stage.data.store is not None and stage.data.trains_on_store:
        store = Store(stage.data.store.path)
        for name in store.part("train", stage.data.store.split):
            trained_on.update(_digests(store.info.subjects[name]))
    entry["trained_on"] = sorted(trained_on)
    entries.append(entry)
    write_whole(path, json.dumps(entries, indent=1))
    try:
        yield
    finally:
        ended = datetime.now(UTC)
        entry["ended"] = ended.isoformat(timespec="seconds")
        entry["seconds"] = round((ended - began).total_seconds(), 1)
        write_whole(path, json.dumps(entries, indent=1))


def write_provenance(out: Path, jobs: Iterable[str], model: Path) -> None:
    """Write the provenance.json of a model: the entries of these jobs of the run, by their names.

    `out` is the folder of the run, and `model` that of the model. Jobs that have not begun are left
    out.
    """
    entries = {}
    for job in jobs:
        path = out / job / PROVENANCE_FILE
        if path.is_file():
            entries[job] = json.loads(read_text(path))
    if entries:
        write_whole(model / PROVENANCE_FILE, json.dumps(entries, indent=1))


def read_provenance(model: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the provenance.json of a model: for each job, an entry for each call that trained it.

    Returns {} if the folder `model` has no such file.
    """
    path = model / PROVENANCE_FILE
    if not path.is_file():
        return {}
    jobs: dict[str, list[dict[str, Any]]] = json.loads(read_text(path))
    return jobs


def subjects_trained_on(model: Path, store: Store) -> list[str]:
    """Return the subjects of a store that a model was trained on, by its provenance.json.

    `model` is the folder of the model. The list includes subjects that the weights were trained on
    from which the training started, and scans that were labelled otherwise for the training. It is
    empty for a model without provenance.json.
    """
    digests = _trained_on(model)
    subjects = store.info.subjects.items()
    return [name for name, subject in subjects if _digests(subject) & digests]


def _trained_on(model: Path) -> set[str]:
    """Return the digests of all subjects that the model in the folder `model` was trained on."""
    digests: set[str] = set()
    for calls in read_provenance(model).values():
        for call in calls:
            digests.update(call.get("trained_on", []))
    return digests


def _digests(subject: StoredSubject) -> set[str]:
    """Return the beginnings of the hashes of a subject's slice file and of its scan.

    The slice file has the labels, too, so the same scan with other labels has another slice file.
    """
    digests = {subject.file.sha256[:_DIGITS]}
    if subject.scan is not None:
        digests.add(subject.scan[:_DIGITS])
    return digests


def origins(model: Path) -> list[str]:
    """Return lines of text on a trained model: its description, and how each job was trained.

    They are "key: value", such as "views: coronal axial". Jobs have an entry for each call of
    `trinat train`, from the provenance.json in the folder `model`.
    """
    info = read_info(model)
    facts = {
        "name": info.name,
        "views": " ".join(view.value for view in info.architectures),
        "labels": info.labels,
        **info.training.model_dump(mode="json", exclude_none=True),
        **info.versions,
    }
    lines = [f"{key}: {value}" for key, value in facts.items() if value]
    jobs = read_provenance(model)
    for job, calls in jobs.items():
        lines.append(f"job: {job}")
        for number, call in enumerate(calls, start=1):
            lines.append(f"  call {number}")
            for key, value in call.items():
                # Hundreds of digests say nothing to a reader.
                if value and key != "trained_on":
                    lines.append(f"    {key}: {value}")
    if not jobs:
        lines.append("jobs: not written down")
    return lines


def commit(code: Path) -> str:
    """Return the git commit of the checkout `code`, with "-dirty" if files were changed.

    "" if the folder is not a checkout, or if git is not installed.
    """
    git = shutil.which("git")
    if git is None or not (code / ".git").exists():
        return ""
    words = [git, "-C", str(code), "describe", "--always", "--dirty", "--abbrev=40"]
    done = subprocess.run(
        [*words, "--exclude=*"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def command(words: list[str]) -> str:
    """Return a command line as text, with absolute paths shortened to their last two parts.

    `words` are the words of the command line, as in `sys.argv`.
    """
    program, *rest = words
    shown = [Path(program).name.replace("__main__.py", "trinat")]
    for word in rest:
        key, equals, value = word.rpartition("=")
        if Path(value).is_absolute():
            value = "/".join(Path(value).parts[1:][-2:])
        shown.append(key + equals + value)
    return " ".join(shown)


def _processor() -> str:
    """Return the name of the processor; "" if the system does not have it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor()


def _gpu(device: torch.device) -> str:
    """Return the name of the GPU `device` and the version of CUDA; "" for a CPU."""
    if device.type != "cuda":
        return ""
    name, _, _ = describe_gpu(device.index or 0)
    return f"{name}, CUDA {torch.version.cuda}"


def _hashes_of_parts(config: StoreConfig) -> dict[str, str]:
    """Return the SHA-256 of the data in each part of a slice store, by "train" and "validation".

    It covers the names of the subjects and the hashes of their files. A part without subjects is
    missing.
    """
    store = Store(config.path)
    split = store.split(config.split)
    hashes = {}
    for part in ("train", "validation"):
        files = [
            (name, store.info.subjects[name].file.sha256) for name in split.part(part)
        ]
        if files:
            hashes[part] = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return hashes
