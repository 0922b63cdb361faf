"""Training targets of heads: their label maps as the classes that a network learns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.errors import DatasetError
from trinat.segmentation.grid import occupied_box
from trinat.segmentation.labels.folding import (
    GENERATION_BETWEEN,
    GENERATION_FIRST_OUTSIDE,
    GENERATION_FOLDED,
    GENERATION_SURROUNDINGS,
)
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps

# Pairs of left and right numbers that are not in quicknat33.
_PARTNERS = {136: 163, 137: 164, 25: 57, 30: 62}
# Linings of the ventricles: partial volume of ventricle and white matter.
_LININGS = (136, 137, 163, 164)
_FLUID = GENERATION_SURROUNDINGS
_LARGE_TISSUES = (2, 3, GENERATION_SURROUNDINGS)
_WHITE_MATTER = 2
# Groups of a label scheme whose labels are not deep structures.
_NOT_DEEP = ("background", "cortical", "white-matter", "csf")
_POINTS = 64  # voxels sampled for each class in each head


@dataclass(frozen=True, eq=False)
class Heads:
    """Head maps on a device, with the classes that a network learns.

    `labels` (M, X, Y, Z) uint8 holds the number of each voxel's tissue, an entry from 0 to E - 1.
    These tables describe the entries, (E,):

    - `classes`: intensity class; the priors of the I intensity classes are `means` and `spreads`
      (2, I);
    - `targets`: class of `scheme` to learn, uint8; `mirrored_targets`: the same in a mirrored head,
      where left and right are exchanged;
    - `sideless`: the entry of the same structure on the left side, or the entry itself if it is not
      on
      the right;
    - `is_brain`: brain; `is_outside`: scalp, skull, face and neck; `is_lining`: partial volume
      around
      the ventricles; `is_deep`: structures, but not cerebral cortex and white matter; `is_fluid`:
      fluid
      around the brain, if it is learnt as CSF.

    `white_matter` is the intensity class of white matter; `large_tissues` are the intensity classes
    of white matter, cortex and CSF. Positions are in voxels: `points` (M, T, P, 3) are P voxels of
    each of the T classes to learn, `extent` (M, 2, 3) the first and last voxel of a head along each
    axis, and `centre` (M, 3) the middle of the brain.
    """

    scheme: LabelScheme
    labels: Tensor
    classes: Tensor
    means: Tensor
    spreads: Tensor
    targets: Tensor
    mirrored_targets: Tensor
    sideless: Tensor
    is_brain: Tensor
    is_outside: Tensor
    is_lining: Tensor
    is_deep: Tensor
    is_fluid: Tensor
    white_matter: int
    large_tissues: Tensor
    points: Tensor
    extent: Tensor
    centre: Tensor

    def seen_in(self, view: View) -> Heads:
        """Return the same heads with the classes that slices of a view distinguish.

        Sagittal slices do not show the side, so left and right become one class.
        """
        scheme = self.scheme.seen_in(view)
        if scheme is self.scheme:
            return self
        merged = torch.from_numpy(self.scheme.merged.to_merged.astype(np.uint8))
        to_merged = merged.to(self.targets.device)
        return replace(
            self,
            scheme=scheme,
            targets=to_merged[self.targets.long()],
            mirrored_targets=to_merged[self.mirrored_targets.long()],
        )


def aim(
    maps: HeadMaps,
    scheme: LabelScheme,
    device: torch.device | str = "cpu",
    *,
    learn_fluid: bool = False,
) -> Heads:
    """Prepare head maps for training: find the class of a scheme as which each tissue is learnt.

    With `learn_fluid`, everything between brain and skull is learnt as CSF, so that brain and CSF
    together fill the skull; otherwise it is background. Raises a DatasetError for maps without any
    of the scheme's structures, or without cerebral white matter.
    """
    # Private numbers are replaced by FreeSurfer's where there is such a number.
    folded = np.array([GENERATION_FOLDED.get(int(n), int(n)) for n in maps.numbers])
    targets = _targets(folded, scheme, learn_fluid)
    if not targets.any():
        raise DatasetError(f"label maps hold nothing that {scheme.name} names")
    is_white_matter = maps.numbers == _WHITE_MATTER
    if not is_white_matter.any():
        raise DatasetError(
            f"label maps lack number {_WHITE_MATTER}, cerebral white matter"
        )
    mirrored_targets = scheme.partner_permutation[targets].astype(np.uint8)
    is_structure = (folded > 0) & (folded < GENERATION_FIRST_OUTSIDE)
    is_around_brain = np.isin(maps.numbers, (_FLUID, *GENERATION_BETWEEN))
    is_deep_class = np.array([label.group not in _NOT_DEEP for label in scheme.labels])
    is_large_tissue = np.isin(maps.numbers, _LARGE_TISSUES)
    large_tissues = np.unique(maps.classes[is_large_tissue])
    learned = np.unique(targets[targets > 0])
    # Positions in each head: some voxels of each class, the extent, and the middle of the brain.
    points = []
    extents = []
    centres = []
    for head in maps.labels:
        classes = targets[head]
        points.append(_points_of_classes(classes, learned))
        extents.append(_extent(head > 0))
        centres.append(_extent(classes > 0).sum(0) / 2)

    def tensor(array: NDArray[Any]) -> Tensor:
        # A copy, because shared arrays may be read-only.
        return torch.from_numpy(np.array(array)).to(device)

    return Heads(
        scheme=scheme,
        labels=tensor(maps.labels),
        classes=tensor(maps.classes),
        means=tensor(maps.means.astype(np.float32)),
        spreads=tensor(maps.spreads.astype(np.float32)),
        targets=tensor(targets),
        mirrored_targets=tensor(mirrored_targets),
        sideless=tensor(_left_partners(maps.numbers)),
        is_brain=tensor(is_structure & (folded != _FLUID)),
        is_outside=tensor(maps.numbers >= GENERATION_FIRST_OUTSIDE),
        is_lining=tensor(np.isin(maps.numbers, _LININGS)),
        is_deep=tensor(is_deep_class[targets]),
        is_fluid=tensor(is_around_brain & (targets > 0)),
        white_matter=int(maps.classes[is_white_matter][0]),
        large_tissues=tensor(large_tissues),
        points=tensor(np.stack(points)),
        extent=tensor(np.stack(extents)),
        centre=tensor(np.stack(centres).astype(np.float32)),
    )


def _targets(
    folded: NDArray[np.int64], scheme: LabelScheme, learn_fluid: bool
) -> NDArray[np.uint8]:
    """Return the class of a scheme as which each of E tissues is learnt, (E,).

    `folded` (E,) are the tissues' FreeSurfer numbers, after private numbers were replaced. With
    `learn_fluid`, all fluid inside the skull is CSF.
    """
    class_of = {
        number: label.index for label in scheme.labels for number in label.numbers
    }
    fluid_class = 0
    if learn_fluid:
        fluid_class = class_of.get(_FLUID, 0)
    for number in (_FLUID, *GENERATION_BETWEEN):
        class_of[number] = fluid_class
    return np.array([class_of.get(int(number), 0) for number in folded], np.uint8)


def _left_partners(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each of E tissues the index of the same structure on the left side, (E,).

    `numbers` (E,) are FreeSurfer numbers. Tissues that are not on the right side keep their own
    index. Both sides of a structure look alike.
    """
    scheme = load_scheme("quicknat33")
    left_of = {right: left for left, right in _PARTNERS.items()}
    for label in scheme.labels:
        if label.side == "right" and label.partner is not None:
            left_of[label.fs_id] = scheme.labels[label.partner].fs_id
    entry_of = {int(number): entry for entry, number in enumerate(numbers)}
    partners = []
    for entry, number in enumerate(numbers.tolist()):
        partner = left_of.get(number, number)
        partners.append(entry_of.get(partner, entry))
    return np.array(partners)


