"""
One scan
========

Segment a scan, look at the result and save it.
"""

# %%
# A synthetic head, cut to the middle of the brain to save time. For a scan of your own, give its
# path in place of `image`.

import numpy as np

import trinat

scan, truth = trinat.phantom(seed=1)
centre = np.argwhere(truth.data).mean(0).astype(int)
image = scan.to_nibabel().slicer[tuple(slice(c - 44, c + 44) for c in centre)]

result = trinat.segment(image)
print(result)

# %%
# Every result has a grade with reasons. The grade is low here because this part of a head has less
# brain than any participant.

print(result.quality.name, *result.quality.reasons, sep="\n")

# %%
# The scan, the labels and both, in three views:

result.plot()

# %%
# Volumes, and the grade of each structure. *pass* means: use it; *look*: check the picture first.

result.volumes().head(12)

# %%
# Labels go to a file in the scan's own space, with FreeSurfer's numbers.

from pathlib import Path
from tempfile import mkdtemp

folder = Path(mkdtemp())
result.save(folder / "labels.nii.gz")
print(sorted(path.name for path in folder.iterdir()))
