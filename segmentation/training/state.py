"""The state of a run in one file: whole or refused, and without pickle.

A state file is one line, `trinat-state 1 SHA256`, and then safetensors with that checksum. It
holds no random state, because there is none: every random number of a run is a function of the
seed, the step and the rank (`seeded`), so that a resumed run gets those of an undisturbed one.
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

from trinat.segmentation.errors import IntegrityError, TrainingError
from trinat.segmentation.io.files import atomic_write, read_bytes
from trinat.segmentation.training.config import ScheduleConfig

_MAGIC = b"trinat-state 1 "
_NAME = re.compile(r"state-(\d{9})\.state")
_KEPT = 2
# In a stage trained by time, warm-up ends at this share of it at the latest.
_WARM_SHARE = 0.05


@dataclass
class Counters:
    """What a run counts; `bad` are steps skipped for a loss that is no number."""

    step: int = 0
    seconds: float = 0.0
    bad: int = 0
    bad_in_a_row: int = 0
    best: float | None = None  # mean validation Dice
    best_step: int | None = None
    validations_since_best: int = 0
    validation_due: bool = False  # of the weights as they stand
    share: float | None = None  # of the schedule that is done, where that goes by time


@dataclass(frozen=True)
class Position:
    """Where a stage stands: steps made, steps to an epoch; trained by time, the share done."""

    step: int
    epoch_steps: int
    share: float | None = None

    @property
    def epoch(self) -> int:
        return self.step // self.epoch_steps


def progress(schedule: ScheduleConfig, at: Position) -> float:
    """0 at the start, 1 when the stage is over."""
    if at.share is not None:
        return at.share
    if schedule.steps is not None:
        return min(1.0, at.step / schedule.steps)
    assert schedule.epochs is not None
    return min(1.0, at.step / (schedule.epochs * at.epoch_steps))


def learning_rate(schedule: ScheduleConfig, rate: float, at: Position) -> float:
    """The rate of the step to come, `rate` being the highest."""
    warm = min(1.0, (at.step + 1) / (schedule.warmup_steps + 1))
    if at.share is not None:
        # A slow device would spend its time on warming up.
        warm = max(warm, min(1.0, at.share / _WARM_SHARE))
    if schedule.kind == "cosine":
        return rate * warm * 0.5 * (1 + math.cos(math.pi * progress(schedule, at)))
    if schedule.kind == "steps":
        # Once per epoch, not per batch: a drop every ten batches would freeze the run at once.
        return rate * warm * schedule.factor ** (at.epoch // schedule.every_epochs)
    return rate * warm


@dataclass(frozen=True, eq=False)
class State:
    """`identity` says what the run is: its stage's settings and the fingerprint of its data."""

    counters: Counters
    identity: Mapping[str, Any]
    network: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor] = field(default_factory=dict)


def seeded(device: torch.device | str, *parts: int) -> torch.Generator:
    """A generator whose numbers are a function of `parts` alone."""
    seed = int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
    return torch.Generator(device).manual_seed(seed)


def write_state(folder: Path, state: State, *, name: str | None = None) -> Path:
    """Write `state` and drop all but the last two; a named one (best) stands beside them."""
    payload = to_bytes(state)
    path = folder / (name or f"state-{state.counters.step:09d}.state")
    with atomic_write(path) as file:
        file.write(_MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n")
        file.write(payload)
    if name is None:
        # States of later steps were damaged and not used; they would count as the newest.
        known = _numbered(folder)
        for old in known[: known.index(path)] + known[known.index(path) + _KEPT :]:
            old.unlink(missing_ok=True)
    return path


def read_state(path: Path) -> State:
    """Read one state, checksum first."""
    content = read_bytes(path)
    head, newline, payload = content.partition(b"\n")
    if not newline or not head.startswith(_MAGIC):
        raise IntegrityError("is no state of a training run", where=path)
    if hashlib.sha256(payload).hexdigest().encode() != head[len(_MAGIC) :]:
        raise IntegrityError("is torn or damaged: its checksum is wrong", where=path)
    return from_bytes(payload)


def to_bytes(state: State) -> bytes:
    """The state as safetensors, for a file or for another process."""
    tensors = {
        f"{group}/{key}": value.detach().cpu().contiguous()
        for group in ("network", "average", "optimiser")
        for key, value in getattr(state, group).items()
    }
    facts = {"counters": asdict(state.counters), "identity": state.identity}
    payload: bytes = safetensors.torch.save(tensors, {"trinat": json.dumps(facts)})
    return payload


def from_bytes(payload: bytes) -> State:
    """The state that `to_bytes` was given; its tensors on the CPU."""
    length = int.from_bytes(payload[:8], "little")
    facts = json.loads(json.loads(payload[8 : 8 + length])["__metadata__"]["trinat"])
    groups: dict[str, dict[str, Tensor]] = {
        "network": {},
        "average": {},
        "optimiser": {},
    }
    for key, value in safetensors.torch.load(payload).items():
        group, name = key.split("/", 1)
        groups[group][name] = value
    return State(Counters(**facts["counters"]), facts["identity"], **groups)


def read_latest(folder: Path) -> tuple[State | None, list[IntegrityError]]:
    """The newest sound state, if there is one, and what was wrong with newer ones."""
    problems: list[IntegrityError] = []
    for path in _numbered(folder):
        try:
            return read_state(path), problems
        except IntegrityError as error:
            problems.append(error)
    return None, problems


def has_state(folder: Path) -> bool:
    """Whether a job has saved anything that it could go on from."""
    return bool(_numbered(folder))


def differences(stored: Any, wanted: Any, key: str = "") -> Iterator[str]:
    """`key: old -> new` for each setting in which two identities differ."""
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        for name in sorted({*stored, *wanted}):
            path = f"{key}.{name}" if key else str(name)
            yield from differences(stored.get(name), wanted.get(name), path)
    elif isinstance(stored, list) and isinstance(wanted, list):
        for place, (old, new) in enumerate(zip_longest(stored, wanted)):
            yield from differences(old, new, f"{key}.{place}")
    elif stored != wanted:
        old, new = (
            shorten(json.dumps(value), 70, placeholder=" ...")
            for value in (stored, wanted)
        )
        yield f"{key}: {old} -> {new}"


def check_identity(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path
) -> None:
    """Refuse to go on with other settings or other data than the run began with."""
    # What JSON makes of it, tuples as lists and paths as text, is what was stored.
    found = list(differences(stored, json.loads(json.dumps(wanted))))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise TrainingError(
            f"the run began with other settings ({found[0]}{more})",
            where=folder,
            remedy="resume it with its own config.yaml, or start a new run with another --out",
        )


def _numbered(folder: Path) -> list[Path]:
    """State files of `folder`, the newest first."""
    return sorted(
        (p for p in folder.glob("state-*.state") if _NAME.fullmatch(p.name)),
        reverse=True,
    )
