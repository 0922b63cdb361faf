"""Everything worth knowing of a GPU in one command: speed, memory, right numbers, the same numbers.

    scripts/bench gpu                                            where trinat is installed
    python3 -m pipelines.bench gpu --heads heads.npz --out OUT   with scripts/gpu/wheels alone

Each part is a process of its own with a limit of time: one that fails or hangs costs no other.
OUT/gpu.json is written anew after each part, so that a machine that goes away leaves what it did.
`--device cpu --tiny` rehearses all of it in a minute with networks and slices too small to mean
anything. Parts can be named: scripts/bench gpu step train.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.bench import _gpu_numbers as numbers
from pipelines.bench import _gpu_speed as speed
from pipelines.bench._gpu import Figures, Setting

# The most telling first: a machine may be gone before the last.
PARTS: dict[str, Callable[[Setting], Figures]] = {
    "device": speed.device_part,
    "train": speed.train_part,
    "step": speed.step_part,
    "synthesis": speed.synthesis_part,
    "numerics": numbers.numerics_part,
    "determinism": numbers.determinism_part,
    "channels": speed.channels_part,
    "forward": speed.forward_part,
    "scan": speed.scan_part,
}


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--heads", default="phantom", help="a heads file, for real variety")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=240, help="limit of one part")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {min(unknown)}; there are {', '.join(PARTS)}")
    batch, size = (2, 32) if given.tiny else (given.batch, 256)
    setting = Setting(given.device, given.heads, batch, size, given.tiny, given.seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"setting": asdict(setting), "parts": {}}
    for name in given.parts or PARTS:
        began = time.monotonic()
        figures = _in_process(name, setting)
        found["parts"][name] = figures | {"seconds of this part": time.monotonic() - began}
        (given.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        _print(name, figures)
    if any("failed" in figures for figures in found["parts"].values()):
        raise SystemExit(1)


def part(name: str, setting: dict[str, Any]) -> None:
    """One part, in its own process: its figures are the last line."""
    print(json.dumps(PARTS[name](Setting(**setting))))


def _in_process(name: str, setting: Setting) -> Figures:
    call = f"from pipelines.bench.gpu import part; part({name!r}, {asdict(setting)!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", call],
            check=False,
            capture_output=True,
            text=True,
            timeout=setting.seconds,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {setting.seconds:.0f} s"}
    if done.returncode:
        return {"failed": " | ".join(done.stderr.strip().splitlines()[-3:])[-600:]}
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _print(name: str, figures: Figures) -> None:
    print(f"{name}")
    for key, value in figures.items():
        for line in value if isinstance(value, list) else [value]:
            shown = f"{line:,.4g}" if isinstance(line, float) else line
            print(f"  {key:48} {shown}", flush=True)
