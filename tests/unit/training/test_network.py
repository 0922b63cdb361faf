"""First weights of a network: copied from another one, and its running average."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.models.quicknat import QuickNat
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.network import (
    build_optimiser,
    copy_matching,
    copy_network,
    new_network,
    update_average,
)

SCHEME = load_scheme("quicknat33")


def test_a_copy_has_the_classes_and_weights_of_its_network(recipe: Recipe) -> None:
    network = new_network(recipe.network, 19).eval()
    slices = torch.randn(2, 3, 10, 14)
    with torch.inference_mode():
        alone = copy_network(network).eval()(slices)
        assert alone.shape == (2, 19, 10, 14)
        assert torch.allclose(network(slices), alone, atol=1e-6)


def rows_of(classifier: Any) -> Tensor:
    """Return weights and bias of each class, (K, F + 1)."""
    return torch.cat(
        [classifier.weight.detach().flatten(1), classifier.bias.detach()[:, None]], 1
    )


def test_classes_keep_their_rows_by_name_whatever_their_number_and_order(
    recipe: Recipe,
) -> None:
    # Background stays the first; the other classes change their order, and two of them their
    # names.
    names = ["background", *reversed(SCHEME.names[3:]), "Tumour"]
    theirs = LabelScheme(
        "own",
        tuple(
            replace(SCHEME.labels[0], index=index, name=name, fs_id=index)
            for index, name in enumerate(names)
        ),
    )
    source = QuickNat(recipe.network.model_copy(update={"classes": len(theirs)}))
    network = new_network(recipe.network, len(SCHEME))
    before = rows_of(network.classifier)
    assert copy_matching(network, source, theirs, SCHEME) == (31, [])
    after, given = rows_of(network.classifier), rows_of(source.classifier)
    assert torch.equal(after[0], given[0])
    assert torch.equal(after[1:3], before[1:3])
    assert torch.equal(after[3:], given[1:-1].flip(0))


def test_as_many_other_classes_begin_anew(recipe: Recipe) -> None:
    theirs, ours = load_scheme("left4"), load_scheme("tissue4")
    source = QuickNat(recipe.network.model_copy(update={"classes": 4}))
    network = new_network(recipe.network, 4)
    before = rows_of(network.classifier)
    assert copy_matching(network, source, theirs, ours) == (1, [])
    after = rows_of(network.classifier)
    assert torch.equal(after[0], rows_of(source.classifier)[0])
    assert torch.equal(after[1:], before[1:])


def test_a_merged_view_shares_with_another_what_has_no_side(recipe: Recipe) -> None:
    source = QuickNat(recipe.network.model_copy(update={"classes": 19}))
    merged = SCHEME.merged.scheme
    network = new_network(recipe.network, len(SCHEME))
    # Background, two ventricles, brain stem, CSF.
    assert copy_matching(network, source, merged, SCHEME) == (5, [])
    taken, given = rows_of(network.classifier), rows_of(source.classifier)
    stem = "Brain-Stem"
    assert torch.equal(taken[SCHEME.names.index(stem)], given[merged.names.index(stem)])


def test_weights_before_the_classifier_that_fit_are_taken_and_the_others_named(
    recipe: Recipe,
) -> None:
    source = QuickNat(recipe.network.model_copy(update={"channels": 1}))
    network = new_network(recipe.network, len(SCHEME))
    kept, anew = copy_matching(network, source, SCHEME, SCHEME)
    assert kept == 33
    # All layers that see the slices directly.
    assert anew
    assert all(name.startswith("encoders.0.") for name in anew)
    taken = network.state_dict()
    for name, value in source.state_dict().items():
        assert name in anew or torch.equal(taken[name], value)


def test_rows_of_a_wider_network_are_not_taken(recipe: Recipe) -> None:
    source = QuickNat(recipe.network.model_copy(update={"filters": 8}))
    network = new_network(recipe.network, len(SCHEME))
    assert copy_matching(network, source, SCHEME, SCHEME)[0] == 0


def test_an_average_follows_its_network(recipe: Recipe) -> None:
    average, network = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    with torch.no_grad():
        average.weight.fill_(0.0)
        network.weight.fill_(1.0)
    update_average(average, network, 0.9, step=10_000)
    assert torch.allclose(average.weight, torch.tensor(0.1))
    # Young averages follow faster: the share (1 + 0) / (10 + 0) remains at step 0.
    update_average(average, network, 0.9, step=0)
    assert torch.allclose(average.weight, torch.tensor(0.91))


def test_a_part_of_another_name_is_trained_too(recipe: Recipe) -> None:
    network = new_network(recipe.network, 4)
    network.gate = nn.Linear(2, 2)
    optimiser = build_optimiser(network, recipe.stages[0].optimiser)
    trained = {id(one) for group in optimiser.param_groups for one in group["params"]}
    assert trained == {id(one) for one in network.parameters()}
