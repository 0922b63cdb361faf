"""Sessions of one miniature head, each with its own rotation, shift and noise."""

from __future__ import annotations

import numpy as np
from scipy import ndimage
from scipy.spatial.transform import Rotation

from helpers.miniatures import head_labels, turned
from trinat.segmentation.grid import Grid
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image


def head_of(participant: int = 0) -> Volume:
    """Return a head with the miniature head's outline and this participant's lumps of tissue."""
    labels = head_labels()
    _, affine = turned(labels, "RAS")
    lumps = np.random.default_rng(participant).normal(size=labels.shape)
    lumps = ndimage.gaussian_filter(lumps, 2.5)
    image = 120 + 50 * lumps / lumps.std()
    return Volume(np.where(labels > 0, image, 0).astype(np.float32), affine)


def pose_of(turn_deg: float, shift_mm: float) -> np.ndarray:
    """Return a rigid matrix (4, 4), turned about all axes and shifted along all."""
    pose = np.eye(4)
    angles = turn_deg * np.array([1.0, -0.5, 0.7])
    pose[:3, :3] = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    pose[:3, 3] = shift_mm * np.array([1.0, 0.5, -1.0])
    return pose


def session_of(head: Volume, pose: np.ndarray, seed: int = 0) -> Volume:
    """Return a scan of the head in another pose, on the grid of the head."""
    placed = Grid(head.grid.shape, pose @ head.affine)
    image = resample_image(head.data, GridMap.between(placed, head.grid))
    noise = np.random.default_rng(seed).normal(0, 3, image.shape)
    image = np.where(image > 5, np.clip(image + noise, 1, 255), 0)
    return Volume(image.astype(np.uint8), head.affine)
