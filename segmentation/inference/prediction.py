"""What segmenting one scan gives, restored to the scan's own space when it is asked for.

It can be cleaned: one piece a structure, and no holes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from trinat.segmentation.grid import grown, is_empty
from trinat.segmentation.inference.intracranial import find_inside
from trinat.segmentation.inference.uncertainty import Uncertainty, entropy_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.label import Csf
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.conform import (
    ConformPlan,
    restore,
    restore_probabilities,
)
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import occupied_box

# Slices of the working grid whose classes are found at a time.
_SLAB = 8
# Voxels that share a face, an edge or a corner are one piece.
_TOUCHING = np.ones((3, 3, 3), bool)


@dataclass(frozen=True, eq=False)
class Prediction:
    """Labels in the scan's own space, volumes, probabilities and doubts.

    `fused` has the fused probabilities on the working grid, (X, Y, Z, K) float16 on the processor,
    and `image` is what the networks saw there. `agreement` is the mean Dice between views, (K,);
    None with one view. `not_predicted` names structures that the model does not know: they have no
    volume. `csf` is what the model calls CSF.
    """

    fused: Tensor
    scheme: LabelScheme
    plan: ConformPlan
    image: Volume
    notes: tuple[str, ...]
    agreement: NDArray[np.float64] | None
    uncertainty: Uncertainty | None
    not_predicted: tuple[str, ...]
    csf: Csf = "region"

    @cached_property
    def working(self) -> Volume:
        """Class indices on the working grid, uint8."""
        slabs = torch.split(self.fused, _SLAB)
        classes = [slab.max(-1).indices.to(torch.uint8) for slab in slabs]
        indices = torch.cat(classes).numpy()
        return Volume(np.asarray(indices), self.plan.working.affine)

    @cached_property
    def indices(self) -> Volume:
        """Class indices in the scan's own space, uint8.

        Computed once, when first asked for. Where the scan has another grid the probabilities are
        resampled, not the labels.
        """
        if GridMap.between(self.plan.working, self.plan.scan).reordering:
            # Every voxel of the scan is one of the working grid: the most probable stays so.
            found = restore(self.working, self.plan, labels=True)
        else:
            classes_first = self.fused.permute(3, 0, 1, 2)
            found = restore_probabilities(classes_first.numpy(), self.plan)
        return Volume(found.data, found.affine, found.codes, self.notes)

    @cached_property
    def labels(self) -> Volume:
        """FreeSurfer numbers in the scan's own space, int16."""
        found = self.indices
        numbers = self.scheme.to_freesurfer(found.data)
        return Volume(numbers, found.affine, found.codes, found.notes)

    @cached_property
    def voxels(self) -> dict[str, int]:
        """Voxels of each structure that the model knows, in the scan's own space."""
        counts = np.bincount(self.indices.data.ravel(), minlength=len(self.scheme))
        voxels = {}
        for label in self.scheme.labels[1:]:
            if label.name not in self.not_predicted:
                voxels[label.name] = int(counts[label.index])
        return voxels

    @property
    def voxel_mm3(self) -> float:
        """Volume of a voxel of the scan."""
        return self.indices.grid.voxel_mm3

    @property
    def volumes_mm3(self) -> dict[str, float]:
        """Volume of each structure that the model knows."""
        return {name: count * self.voxel_mm3 for name, count in self.voxels.items()}

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """What lies inside the skull on the working grid, as far as it was found, (X, Y, Z)."""
        return find_inside(self.working, self.scheme)

    @cached_property
    def brain(self) -> Volume:
        """The brain mask: `inside` in the scan's own space, bool (X, Y, Z)."""
        working = Volume(self.inside.astype(np.uint8), self.plan.working.affine)
        found = restore(working, self.plan, labels=True)
        return Volume(found.data > 0, found.affine, found.codes)

    def probabilities(self, structure: str | int) -> Volume:
        """Probability of one structure in the scan's own space, float32.

        `structure` is a name, an abbreviation or a FreeSurfer number; LabelError for an unknown
        one. Values are 0 to 1. Outside of the working grid background has 1, everything else 0.
        """
        index = self.scheme.find(structure).index
        values = self.fused[..., index].float().numpy()
        if index != 0:
            return self._restored(values)
        # What is outside of what was conformed is background: its complement is 0 there.
        no_background = self._restored(1 - values)
        return replace(no_background, data=1 - no_background.data)

    @cached_property
    def entropy(self) -> Volume:
        """Entropy in nats in the scan's own space: of the samples' mean, else of the fusion."""
        if self.uncertainty is not None:
            return self._restored(self.uncertainty.entropy)
        return self._restored(entropy_of(self.fused))

    def _restored(self, values: NDArray[np.float32]) -> Volume:
        """Values (X, Y, Z) on the working grid, in the scan's own space; 0 outside."""
        volume = Volume(values, self.plan.working.affine)
        return restore(volume, self.plan, labels=False)

    def cleaned(self) -> tuple[Self, dict[str, float]]:
        """With one piece a structure and no holes, and the changed share of each structure.

        The probabilities change: labels, pictures and volumes all come from them.
        """
        before = np.asarray(self.working.data)
        after, changed = clean_up(before, len(self.scheme))
        fused = with_classes(self.fused, before, after)
        by_name = {self.scheme.names[k]: share for k, share in changed.items()}
        return replace(self, fused=fused), by_name


