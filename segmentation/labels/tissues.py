"""Says which classes of a label scheme are grey matter, white matter and CSF.

The table of the scheme `tissue4` says which of FreeSurfer's structures is which.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme

# In a map of tissues they have the numbers 1, 2 and 3, as BIDS has it; 0 is everything else.
TISSUES = ("GM", "WM", "CSF")


def tissue_numbers(scheme: LabelScheme) -> NDArray[np.int64]:
    """Find the number of each class's tissue, (K,); 0 of what is no tissue, as background.

    LabelError for a class that is made of several tissues.
    """
    table = load_scheme("tissue4")
    numbers = np.zeros(len(scheme), np.int64)
    for label in scheme.labels[1:]:
        found: set[int] = set()
        for number in label.numbers:
            found |= table.classes_of_number(number)
        found.discard(0)
        tissues = [table.labels[index].abbreviation for index in sorted(found)]
        if len(tissues) > 1:
            raise LabelError(
                f"{label.name} of {scheme.name} is both {' and '.join(tissues)}",
                remedy="do without tissue maps",
            )
        if tissues:
            numbers[label.index] = 1 + TISSUES.index(tissues[0])
    return numbers
