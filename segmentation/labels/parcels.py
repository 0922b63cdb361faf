"""Parcellations of the cortex: schemes whose label maps have parcels in place of the cortex.

Networks for parcels do not distinguish sides: a class has two numbers in label maps, the left one
first. The side of a voxel is that of the cortex in the map of structures.
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

# Name of the group of the cortex in a scheme of structures.
CORTEX_GROUP = "cortical"


@dataclass(frozen=True)
class Parcellation:
    """Scheme of structures, scheme of the parcels of their cortex, and both combined.

    `structures` has a cortex on each side; the classes of `parcels` have no side.
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
        """The classes of the left and of the right cortex in `structures`."""
        return [
            label for label in self.structures.labels if label.group == CORTEX_GROUP
        ]

    @cached_property
    def whole(self) -> LabelScheme:
        """Combined scheme: structures without the cortex, and the parcels of both sides.

        Classes are in ascending order of FreeSurfer numbers.
        """
        cortex = self.cortex
        labels = [label for label in self.structures.labels if label not in cortex]
        # Cortex without a parcel may remain in a map of parcels, so its numbers belong to
        # background.
        numbers = [number for label in cortex for number in label.numbers]
        background = labels[0]
        labels[0] = replace(background, members=(*background.numbers, *numbers))
        for place, side in enumerate(HEMISPHERES):
            for parcel in self.parcels.labels[1:]:
                # Index and partner are set below.
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
        """Return the partner of each structure and parcel that has one: name -> name."""
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
        """Class in `whole` for each pair of a structure and a parcel, (K, P)."""
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
        """Combine a map of structures and a map of parcels, of one shape, to classes of `whole`.

        Where the structure is cortex, the class is that of the parcel on the same side, or
        background if there is no parcel. Elsewhere it is that of the structure.
        """
        joined: NDArray[np.uint8] = self._table[structures, parcels]
        return joined

    def is_cortex(self, structures: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the cortex in a map of classes of `structures`."""
        is_wanted = self.structures.in_groups([CORTEX_GROUP])
        return np.asarray(is_wanted[structures])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parcels of both sides, the left ones first."""
        return tuple(
            name_of(parcel, side)
            for side in HEMISPHERES
            for parcel in self.parcels.labels[1:]
        )


def name_of(parcel: Label, side: Side) -> str:
    """Return FreeSurfer's name of a parcel on one side, such as ctx-lh-insula."""
    return f"ctx-{HEMISPHERES[side]}-{parcel.name}"
