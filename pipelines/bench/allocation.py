"""What keeping freed buffers is worth: one small network, with and without `tune_allocation`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

_PROBE = """
import json, resource, statistics, sys, time
from pipelines.process import tune_allocation
if sys.argv[1] == "tuned":
    tune_allocation()
import torch
from torch import nn

layers = []
for i in range(8):
    layers += [nn.Conv2d(1 if i == 0 else 32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
network = nn.Sequential(*layers).eval()
slices = torch.randn(6, 1, 256, 256)
seconds = []
with torch.inference_mode():
    for _ in range(int(sys.argv[2])):
        start = time.perf_counter()
        network(slices)
        seconds.append(time.perf_counter() - start)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"s": statistics.median_low(seconds), "faults": usage.ru_minflt,
                  "mib": usage.ru_maxrss / 1024}))
"""


def measure(mode: str, calls: int = 6) -> dict[str, float]:
    """Seconds a call (median), minor page faults and peak MiB of one fresh process."""
    command = [sys.executable, "-c", _PROBE, mode, str(calls)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def run(repetitions: str = "5") -> None:
    """Pairs of processes in turn, so that a drifting machine does not favour either."""
    pairs = [(measure("default"), measure("tuned")) for _ in range(int(repetitions))]
    ratio = statistics.median(default["s"] / tuned["s"] for default, tuned in pairs)
    print("8 convolutions of 32 filters, batch of 6 slices of 256x256, float32")
    for name, side in (("default", 0), ("tuned", 1)):
        row = {key: statistics.median(pair[side][key] for pair in pairs) for key in pairs[0][0]}
        print(
            f"{name:8} {row['s']:.3f} s a call  {row['faults']:>10,.0f} page faults"
            f"  peak {row['mib']:.0f} MiB"
        )
    print(f"tuned is {ratio:.1f} times faster (median of {len(pairs)} pairs)")
