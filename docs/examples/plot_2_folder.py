"""
A folder and its table
======================

Segment all scans of a folder; the result is a table with a row for each, also for those that
failed.
"""

# %%
# Two parts of synthetic heads, and a file that is not a scan:

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np

import trinat

folder = Path(mkdtemp())
(folder / "study").mkdir()
for seed in (1, 2):
    scan, truth = trinat.phantom(seed=seed, spacing_mm=(1.5, 1.5, 1.5))
    centre = np.argwhere(truth.data).mean(0).astype(int)
    part = scan.to_nibabel().slicer[tuple(slice(c - 28, c + 28) for c in centre)]
    nib.save(part, folder / f"study/sub-{seed}.nii.gz")
(folder / "study/sub-3.nii.gz").write_bytes(b"an interrupted download")

# %%
# The model is loaded once. With ``out`` the folder gets all files of ``trinat predict``, and a
# second call does only what is missing.

table = trinat.segment_many([folder / "study"], out=folder / "results", progress=False)
table[["status", "grade", "reason", "total_brain_mm3"]]

# %%
# Every structure has a column with its volume in mm³:

done = table[table.status == "done"]
names = ["Thalamus", "Caudate", "Putamen", "Pallidum"]
volumes = done[[f"Left-{name}" for name in names]].T / 1000
axes = volumes.plot.bar(rot=0, ylabel="ml", figsize=(6, 3))
axes.set_xticklabels(names)
axes.legend(["sub-1", "sub-2"])
plt.tight_layout()

# %%
# What was written:

print(*sorted(path.name for path in (folder / "results").iterdir()), sep="\n")
