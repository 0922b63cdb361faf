"""Input of the checks of a segmentation: the scan, its labels and their volumes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.continuity import Step, find_steps
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.scheme import LabelScheme

WHITE_MATTER = frozenset({"white-matter"})
CORTEX = frozenset({"cortical", "grey-matter"})
# Groups of structures that are not brain tissue: background and fluid.
NO_TISSUE = frozenset({"background", "ventricles", CSF_GROUP})
# Agreement and brightness of smaller structures are unreliable.
ENOUGH_MM3 = 100.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """Input of the checks: image and labels on the working grid of 1 mm, and values of the scan.

    Attributes
    ----------
    image : Volume
        The scan: 0 in empty background, about 1 at the bright end of the tissue.
    indices : Volume
        Class of each voxel.
    scan : Grid
        Grid of the scan's own voxels.
    scheme : LabelScheme
        The K classes.
    volumes_mm3 : mapping
        Volume of each structure that the model predicts, by name.
    agreement : array (K,) or None
        Mean Dice of each class between views; None with one view.
    csf : str
        The model's definition of CSF.
    """

    image: Volume
    indices: Volume
    scan: Grid
    scheme: LabelScheme
    volumes_mm3: Mapping[str, float]
    agreement: NDArray[np.float64] | None
    csf: Csf = "region"

    def mask(self, groups: Collection[str]) -> NDArray[np.bool_]:
        """Return a mask of all structures of some groups of the label scheme, (X, Y, Z)."""
        return np.asarray(self.scheme.in_groups(groups)[self.indices.data])

    @cached_property
    def brain(self) -> NDArray[np.bool_]:
        """Mask of all structures except the fluid around the brain, (X, Y, Z)."""
        return (self.indices.data > 0) & ~self.mask({CSF_GROUP})

    @cached_property
    def white_matter(self) -> NDArray[np.bool_]:
        """Mask of white matter, (X, Y, Z)."""
        return self.mask(WHITE_MATTER)

    @cached_property
    def cortex(self) -> NDArray[np.bool_]:
        """Mask of cortex, (X, Y, Z)."""
        return self.mask(CORTEX)

    @cached_property
    def steps(self) -> list[Step]:
        """Changes between neighbouring slices of the brain."""
        return find_steps(self.image, self.brain)

    @cached_property
    def brightness(self) -> tuple[float, float] | None:
        """Median brightness of white matter and of cortex; None if there is too little of one."""
        white = self.image.data[self.white_matter]
        cortex = self.image.data[self.cortex]
        if min(len(white), len(cortex)) < ENOUGH_MM3:
            return None
        return float(np.median(white)), float(np.median(cortex))
