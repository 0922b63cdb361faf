"""Labels that fit their scan better at another place, and digests of inputs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from trinat.segmentation.data.preparing import digest_of, shift_of_labels


def head() -> tuple[np.ndarray, np.ndarray]:
    """Return a bright ball in a grey one, and their labels."""
    places = np.indices((64, 64, 64)) - 32
    distance = np.linalg.norm(places, axis=0)
    classes = (distance < 20).astype(np.uint8) + (distance < 10)
    return np.array([0, 0.5, 1], np.float32)[classes], classes


def test_labels_that_lie_on_their_scan_need_no_shift() -> None:
    assert shift_of_labels(*head()) is None


@pytest.mark.parametrize(("axis", "voxels"), [(0, 3), (1, -6), (2, 6)])
def test_labels_that_were_moved_belong_back(axis: int, voxels: int) -> None:
    image, classes = head()
    back = [0, 0, 0]
    back[axis] = -voxels
    assert shift_of_labels(image, np.roll(classes, voxels, axis)) == tuple(back)


def test_a_scan_without_contrast_and_a_map_without_labels_say_nothing() -> None:
    image, classes = head()
    assert shift_of_labels(np.ones_like(image), classes) is None
    assert shift_of_labels(image, np.zeros_like(classes)) is None


def test_labels_of_the_cortex_alone_say_nothing() -> None:
    image, classes = head()
    places = np.indices(classes.shape) - 32
    distance = np.linalg.norm(places, axis=0)
    ribbon = ((distance > 18) & (distance < 20)).astype(np.uint8)
    assert shift_of_labels(image, np.roll(ribbon, 6, axis=0)) is None


@pytest.mark.parametrize("names", [("x.hdr", "x.img"), ("X.HDR", "X.IMG")])
def test_a_pair_has_one_digest_by_either_file(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    header, image = (tmp_path / name for name in names)
    header.write_bytes(b"header")
    image.write_bytes(b"image")
    expected = hashlib.sha256(b"headerimage").hexdigest()
    assert digest_of(header) == digest_of(image) == expected
