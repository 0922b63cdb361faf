"""trinat explain: maps that depend on the network and point at the relevant region."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.overfitted import miniature, overfitted_model
from helpers.refusals import refusal
from scipy.stats import spearmanr

pytest.importorskip("captum")

from trinat.pipelines.laboratory.explain import METHODS, Explanation, attribute, explain
from trinat.segmentation.errors import ConfigError, InputError
from trinat.segmentation.inference.network import thick
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import View, to_slices
from trinat.segmentation.synthetic.phantom import phantom

STRUCTURE = "left-cerebral-white-matter"


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Explanation]:
    folder = tmp_path_factory.mktemp("explained")
    miniature()[0].write(folder / "scan.nii.gz")
    model, out = str(overfitted_model()), folder / "out"
    found = explain(
        folder / "scan.nii.gz",
        STRUCTURE,
        out,
        model=model,
        view=View.CORONAL,
        device="cpu",
    )
    return out, found


@pytest.fixture(scope="module")
def seen(
    explained: tuple[Path, Explanation],
) -> tuple[Network, torch.Tensor, int, torch.Tensor]:
    """Provide network, slice, class and region to explain."""
    model = load_model(overfitted_model())
    network = model.networks[View.CORONAL].fold()
    volume = conform(miniature()[0], shape=None).volume
    found = explained[1]
    image = to_slices(torch.from_numpy(volume.data), View.CORONAL)[found.number][
        found.window
    ].contiguous()
    index = model.scheme.find(STRUCTURE).index
    with torch.no_grad():
        region = network(image[None, None]).argmax(1)[0] == index
    return network, image[None, None], index, region


def test_a_picture_and_a_map_of_each_method_in_the_scans_place(
    explained: tuple[Path, Explanation],
) -> None:
    out, found = explained
    assert len(list(out.glob("*.png"))) == 1
    for method in METHODS:
        (path,) = out.glob(f"*_{method}.nii.gz")
        volume = Volume.read(path)
        shown = np.flatnonzero(np.abs(to_slices(volume.data, View.CORONAL)).any((1, 2)))
        assert shown.tolist() == [found.number]


@pytest.mark.slow
@pytest.mark.important
def test_a_random_network_has_another_map() -> None:
    """For a structure defined only by its surroundings.

    Absolute rank correlation, mean of three.
    """
    model = load_model("fast", views=["coronal"])
    network, index = (
        model.networks[View.CORONAL].fold(),
        model.scheme.find("left-hippocampus").index,
    )
    scan, truth = phantom(3)
    seen = conform(scan, shape=None)
    numbers = conform(truth, labels=True, plan=seen.plan).volume.data
    labels = to_slices(model.scheme.from_freesurfer(numbers), View.CORONAL) == index
    number = int(labels.sum((1, 2)).argmax())
    middle = np.argwhere(labels[number]).mean(0).astype(int)
    rows, columns = (slice(at - 32, at + 32) for at in middle)
    image = thick(to_slices(torch.from_numpy(seen.volume.data), View.CORONAL), 3)
    image = image[number : number + 1, :, rows, columns].contiguous()
    region = torch.from_numpy(labels[number, rows, columns].copy())
    own = attribute(network, image, index, region)
    alike: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in range(3):
        torch.manual_seed(seed)
        other = attribute(build(network.config).fold(), image, index, region)
        for method, found in other.items():
            alike[method].append(
                abs(spearmanr(own[method].ravel(), found.ravel()).statistic)
            )
    assert np.mean(alike["gradients"]) < 0.2
    # Occlusion darkens the structure itself, which any network notices.
    assert np.mean(alike["occlusion"]) < 0.6
    # The same network gives the same map, so the measure can tell them apart.
    for method, found in attribute(network, image + 1e-4, index, region).items():
        assert spearmanr(own[method].ravel(), found.ravel()).statistic > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_without_the_most_important_pixels_less_is_seen_than_without_random_ones(
    explained: tuple[Path, Explanation],
    seen: tuple[Network, torch.Tensor, int, torch.Tensor],
    method: str,
) -> None:
    network, image, index, region = seen
    order = np.argsort(-explained[1].maps[method].ravel())
    head = np.flatnonzero(image.numpy().ravel())
    count = len(head) // 20

    def left(pixels: np.ndarray) -> float:
        damaged = image.clone()
        damaged.view(-1)[torch.from_numpy(pixels.copy())] = 0
        with torch.inference_mode():
            return float(network(damaged).softmax(1)[0, index][region].mean())

    rng = np.random.default_rng(0)
    random = np.mean([left(rng.choice(head, count, replace=False)) for _ in range(5)])
    assert left(order[:count]) < random


def test_a_structure_that_is_not_seen_is_said_in_one_line(tmp_path: Path) -> None:
    miniature()[0].write(tmp_path / "scan.nii.gz")
    with refusal(InputError, tmp_path / "scan.nii.gz"):
        explain(
            tmp_path / "scan.nii.gz",
            "Left-Amygdala",
            tmp_path / "out",
            model=str(overfitted_model()),
            view=View.CORONAL,
            device="cpu",
        )


def test_without_captum_nothing_is_read_before_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(ConfigError, match="captum is not installed"):
        explain(
            tmp_path / "no-scan.nii.gz",
            STRUCTURE,
            tmp_path / "out",
            model="no-model",
            view=View.CORONAL,
        )
