"""Class of a label scheme, and the rules that the classes of a scheme must follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from trinat.segmentation.labels import Side
from trinat.segmentation.labels.class_map import MAX_CLASSES

# Name of the group of CSF in label schemes.
CSF_GROUP = "csf"


@dataclass(frozen=True)
class Label:
    """Class of a label scheme: its `index` in networks and its FreeSurfer number `fs_id` in files.

    `partner` is the index of the same structure on the other side, or None. `members` are all
    FreeSurfer numbers that belong to the class; if empty, only `fs_id` does. `rim_of` is the index
    of another class: in a label map without this class, the one-voxel rim around the other class is
    used for it.
    """

    index: int
    name: str
    fs_id: int
    partner: int | None
    color: tuple[int, int, int]
    abbreviation: str
    group: str
    side: Side | None = None
    members: tuple[int, ...] = ()
    rim_of: int | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """All FreeSurfer numbers that belong to this class."""
        return self.members or (self.fs_id,)

    @property
    def hex_color(self) -> str:
        """The colour as #rrggbb."""
        red, green, blue = self.color
        return f"#{red:02x}{green:02x}{blue:02x}"


def find_problem(labels: tuple[Label, ...]) -> str:
    """Return the reason why `labels` are no scheme, or "" if they are one.

    Indices must count up from 0, which is background. Partners must refer to each other, and be one
    left and one right. Names and numbers must be unique.
    """
    if not 2 <= len(labels) <= MAX_CLASSES:
        return f"has {len(labels)} classes, not 2 to {MAX_CLASSES}"
    if [label.index for label in labels] != list(range(len(labels))):
        return "indices do not count up from 0"
    if labels[0].fs_id != 0:
        return f"class 0 is background, FreeSurfer number 0, not {labels[0].fs_id}"
    largest = np.iinfo(np.int16).max
    for label in labels:
        if not 0 <= label.fs_id <= largest:
            return f"FreeSurfer number {label.fs_id} of {label.name} is not in 0 to {largest}"
        partner_problem = _find_partner_problem(label, labels)
        if partner_problem:
            return partner_problem
        if label.rim_of is not None and not 0 < label.rim_of < len(labels):
            return f"{label.name} is the rim of {label.rim_of}, which is no class"
    return _find_repetition(labels)


def _find_partner_problem(label: Label, labels: tuple[Label, ...]) -> str:
    """Return the problem with the partner of a label, or "" if there is none."""
    if label.partner is None:
        return ""
    if not 0 <= label.partner < len(labels):
        return f"partner {label.partner} of {label.name} is no class"
    partner = labels[label.partner]
    if partner.partner != label.index:
        return f"{label.name} has partner {partner.name}, but not the other way round"
    if {label.side, partner.side} != {"left", "right"}:
        return (
            f"partners {label.name} and {partner.name} are not one left and one right"
        )
    return ""


def _find_repetition(labels: tuple[Label, ...]) -> str:
    """Return the name or number that two labels share, as a sentence, or "" if there is none."""
    members: list[int] = []
    for label in labels:
        members += label.numbers
    stated: dict[str, Iterable[Hashable]] = {
        "name": [label.name for label in labels],
        "FreeSurfer number": [label.fs_id for label in labels],
        "member": members,
    }
    for what, values in stated.items():
        for value, count in Counter(values).items():
            if count > 1:
                return f"{what} {value} occurs twice"
    return ""
