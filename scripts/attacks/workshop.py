"""Shared tools of the attacks: a folder, sound inputs made once, commands run as a user does."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
from helpers import limits
from helpers.forked import become

from attacks.verdicts import Bad, Refused, Verdict, raw, raw_in, wrong

PATIENCE_S = 120.0
READ_S = 20.0


@dataclass(frozen=True)
class Done:
    """A finished command: its exit status, or minus the signal that ended it."""

    status: int
    out: str
    err: str
    hung: bool = False

    @property
    def said(self) -> str:
        return self.out + self.err


@dataclass
class Running:
    """A command in a process group of its own."""

    pid: int
    log: Path
    started: float = field(default_factory=time.monotonic)

    def wait(self, seconds: float = PATIENCE_S) -> Done:
        """Wait for the command and return its outcome.

        After `seconds` it is killed with all processes that it has started.
        """
        status, hung = self.poll(), False
        pause_s = 0.001
        while status is None:
            if time.monotonic() - self.started > seconds:
                hung = True
                self.signal(signal.SIGKILL, group=True)
                _, code = os.waitpid(self.pid, 0)
                status = os.waitstatus_to_exitcode(code)
                break
            time.sleep(pause_s)
            pause_s = min(0.05, pause_s * 1.3)
            status = self.poll()
        self.signal(signal.SIGKILL, group=True)
        return Done(status, self._printed(".out"), self._printed(".err"), hung)

    def _printed(self, ending: str) -> str:
        """Return what was printed to the file with this ending, or "" if there is none."""
        path = self.log.with_suffix(ending)
        if not path.exists():
            return ""
        return path.read_text(errors="replace")

    def poll(self) -> int | None:
        pid, code = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(code) if pid else None

    def signal(self, number: int, *, group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self.pid, number)


@dataclass(frozen=True)
class Try:
    """One try of an attack.

    A generator seeded by seed, family and number, a folder, sound inputs.
    """

    folder: Path
    chance: random.Random
    number: int
    sound: Path

    def start(
        self,
        *arguments: str | Path,
        before: Callable[[], object] = lambda: None,
        home: Path | None = None,
        serial: bool = True,
    ) -> Running:
        """Start `trinat ARGUMENTS` in a forked process that has everything imported.

        `before` runs in it first. With `serial`, scans are segmented in that process itself.
        """
        return fork_command(
            ["trinat", *(str(argument) for argument in arguments)],
            self.folder / f"log-{self.chance.getrandbits(48):x}",
            before,
            home or self.folder,
            serial,
        )

    def run(
        self, *arguments: str | Path, seconds: float = PATIENCE_S, **how: object
    ) -> Done:
        return self.start(*arguments, **how).wait(seconds)  # type: ignore[arg-type]


def checked(done: Done, *, deadly: tuple[int, ...] = ()) -> Done:
    """Return a command that succeeded; raise `Refused` if it refused in one line, else `Bad`.

    A death by one of the signals in `deadly` counts as a refusal.
    """
    if done.hung:
        raise Bad(Verdict.HANG, f"no end; said {done.said[-200:]!r}")
    if text := raw_in(done.said):
        raise raw(text)
    if done.status < 0 and -done.status not in deadly:
        raise raw(f"ended by signal {-done.status}; said {done.said[-200:]!r}")
    if done.status == 0:
        return done
    if done.status < 0:
        raise Refused
    if not done.err.strip():
        raise wrong(f"status {done.status} without a word")
    raise Refused(done.err)


def fork_command(
    words: list[str],
    log: Path,
    before: Callable[[], object],
    home: Path,
    serial: bool,
) -> Running:
    """Start `trinat` or `trinat-bids`, as `Try.start` does, in the folder `home`."""
    pid = os.fork()
    if not pid:
        _run(words, log, before, home, serial)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return Running(pid, log)


def _run(
    words: list[str],
    log: Path,
    before: Callable[[], object],
    home: Path,
    serial: bool,
) -> NoReturn:
    """Become the command, in a process group of its own."""
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        said = [
            os.open(
                log.with_suffix(ending), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666
            )
            for ending in (".out", ".err")
        ]
        become(words, home, (nothing, *said), partial(_ready, before, serial))
    finally:
        os._exit(70)


def _ready(before: Callable[[], object], serial: bool) -> None:
    if serial:
        from trinat.pipelines.predict import engine, run

        run.local_engine = lambda settings, *_, **__: engine.SerialEngine(settings)  # type: ignore[attr-defined]
    before()


def time_limit(seconds: float) -> AbstractContextManager[None]:
    """Raise `Bad` for a hang if the block does not end in time."""
    hang = Bad(Verdict.HANG, f"not done after {seconds:g} s")
    limit: AbstractContextManager[None] = limits.time_limit(seconds, hang)
    return limit


def happens(chance: random.Random, share: float) -> bool:
    return chance.random() < share


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of every file and link below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def unchanged(before: Mapping[str, str], folder: Path, what: str) -> None:
    """Raise `Bad` unless all files of `before` are in the folder with the same bytes."""
    now = digests(folder)
    for name, digest in before.items():
        if now.get(name) != digest:
            kind = "gone" if name not in now else "changed"
            raise Bad(Verdict.LOST, f"{what}: {name} is {kind}")


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target


def tiny_scan(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a head of 20 x 24 x 22 voxels: image, FreeSurfer numbers, affine."""
    from helpers.miniatures import head_image, head_labels, turned

    labels = head_labels()[::2, ::2, ::2]
    if seed % 2:
        labels = np.roll(labels, 1, axis=1)
    image, affine = turned(head_image(labels, seed), "RAS")
    return image, labels, affine


