"""Predictor: right labels, in the right place, on the right side."""

from __future__ import annotations

import copy
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.miniatures import head_image, head_labels
from helpers.overfitted import (
    miniature,
    miniature_on,
    overfitted_model,
    random_model,
)
from helpers.refusals import refusal
from helpers.serial import small_scan

from trinat.segmentation.errors import (
    ConfigError,
    DeviceError,
    LabelError,
    ModelError,
)
from trinat.segmentation.inference.localisation import BrainRegion
from trinat.segmentation.inference.parcels import Parcels
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.hardware import choose_device
from trinat.segmentation.models.model_info import (
    Description,
    Fusion,
    Mean,
    Preprocessing,
)
from trinat.segmentation.models.quicknat import QuickNatConfig
from trinat.segmentation.space.views import (
    View,
    reoriented,
    reoriented_grid,
    source_axes,
    turned,
)

SCHEME = load_scheme("quicknat33")
LARGE = (2, 3, 41, 42)  # white matter and cortex of either side
ORIENTATIONS = [
    "".join(axes)
    for order in permutations(("LR", "PA", "IS"))
    for axes in product(*order)
]


@pytest.fixture(scope="module")
def found(segmenter: Predictor) -> Prediction:
    """Segment a scan that no test changes."""
    return segmenter.segment(miniature(seed=1)[0])


def dice(found: np.ndarray, truth: np.ndarray, number: int) -> float:
    a, b = found == number, truth == number
    return 2 * (a & b).sum() / (a.sum() + b.sum())


def every(step: int, of: list[str]) -> list[Any]:
    """Return all items; the default run takes every n-th."""
    kept = set(of[::step])
    rest = [pytest.mark.slow, pytest.mark.important]
    return [pytest.param(name, marks=[] if name in kept else rest) for name in of]


@pytest.mark.parametrize("axes", every(3, ORIENTATIONS[::5]))
def test_sides_and_places_are_right_in_any_orientation(
    segmenter: Predictor, axes: str
) -> None:
    scan, truth = miniature(axes, seed=1)
    labels = segmenter.segment(scan).labels
    assert labels.shape == scan.shape
    np.testing.assert_array_equal(labels.affine, scan.affine)
    assert min(dice(labels.data, truth.data, number) for number in LARGE) > 0.9


