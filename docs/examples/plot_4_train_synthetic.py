"""
Train on synthetic heads
========================

A training without any data: scans are synthesised from label maps while it runs.
"""

# %%
# Commands run as they would in a shell:

import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import pandas as pd

folder = Path(mkdtemp())


def run(line):
    print(f"$ {line}")
    command = [sys.executable, "-m", *shlex.split(line)]
    print(subprocess.check_output(command, cwd=folder, text=True))


# %%
# The recipe ``smoke`` trains a tiny network for one view. Here it has 60 steps instead of 240:
# enough to see the loss fall, far too few to segment anything.
# ``--set data.synthetic.heads=FOLDER`` takes label maps of your own.

run(
    "trinat train smoke --quiet --out run"
    " --set schedule.steps=60 --set data.epoch_slices=240 --set data.rows=64 --set data.columns=64"
)

# %%
# A run is a folder with curves, states to resume from, and the model:

(metrics,) = folder.glob("run/*/*/metrics.csv")
curve = pd.read_csv(metrics)
axes = curve.plot(x="step", y="loss", figsize=(6, 3), legend=False, ylabel="loss")
plt.tight_layout()

# %%
# ``trinat predict --model run/model`` would use it. ``trinat runs`` compares runs:

run("trinat runs run")
