"""
Uncertainty
===========

Where are the networks uncertain, and how certain is a volume?
"""

# %%
# ``samples`` is the number of further predictions with dropout. Noise makes the second scan
# uncertain. One view is enough here.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import trinat

scan, truth = trinat.phantom(seed=5, spacing_mm=(1.5, 1.5, 1.5))
centre = np.argwhere(truth.data).mean(0).astype(int)
image = scan.to_nibabel().slicer[tuple(slice(c - 28, c + 28) for c in centre)]
voxels = np.asarray(image.dataobj).astype(float)
noise = np.random.default_rng(0).normal(0, 0.12 * voxels.max(), voxels.shape)

segmenter = trinat.Segmenter("fast", views=["coronal"])
clean = segmenter.segment((voxels, image.affine), samples=4)
noisy = segmenter.segment((voxels + noise, image.affine), samples=4)

# %%
# Entropy of the mean of the samples, in nats: 0 where the networks are certain.

cut = image.shape[1] // 2
figure, axes = plt.subplots(2, 2, figsize=(6, 5.4))
for row, (title, data, result) in zip(
    axes, (("clean", voxels, clean), ("noisy", voxels + noise, noisy)), strict=True
):
    row[0].imshow(data[:, cut].T, origin="lower", cmap="gray")
    row[0].set_title(title)
    shown = row[1].imshow(
        result.entropy.data[:, cut].T, origin="lower", cmap="magma", vmin=0, vmax=2
    )
    row[1].set_title("entropy")
    for panel in row:
        panel.set_axis_off()
figure.colorbar(shown, ax=axes, label="nats")

# %%
# For each structure: how much its volume varies over the samples, and how well they overlap. In a
# run, ``trinat predict --uncertainty 4`` writes these columns to ``qc.tsv``.

names = clean.scheme.names
rows = {
    "CV, clean": clean.uncertainty.volume_cv,
    "CV, noisy": noisy.uncertainty.volume_cv,
    "Dice, clean": clean.uncertainty.pairwise_dice,
    "Dice, noisy": noisy.uncertainty.pairwise_dice,
}
table = pd.DataFrame(rows, index=names)
table.loc[["Left-Thalamus", "Left-Putamen", "Left-Hippocampus", "Left-Amygdala"]].round(
    3
)