def test_an_oblique_thick_sliced_scan_loses_little(segmenter: Predictor) -> None:
    image, truth = head_image(head_labels(), 1), head_labels()
    turn = np.deg2rad(4)
    affine = np.diag([1.0, 1, 1.5, 1])
    affine[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    affine[:3, 3] = -affine[:3, :3] @ (np.array(image.shape) - 1) / 2
    # Two thirds of the slices, so that the head keeps its size.
    keep = np.rint(np.arange(0, image.shape[2] - 0.5, 1.5)).astype(int)
    affine[2, 3] = -(len(keep) - 1) / 2 * 1.5
    found = segmenter.segment(Volume(image[:, :, keep], affine))
    assert found.labels.shape == (40, 48, len(keep))
    assert (
        min(dice(found.labels.data, truth[:, :, keep], number) for number in LARGE)
        > 0.8
    )


@pytest.mark.slow
@pytest.mark.important
def test_mirrored_averaging_sees_a_mirrored_head_as_the_mirrored_result(
    segmenter,
) -> None:
    image = segmenter.on_device(segmenter.prepare(miniature(seed=4)[0]))
    everywhere = BrainRegion.whole(image.shape)
    plain, other = (
        segmenter.fuse(seen, everywhere, mirror=True)[0].max(-1).indices
        for seen in (image, image.flip(0))
    )
    partner = torch.from_numpy(SCHEME.partner_permutation.copy())
    agree = (partner[plain.flip(0)] == other).float().mean()
    # Except for ties of bfloat16.
    assert agree > 0.9995


def test_probabilities_lie_in_the_scans_space_and_peak_in_the_structure(
    segmenter,
) -> None:
    scan, truth = miniature("LIA", seed=1)
    found = segmenter.segment(scan)
    map_ = found.probabilities("Left-Cerebral-White-Matter")
    assert map_.shape == scan.shape
    assert map_.data[truth.data == 2].mean() > 0.6
    assert map_.data[truth.data == 41].mean() < 0.5
    with pytest.raises(LabelError, match="no structure"):
        found.probabilities("Left-Elbow")


def test_structures_that_the_model_never_saw_have_no_volume_and_no_voxel(
    found: Prediction,
) -> None:
    assert "CSF" not in found.volumes_mm3
    assert not (found.labels.data == 24).any()


def test_the_input_is_not_changed(segmenter) -> None:
    scan, _ = miniature(seed=1)
    before = scan.data.copy()
    segmenter.segment(scan)
    np.testing.assert_array_equal(scan.data, before)


def test_sagittal_alone_gives_structures_without_sides() -> None:
    segmenter = Predictor(overfitted_model(), device="cpu", views=[View.SAGITTAL])
    found = segmenter.segment(miniature(seed=1)[0])
    assert "Cerebral-White-Matter" in found.volumes_mm3
    # Structures that the model was never taught have no volume of 0.
    model = load_model(overfitted_model())
    assert "CSF" in model.info.not_predicted
    assert "CSF" not in found.volumes_mm3
    assert found.agreement is None


@pytest.mark.parametrize("views", [(View.CORONAL,), (View.SAGITTAL, View.AXIAL)])
def test_subsets_of_views_segment(views) -> None:
    segmenter = Predictor(overfitted_model(), device="cpu", views=views)
    scan, truth = miniature(seed=1)
    labels = segmenter.segment(scan).labels.data
    assert min(dice(labels, truth.data, number) for number in LARGE) > 0.85


def test_views_are_joined_by_the_mean_that_the_model_names(
    found: Prediction, tmp_path: Path
) -> None:
    model = load_model(overfitted_model())
    fusion = Fusion(mean="geometric")
    description = Description(
        name="m", fusion=fusion, not_predicted=model.info.not_predicted
    )
    save_model(tmp_path / "m", description, model.networks)
    scan, truth = miniature(seed=1)
    other = Predictor(tmp_path / "m", device="cpu").segment(scan)
    assert (found.fused - other.fused).abs().max() > 0.1
    torch.testing.assert_close(
        other.fused.float().sum(-1),
        torch.ones(other.fused.shape[:3]),
        atol=4e-3,
        rtol=0,
    )
    assert min(dice(other.labels.data, truth.data, number) for number in LARGE) > 0.85


def test_float32_and_bfloat16_agree() -> None:
    scan, _ = miniature(seed=1)
    one, other = (
        Predictor(overfitted_model(), device="cpu", precision=name)
        .segment(scan)
        .indices.data
        for name in ("float32", "bfloat16")
    )
    assert (one == other).mean() > 0.99


def test_batches_do_not_change_the_result() -> None:
    # Everywhere, because the inspected part of a slice depends on its neighbours in a batch.
    # Without the sagittal view, which is divided by ratios of half precision.
    fused = []
    for size in (1, 7):
        segmenter = Predictor(
            overfitted_model(),
            device="cpu",
            precision="float32",
            views=["coronal", "axial"],
            batch=size,
        )
        image = segmenter.on_device(segmenter.prepare(small_scan()))
        found, _ = segmenter.fuse(image, BrainRegion.whole(image.shape))
        fused.append(found)
    one, other = fused
    torch.testing.assert_close(one, other, atol=2e-3, rtol=0)


@pytest.mark.slow
@pytest.mark.important
def test_uncertainty_draws_the_same_samples_for_the_same_seed(segmenter) -> None:
    scan, _ = miniature(seed=1)
    state = torch.random.get_rng_state()
    one, same, other = (
        segmenter.segment(scan, samples=3, seed=seed).uncertainty for seed in (5, 5, 6)
    )
    assert torch.equal(state, torch.random.get_rng_state())
    np.testing.assert_array_equal(one.entropy, same.entropy)
    assert (one.entropy != other.entropy).any()


def test_without_samples_nothing_is_random(segmenter: Predictor) -> None:
    scan = small_scan()
    found = segmenter.segment(scan)
    segmenter.segment(scan, samples=1)
    assert torch.equal(segmenter.segment(scan).fused, found.fused)


def test_threads_get_the_results_of_one_thread() -> None:
    scan = small_scan()
    model = random_model()
    first, second = (Predictor(model, device="cpu", views="axial") for _ in range(2))
    expected = first.segment(scan, samples=3)
    calls = [(first, 3), (first, 0), (second, 3)]

    def segment(call: tuple[Predictor, int]) -> Prediction:
        predictor, samples = call
        return predictor.segment(scan, samples=samples)

    with ThreadPoolExecutor(3) as threads:
        sampled, plain, other = threads.map(segment, calls)
    assert torch.equal(plain.fused, expected.fused)
    for result in (sampled, other):
        assert torch.equal(result.fused, expected.fused)
        entropy = result.uncertainty.entropy
        np.testing.assert_array_equal(entropy, expected.uncertainty.entropy)


def test_a_fork_beside_a_thread_that_segments_can_segment() -> None:
    predictor = Predictor(random_model(), device="cpu")
    is_at_work = threading.Event()

    def work() -> None:
        is_at_work.set()
        time.sleep(0.2)

    thread = threading.Thread(target=predictor.with_less_memory, args=(work,))
    thread.start()
    is_at_work.wait()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=predictor.with_less_memory, args=(bool,))
    child.start()
    child.join(10)
    child.kill()
    thread.join()
    assert child.exitcode == 0


