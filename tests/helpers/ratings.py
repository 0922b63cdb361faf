"""A published example of raters who disagree."""

from __future__ import annotations

import numpy as np

# Shrout and Fleiss (1979), table 2: six targets, four judges; their ICC(2,1) is 0.29.
SHROUT_FLEISS = np.array(
    [
        [9, 2, 5, 8],
        [6, 1, 3, 2],
        [8, 4, 6, 8],
        [7, 1, 2, 6],
        [10, 5, 6, 9],
        [6, 2, 4, 7],
    ],
    float,
)
