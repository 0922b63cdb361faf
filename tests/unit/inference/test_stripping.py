"""Skull stripping for networks that were trained on stripped scans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.overfitted import miniature, overfitted_model, random_model
from helpers.refusals import refusal
from pydantic import ValidationError
from torch import Tensor

from trinat.segmentation.errors import ModelError
from trinat.segmentation.grid import whole
from trinat.segmentation.inference.localisation import (
    BrainRegion,
    is_whole_head,
    mask_around,
)
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.preparation import STRIPPED, Sight
from trinat.segmentation.models import zoo
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description, Preprocessing
from trinat.segmentation.space.conform import conform

SHAPE = (40, 40, 40)
# A marked cube of 20 voxels a side as the region around a brain.
BOX = (slice(10, 30), slice(10, 30), slice(10, 30))
REGION = BrainRegion(BOX, torch.ones(20, 20, 20, dtype=torch.bool))


def head(scalp: int) -> Tensor:
    """Return a brain of 1,000 bright voxels in the region, and `scalp` voxels outside of it."""
    image = torch.zeros(SHAPE)
    image[15:25, 15:25, 15:25] = 1
    image.view(-1)[:scalp] = 1
    return image


@pytest.mark.parametrize(("scalp", "is_whole"), [(0, False), (5, False), (30, True)])
def test_a_whole_head_shows_tissue_beyond_the_region_of_the_brain(
    scalp: int, is_whole: bool
) -> None:
    assert is_whole_head(head(scalp), REGION) == is_whole


def test_noise_around_a_brain_is_no_head() -> None:
    noise = torch.full(SHAPE, 0.1)
    assert not is_whole_head(torch.maximum(head(0), noise), REGION)


def test_where_no_brain_was_found_nothing_is_known_of_the_head() -> None:
    assert not is_whole_head(head(500), BrainRegion.whole(SHAPE))


def test_two_voxels_around_the_inside_of_the_skull_are_kept() -> None:
    """A cube from 10 to 29, seen in every second slice, with a hole; a speck is beside it."""
    inside = np.zeros(SHAPE, bool)
    inside[10:30, 11:31:2, 10:30] = True
    inside[18:25, 17:24, 18:25] = False
    inside[35:37, 15, 35:37] = True
    expected = np.zeros(SHAPE, bool)
    expected[8:32, 8:33, 8:32] = True
    np.testing.assert_array_equal(mask_around(inside, along=1), expected)


def test_networks_see_nothing_beyond_what_is_kept() -> None:
    kept = torch.zeros(SHAPE, dtype=torch.bool)
    kept[BOX] = True
    seen = Sight(kept=kept).of(torch.ones(SHAPE))
    assert int(seen.sum()) == 20**3
    assert Sight().of(seen) is seen
    assert Sight(kept=kept).remarks == (STRIPPED,)
    assert Sight().remarks == ()


@pytest.fixture
def predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predictor:
    """Return a predictor with random networks, whose stripper knows the miniature head."""
    monkeypatch.setattr(zoo, "shipped_models", lambda: {"fast": overfitted_model()})
    description = Description(name="m", stripped_by="fast")
    save_model(tmp_path / "m", description, load_model(random_model()).networks)
    return Predictor(tmp_path / "m", device="cpu")


def test_of_a_whole_head_the_brain_is_kept(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plate stands next to the small head, which is 64 voxels wide with the air around it."""
    scan, truth = miniature()
    prepared = predictor.prepare(scan)
    image = torch.zeros(100, 64, 64)
    image[36:] = predictor.on_device(prepared)
    image[:15] = 1
    # The small networks have never seen a plate, and would take it for brain.
    box = (slice(36, 100), slice(0, 64), slice(0, 64))
    region = BrainRegion(box, torch.ones(64, 64, 64, dtype=torch.bool))
    monkeypatch.setattr(Predictor, "find_brain", lambda _self, _image: region)
    kept = predictor.find_kept(image)
    assert kept is not None
    labels = conform(truth, labels=True, plan=prepared.plan).volume.data
    assert kept.numpy()[36:][labels > 0].mean() > 0.99
    assert not kept[:15].any()


def test_brain_that_goes_on_beyond_its_region_is_kept(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The region ends in the middle of the brain, so that half of it seems to be scalp."""
    scan, truth = miniature()
    prepared = predictor.prepare(scan)
    image = predictor.on_device(prepared)
    left = torch.zeros(image.shape, dtype=torch.bool)
    left[:32] = True
    rim = torch.zeros(image.shape, dtype=torch.bool)
    rim[29:32] = True
    half = BrainRegion(whole(image.shape), left, rim)
    monkeypatch.setattr(Predictor, "find_brain", lambda _self, _image: half)
    kept = predictor.find_kept(image)
    assert kept is not None
    labels = conform(truth, labels=True, plan=prepared.plan).volume.data
    assert kept.numpy()[labels > 0].mean() > 0.99


def test_networks_see_what_is_kept_and_the_scan_says_so(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = predictor.prepare(miniature()[0])
    kept = torch.zeros(prepared.volume.shape, dtype=torch.bool)
    kept[20:40, 20:40, 20:40] = True
    data = np.where(kept.numpy(), prepared.volume.data, 0)
    beforehand = replace(prepared, volume=replace(prepared.volume, data=data))
    as_it_is = Predictor(random_model(), device="cpu")
    monkeypatch.setattr(predictor, "find_kept", lambda _image: kept)
    found = predictor.infer(prepared)
    assert torch.equal(found.fused, as_it_is.infer(beforehand).fused)
    assert found.notes == (STRIPPED,)
    # Grades and pictures use the original scan.
    assert (found.image.data == as_it_is.infer(prepared).image.data).all()


def test_a_stripped_scan_is_seen_as_it_is(predictor: Predictor) -> None:
    scan, truth = miniature()
    stripped = replace(scan, data=np.where(truth.data > 0, scan.data, 0))
    found = predictor.segment(stripped)
    as_it_is = Predictor(random_model(), device="cpu").segment(stripped)
    assert torch.equal(found.fused, as_it_is.fused)
    assert found.notes == as_it_is.notes


def test_who_strips_comes_with_trinat(tmp_path: Path) -> None:
    description = Description(name="m", stripped_by="mine")
    save_model(tmp_path / "m", description, load_model(random_model()).networks)
    with refusal(ModelError, tmp_path / "m/model.yaml"):
        Predictor(tmp_path / "m", device="cpu")


@pytest.mark.parametrize(
    "preprocessing",
    [Preprocessing(axes="LIA"), Preprocessing(scaling="minimum-maximum")],
)
def test_networks_with_another_grid_or_scale_are_not_stripped_for(
    preprocessing: Preprocessing,
) -> None:
    with pytest.raises(ValidationError, match="only with axes: RAS and scaling"):
        Description(name="m", stripped_by="fast", preprocessing=preprocessing)
