"""Steps of a model for any contrast in the browser: reversed contrast, and the prior."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.javascript import call, volume
from scipy.spatial.transform import Rotation

from trinat.pipelines.site.export import settings_of
from trinat.segmentation.inference.graphs import PriorGraph, fusion_of
from trinat.segmentation.inference.preparation import (
    find_reversed_white_matter,
    reverse_contrast,
)
from trinat.segmentation.inference.prior import (
    _centroids,
    _robust_affine,
    apply_prior,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.space.interpolation import rows_at

CALLABLE = "../../../tests/helpers/callable.js"
ANY = load_model("any")
SCHEME = load_scheme("quicknat33")
SETTINGS = settings_of(ANY, fusion_of(ANY))
CLASSES = SETTINGS["classes"]
CENTROIDS = SETTINGS["prior"]["centroids"]
assert ANY.template is not None
assert ANY.info.prior is not None


def points_of(centroids: np.ndarray) -> list[list[float] | None]:
    """Return centroids (K, 3) in the form of the modules."""
    return [point.tolist() if np.isfinite(point).all() else None for point in centroids]


def placed(kind: str) -> np.ndarray:
    """Return the template's centroids as those of a scan that lies elsewhere."""
    generator = np.random.default_rng(0)
    found = ANY.template.centroids.copy()
    known = np.flatnonzero(np.isfinite(found).all(1))
    degrees = 100 if kind == "upside down" else 12
    scale = 0.6 if kind == "small" else 1.1
    turn = Rotation.from_euler("xyz", (degrees, -5, 8), degrees=True).as_matrix()
    found = found @ (scale * turn).T + [5, -20, 11]
    found += generator.normal(0, 2, found.shape)
    if kind == "two structures elsewhere":
        found[known[:2]] += [50, 0, 0]
    if kind == "few structures":
        found[known[5:]] = np.nan
    if kind == "all elsewhere":
        found = generator.uniform(-100, 100, found.shape)
    return found


@pytest.mark.parametrize(
    "kind",
    [
        "near",
        "two structures elsewhere",
        "few structures",
        "all elsewhere",
        "upside down",
        "small",
    ],
)
def test_a_head_is_placed_as_in_python(kind: str) -> None:
    centroids = placed(kind)
    expected = _robust_affine(centroids, ANY.template.centroids)
    found = call("prior.js", "placeHead", points_of(centroids), CENTROIDS)
    if isinstance(expected, str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected.ravel(), atol=1e-6)
    assert isinstance(expected, str) == (
        kind not in ("near", "two structures elsewhere")
    )


def test_centroids_are_those_of_python() -> None:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 33, (20, 22, 24)).astype(np.uint8)
    labels[labels == 5] = 0
    labels[0, 0, :6] = 5
    affine = np.array([[0, 2, 0, 3], [-1, 0, 0, 5], [0, 0, 1.5, -9], [0, 0, 0, 1.0]])
    expected = _centroids(torch.from_numpy(labels), affine, SCHEME)
    assert np.isnan(expected[5]).all()
    grid = volume(Volume(labels, affine))
    found = call("prior.js", "centroidsOf", labels, grid, CLASSES)
    for one, other in zip(found, points_of(expected), strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            np.testing.assert_allclose(one, other)


def test_the_template_is_read_between_its_voxels() -> None:
    generator = np.random.default_rng(2)
    shares = generator.integers(0, 256, (4, 5, 6, 3)).astype(np.uint8)
    places = generator.uniform(-2, 7, (50, 3))
    expected = rows_at(
        torch.from_numpy(shares).float(), torch.from_numpy(places).float()
    )
    # The classes are innermost, as in the file.
    flat = shares.ravel("C")
    found = call(CALLABLE, "sharesAt", flat, [4, 5, 6], 3, places.tolist())
    np.testing.assert_allclose(found.reshape(-1, 3), expected, atol=1e-3)


def test_the_graph_of_the_prior_weighs_as_python_does() -> None:
    generator = torch.Generator().manual_seed(3)
    shape = (6, 7, 8)
    likely = torch.rand(*shape, len(SCHEME), generator=generator) ** 8
    fused = (likely / likely.sum(-1, keepdim=True)).half()
    # All structures are in their places, so the template does not move.
    template, prior = ANY.template, ANY.info.prior
    middle = template.centroids[SCHEME.names.index("Left-Thalamus")]
    affine = np.eye(4)
    affine[:3, 3] = middle
    changed = fused.clone()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "trinat.segmentation.inference.prior._centroids",
            lambda *_: template.centroids,
        )
        assert apply_prior(changed, template, prior, SCHEME, affine) == ""
    places = torch.cartesian_prod(*(torch.arange(n).float() for n in shape))
    in_template = np.linalg.inv(template.affine) @ affine
    matrix = torch.from_numpy(in_template).float()
    shares = rows_at(
        torch.from_numpy(template.shares).float(),
        places @ matrix[:3, :3].T + matrix[:3, 3],
    )
    before = fused.reshape(-1, len(SCHEME))
    after = PriorGraph(ANY, prior)(shares, before.float())
    is_doubtful = before.max(-1).values < prior.certain
    assert is_doubtful.any()
    expected = changed.reshape(-1, len(SCHEME)).float()
    assert not torch.equal(expected[is_doubtful], before[is_doubtful].float())
    torch.testing.assert_close(
        after[is_doubtful], expected[is_doubtful], atol=2e-3, rtol=1e-2
    )


@pytest.mark.parametrize(
    ("white", "cortex", "fluid", "is_reversed"),
    [
        (0.9, 0.6, 0.2, False),
        (0.5, 0.7, 1.1, True),
        (0.5, 0.7, 0.2, False),
        (0.5, 0.51, 1.1, False),
    ],
)
def test_contrast_is_reversed_where_python_does(
    white: float, cortex: float, fluid: float, is_reversed: bool
) -> None:
    generator = torch.Generator().manual_seed(4)
    classes = torch.randint(0, 33, (2, 40, 50), generator=generator)
    values = torch.tensor(
        [
            {"white-matter": white, "ventricles": fluid, "csf": fluid}.get(
                label.group, cortex
            )
            for label in SCHEME.labels
        ]
    )
    noise = 0.05 * torch.randn(classes.shape, generator=generator)
    brightness = values[classes] + noise
    likelihood = 0.4 + 0.6 * torch.rand(classes.shape, generator=generator)
    probabilities = torch.nn.functional.one_hot(classes, 33) * likelihood[..., None]
    expected = find_reversed_white_matter([(brightness, probabilities)], SCHEME)
    found = call(
        CALLABLE,
        "whiteMatterIfReverse",
        CLASSES,
        brightness.numpy().ravel(),
        classes.numpy().astype(np.uint8).ravel(),
        likelihood.numpy().ravel(),
    )
    assert (expected is not None) == is_reversed
    assert found == expected


def test_reversed_intensities_are_those_of_python() -> None:
    image = np.linspace(0, 2, 101, dtype=np.float32)
    expected = reverse_contrast(torch.from_numpy(image), 0.7)
    np.testing.assert_allclose(
        call("reversal.js", "reversed", image, 0.7), expected, atol=1e-6
    )
