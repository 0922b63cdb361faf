"""One network for several views: the same as each alone, and weights carried over."""

from __future__ import annotations

import torch

from segmentation.labels import load_scheme
from segmentation.models.quicknat import QuickNat
from segmentation.training.config import Recipe
from segmentation.training.network import ViewsNet, classes_of, copy_matching, update_average
from segmentation.views import View

SCHEME = load_scheme("quicknat33")
CLASSES = {view: len(classes_of(view, SCHEME)) for view in View}


def test_sagittal_networks_tell_no_sides_apart() -> None:
    assert CLASSES == {View.CORONAL: 33, View.AXIAL: 33, View.SAGITTAL: 19}


def test_an_extracted_network_gives_the_same_logits(recipe: Recipe) -> None:
    torch.manual_seed(0)
    network = ViewsNet(recipe.network, CLASSES).eval()
    slices = torch.randn(3, 3, 16, 16)
    grouped = network(slices, [(View.AXIAL, 1), (View.SAGITTAL, 2)])
    with torch.inference_mode():
        alone = network.extract(View.SAGITTAL).eval()(slices[1:])
    assert alone.shape[1] == 19
    assert torch.allclose(grouped[1], alone, atol=1e-6)


def test_weights_that_fit_are_taken_and_the_others_named(recipe: Recipe) -> None:
    source = QuickNat(recipe.network.model_copy(update={"classes": 4}))
    network = ViewsNet(recipe.network, CLASSES)
    kept = copy_matching(network, View.AXIAL, source)
    assert kept == ["classifier.weight", "classifier.bias"]
    taken = network.extract(View.AXIAL).state_dict()
    for name, value in source.state_dict().items():
        if not name.startswith("classifier"):
            assert torch.equal(taken[name], value)


def test_an_average_follows_its_network(recipe: Recipe) -> None:
    average, network = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    with torch.no_grad():
        average.weight.fill_(0.0)
        network.weight.fill_(1.0)
    update_average(average, network, 0.9, step=10_000)
    assert torch.allclose(average.weight, torch.tensor(0.1))
    # Young averages follow faster: (1 + 0) / (10 + 0) stays at step 0.
    update_average(average, network, 0.9, step=0)
    assert torch.allclose(average.weight, torch.tensor(0.91))
