"""Features of voxels in handwritten heads, and the file of the network for lesions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.lesions import save_lesion_network

from trinat.segmentation.errors import ModelError
from trinat.segmentation.inference.lesion_network import (
    FEATURES,
    features_of,
    find_lesion_map,
    groups_of,
    load_lesion_network,
)
from trinat.segmentation.labels.scheme import load_scheme

STRUCTURES = load_scheme("quicknat33")
SIZE = 60
# Cubes by distance from the border of the volume: cortex, white matter and a ventricle.
WHITE = slice(14, 46)
VENTRICLE = slice(26, 34)
LESION = (slice(18, 24), slice(28, 34), slice(28, 34))


def head(cortex: float, lesion: float) -> tuple[np.ndarray, torch.Tensor]:
    """Return image and probabilities; white matter has brightness 0.5, and fluid 0.1."""
    image = np.zeros((SIZE,) * 3, np.float32)
    classes = np.zeros((SIZE,) * 3, np.int64)
    image[8:-8, 8:-8, 8:-8] = cortex
    classes[8:-8, 8:-8, 8:-8] = STRUCTURES.find(3).index
    image[WHITE, WHITE, WHITE] = 0.5
    classes[WHITE, WHITE, WHITE] = STRUCTURES.find(2).index
    image[VENTRICLE, VENTRICLE, VENTRICLE] = 0.1
    classes[VENTRICLE, VENTRICLE, VENTRICLE] = STRUCTURES.find(4).index
    image[LESION] = lesion
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(classes), len(STRUCTURES))
    return image, one_hot.half()


def features(cortex: float, lesion: float) -> dict[str, float]:
    """Return the features of the voxel in the middle of the lesion."""
    image, probabilities = head(cortex, lesion)
    prior = np.zeros((4, 4, 4), np.float32)
    found = features_of(image, groups_of(probabilities, STRUCTURES), prior, 2.0)
    assert found is not None
    assert found.is_flair == (cortex > 0.5)
    number = np.count_nonzero(found.places[:21]) + np.count_nonzero(
        found.places[21].ravel()[: 31 * SIZE + 31]
    )
    return dict(zip(FEATURES, found.values[number].tolist(), strict=True))


@pytest.mark.parametrize(("cortex", "lesion"), [(0.6, 0.75), (0.35, 0.25)])
def test_a_lesion_is_bright_in_flair_and_dark_in_t1(cortex, lesion):
    found = features(cortex, lesion)
    # Half of the brightness of white matter more, or less in T1.
    assert found["brighter"] == pytest.approx(0.5, abs=0.02)
    # Six voxels wide: it is hardly less bright over 1 mm around.
    assert 0.45 < found["brighter_1mm"] < 0.51
    assert found["brighter_4mm"] < 0.3
    assert found["is_flair"] == (1 if cortex > 0.5 else -1)
    # The brain begins 13 voxels below, the ventricle 5 voxels above.
    assert found["depth_mm"] == 14
    assert found["from_ventricle_mm"] == 5
    assert found["thick_mm"] == 2
    assert (found["white"], found["cortex"]) == (1, 0)


def test_a_head_without_cortex_cannot_be_searched(tmp_path: Path):
    image, probabilities = head(0.6, 0.75)
    network = load_lesion_network(save_lesion_network(tmp_path))
    cortex = STRUCTURES.find(3).index
    probabilities[..., 0] += probabilities[..., cortex]
    probabilities[..., cortex] = 0
    found = find_lesion_map(network, image, probabilities, STRUCTURES, 1.0)
    assert not found.is_searched
    assert not found.probability.any()


def test_the_network_of_a_file_finds_what_is_brighter(tmp_path: Path):
    network = load_lesion_network(save_lesion_network(tmp_path, brighter=0.3))
    image, probabilities = head(0.6, 0.75)
    found = find_lesion_map(network, image, probabilities, STRUCTURES, 1.0)
    expected = np.zeros((SIZE,) * 3, bool)
    expected[LESION] = True
    assert found.is_searched
    np.testing.assert_array_equal(found.probability > 0.5, expected)


@pytest.mark.parametrize(("thick_mm", "is_too_thin"), [(4.9, True), (5.0, False)])
def test_a_network_has_a_limit_for_thin_slices(tmp_path: Path, thick_mm, is_too_thin):
    network = load_lesion_network(save_lesion_network(tmp_path, thinnest_mm=5))
    image, probabilities = head(0.6, 0.75)
    found = find_lesion_map(network, image, probabilities, STRUCTURES, thick_mm)
    assert found.is_too_thin == is_too_thin


def test_other_files_are_refused(tmp_path: Path):
    path = save_lesion_network(tmp_path)
    tensors = safetensors.torch.load_file(path)
    del tensors["mean"]
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(ModelError) as raised:
        load_lesion_network(path)
    assert raised.value.where == str(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError):
        load_lesion_network(path)
