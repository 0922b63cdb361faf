"""The state of a training run, saved in one file without pickle.

A state file is one line, `trinat-state 1 SHA256`, followed by safetensors with that checksum. A
file whose checksum is wrong is refused. It holds no random state, because every random number of a
run is computed from the seed and the step (`seeded`). So a resumed run gets the same
numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from trinat.segmentation.errors import IntegrityError, TrainingError, some
from trinat.segmentation.io.files import atomic_write, read_bytes
from trinat.segmentation.training.config import ScheduleConfig

_MAGIC = b"trinat-state 1 "
_NAME = re.compile(r"state-(\d{9})\.state")
_STATES_KEPT = 2
# In a stage that is trained for a given time, warm-up ends at this share of the time at the latest.
_WARM_SHARE = 0.05


@dataclass
class Counters:
    """Counters of a run.

    `step` counts the steps so far and `seconds` their duration. `bad` is the number of steps that
    were skipped because the loss was not finite, `bad_in_a_row` that of the latest consecutive
    ones. `best` is the best mean Dice of a validation, and `best_step` its step. `validation_due`
    is True if the present weights still have to be validated. If the training ends after a given
    time, `share` is the completed part of it, from 0 to 1; else None.
    """

    step: int = 0
    seconds: float = 0.0
    bad: int = 0
    bad_in_a_row: int = 0
    best: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0
    validation_due: bool = False
    share: float | None = None


@dataclass(frozen=True)
class Position:
    """Position in a stage: the number of steps made and the number of steps in an epoch.

    Some trainings end after a given time instead of a number of steps: `share` is the completed
    part of that time, from 0 to 1, else None.
    """

    step: int
    epoch_steps: int
    share: float | None = None

    @property
    def epoch(self) -> int:
        """Number of completed epochs."""
        return self.step // self.epoch_steps


def progress(schedule: ScheduleConfig, at: Position) -> float:
    """Return the progress of the stage, from 0 at the start to 1 at the end."""
    if at.share is not None:
        return at.share
    if schedule.steps is not None:
        return min(1.0, at.step / schedule.steps)
    assert schedule.epochs is not None
    return min(1.0, at.step / (schedule.epochs * at.epoch_steps))


def learning_rate(schedule: ScheduleConfig, rate: float, at: Position) -> float:
    """Return the learning rate of the next step; `rate` is the highest rate.

    The rate rises during the warm-up and falls according to the schedule. It depends on the
    position only, so a resumed run has the same rates.
    """
    warm = min(1.0, (at.step + 1) / (schedule.warmup_steps + 1))
    if at.share is not None:
        # A slow device would spend its whole time on warm-up.
        warm_by_time = min(1.0, at.share / _WARM_SHARE)
        warm = max(warm, warm_by_time)
    if schedule.kind == "cosine":
        angle = math.pi * progress(schedule, at)
        return rate * warm * 0.5 * (1 + math.cos(angle))
    if schedule.kind == "steps":
        # Once per epoch, not per batch: a drop every ten batches would freeze the run at once.
        epoch = at.epoch
        if at.share is not None:
            # The epochs of the schedule are spread over the given time.
            epochs: float | None = schedule.epochs
            if schedule.steps is not None:
                epochs = schedule.steps / at.epoch_steps
            assert epochs is not None
            epoch = int(at.share * epochs)
        drops = epoch // schedule.every_epochs
        return rate * warm * schedule.factor**drops
    return rate * warm


@dataclass(frozen=True, eq=False)
class State:
    """State of a training run.

    `network` and `average` are the state dicts of the network and of its running average.
    `optimiser` is the optimiser's state (see `optimiser_tensors`), `scaler` that of the gradient
    scaler in a training in float16. `identity` has the settings of the stage and the hash of its
    data, so that a run is resumed with the same.
    """

    counters: Counters
    identity: Mapping[str, Any]
    network: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor] = field(default_factory=dict)
    scaler: Mapping[str, Tensor] = field(default_factory=dict)


def seeded(device: torch.device | str, *parts: int) -> torch.Generator:
    """Return a random number generator on the device, seeded by `parts` only."""
    mixed = np.random.SeedSequence(parts).generate_state(1, np.uint64)
    # Torch's seeds are signed.
    seed = int(mixed[0] >> 1)
    return torch.Generator(device).manual_seed(seed)


def write_state(folder: Path, state: State, *, name: str | None = None) -> Path:
    """Write a state file, atomically, and return its path.

    Without `name`, the name is made from the step, and of such files all but the last two are
    removed. A file with a `name`, such as the best state, is kept.
    """
    payload = _to_bytes(state)
    file_name = name or f"state-{state.counters.step:09d}.state"
    path = folder / file_name
    with atomic_write(path) as file:
        file.write(_MAGIC + _checksum(payload) + b"\n")
        file.write(payload)
    if name is None:
        # States of later steps were damaged, so the run resumed from an earlier one. They are
        # removed, since they would count as the newest.
        known = _sorted_files(folder)
        place = known.index(path)
        kept = known[place : place + _STATES_KEPT]
        for old in known:
            if old not in kept:
                old.unlink(missing_ok=True)
    return path


def _checksum(payload: bytes) -> bytes:
    """Return the SHA-256 as hexadecimal digits."""
    return hashlib.sha256(payload).hexdigest().encode()


def read_state(path: Path) -> State:
    """Read a state file and verify its checksum; its tensors are on the CPU.

    Raises IntegrityError if the file is damaged, and FileNotFoundError if there is none.
    """
    content = read_bytes(path)
    head, newline, payload = content.partition(b"\n")
    if not newline or not head.startswith(_MAGIC):
        raise IntegrityError("is no state of a training run", where=path)
    if _checksum(payload) != head.removeprefix(_MAGIC):
        raise IntegrityError("is torn or damaged: its checksum is wrong", where=path)
    return _from_bytes(payload)


def _to_bytes(state: State) -> bytes:
    """Serialise the state as safetensors; `_from_bytes` is the inverse.

    Tensors are copied to the CPU first.
    """
    groups = {
        "network": state.network,
        "average": state.average,
        "optimiser": state.optimiser,
        "scaler": state.scaler,
    }
    tensors: dict[str, Tensor] = {}
    for group, members in groups.items():
        for key, value in members.items():
            tensors[f"{group}/{key}"] = value.detach().cpu().contiguous()
    facts = {"counters": asdict(state.counters), "identity": state.identity}
    metadata = {"trinat": json.dumps(facts)}
    payload: bytes = safetensors.torch.save(tensors, metadata)
    return payload


def _from_bytes(payload: bytes) -> State:
    """Return the state that `_to_bytes` was given, with its tensors on the CPU.

    The checksum of the bytes must have been verified: damaged bytes may raise any error.
    """
    # safetensors: the length of the header in 8 bytes, the header in JSON, the tensors.
    length = int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8 : 8 + length])
    facts = json.loads(header["__metadata__"]["trinat"])
    groups: dict[str, dict[str, Tensor]] = {
        "network": {},
        "average": {},
        "optimiser": {},
        "scaler": {},
    }
    for key, value in safetensors.torch.load(payload).items():
        group, name = key.split("/", 1)
        groups[group][name] = value
    counters = Counters(**facts["counters"])
    return State(counters, facts["identity"], **groups)


def read_latest(folder: Path) -> tuple[State | None, list[IntegrityError]]:
    """Return the newest undamaged state in a folder, and the errors of the newer, damaged ones.

    The state is None if there is none that is undamaged. A folder keeps several states, so that a
    damaged file costs some steps and not the run.
    """
    problems: list[IntegrityError] = []
    for path in _sorted_files(folder):
        try:
            return read_state(path), problems
        except IntegrityError as error:
            problems.append(error)
    return None, problems


def has_state(folder: Path) -> bool:
    """Return True if a job has saved a state that it could resume from."""
    return bool(_sorted_files(folder))


def differences(stored: Any, wanted: Any, key: str = "") -> Iterator[str]:
    """Yield `key: old -> new` for each setting in which two runs differ.

    Keys are dotted, and lists have the index as key: `stages.0.batch: 4 -> 8`. `key` is the prefix
    of all keys.
    """
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        for name in sorted({*stored, *wanted}):
            path = f"{key}.{name}" if key else str(name)
            yield from differences(stored.get(name), wanted.get(name), path)
    elif isinstance(stored, list) and isinstance(wanted, list):
        for place, (old, new) in enumerate(zip_longest(stored, wanted)):
            yield from differences(old, new, f"{key}.{place}")
    elif stored != wanted:
        yield f"{key}: {_in_short(stored)} -> {_in_short(wanted)}"


def _in_short(value: Any) -> str:
    """Format a setting as JSON of at most 70 characters."""
    return shorten(json.dumps(value), 70, placeholder=" ...")


def check_identity(
    stored: Mapping[str, Any],
    wanted: Mapping[str, Any],
    folder: Path,
    *,
    remedy: str = "resume it with its own config.yaml, or start a new run with another --out",
) -> None:
    """Refuse to resume a run with other settings or data than it began with.

    `stored` has the settings and the data's hash in the saved state, `wanted` the present ones.
    Stores are compared by the hashes of their contents, so they may have moved. TrainingError names
    the first setting that differs, and the number of other differences.
    """
    # Settings are stored as JSON, which turns tuples into lists and paths into text.
    as_stored = json.loads(json.dumps(wanted))
    found = list(differences(_without_paths(stored), _without_paths(as_stored)))
    if found:
        raise TrainingError(
            f"the run began with other settings ({some(found, most=1)})",
            where=folder,
            remedy=remedy,
        )


def _without_paths(value: Any) -> Any:
    """Return settings without the paths of a store and its split, which may have moved.

    A label scheme may be a file in the store: only the name of the file is kept.
    """
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    kept = {name: _without_paths(each) for name, each in value.items()}
    if isinstance(kept.get("store"), Mapping):
        for name in ("path", "split"):
            kept["store"].pop(name, None)
    if isinstance(kept.get("scheme"), str):
        kept["scheme"] = Path(kept["scheme"]).name
    return kept


def _sorted_files(folder: Path) -> list[Path]:
    """Return the state files of `folder`, the newest first."""
    paths = folder.glob("state-*.state")
    numbered = [path for path in paths if _NAME.fullmatch(path.name)]
    return sorted(numbered, reverse=True)
