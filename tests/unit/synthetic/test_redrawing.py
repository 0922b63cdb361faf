"""Random variation of heads: how far borders move, which tissues may shrink, and what is fixed."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.synthetic.heads import HeadMaps, with_variants
from trinat.segmentation.synthetic.redrawing import redraw

# Numbers of the entries in the test heads: air, white matter, cortex, pallidum, the chiasm,
# fluid, and a lateral ventricle.
NUMBERS = np.array([0, 2, 3, 13, 85, 24, 4])
AIR, WHITE, CORTEX, PALLIDUM, CHIASM, FLUID, VENTRICLE = range(7)


def white_head() -> NDArray[np.uint8]:
    return np.full((24, 24, 24), WHITE, np.uint8)


def head_with(entry: int) -> NDArray[np.uint8]:
    """Return a cube of 8 voxels a side in white matter."""
    head = white_head()
    head[8:16, 8:16, 8:16] = entry
    return head


def redrawn(head: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
    changed = head.copy()
    redraw(changed, NUMBERS, np.random.default_rng(seed))
    return changed


def grown(mask: NDArray[np.bool_], steps: int) -> NDArray[np.bool_]:
    return np.asarray(ndimage.binary_dilation(mask, iterations=steps))


@pytest.mark.parametrize("entry", [PALLIDUM, VENTRICLE])
def test_a_structure_grows_shrinks_or_stays_and_by_a_voxel_at_most(entry: int) -> None:
    head = head_with(entry)
    core = np.zeros(head.shape, bool)
    core[9:15, 9:15, 9:15] = True
    sizes = []
    for seed in range(20):
        own = redrawn(head, seed) == entry
        assert own[core].all()
        assert not (own & ~grown(head == entry, 1)).any()
        sizes.append(np.count_nonzero(own))
    assert min(sizes) < 512
    assert 512 in sizes
    assert max(sizes) > 512
    # The outermost inner layer has 8^3 - 6^3 voxels, the first outer one 6 * 8^2.
    assert min(sizes) >= 216
    assert max(sizes) <= 512 + 384


def test_what_shrinks_becomes_what_is_nearest() -> None:
    head = head_with(PALLIDUM)
    head[:8] = CORTEX
    changed = [redrawn(head, seed) for seed in range(20)]
    smaller = [one for one in changed if (one == PALLIDUM).sum() < 512]
    assert smaller
    for one in smaller:
        lost = (head == PALLIDUM) & (one != PALLIDUM)
        middle_of_face = lost[8, 10:14, 10:14]
        # The cortex is in front of this face.
        assert (one[8, 10:14, 10:14][middle_of_face] == CORTEX).all()


def test_a_structure_takes_no_other_deep_one() -> None:
    head = head_with(PALLIDUM)
    head[16:, 8:16, 8:16] = CHIASM
    for seed in range(20):
        assert (redrawn(head, seed)[head == CHIASM] == CHIASM).all()


def test_a_ventricle_takes_any_brain() -> None:
    head = head_with(VENTRICLE)
    head[16:, 8:16, 8:16] = CHIASM
    taken = [(redrawn(head, seed)[16] == VENTRICLE).any() for seed in range(20)]
    assert any(taken)


def test_a_few_voxels_stay_as_they_are() -> None:
    head = white_head()
    head[8:11, 8:11, 8:11] = PALLIDUM
    for seed in range(20):
        assert (redrawn(head, seed) == head).all()


def test_the_cortex_becomes_thicker_or_thinner_by_a_voxel() -> None:
    head = np.full((24, 24, 24), AIR, np.uint8)
    head[:, :, :16] = FLUID
    head[:, :, :14] = CORTEX
    head[:, :, :10] = WHITE
    thicknesses = set()
    for seed in range(20):
        changed = redrawn(head, seed)
        assert (changed[:, :, :9] == WHITE).all()
        assert (changed[:, :, 10:13] == CORTEX).all()
        assert (changed[:, :, 14:] == head[:, :, 14:]).all()
        assert np.isin(changed[:, :, 9], (WHITE, CORTEX)).all()
        assert np.isin(changed[:, :, 13], (FLUID, CORTEX)).all()
        thickness = (changed == CORTEX).sum(2)
        thicknesses.update(np.unique(thickness).tolist())
    assert thicknesses == {3, 4, 5}


def test_a_redrawn_copy_is_alike_in_each_run() -> None:
    heads = np.stack([head_with(PALLIDUM), head_with(PALLIDUM)])
    priors = np.ones((2, 1))
    maps = HeadMaps(heads, NUMBERS, np.zeros(len(NUMBERS), np.int64), priors, priors)
    first = with_variants(maps, [["redrawn"], ["redrawn"]])
    again = with_variants(maps, [["redrawn"], ["redrawn"]])
    assert len(first.labels) == 6
    assert (first.labels[:2] == heads).all()
    assert (first.labels == again.labels).all()
    # Equal heads are varied differently, and so are copies.
    redrawn_heads = {head.tobytes() for head in first.labels[2:]}
    assert len(redrawn_heads) == 4
