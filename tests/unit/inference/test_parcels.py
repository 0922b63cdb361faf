"""Parcels of handwritten maps, and of networks with constant output."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.refusals import refusal
from helpers.small_model import save_parcels, save_small
from torch import Tensor

from trinat.segmentation.errors import LabelError, ModelError
from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.measuring import measure_parcels
from trinat.segmentation.inference.network import SliceProbabilities
from trinat.segmentation.inference.parcels import (
    Parcels,
    join_views,
    likely_cortex,
    may_be_cortex,
)
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description, Fusion
from trinat.segmentation.models.quicknat import QuickNat
from trinat.segmentation.space.conform import ConformPlan
from trinat.segmentation.space.views import View, slice_axes

STRUCTURES = load_scheme("quicknat33")
DESIKAN = Parcellation(STRUCTURES, load_scheme("desikan34"))
LEFT = STRUCTURES.find("Left-Cerebral-Cortex").index
RIGHT = STRUCTURES.find("Right-Cerebral-Cortex").index
CUNEUS = DESIKAN.parcels.find("cuneus").index
INSULA = DESIKAN.parcels.find("insula").index
LIMITS = (0.8, 0.5)


def predicted(
    structures: list[int],
    parcels: list[int],
    *views: list[int],
    scan: Grid | None = None,
) -> Prediction:
    """Return a row of voxels of 1 mm with their structures, their parcels, and those of each view.

    A parcel of 0 is unknown. Without `views`, a single view has found the whole map.
    """
    fused = torch.zeros((len(structures), 1, 1, len(STRUCTURES)), dtype=torch.float16)
    for place, index in enumerate(structures):
        fused[place, 0, 0, index] = 1
    places = np.array(parcels).reshape(-1, 1, 1) > 0
    known = np.array(parcels, np.uint8)[places.ravel()]
    by_view = {
        view: np.array(of_view, np.uint8)[places.ravel()]
        for view, of_view in zip(View, views or [parcels], strict=False)
    }
    working = Grid((len(structures), 1, 1), np.eye(4))
    return Prediction(
        fused=fused,
        scheme=STRUCTURES,
        plan=ConformPlan(scan or working, (1, 1), working),
        image=Volume(np.zeros(working.shape, np.float32), np.eye(4)),
        notes=(),
        agreement=None,
        uncertainty=None,
        not_predicted=(),
        parcel_map=Parcels(DESIKAN, places, known, by_view),
    )


def test_a_label_map_has_the_parcels_of_both_sides() -> None:
    found = predicted([0, LEFT, LEFT, RIGHT], [INSULA, INSULA, CUNEUS, CUNEUS])
    assert found.parcel_labels.data.ravel().tolist() == [0, 1035, 1005, 2005]
    assert found.parcel_labels.data.dtype == np.int16
    # The structures stay as they are.
    assert found.labels.data.ravel().tolist() == [0, 3, 3, 42]


def test_cortex_whose_parcel_is_not_known_has_that_of_the_nearest_voxel() -> None:
    found = predicted([LEFT, LEFT, LEFT, LEFT], [0, INSULA, 0, CUNEUS])
    labels = found.parcel_labels.data.ravel().tolist()
    assert labels[:2] == [1035, 1035]
    assert labels[3] == 1005


def test_all_cortex_of_a_scan_with_other_voxels_has_a_parcel() -> None:
    scan = Grid((8, 1, 1), np.diag([0.5, 1, 1, 1]))
    found = predicted([LEFT] * 4, [INSULA, INSULA, CUNEUS, CUNEUS], scan=scan)
    numbers, counts = np.unique(found.parcel_labels.data, return_counts=True)
    assert set(numbers) - {0} == {1005, 1035}
    cortex = (found.labels.data == 3).sum()
    assert counts[numbers > 0].sum() == cortex > 6


def test_a_parcel_is_measured_against_the_cortex_of_its_side() -> None:
    structures = [LEFT] * 4 + [RIGHT] * 2
    found = predicted(structures, [INSULA] * 3 + [CUNEUS] * 2 + [INSULA])
    by_name = {row.name: row for row in measure_parcels(found, LIMITS)}
    assert len(by_name) == 68
    left = by_name["ctx-lh-insula"]
    assert (left.freesurfer, left.side, left.lobe) == (1035, "left", "insula")
    assert (left.voxels, left.mm3, left.share) == (3, 3.0, 0.75)
    # Three on the left and one on the right: 2 more than the other, of a mean of 2.
    assert left.asymmetry == by_name["ctx-rh-insula"].asymmetry == 1.0
    assert by_name["ctx-lh-cuneus"].asymmetry == 0.0
    assert by_name["ctx-rh-insula"].share == 0.5
    absent = by_name["ctx-lh-lingual"]
    assert (absent.mm3, absent.share, absent.asymmetry) == (0.0, 0.0, None)
    assert absent.grade == "reject"


def test_a_single_view_gives_no_agreement_and_no_grade() -> None:
    found = predicted([LEFT, RIGHT], [INSULA, INSULA])
    (left,) = [
        row for row in measure_parcels(found, LIMITS) if row.name == "ctx-lh-insula"
    ]
    assert (left.agreement, left.grade) == (None, None)


def test_agreement_is_dice_between_views_within_the_cortex_of_a_side() -> None:
    # Background is not counted. On the left the views have 2 and 1 voxels of the insula, 1 of
    # them in common: 2/3. On the right they agree.
    structures = [0, LEFT, LEFT, LEFT, RIGHT, RIGHT]
    found = predicted(
        structures,
        [INSULA, INSULA, INSULA, CUNEUS, INSULA, CUNEUS],
        [INSULA, INSULA, INSULA, CUNEUS, INSULA, CUNEUS],
        [CUNEUS, INSULA, CUNEUS, CUNEUS, INSULA, CUNEUS],
    )
    agreement = found.parcel_agreement
    assert agreement is not None
    assert agreement["ctx-lh-insula"] == pytest.approx(2 / 3)
    assert agreement["ctx-lh-cuneus"] == pytest.approx(2 / 3)
    assert agreement["ctx-rh-insula"] == agreement["ctx-rh-cuneus"] == 1
    assert np.isnan(agreement["ctx-rh-lingual"])
    grades = {row.name: row.grade for row in measure_parcels(found, LIMITS)}
    assert grades["ctx-lh-insula"] == "look"
    assert grades["ctx-rh-insula"] == "pass"


def test_parcels_that_were_not_asked_for_are_refused() -> None:
    found = replace(predicted([LEFT], [INSULA]), parcel_map=None)
    with pytest.raises(LabelError, match="no parcels were asked for"):
        _ = found.parcel_labels


def _as_if_seen(image: Tensor) -> Tensor:
    """Return probabilities of structures in which everything bright is left cortex."""
    bright = (image > 0.5).half()
    probabilities = torch.zeros((*image.shape, len(STRUCTURES)), dtype=torch.float16)
    probabilities[..., LEFT] = bright
    probabilities[..., 0] = 1 - bright
    return probabilities


def _says(network: QuickNat, shares: dict[int, float]) -> None:
    """Let a network give each pixel these probabilities of parcels, among all but background."""
    bias = network.classifier.by_class()["bias"]
    with torch.no_grad():
        network.classifier.weight.zero_()
        bias.fill_(-20)
        # Its output for background does not count.
        bias[0] = 5
        for parcel, share in shares.items():
            bias[parcel] = math.log(share)


def _find(predictor: Predictor, image: Tensor) -> Parcels:
    cortex = likely_cortex(_as_if_seen(image), DESIKAN)
    parts = predictor.each_view(image, within=may_be_cortex(cortex))
    weights = predictor.model.fusion_weights(predictor.views)
    return join_views(parts, cortex, predictor.axes, weights, predictor.odds, DESIKAN)


def test_views_are_joined_by_the_geometric_mean_in_what_may_be_cortex(
    tmp_path: Path,
) -> None:
    model = load_model(save_parcels(tmp_path / "parcels"))
    for view in (View.CORONAL, View.AXIAL):
        _says(model.networks[view], {CUNEUS: 0.6, INSULA: 0.4})
    _says(model.networks[View.SAGITTAL], {CUNEUS: 0.2, INSULA: 0.8})
    predictor = Predictor(model, device="cpu")
    image = torch.zeros((16, 16, 16))
    image[4:12, 6:10, 8] = 1
    found = _find(predictor, image)
    np.testing.assert_array_equal(found.places, image.numpy() > 0.5)
    # The weights are 0.4, 0.4 and 0.2: 0.6^0.8 0.2^0.2 = 0.482 and 0.4^0.8 0.8^0.2 = 0.459.
    assert found.classes.tolist() == [CUNEUS] * (8 * 4)
    assert set(found.by_view[View.AXIAL]) == {CUNEUS}
    assert set(found.by_view[View.SAGITTAL]) == {INSULA}
    # 0.6^0.8 0.1^0.2 = 0.419 and 0.4^0.8 0.9^0.2 = 0.470.
    _says(model.networks[View.SAGITTAL], {CUNEUS: 0.1, INSULA: 0.9})
    predictor = Predictor(model, device="cpu")
    found = _find(predictor, image)
    assert found.classes.tolist() == [INSULA] * (8 * 4)


def _in_a_row(
    cortex: list[float], cuneus: list[float], odds_of_insula: float = 1.0
) -> list[int]:
    """Return the parcels of a row of voxels.

    One view gives these probabilities to the cuneus; the rest of the probability belongs to the
    insula. `cortex` has the probability of cortex.
    """
    odds = torch.ones(len(DESIKAN.parcels))
    odds[INSULA] = odds_of_insula
    count = len(cortex)
    probabilities = torch.zeros((1, 1, count, len(DESIKAN.parcels)))
    probabilities[0, 0, :, CUNEUS] = torch.tensor(cuneus)
    probabilities[0, 0, :, INSULA] = 1 - torch.tensor(cuneus)
    part = SliceProbabilities(slice(0, 1), slice(0, 1), slice(0, count), probabilities)
    view = View.CORONAL
    found = join_views(
        [(view, part)],
        torch.tensor(cortex).reshape(count, 1, 1),
        {view: slice_axes(view)},
        {view: 1.0},
        odds,
        DESIKAN,
    )
    return found.classes.tolist()


def test_a_voxel_that_its_neighbours_contradict_follows_them() -> None:
    # Log odds of the cuneus: 2.2, 2.2, -0.4, 2.2, 2.2. After one step, 0.7 of the way to the
    # mean of its neighbours, the middle one has 0.3 * -0.4 + 0.7 * 2.2 = 1.4.
    doubtful = [0.9, 0.9, 0.4, 0.9, 0.9]
    assert _in_a_row([1] * 5, doubtful) == [CUNEUS] * 5
    # -2.2 in the middle: after one step 0.3 * -2.2 + 0.7 * 2.2 = 0.88.
    assert _in_a_row([1] * 5, [0.9, 0.9, 0.1, 0.9, 0.9]) == [CUNEUS] * 5
    # Certain halves do not change.
    sure = [0.9] * 3 + [0.1] * 3
    assert _in_a_row([1] * 6, sure) == [CUNEUS] * 3 + [INSULA] * 3


def test_the_odds_of_a_parcel_win_it_the_voxels_in_doubt() -> None:
    # 0.6 against 2 times 0.4, and 0.7 against 2 times 0.3.
    assert _in_a_row([1] * 3, [0.6] * 3, odds_of_insula=2) == [INSULA] * 3
    assert _in_a_row([1] * 3, [0.7] * 3, odds_of_insula=2) == [CUNEUS] * 3


def test_the_odds_in_the_file_of_networks_for_parcels_count(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "own")
    parcels = load_model(save_parcels(folder / "parcels"))
    for network in parcels.networks.values():
        _says(network, {CUNEUS: 0.6, INSULA: 0.4})
    fusion = Fusion(class_odds={"insula": 2.0})
    described = Description(name="odds", labels="desikan34", fusion=fusion)
    save_model(folder / "parcels", described, parcels.networks, overwrite=True)
    image = torch.zeros((16, 16, 16))
    image[4:12, 6:10, 8] = 1
    predictor = Predictor(folder, device="cpu", parcels=True)
    found = predictor.find_parcels(image, _as_if_seen(image))
    assert found is not None
    assert set(found.classes) == {INSULA}
    assert set(found.by_view[View.AXIAL]) == {CUNEUS}


def test_what_is_hardly_cortex_neither_follows_nor_leads() -> None:
    # The middle voxel alone would become cuneus because of its neighbours, as above.
    found = _in_a_row([0.4, 0.4, 1, 0.4, 0.4], [0.9, 0.9, 0.4, 0.9, 0.9])
    assert found == [CUNEUS, CUNEUS, INSULA, CUNEUS, CUNEUS]
    found = _in_a_row([1, 1, 0.4, 1, 1], [0.9, 0.9, 0.4, 0.9, 0.9])
    assert found == [CUNEUS, CUNEUS, INSULA, CUNEUS, CUNEUS]


def test_a_model_without_parcels_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = save_parcels(tmp_path / "without")
    with refusal(ModelError, folder) as refused:
        Predictor(folder, device="cpu", parcels=True)
    assert "\n" not in str(refused.value)