def test_the_brain_is_cropped_but_never_cut(segmenter) -> None:
    scan, truth = miniature(seed=1)
    # The same head far from the centre of a large empty field.
    data = np.zeros((80, 90, 100), scan.data.dtype)
    data[30:70, 2:50, 50:94] = scan.data
    found = segmenter.segment(Volume(data, np.eye(4)))
    assert np.prod(found.fused.shape[:3]) < 0.5 * data.size
    labels = found.labels.data[30:70, 2:50, 50:94]
    assert min(dice(labels, truth.data, number) for number in LARGE) > 0.8


def test_an_image_without_any_brain_is_segmented_as_background_or_told(
    segmenter,
) -> None:
    noise = np.random.default_rng(0).normal(100, 1, (32, 32, 32)).astype(np.float32)
    assert segmenter.segment(Volume(noise, np.eye(4))).labels.shape == (32, 32, 32)


def test_unknown_devices_and_models_are_told() -> None:
    with pytest.raises(DeviceError, match="no device"):
        choose_device("abacus")
    with pytest.raises(ModelError, match="quicknat has no weights here"):
        Predictor("quicknat")
    with refusal(ModelError, "nothing"):
        Predictor("nothing")


@pytest.mark.parametrize(
    ("damage", "mean"),
    [("negative variance", "arithmetic"), ("huge weights", "geometric")],
)
def test_networks_that_give_no_numbers_are_told(
    tmp_path: Path, damage: str, mean: Mean
) -> None:
    networks = dict(load_model(random_model()).networks)
    broken = copy.deepcopy(networks[View.SAGITTAL])
    for name, tensor in broken.state_dict().items():
        if damage == "negative variance" and name.endswith("running_var"):
            tensor.fill_(-1)
        elif damage == "huge weights" and tensor.ndim == 4:
            tensor.fill_(3e4)
    networks[View.SAGITTAL] = broken
    save_model(
        tmp_path / "m", Description(name="m", fusion=Fusion(mean=mean)), networks
    )
    with refusal(ModelError, tmp_path / "m") as caught:
        Predictor(tmp_path / "m", device="cpu").segment(small_scan())
    assert caught.value.where == str(tmp_path / "m")