def make_sound(folder: Path) -> None:
    """Write all sound inputs of the attacks below `folder`."""
    import torch
    from helpers.overfitted import SMALL
    from helpers.tiny_training import write_recipe

    from trinat.segmentation.io.volume import Volume
    from trinat.segmentation.models.checkpoint import save_model
    from trinat.segmentation.models.model_info import Description
    from trinat.segmentation.models.quicknat import QuickNat
    from trinat.segmentation.space.views import View

    torch.manual_seed(3)
    network = QuickNat(
        SMALL.model_copy(update={"filters": 4, "depth": 2, "classes": 33})
    )
    with torch.no_grad():
        # Makes the output depend on the input, so that a stale result shows.
        network.classifier.weight.mul_(20)
    save_model(folder / "model", Description(name="tiny"), {View.CORONAL: network})
    for name in ("scans", "truth", "pred", "pairs/images", "pairs/labels"):
        (folder / name).mkdir(parents=True)
    for number, name in enumerate(("a", "b", "c")):
        image, labels, affine = tiny_scan(number)
        scan, truth = Volume(image, affine), Volume(labels, affine)
        if number < 2:
            scan.write(folder / f"scans/{name}.nii.gz")
        scan.write(folder / f"pairs/images/{name}.nii.gz")
        truth.write(folder / f"pairs/labels/{name}.nii.gz", labels=True)
        truth.write(folder / f"truth/{name}_dseg.nii.gz", labels=True)
        other = np.roll(labels, number % 2, axis=0)
        Volume(other, affine).write(folder / f"pred/{name}_dseg.nii.gz", labels=True)
    (folder / "prepare.yaml").write_text(
        f"source: pairs\nroot: {folder}/pairs\ngrid: [32, 32, 32]\n"
    )
    recipe = write_recipe(
        folder, views=["coronal"], schedule={"steps": 6}, checkpoint_every_steps=2
    )
    # The recipe names heads in a temporary folder of this process.
    text = recipe.read_text()
    place = next(
        line.split(":", 1)[1].strip() for line in text.splitlines() if "heads:" in line
    )
    shutil.move(place, folder / "heads.npz")
    Path(place).parent.rmdir()
    recipe.write_text(text.replace(place, str(folder / "heads.npz")))
