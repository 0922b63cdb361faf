"""
Many scans on a cluster
=======================

Divide a list of scans among independent tasks, and join their results.
"""

# %%
# Four small scans:

import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import nibabel as nib
import pandas as pd

import trinat

folder = Path(mkdtemp())
(folder / "scans").mkdir()
scan, _ = trinat.phantom(seed=6, spacing_mm=(2, 2, 2))
for number in range(4):
    start = 26 + number
    part = scan.to_nibabel().slicer[start : start + 36, 44:80, 46:80]
    nib.save(part, folder / f"scans/sub-{number}.nii.gz")


def run(line):
    print(f"$ {line}")
    command = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(
        command, cwd=folder, check=True, text=True, stderr=subprocess.PIPE
    )
    print(done.stderr.splitlines()[-1] if done.stderr else "")


# %%
# Each task takes its part of the list: here one after the other, on a cluster at the same time. For
# a SLURM array a script gives ``--shard``: ``sbatch --array=1-2 scripts/slurm/array.sh scans``.

for task in ("1/2", "2/2"):
    run(
        f"trinat predict scans --out labels --views coronal --no-pictures --shard {task}"
    )

# %%
# Each task has written a ledger. Joined, they make the tables and the page:

run("trinat merge labels")
pd.read_csv(folder / "labels/summary.tsv", sep="\t")[["case", "status", "grade"]]