def clean_up(
    indices: NDArray[np.uint8], classes: int
) -> tuple[NDArray[np.uint8], dict[int, float]]:
    """Keep each class's largest piece and fill what it encloses; (cleaned map, changed share).

    Lost pieces become the class that surrounds most of them. The share counts, of each class's
    voxels before, those lost or gained.
    """
    cleaned = indices.copy()
    for k in range(1, classes):
        box = occupied_box(cleaned == k)
        if is_empty(box):
            continue
        part = cleaned[grown(box, cleaned.shape)]
        _keep_largest_piece(part, k)
        # Only background is filled: another structure inside, such as a ventricle, belongs there.
        filled = ndimage.binary_fill_holes(part == k)
        part[filled & (part == 0)] = k
    return cleaned, _changed_shares(indices, cleaned, classes)


def with_classes(
    probabilities: Tensor,
    before: NDArray[np.uint8],
    after: NDArray[np.uint8],
) -> Tensor:
    """Probabilities (X, Y, Z, K) whose most probable classes are `after` and were `before`.

    In each voxel that differs, the two classes exchange their probabilities: sums stay, and so
    does the entropy.
    """
    places = torch.from_numpy(np.argwhere(before != after)).unbind(1)
    old = _classes_at(before, places)
    new = _classes_at(after, places)
    changed = probabilities[places]
    largest = changed.gather(1, old)
    smaller = changed.gather(1, new)
    changed.scatter_(1, old, smaller)
    changed.scatter_(1, new, largest)
    # Of several classes that are equally probable the first would win.
    beaten = changed.argmax(1, keepdim=True) != new
    larger = torch.nextafter(largest, torch.ones_like(largest))
    changed.scatter_(1, new, torch.where(beaten, larger, largest))
    result = probabilities.clone()
    result[places] = changed
    return result


def _classes_at(classes: NDArray[np.uint8], places: tuple[Tensor, ...]) -> Tensor:
    """Classes (N, 1) of a map at places, as the index that `gather` takes."""
    found = torch.from_numpy(classes)[places]
    return found.to(torch.int64)[:, None]


def _keep_largest_piece(part: NDArray[np.uint8], k: int) -> None:
    """Give all pieces of class k in `part` but the largest away, in place."""
    pieces, count = ndimage.label(part == k, _TOUCHING)
    if count < 2:
        return
    sizes = np.bincount(pieces.ravel())
    largest = 1 + int(sizes[1:].argmax())
    for number, box in enumerate(ndimage.find_objects(pieces), start=1):
        if number == largest:
            continue
        around = grown(box, part.shape)
        _give_away(part[around], pieces[around] == number)


def _give_away(part: NDArray[np.uint8], piece: NDArray[np.bool_]) -> None:
    """Make a piece the class that surrounds most of it, in place; background if there is none."""
    rim = ndimage.binary_dilation(piece, _TOUCHING) & ~piece
    neighbours = part[rim]
    if neighbours.size:
        part[piece] = np.bincount(neighbours).argmax()
    else:
        part[piece] = 0


def _changed_shares(
    before: NDArray[np.uint8],
    after: NDArray[np.uint8],
    classes: int,
) -> dict[int, float]:
    """Voxels lost and gained, of those before, of each class that changed but background."""
    sizes = np.bincount(before.ravel(), minlength=classes)
    differs = before != after
    lost = np.bincount(before[differs], minlength=classes)
    gained = np.bincount(after[differs], minlength=classes)
    changed = (lost + gained) / np.maximum(sizes, 1)
    return {k: float(changed[k]) for k in range(1, classes) if changed[k] > 0}
