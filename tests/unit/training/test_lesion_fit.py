"""Training of the network for lesions on voxels whose answer is known."""

from __future__ import annotations

import numpy as np

from trinat.segmentation.inference.lesion_network import (
    FEATURES,
    LesionNetwork,
    VoxelFeatures,
    lesion_probability,
)
from trinat.segmentation.training.lesion_fit import fit_lesion_network, sample_voxels

SHAPE = (20, 40, 40)
BRIGHTER = FEATURES.index("brighter_1mm")
UNTRAINED = LesionNetwork((4, 4, 4))


def scan(seed: int) -> tuple[VoxelFeatures, np.ndarray]:
    """Return noise in which every voxel above 1.5 is lesion: 7 %."""
    rng = np.random.default_rng(seed)
    places = np.ones(SHAPE, bool)
    values = rng.normal(size=(places.size, len(FEATURES))).astype(np.float32)
    lesions = (values[:, BRIGHTER] > 1.5).reshape(SHAPE)
    return VoxelFeatures(places, values, is_flair=True), lesions


def test_voxels_of_a_sample_stand_for_all_voxels_of_their_kind():
    features, lesions = scan(0)
    sample = sample_voxels(features, lesions, np.random.default_rng(0))
    of_scan = 1 / (lesions.sum() + 2000)
    # 32,000 voxels, of which 18,000 and those of lesions are sampled at most.
    assert len(sample.weights) == 18_000 + sample.is_lesion.sum()
    assert sample.is_lesion.sum() == lesions.sum()
    np.testing.assert_allclose(sample.weights.sum(), 32_000 * of_scan, rtol=1e-4)


def test_a_network_learns_what_lesions_are():
    rng = np.random.default_rng(0)
    samples = [sample_voxels(*scan(seed), rng) for seed in (1, 2)]
    network = fit_lesion_network(samples, UNTRAINED, steps=300, anew=True)
    features, lesions = scan(3)
    found = lesion_probability(network, features) > 0.5
    dice = 2 * (found & lesions).sum() / (found.sum() + lesions.sum())
    assert dice > 0.9


def test_the_same_samples_give_the_same_network():
    sample = sample_voxels(*scan(1), np.random.default_rng(0))
    one, other = (
        fit_lesion_network([sample], UNTRAINED, steps=3, anew=True) for _ in range(2)
    )
    for name, values in one.state_dict().items():
        assert values.equal(other.state_dict()[name])


def test_training_goes_on_from_a_network_that_stays_as_it_is():
    sample = sample_voxels(*scan(1), np.random.default_rng(0))
    start = fit_lesion_network([sample], UNTRAINED, steps=3, anew=True)
    before = {name: values.clone() for name, values in start.state_dict().items()}
    further = fit_lesion_network([sample], start, steps=3)
    for name, values in further.state_dict().items():
        assert start.state_dict()[name].equal(before[name])
        # The scale of the features stays that of the first training.
        is_weight = name.startswith("layers")
        assert values.equal(before[name]) is not is_weight
