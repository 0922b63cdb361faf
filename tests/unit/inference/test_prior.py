"""The anatomical prior: its placement, its effect, and when it is skipped."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from helpers.refusals import refusal
from torch import Tensor

from trinat.segmentation.errors import ModelError
from trinat.segmentation.inference import prior as module
from trinat.segmentation.inference.prior import (
    apply_prior,
    build_template,
    default_prior,
)
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.model_info import Prior, Template
from trinat.segmentation.synthetic.heads import phantom_heads
from trinat.segmentation.synthetic.targets import aim

SCHEME = load_scheme("quicknat33")
HEADS = phantom_heads(2)
CORTEX, WHITE, VENTRICLE, THALAMUS, CAUDATE, PALLIDUM = (
    SCHEME.names.index(f"Left-{name}")
    for name in (
        "Cerebral-Cortex",
        "Cerebral-White-Matter",
        "Lateral-Ventricle",
        "Thalamus",
        "Caudate",
        "Pallidum",
    )
)
# The phantom's head has voxels of 2 mm; a template assumes label maps of 1 mm.
AFFINE = np.eye(4)


@pytest.fixture(scope="module")
def template() -> Template:
    return build_template(HEADS, SCHEME)


@pytest.fixture(scope="module")
def classes() -> Tensor:
    full = aim(HEADS, SCHEME)
    return full.targets[full.labels[0].long()].long()


def sure(classes: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(classes, len(SCHEME)).half()


def doubt(fused: Tensor, classes: Tensor, other: int) -> tuple[int, ...]:
    """Make `other` the more probable class deep in the thalamus, and return the place."""
    at = tuple((classes == THALAMUS).nonzero().median(0).values.tolist())
    fused[at] = 0
    fused[*at, THALAMUS], fused[*at, other] = 0.45, 0.55
    return at


def test_a_template_survives_its_file_and_refuses_another(template: Template) -> None:
    again = Template.from_bytes(template.to_bytes(), len(SCHEME), "prior.npz")
    np.testing.assert_array_equal(again.shares, template.shares)
    np.testing.assert_array_equal(again.centroids, template.centroids)
    with refusal(ModelError, "prior.npz"):
        Template.from_bytes(template.to_bytes(), 5, "prior.npz")
    with refusal(ModelError, "prior.npz"):
        Template.from_bytes(template.to_bytes()[:1000], len(SCHEME), "prior.npz")


def test_structures_that_freesurfer_draws_larger_count_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_COUNT_FACTORS", {})
    before = build_template(HEADS, SCHEME).shares[..., PALLIDUM].astype(float)
    monkeypatch.setattr(module, "_COUNT_FACTORS", {"Pallidum": 4.0})
    template = build_template(HEADS, SCHEME)
    # Four times its probability, and the others as before: p of 255 becomes 4 p of 255 + 3 p.
    expected = 255 * 4 * before / (255 + 3 * before)
    doubtful = (before > 0) & (before < 255)
    assert doubtful.sum() > 20
    after = template.shares[..., PALLIDUM].astype(float)
    np.testing.assert_allclose(after[doubtful], expected[doubtful], atol=2)


def test_a_template_is_drawn_with_a_larger_pallidum_and_a_smaller_caudate(
    template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FREESURFER_VARIANTS", ())
    plain = build_template(HEADS, SCHEME)
    for structure, is_larger in ((PALLIDUM, True), (CAUDATE, False)):
        sure, were = ((t.shares[..., structure] > 250).sum() for t in (template, plain))
        assert (sure > were) == is_larger


def test_doubt_between_two_structures_is_decided_by_place(
    template: Template, classes: Tensor
) -> None:
    fused = sure(classes)
    # Deep in the thalamus the networks cannot distinguish it from the caudate.
    at = doubt(fused, classes, CAUDATE)
    before = fused.clone()
    assert apply_prior(fused, template, Prior(), SCHEME, AFFINE) == ""
    assert fused[at].argmax() == THALAMUS
    assert fused[at].sum() == pytest.approx(1, abs=2e-3)
    # Nothing changes where the networks are certain.
    fused[at] = before[at]
    assert torch.equal(fused, before)


def test_a_head_that_lies_askew_and_is_larger_is_found(
    template: Template, classes: Tensor
) -> None:
    # The same voxels, 1.2 mm apart, turned by 20 degrees and moved.
    angle = np.radians(20)
    turn = np.array(
        [
            [np.cos(angle), -np.sin(angle), 0],
            [np.sin(angle), np.cos(angle), 0],
            [0, 0, 1],
        ]
    )
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = 1.2 * turn, (40, -30, 12)
    fused = sure(classes)
    at = doubt(fused, classes, CAUDATE)
    assert apply_prior(fused, template, Prior(), SCHEME, affine) == ""
    assert fused[at].argmax() == THALAMUS


def test_ventricles_wider_than_the_template_s_stay(
    template: Template, classes: Tensor
) -> None:
    fused = sure(classes)
    # White matter of the template that the networks uncertainly take for ventricle.
    widened = (classes == WHITE).nonzero()[::50]
    fused[tuple(widened.T)] = 0
    fused[*widened.T, VENTRICLE], fused[*widened.T, WHITE] = 0.6, 0.4
    before = fused.argmax(-1)
    prior = default_prior(SCHEME)
    assert prior.per_class["Left-Lateral-Ventricle"] == 0
    assert apply_prior(fused, template, prior, SCHEME, AFFINE) == ""
    assert torch.equal(fused.argmax(-1), before)


@pytest.mark.parametrize(
    ("change", "affine", "reason"),
    [
        ("few", np.eye(4), "only 5 structures"),
        ("none", np.diag([1.6, 1.6, 1.6, 1]), "scaled by"),
        ("none", np.diag([-1.0, 1, 1, 1]), "turned by|from where"),
    ],
)
def test_a_prior_that_cannot_be_placed_is_not_used(
    template: Template, classes: Tensor, change: str, affine: np.ndarray, reason: str
) -> None:
    found = classes.clone()
    if change == "few":
        kept = torch.tensor([THALAMUS, CAUDATE, *range(10, 13)])
        found[~torch.isin(found, kept)] = 0
    fused = sure(found)
    before = fused.clone()
    problem = apply_prior(fused, template, Prior(), SCHEME, affine)
    assert problem.startswith("anatomical prior not used")
    assert re.search(reason, problem)
    assert torch.equal(fused, before)


def test_a_structure_far_from_its_place_is_left_out_of_placing(
    template: Template, classes: Tensor
) -> None:
    found = classes.clone()
    found[found == CAUDATE] = WHITE
    found[:6, :6, :6] = CAUDATE  # a speck in the corner instead
    fused = sure(found)
    at = doubt(fused, classes, CORTEX)
    assert apply_prior(fused, template, Prior(), SCHEME, AFFINE) == ""
    assert fused[at].argmax() == THALAMUS
