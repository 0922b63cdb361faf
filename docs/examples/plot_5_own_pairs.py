"""
Train on own scans and labels
=============================

From pairs of scan and label map to an evaluated model, in five commands.
"""

# %%
# Your own data are two folders with files of equal names:

import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np
import pandas as pd

import trinat

folder = Path(mkdtemp())
for name in ("images", "labels"):
    (folder / "own" / name).mkdir(parents=True)
for seed in range(5):
    scan, truth = trinat.phantom(seed=seed, spacing_mm=(3, 3, 3))
    centre = np.argwhere(truth.data).mean(0).astype(int)
    part = tuple(slice(c - 20, c + 20) for c in centre)
    nib.save(scan.to_nibabel().slicer[part], folder / f"own/images/sub-{seed}.nii.gz")
    nib.save(
        truth.to_nibabel(labels=True).slicer[part],
        folder / f"own/labels/sub-{seed}.nii.gz",
    )


def run(line):
    print(f"$ {line}")
    command = [sys.executable, "-m", *shlex.split(line)]
    print(subprocess.check_output(command, cwd=folder, text=True))


# %%
# Slices are cut from the scans, and each participant goes to training, validation or test:

run("trinat prepare --source pairs --root own --out store --quiet")
run("trinat split store --ratios 3 1 1 --seed 0")

# %%
# A tiny network, one view and 40 steps; ``trinat train quicknat`` is the published network, for a
# GPU.

run("trinat train miniature --store store --view coronal --out run --quiet")

# %%
# The test participant is segmented and compared with its labels:

run("trinat predict --store store --part test --model run/model --out found --quiet")
run(
    "trinat evaluate --store store --part test --pred found --out report --tables-only --quiet"
)

# %%
# 40 steps find the large structures at best:

table = pd.read_csv(folder / "report/metrics.csv")
dice = table[(table.metric == "dice") & ~table.structure.str.contains(":")]
dice = dice[dice.value > 0].set_index("structure").value.sort_values()
dice.plot.barh(xlabel="Dice", ylabel="", figsize=(6, 3), xlim=(0, 1))
plt.tight_layout()
