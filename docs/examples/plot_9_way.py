"""
The path of a scan
==================

From the scan to its labels, with a picture for each step of :doc:`/how-it-works`.
"""

# %%
# **The scan.** A part of a synthetic head, in voxels of 1.2 x 1.2 x 2.4 mm:

import matplotlib.pyplot as plt
import numpy as np

import trinat
from trinat.segmentation.space.views import View, to_slices

scan, truth = trinat.phantom(seed=4, spacing_mm=(1.2, 1.2, 2.4))
centre = np.argwhere(truth.data).mean(0).astype(int)
half = (36, 36, 18)
part = tuple(slice(c - h, c + h) for c, h in zip(centre, half, strict=True))
image = trinat.Volume.of(scan.to_nibabel().slicer[part])


def show(pictures, **options):
    """Show pictures side by side, row 0 at the bottom."""
    figure, axes = plt.subplots(1, 3, figsize=(7, 2.4))
    for panel, (title, picture) in zip(axes, pictures.items(), strict=True):
        panel.imshow(picture, origin="lower", interpolation="nearest", **options)
        panel.set_title(title, fontsize=10)
        panel.set_axis_off()
    figure.tight_layout()


def middles(volume):
    """Return the middle slice of each view, in the order of the array."""
    slices = {view: to_slices(volume, view) for view in View}
    return {view.value: found[len(found) // 2] for view, found in slices.items()}


show(middles(image.data), cmap="gray")

# %%
# **Conformed.** The working grid has voxels of 1 mm, and axes that grow to the right, the front and
# the top. The empty border is cut off here:

segmenter = trinat.Segmenter("fast")
conformed = segmenter.prepare(image).volume
print(image.shape, image.axcodes, "to", conformed.shape, conformed.axcodes)
inside = np.argwhere(conformed.data > 0.1)
box = tuple(map(slice, inside.min(0), inside.max(0) + 1))
gray = conformed.data[box]
show(middles(gray), cmap="gray")

# %%
# **Slices by view.** Each network sees the slices of one view, one after another. The coronal one:

slices = to_slices(gray, View.CORONAL)
show({f"slice {n}": slices[n] for n in (20, 40, 65)}, cmap="gray")

# %%
# **Labels of single views.** The result of one network alone. The sagittal view does not show left
# and right, so a segmentation always has another view beside it:

ways = {
    "coronal": ["coronal"],
    "axial": ["axial"],
    "sagittal and coronal": ["sagittal", "coronal"],
}
found = {name: trinat.segment(image, views=views) for name, views in ways.items()}
fused = segmenter.segment(image)
colors = np.array([label.color for label in fused.scheme.labels], np.uint8)


def cut(volume):
    """Return the middle coronal slice of a label map, in colours."""
    return colors[middles(volume.data[box])["coronal"]]


show({name: cut(result.working) for name, result in found.items()})

# %%
# **Fused.** The weighted mean of all views' probabilities, and the most probable structure:

share = fused.fused[..., 1:].max(-1).values.float().numpy()


def gray_to_rgb(picture):
    """Convert grey values from 0 to 1 to RGB."""
    return np.stack([np.clip(picture, 0, 1)] * 3, axis=-1)


show(
    {
        "scan": gray_to_rgb(middles(gray)["coronal"]),
        "probability of the likeliest": gray_to_rgb(middles(share[box])["coronal"]),
        "labels": cut(fused.working),
    }
)

# %%
# **Restored.** The labels in the scan's own voxels:

show({view: colors[picture] for view, picture in middles(fused.indices.data).items()})