def _points_of_classes(
    classes: NDArray[np.uint8], learned: NDArray[np.uint8]
) -> NDArray[np.int16]:
    """Sample voxels of each class in `learned` (T,) from a head; return their indices, (T, P, 3).

    `classes` (X, Y, Z) are the classes of the head. The sampled voxels are evenly spaced among all
    voxels of a class, in the order of memory. A class that the head lacks gets voxels of its whole
    brain. Raises a DatasetError without brain.
    """
    flat = classes.ravel()
    brain = np.flatnonzero(flat)
    if not len(brain):
        raise DatasetError("a label map holds no structure to learn")
    # Brain voxels class by class, each class in the order of memory.
    by_class = brain[np.argsort(flat[brain], kind="stable")]
    first = np.searchsorted(flat[by_class], learned, side="left")
    end = np.searchsorted(flat[by_class], learned, side="right")
    chosen = []
    for start, stop in zip(first, end, strict=True):
        voxels = by_class[start:stop]
        if not len(voxels):
            voxels = brain
        evenly = np.linspace(0, len(voxels) - 1, _POINTS)
        evenly = evenly.round().astype(int)
        chosen.append(voxels[evenly])
    places = np.unravel_index(np.stack(chosen), classes.shape)
    return np.stack(places, -1).astype(np.int16)


def _extent(mask: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Return the index of the mask's first and last voxel along each axis, (2, 3)."""
    box = occupied_box(mask)
    first = [side.start for side in box]
    last = [side.stop - 1 for side in box]
    return np.array([first, last], np.int16)
