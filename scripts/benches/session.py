"""Ten minutes of a GPU: checks, tests, figures and trained views, each within its own limit.

    scripts/gpu --out OUT [--seconds 600] [--heads LABELMAPS] [--device cuda]

OUT gets a log of each part, `session.json` with what each part took and how it ended, the figures
of `scripts/bench gpu`, and the runs and models of the views. `session.json` is written anew after
each part: what is there when the machine goes is kept. A part that has not ended at its limit gets
SIGTERM, after which a training saves its state. `--device cpu` rehearses all of it in miniature.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trinat.pipelines.common.exits import Exit
from trinat.segmentation.space.views import View

ROOT = Path(__file__).parents[2]
# After SIGTERM, for a state to be written.
_GRACE_S = 15.0
# A training's own clock starts after its first step: before the first view has shown how long that
# takes (reading, compiling), this part of a view's time is kept for it.
_START = 0.4
_SHORTEST_S = 1.0


@dataclass
class Part:
    """A part of the session: its command, its limit, and how it ended."""

    name: str
    command: list[str]
    limit_s: float
    seconds: float = 0.0
    ended: str = "not begun"


@dataclass
class Session:
    """All parts in one folder, within one time."""

    out: Path
    seconds: float
    parts: list[Part] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def do(self, name: str, command: Sequence[str | Path], limit_s: float) -> Part:
        """Run a part with its output in a log; whatever it does, the session goes on."""
        part = Part(name, [str(word) for word in command], min(limit_s, self.left_s))
        self.parts.append(part)
        if part.limit_s < _SHORTEST_S:
            part.ended = "no time left"
            self.write_down()
            return part
        part.ended = "at work"
        self.write_down()
        print(f"{name}: {part.limit_s:.0f} s at most", flush=True)
        began = time.monotonic()
        with (self.out / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                part.command,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(part.limit_s)
                part.ended = f"status {process.returncode}"
            except subprocess.TimeoutExpired:
                part.ended = f"its limit of {part.limit_s:.0f} s"
                stop(process)
        part.seconds = round(time.monotonic() - began, 1)
        self.write_down()
        print(f"{name}: {part.ended} after {part.seconds:.0f} s", flush=True)
        return part

    def write_down(self) -> None:
        content = {"seconds": self.seconds, "parts": [asdict(p) for p in self.parts]}
        (self.out / "session.json").write_text(json.dumps(content, indent=1) + "\n")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a part with all that it has started: politely, then not."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def train_views(session: Session, device: str, heads: str, *, tiny: bool) -> list[Path]:
    """Train the views one after the other in the time that is left; the models that there are."""
    recipe = "miniature" if tiny else "quicknat"
    models = []
    start_s = 0.0
    for place, view in enumerate(View):
        share_s = session.left_s / (len(View) - place)
        if not start_s:
            start_s = _START * share_s
        run = session.out / "runs" / view.value
        seconds = max(_SHORTEST_S, share_s - start_s)
        command = [sys.executable, "-m", "trinat", "train", recipe, "--out", run]
        command += [
            "--view",
            view.value,
            "--device",
            device,
            "--seconds",
            f"{seconds:.0f}",
        ]
        if not tiny:
            command += ["--set", f"data.synthetic.heads={heads}"]
        if (run / "config.yaml").is_file():
            # Of an earlier session.
            command.append("--resume")
        part = session.do(f"train-{view.value}", command, share_s)
        start_s = max(0.0, part.seconds - seconds)
        if (run / "model/model.yaml").is_file():
            models.append(run)
    return models


def run(*arguments: str) -> None:
    """Do all parts, the most telling first: a machine may be gone before the last."""
    parser = argparse.ArgumentParser(prog="scripts/gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--heads", default="phantom", help="label maps of heads, for networks of use"
    )
    given = parser.parse_args(arguments)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    tiny = given.device == "cpu"
    session = Session(out, given.seconds)
    python = sys.executable
    whole = given.seconds
    session.do("doctor", [python, "-m", "trinat", "doctor"], 0.1 * whole)
    tests = [python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    session.do("tests", [*tests, "tests/gpu"], 0.2 * whole)
    bench = [python, "-m", "benches", "gpu", "--out", out / "bench"]
    bench += ["--device", given.device, "--heads", given.heads]
    if tiny:
        bench.append("--tiny")
    session.do("bench", bench, 0.2 * whole)
    models = train_views(session, given.device, given.heads, tiny=tiny)
    if models:
        bundle = [python, "-m", "trinat", "bundle", *models, "--out", out / "model"]
        # It takes seconds, and is worth them when time is over.
        session.seconds += 60
        session.do("bundle", bundle, 60)
    if any(part.ended != "status 0" for part in session.parts):
        raise SystemExit(Exit.SOME_FAILED)
