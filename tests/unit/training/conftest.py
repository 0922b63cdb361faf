"""A head that is small enough to train on in a second: two nested boxes a side, in scalp."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny_training import NETWORK

from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.training.config import Recipe

# Entries: air, left and right white matter, left and right cortex, CSF around, scalp.
NUMBERS = np.array([0, 2, 3, 24, 41, 42, 507])


@pytest.fixture
def maps() -> HeadMaps:
    head = np.zeros((24, 20, 20), np.uint8)
    head[1:23, 1:19, 1:19] = 6
    head[3:21, 3:17, 3:17] = 3
    head[4:12, 4:16, 4:16], head[12:20, 4:16, 4:16] = 2, 5
    head[6:12, 6:14, 6:14], head[12:18, 6:14, 6:14] = 1, 4
    return HeadMaps(
        np.stack([head, head]),
        NUMBERS,
        np.array([0, 2, 3, 1, 2, 3, 4]),
        np.array([[0.0, 30, 160, 90, 120], [0.0, 1, 5, 5, 10]]),
        np.array([[0.0, 5, 8, 8, 20], [0.0, 1, 1, 1, 2]]),
    )


@pytest.fixture
def recipe() -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tiny",
            "network": NETWORK | {"channels": 3, "dropout": 0.2},
            "data": {
                "synthetic": {
                    "heads": "phantom",
                    "synthesis": {"shift_mm": 2, "elastic_mm": 1},
                },
                "rows": 16,
                "columns": 16,
                "epoch_slices": 16,
            },
            "schedule": {"steps": 12},
            "batch": 4,
            "ema": 0.9,
            "checkpoint_every_steps": 3,
        }
    )
