"""Parcellations of the cortex: schemes whose label maps have parcels in place of the cortex.

Networks distinguish parcels but not sides: a class has two numbers in label maps, the left one
first. A voxel has the side of the cortex in the map of structures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels import HEMISPHERES, Side
from trinat.segmentation.labels.label import Label
from trinat.segmentation.labels.scheme import LabelScheme

# The group of the cortex in a scheme of structures.
CORTEX_GROUP = "cortical"


@dataclass(frozen=True)
class Parcellation:
    """Structures, the parcels of their cortex, and both in one scheme.

    `structures` has a cortex on each side, `parcels` has classes without sides.
    """

    structures: LabelScheme
    parcels: LabelScheme

    def __post_init__(self) -> None:
        if {label.side for label in self.cortex} != set(HEMISPHERES):
            raise LabelError(
                f"{self.structures.name} has no left and right cortex to divide into parcels"
            )
        for label in self.parcels.labels[1:]:
            if len(label.numbers) != len(HEMISPHERES):
                raise LabelError(
                    f"{label.name} of {self.parcels.name} has {len(label.numbers)} numbers, not a "
                    "left and a right one"
                )

    @property
    def cortex(self) -> list[Label]:
        """The cortex of each side among the structures."""
        return [
            label for label in self.structures.labels if label.group == CORTEX_GROUP
        ]

    @cached_property
    def whole(self) -> LabelScheme:
        """Structures and the parcels of both sides, in ascending order of FreeSurfer numbers."""
        cortex = self.cortex
        labels = [label for label in self.structures.labels if label not in cortex]
        # A map of parcels may hold cortex without a parcel.
        numbers = [number for label in cortex for number in label.numbers]
        background = labels[0]
        labels[0] = replace(background, members=(*background.numbers, *numbers))
        for place, side in enumerate(HEMISPHERES):
            for parcel in self.parcels.labels[1:]:
                # Index and partner are assigned below.
                of_side = replace(
                    parcel,
                    name=name_of(parcel, side),
                    fs_id=parcel.numbers[place],
                    members=(),
                    abbreviation=f"{HEMISPHERES[side]}-{parcel.abbreviation}",
                    side=side,
                )
                labels.append(of_side)
        labels.sort(key=lambda label: label.fs_id)
        index_of = {label.name: index for index, label in enumerate(labels)}
        partner_of = self._partners()
        numbered = []
        for index, label in enumerate(labels):
            partner = index_of.get(partner_of.get(label.name, ""))
            numbered.append(replace(label, index=index, partner=partner))
        name = f"{self.structures.name}-{self.parcels.name}"
        return LabelScheme(name, tuple(numbered))

    def _partners(self) -> dict[str, str]:
        """Return the name of the partner of each structure and parcel that has one."""
        partners = {}
        for label in self.structures.labels:
            if label.partner is not None:
                partners[label.name] = self.structures.names[label.partner]
        for parcel in self.parcels.labels[1:]:
            left, right = (name_of(parcel, side) for side in HEMISPHERES)
            partners[left] = right
            partners[right] = left
        return partners

    @cached_property
    def _table(self) -> NDArray[np.uint8]:
        """The class in `whole` for each pair of structure and parcel, (K, P)."""
        shape = (len(self.structures), len(self.parcels))
        table = np.zeros(shape, np.uint8)
        names = self.whole.names
        for label in self.structures.labels:
            if label.group != CORTEX_GROUP:
                table[label.index] = names.index(label.name)
                continue
            assert label.side is not None
            for parcel in self.parcels.labels[1:]:
                name = name_of(parcel, label.side)
                table[label.index, parcel.index] = names.index(name)
        return table

    def join(
        self, structures: NDArray[Any], parcels: NDArray[Any]
    ) -> NDArray[np.uint8]:
        """Combine classes of structures and of parcels, of one shape, to classes of `whole`.

        A parcel counts where the structure is cortex. Cortex without a parcel is background.
        """
        joined: NDArray[np.uint8] = self._table[structures, parcels]
        return joined

    def is_cortex(self, structures: NDArray[Any]) -> NDArray[np.bool_]:
        """Mark the cortex in a map of classes."""
        is_wanted = np.zeros(len(self.structures), bool)
        is_wanted[[label.index for label in self.cortex]] = True
        found: NDArray[np.bool_] = is_wanted[structures]
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parcels of both sides, left ones first."""
        return tuple(
            name_of(parcel, side)
            for side in HEMISPHERES
            for parcel in self.parcels.labels[1:]
        )


def name_of(parcel: Label, side: Side) -> str:
    """Return FreeSurfer's name of a parcel of one side: ctx-lh-insula."""
    return f"ctx-{HEMISPHERES[side]}-{parcel.name}"