def test_the_odds_of_csf_in_model_yaml_move_its_border_to_background_alone(
    tmp_path: Path,
) -> None:
    networks = load_model(random_model()).networks
    scan = small_scan(seed=1)
    fused = {}
    for odds in (1.0, 0.25):
        folder = tmp_path / f"odds-{odds}"
        fusion = Fusion(csf_odds=odds)
        save_model(folder, Description(name="m", fusion=fusion), networks)
        fused[odds] = Predictor(folder, device="cpu").segment(scan).fused.float()
    csf = SCHEME.find("CSF").index
    odds_before = fused[1.0][..., csf] / fused[1.0][..., 0]
    odds_after = fused[0.25][..., csf] / fused[0.25][..., 0]
    both = (fused[1.0][..., csf] > 0.01) & (fused[1.0][..., 0] > 0.01)
    assert both.any()
    torch.testing.assert_close(
        odds_after[both], odds_before[both] / 4, atol=0, rtol=0.05
    )
    others = [index for index in range(len(SCHEME)) if index not in (0, csf)]
    assert torch.equal(fused[0.25][..., others], fused[1.0][..., others])


def test_all_of_a_scan_is_looked_at_where_the_brain_goes_on_beyond_its_region(
    segmenter: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = torch.from_numpy(segmenter.prepare(miniature()[0]).volume.data)
    middle = slice(*(image.shape[0] * part // 4 for part in (1, 3)))
    box = (middle, middle, middle)
    everywhere = torch.ones_like(image[box], dtype=torch.bool)
    small = BrainRegion(box, rim=everywhere)
    monkeypatch.setattr(segmenter, "find_brain", lambda _image: small)
    region, fused, _maps = segmenter.find_and_fuse(image)
    assert region.box == BrainRegion.whole(image.shape).box
    assert fused.shape[:3] == image.shape


def test_some_views_are_fused_as_if_the_model_had_no_others(
    segmenter: Predictor,
) -> None:
    views = (View.CORONAL, View.AXIAL)
    image = torch.from_numpy(segmenter.prepare(miniature()[0]).volume.data)
    everywhere = BrainRegion.whole(image.shape)
    fused, maps = segmenter.fuse(image, everywhere, views=views)
    of_two = Predictor(overfitted_model(), device="cpu", views=views)
    assert torch.equal(fused, of_two.fuse(image, everywhere)[0])
    assert tuple(maps) == views


def test_views_that_see_thick_slices_from_the_side_count_less() -> None:
    model = load_model(random_model())
    # Axial slices of 4 mm are twice as blurred as the sharp limit of 2 mm in the other views.
    for_thick = {View.CORONAL: 0.2, View.AXIAL: 0.4, View.SAGITTAL: 0.2}
    fused = []
    for fusion in (
        Fusion(weights=dict.fromkeys(View, 0.4), blur_exponent=1),
        Fusion(weights=for_thick),
    ):
        info = model.info.model_copy(update={"fusion": fusion})
        predictor = Predictor(replace(model, info=info), device="cpu")
        # The second axis of LIA is the vertical one.
        conformed = predictor.prepare(miniature_on((1, 4, 1), 0))
        fused.append(predictor.infer(conformed).fused)
    assert torch.equal(*fused)


@pytest.mark.parametrize(
    ("only_view", "enough"),
    [
        (None, (View.CORONAL,)),
        (View.AXIAL, (View.AXIAL,)),
        # Its network does not distinguish left and right.
        (View.SAGITTAL, tuple(View)),
    ],
)
def test_the_first_view_that_knows_all_classes_with_their_sides_is_enough(
    only_view: View | None, enough: tuple[View, ...], tmp_path: Path
) -> None:
    weights = dict.fromkeys(View if only_view is None else [only_view], 1.0)
    fusion = Fusion(weights=weights)
    networks = load_model(random_model()).networks
    save_model(tmp_path / "m", Description(name="m", fusion=fusion), networks)
    assert Predictor(tmp_path / "m", device="cpu").enough_views == enough


def test_a_view_that_the_model_lacks_is_told(tmp_path: Path) -> None:
    coronal = load_model(random_model(), views=["coronal"])
    save_model(tmp_path / "m", Description(name="m"), coronal.networks)
    assert Predictor(tmp_path / "m", device="cpu").views == (View.CORONAL,)
    with refusal(ModelError, tmp_path / "m"):
        Predictor(tmp_path / "m", views=["axial"], device="cpu")


def test_a_grid_of_other_axes_and_uneven_sides_holds_the_whole_scan(
    tmp_path: Path,
) -> None:
    model = load_model(random_model())
    wanted = Preprocessing(axes="LIA", shape=(40, 44, 48), scaling="minimum-maximum")
    save_model(
        tmp_path / "m", Description(name="m", preprocessing=wanted), model.networks
    )
    scan, _ = miniature()  # RAS, 40×48×44
    seen = Predictor(tmp_path / "m", device="cpu").prepare(scan).volume
    assert (seen.axcodes, seen.shape) == ("LIA", (40, 44, 48))
    low, high = float(scan.data.min()), float(scan.data.max())
    as_lia = (scan.data[::-1].transpose(0, 2, 1)[:, ::-1] - low) / (high - low)
    np.testing.assert_allclose(seen.data, as_lia, atol=1e-5)


def test_what_is_no_structure_is_background_out_to_the_rims(
    segmenter: Predictor,
) -> None:
    scan, _ = miniature("LIA", seed=1)
    found = segmenter.segment(Volume(np.pad(scan.data, 40), scan.affine))
    maps = [found.probabilities(name).data for name in SCHEME.names]
    assert maps[0][0, 0, 0] == 1
    np.testing.assert_allclose(sum(maps), 1, atol=1e-3)


def test_nothing_is_labelled_beyond_the_scan(segmenter) -> None:
    scan, _ = miniature(seed=1)
    # The scan ends within the brain; the working grid extends around the head.
    part = Volume(np.ascontiguousarray(scan.data[:, :, :30]), scan.affine)
    found = segmenter.segment(part)
    beyond = found.plan.working.beyond(part.grid)
    assert beyond.any()
    assert not found.working.data[beyond].any()
    background = found.fused[torch.from_numpy(beyond)][:, 0]
    assert (background == 1).all()


def test_a_prediction_on_other_axes_is_turned_upright(found: Prediction) -> None:
    axes = source_axes("RAS", "LIA")
    classes = found.working.data
    places = classes > 0
    parcels = classes[places]  # stands for parcels here
    parcellation = Parcellation(SCHEME, load_scheme("desikan34"))
    upright = replace(
        found,
        parcel_map=Parcels(parcellation, places, parcels, {View.AXIAL: parcels}),
    )
    in_lia = replace(
        upright,
        fused=torch.from_numpy(turned(found.fused.numpy(), axes).copy()),
        plan=replace(found.plan, working=reoriented_grid(found.plan.working, "LIA")),
        image=reoriented(found.image, "LIA"),
        parcel_map=upright.parcel_map.turned(axes),
    )
    assert (in_lia.labels.data == found.labels.data).all()
    again = in_lia.upright()
    np.testing.assert_allclose(again.plan.working.affine, found.plan.working.affine)
    assert torch.equal(again.fused, found.fused)
    np.testing.assert_array_equal(again.image.data, found.image.data)
    np.testing.assert_array_equal(again.parcel_map.places, places)
    np.testing.assert_array_equal(again.parcel_map.classes, parcels)
    np.testing.assert_array_equal(again.parcel_map.by_view[View.AXIAL], parcels)


def test_a_model_of_other_axes_gives_a_prediction_with_axes_of_pictures(
    tmp_path: Path,
) -> None:
    model = load_model(random_model())
    description = Description(name="m", preprocessing=Preprocessing(axes="LIA"))
    save_model(tmp_path / "m", description, model.networks)
    found = Predictor(tmp_path / "m", device="cpu").segment(small_scan())
    assert found.image.axcodes == found.working.axcodes == "RAS"


def test_scans_are_not_mirrored_for_structures_on_one_side_only(tmp_path: Path) -> None:
    network = build(QuickNatConfig(classes=4, filters=4, kernel=3, depth=2))
    description = Description(name="m", labels="left4")
    save_model(tmp_path / "m", description, {View.AXIAL: network})
    segmenter = Predictor(tmp_path / "m", device="cpu")
    with refusal(ConfigError, tmp_path / "m"):
        segmenter.segment(small_scan(), mirror=True)
