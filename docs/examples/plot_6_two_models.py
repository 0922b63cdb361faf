"""
Views, their fusion, and two models compared
============================================

The result of each view, their fusion, and the Dice of each with the truth.
"""

# %%
# The coronal and the axial network alone, and all three views:

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import trinat

scan, truth = trinat.phantom(seed=4, spacing_mm=(1.5, 1.5, 1.5))
centre = np.argwhere(truth.data).mean(0).astype(int)
part = tuple(slice(c - 32, c + 32) for c in centre)
image = scan.to_nibabel().slicer[part]
exact = truth.to_nibabel(labels=True).slicer[part]

ways = {"coronal": ["coronal"], "axial": ["axial"], "three views": None}
found = {name: trinat.segment(image, views=views) for name, views in ways.items()}

# %%
# The probability of the left hippocampus, in the slice that has most of it:

name = "Left-Hippocampus"
fused = found["three views"]
mask = fused.mask(name).data
cut = mask.sum((0, 2)).argmax()
pictures = {"scan": np.asarray(image.dataobj)}
pictures |= {way: result.probability(name).data for way, result in found.items()}

figure, axes = plt.subplots(1, 5, figsize=(10, 2.4))
for panel, (title, data) in zip(axes, pictures.items(), strict=False):
    panel.imshow(
        data[:, cut].T, origin="lower", cmap="gray", vmax=None if title == "scan" else 1
    )
    panel.set_title(title, fontsize=10)
colors = np.zeros((256, 3), np.uint8)
for label in fused.scheme.labels:
    colors[label.fs_id] = label.color
axes[4].imshow(colors[fused.labels.data[:, cut].T], origin="lower")
axes[4].set_title("labels", fontsize=10)
for panel in axes:
    panel.set_axis_off()
plt.tight_layout()

# %%
# Dice with the exact labels. ``trinat evaluate --pred A --pred B`` does the same for folders, with
# intervals and tests over participants.

deep = ["Thalamus", "Caudate", "Putamen", "Pallidum", "Hippocampus", "Amygdala"]
dice = pd.DataFrame(
    {way: trinat.evaluate(exact, result).dice for way, result in found.items()}
)
dice = dice.loc[[f"Left-{name}" for name in deep]]
dice.round(2)

# %%

axes = dice.plot.bar(rot=0, figsize=(6, 3), ylabel="Dice", ylim=(0, 1))
axes.set_xticklabels(deep, fontsize=8)
axes.set_xlabel("")
axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
plt.tight_layout()
