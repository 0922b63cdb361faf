"""
Compare two sides
=================

How much larger is a structure on the left than on the right?
"""

# %%
# The table of volumes has the side of each structure.

import matplotlib.pyplot as plt
import numpy as np

import trinat

scan, truth = trinat.phantom(seed=3, spacing_mm=(1.5, 1.5, 1.5))
centre = np.argwhere(truth.data).mean(0).astype(int)
part = tuple(slice(c - 34, c + 34) for c in centre)
result = trinat.segment(scan.to_nibabel().slicer[part])

table = result.volumes()
table["pair"] = table.structure.str.replace("Left-|Right-", "", regex=True)
sides = table[table.side != ""].pivot(index="pair", columns="side", values="mm3")
sides.round().head()

# %%
# The asymmetry index, in percent of the mean of both sides: above 0 the left is larger. White
# matter, cortex and cerebellum are left out, since this part of a head cuts them.

deep = ["Thalamus", "Caudate", "Putamen", "Pallidum", "Hippocampus", "VentralDC"]
index = 200 * (sides.left - sides.right) / (sides.left + sides.right)

# %%
# The synthetic head has exact labels to compare with:

exact = trinat.Volume.of(truth.to_nibabel(labels=True).slicer[part]).data
numbers = table.set_index("structure").freesurfer
left = [(exact == numbers[f"Left-{name}"]).sum() for name in deep]
right = [(exact == numbers[f"Right-{name}"]).sum() for name in deep]
true = [200 * (a - b) / (a + b) for a, b in zip(left, right, strict=True)]

figure, axes = plt.subplots(figsize=(6, 3))
axes.axvline(0, color="grey", linewidth=0.8)
axes.plot(index[deep], deep, "o", label="segmented")
axes.plot(true, deep, "x", label="exact")
axes.set_xlabel("right larger        asymmetry in %        left larger")
axes.legend()
plt.tight_layout()
