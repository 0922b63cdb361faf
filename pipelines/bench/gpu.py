"""Everything worth knowing of a GPU in one command: speed, memory, right numbers, the same numbers.

    scripts/bench gpu                                            where trinat is installed
    python3 -m pipelines.bench gpu --heads heads.npz --out OUT   with scripts/gpu/wheels alone

Each part is a process of its own with a limit of time: one that fails or hangs costs no other, and
what it had found until then is kept. With `--total SECONDS`, parts for which too little is left are
skipped. OUT/gpu.json is written anew after each part, so that a machine that goes away leaves what
it did. `--device cpu --tiny` rehearses all of it in a minute with networks and slices too small to
mean anything. Parts can be named: scripts/bench gpu step train.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from pipelines.bench import _gpu_numbers as numbers
from pipelines.bench import _gpu_speed as speed
from pipelines.bench._gpu import Figures, Setting

# The most telling first: a machine may be gone before the last.
PARTS: dict[str, Callable[[Setting], Iterator[Figures]]] = {
    "device": speed.device_part,
    "train": speed.train_part,
    "synthesis": speed.synthesis_part,
    "numerics": numbers.numerics_part,
    "step": speed.step_part,
    "forward": speed.forward_part,
    "scan": speed.scan_part,
    "determinism": numbers.determinism_part,
    "channels": speed.channels_part,
}
# In less, a process does little more than to import torch.
_SHORTEST_SECONDS = 10.0


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--heads", default="phantom", help="a heads file, for real variety")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=240, help="limit of one part")
    parser.add_argument("--total", type=float, default=math.inf, help="limit of them all, seconds")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    end = time.monotonic() + given.total
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {min(unknown)}; there are {', '.join(PARTS)}")
    batch, size = (2, 32) if given.tiny else (given.batch, 256)
    setting = Setting(given.device, given.heads, batch, size, given.tiny, given.seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"setting": asdict(setting), "parts": {}}
    for name in given.parts or PARTS:
        began = time.monotonic()
        limit = min(setting.seconds, end - began)
        if limit < min(setting.seconds, _SHORTEST_SECONDS):
            figures: Figures = {"skipped": "no time is left for it"}
        else:
            figures = _in_process(name, replace(setting, seconds=limit))
        found["parts"][name] = figures | {"seconds of this part": time.monotonic() - began}
        (given.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        _print(name, figures)
    if any("failed" in figures for figures in found["parts"].values()):
        raise SystemExit(1)


def part(name: str, setting: dict[str, Any]) -> None:
    """One part, in its own process: a line of JSON as soon as there is something to tell."""
    for figures in PARTS[name](Setting(**setting)):
        print(json.dumps(figures), flush=True)


def _in_process(name: str, setting: Setting) -> Figures:
    call = f"from pipelines.bench.gpu import part; part({name!r}, {asdict(setting)!r})"
    return _told([sys.executable, "-W", "ignore", "-c", call], setting.seconds)


def _told(command: Sequence[str], seconds: float) -> Figures:
    """All that a process tells until it ends, and why it failed, if it does."""
    # Files, not pipes: a compiler's helpers may live longer, and would hold those open.
    with TemporaryFile() as output, TemporaryFile() as errors:
        try:
            code = subprocess.run(
                command, check=False, stdout=output, stderr=errors, timeout=seconds
            ).returncode
        except subprocess.TimeoutExpired:
            return _figures(output) | {"failed": f"took more than {seconds:.0f} s"}
        if code == 0:
            return _figures(output)
        last = b" | ".join(_lines(errors)[-3:])[-600:].decode(errors="replace")
        return _figures(output) | {"failed": last or f"ended with {code}"}


def _figures(output: IO[bytes]) -> Figures:
    figures: Figures = {}
    for line in _lines(output):
        # A compiler may speak in between, and the last line may be torn.
        with suppress(ValueError, TypeError):
            figures |= json.loads(line)
    return figures


def _lines(file: IO[bytes]) -> list[bytes]:
    file.seek(0)
    return file.read().strip().splitlines()


def _print(name: str, figures: Figures) -> None:
    print(f"{name}")
    for key, value in figures.items():
        for line in value if isinstance(value, list) else [value]:
            shown = f"{line:,.4g}" if isinstance(line, float) else line
            print(f"  {key:48} {shown}", flush=True)
