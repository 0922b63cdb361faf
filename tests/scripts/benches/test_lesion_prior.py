"""The map of how often lesions lie at each position in the white matter."""

from __future__ import annotations

import numpy as np
from benches.lesion_prior import prior_of


def test_the_prior_is_highest_where_lesions_are_on_either_side():
    mask = np.zeros((20, 20, 20), bool)
    mask[5, 5, 5] = True
    # The voxel lies a quarter of the way from the left to the right end of the white matter.
    prior = prior_of([(mask, np.array([-33.5, -24.0, 8.5]))])
    x, y, z = np.unravel_index(prior.argmax(), prior.shape)
    assert sorted({int(x), prior.shape[0] - 1 - int(x)}) == [18, 29]
    assert (int(y), int(z)) == (30, 20)
    np.testing.assert_allclose(prior, prior[::-1], atol=1e-5)
