"""What segmenting one scan gives, restored to the scan's own space when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from trinat.segmentation.grid import grown, is_empty
from trinat.segmentation.inference.uncertainty import Uncertainty, entropy_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.conform import (
    ConformPlan,
    restore,
    restore_probabilities,
)
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import occupied_box

_TOUCHING = np.ones((3, 3, 3), bool)


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Labels in the scan's own space, volumes, probabilities and doubts."""

    fused: Tensor  # (X, Y, Z, K) float16 on the working grid
    scheme: LabelScheme
    plan: ConformPlan
    image: Volume  # what the networks saw, on the working grid
    notes: tuple[str, ...]
    agreement: NDArray[np.float64] | None  # mean Dice between views, (K,)
    uncertainty: Uncertainty | None
    not_predicted: tuple[str, ...]

    @cached_property
    def working(self) -> Volume:
        """Class indices on the working grid, uint8."""
        indices = torch.cat(
            [
                slab.max(-1).indices.to(torch.uint8)
                for slab in torch.split(self.fused, 8)
            ]
        )
        return Volume(np.asarray(indices.numpy()), self.plan.working.affine)

    @cached_property
    def indices(self) -> Volume:
        """Class indices in the scan's own space, uint8."""
        if GridMap.between(self.plan.working, self.plan.scan).reordering:
            # Every voxel of the scan is one of the working grid: the most probable stays so.
            found = restore(self.working, self.plan, labels=True)
        else:
            found = restore_probabilities(
                self.fused.permute(3, 0, 1, 2).numpy(), self.plan
            )
        return Volume(found.data, found.affine, found.codes, self.notes)

    @cached_property
    def labels(self) -> Volume:
        """FreeSurfer numbers in the scan's own space, int16."""
        found = self.indices
        numbers = self.scheme.to_freesurfer(found.data)
        return Volume(numbers, found.affine, found.codes, found.notes)

    @cached_property
    def voxels(self) -> dict[str, int]:
        """Voxels of each structure in the scan's own space."""
        counts = np.bincount(self.indices.data.ravel(), minlength=len(self.scheme))
        return {
            label.name: int(counts[label.index])
            for label in self.scheme.labels[1:]
            if label.name not in self.not_predicted
        }

    @property
    def voxel_mm3(self) -> float:
        return self.indices.grid.voxel_mm3

    @property
    def volumes_mm3(self) -> dict[str, float]:
        """Volume of each structure that the model knows."""
        return {name: count * self.voxel_mm3 for name, count in self.voxels.items()}

    def probabilities(self, structure: str | int) -> Volume:
        """Probability of one structure in the scan's own space, float32."""
        index = self.scheme.find(structure).index
        values = self.fused[..., index].float().numpy()
        # What lies outside of what was conformed is background, and no structure.
        found = self._restored(values if index else 1 - values)
        return found if index else replace(found, data=1 - found.data)

    @cached_property
    def entropy(self) -> Volume:
        """Entropy in nats in the scan's own space: of the samples' mean, else of the fusion."""
        entropy = (
            self.uncertainty.entropy if self.uncertainty else entropy_of(self.fused)
        )
        return self._restored(entropy)

    def _restored(self, values: NDArray[np.float32]) -> Volume:
        return restore(
            Volume(values, self.plan.working.affine), self.plan, labels=False
        )

    def cleaned(self) -> tuple[Self, dict[str, float]]:
        """With one piece a structure and no holes, and the changed share of each structure.

        The probabilities change: labels, pictures and volumes all come from them.
        """
        before = np.asarray(self.working.data)
        after, changed = clean_up(before, len(self.scheme))
        fused = with_classes(self.fused, before, after)
        return replace(self, fused=fused), {
            self.scheme.names[k]: s for k, s in changed.items()
        }


def clean_up(
    indices: NDArray[np.uint8], classes: int
) -> tuple[NDArray[np.uint8], dict[int, float]]:
    """Keep each class's largest piece and fill what it encloses; (cleaned map, changed share).

    Lost pieces become the class that surrounds most of them. The share counts, of each class's
    voxels before, those lost or gained.
    """
    out = indices.copy()
    for k in range(1, classes):
        box = occupied_box(out == k)
        if is_empty(box):
            continue
        part = out[grown(box, out.shape)]
        pieces, count = ndimage.label(part == k, _TOUCHING)
        if count > 1:
            sizes = np.bincount(pieces.ravel())
            largest = 1 + int(sizes[1:].argmax())
            for number, where in enumerate(ndimage.find_objects(pieces), start=1):
                if number != largest:
                    _give_away(part, pieces, number, where)
        mask = part == k
        # Only background is filled: another structure inside, such as a ventricle, belongs there.
        part[ndimage.binary_fill_holes(mask) & (part == 0)] = k
    before = np.bincount(indices.ravel(), minlength=classes)
    moved = indices != out
    lost = np.bincount(indices[moved], minlength=classes)
    gained = np.bincount(out[moved], minlength=classes)
    changed = (lost + gained) / np.maximum(before, 1)
    return out, {k: float(changed[k]) for k in range(1, classes) if changed[k] > 0}


def with_classes(
    probabilities: Tensor, before: NDArray[np.uint8], after: NDArray[np.uint8]
) -> Tensor:
    """Probabilities (X, Y, Z, K) whose most probable classes are `after` and were `before`.

    In each voxel that differs, the two classes exchange their probabilities: sums stay, and so
    does the entropy.
    """
    places = torch.from_numpy(np.argwhere(before != after)).unbind(1)
    old = torch.from_numpy(before).to(torch.int64)[places][:, None]
    new = torch.from_numpy(after).to(torch.int64)[places][:, None]
    changed = probabilities[places]
    largest = changed.gather(1, old)
    changed.scatter_(1, old, changed.gather(1, new))
    changed.scatter_(1, new, largest)
    # Of several classes that are equally probable the first would win.
    beaten = changed.argmax(1, keepdim=True) != new
    larger = torch.nextafter(largest, torch.ones_like(largest))
    changed.scatter_(1, new, torch.where(beaten, larger, largest))
    result = probabilities.clone()
    result[places] = changed
    return result


def _give_away(
    part: NDArray[np.uint8], pieces: NDArray[Any], number: int, where: tuple[slice, ...]
) -> None:
    wide = grown(where, part.shape)
    piece = pieces[wide] == number
    around = part[wide][ndimage.binary_dilation(piece, _TOUCHING) & ~piece]
    part[wide][piece] = np.bincount(around).argmax() if around.size else 0
