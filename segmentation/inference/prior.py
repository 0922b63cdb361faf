"""What anatomy says before a network has looked: which structures are likely where in a head.

A prior is one template, averaged over whole-head label maps, that is brought to a scan by the
centroids of the structures that the networks found there. Where the networks are in doubt, the
probability p of a class becomes p q^w, where q is what the template says and w how much it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.grid import Shape, corners, moved, to_shape
from trinat.segmentation.inference.registration import (
    affine_between,
    robust_affine,
    similarity_between,
)
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import Prior, Template
from trinat.segmentation.space.interpolation import rows_at
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.synthetic.heads import HeadMaps, Variant, with_variants
from trinat.segmentation.synthetic.targets import aim

# The centroids of structures as large as these say little of where the head is.
_SPREAD = frozenset({"white-matter", "cortical", "background", "csf"})
_FEWEST_VOXELS = 20
_ROUNDS = 5  # of a template's mean head
_SPACING_MM = 2.0
_JITTER_MM = 1.5
# Places drawn around each voxel of a template, in each head.
_PLACES = 4
_MARGIN_MM = 10.0
# Voxels that are changed at a time.
_CHUNK = 1 << 17
# Slices whose maxima are taken at a time.
_SLAB = 8
# docs/notes/fast-2.md: measured on two scans. Wide ventricles of old age must not be lost.
_COUNTS = 1.5
_COUNTS_LESS = {
    "background": 0.1,
    "Cerebral-White-Matter": 0.1,
    "Cerebral-Cortex": 0.1,
    "Cerebellum-Cortex": 0.1,
    "Cerebellum-White-Matter": 0.6,
    "3rd-Ventricle": 0.6,
    "Lateral-Ventricle": 0.0,
    "CSF": 0.1,
}
# FreeSurfer draws these larger or smaller than the label maps do: the template is made of maps
# where they differ by a millimetre, and these shares of it are multiplied.
_DRAWN_AS: tuple[Variant, ...]
_DRAWN_AS = ("large-pallidum", "large-thalamus", "small-caudate", "small-accumbens")
_DRAWN_OTHERWISE = {
    "Pallidum": 4.0,
    "Thalamus": 2.0,
    "Caudate": 0.5,
    "Inf-Lat-Vent": 0.1,
}

Points = NDArray[np.float64]
Matrix = NDArray[np.float64]


def default_prior(scheme: LabelScheme) -> Prior:
    """The template counts less where heads differ: folds of the cortex, the size of ventricles."""
    per_class = {}
    for name in scheme.names:
        weight = _either_side(_COUNTS_LESS, name)
        if weight is not None:
            per_class[name] = weight
    return Prior(weight=_COUNTS, per_class=per_class)


def build_template(
    maps: HeadMaps, scheme: LabelScheme, seed: int = 0, *, learn_fluid: bool = False
) -> Template:
    """Average label maps, each brought to their common space by its structures' centroids.

    Label maps have voxels of 1 mm. `learn_fluid` must be what the networks were trained with: see
    `segmentation.synthetic.targets.aim`. The same seed gives the same template.
    """
    heads = _drawn_heads(maps, scheme, learn_fluid)
    centroids = [_centroids(head, np.eye(4), scheme) for head in heads]
    common = _common_space(centroids)
    to_heads = [affine_between(common, own) for own in centroids]
    shape, affine = _template_grid(heads, to_heads)
    counts = _count_classes(heads, to_heads, shape, affine, len(scheme), seed)

    weights = np.ones(len(scheme))
    for k, name in enumerate(scheme.names):
        weight = _either_side(_DRAWN_OTHERWISE, name)
        if weight is not None:
            weights[k] = weight
    weighted = counts * weights
    shares = weighted * 255 / weighted.sum(1, keepdims=True)
    rounded = np.rint(shares).astype(np.uint8)
    return Template(rounded.reshape(*shape, len(scheme)), affine, common)


def _drawn_heads(
    maps: HeadMaps, scheme: LabelScheme, learn_fluid: bool
) -> list[Tensor]:
    """Class indices (X, Y, Z) of each head, drawn as FreeSurfer draws them."""
    targets = aim(maps, scheme, learn_fluid=learn_fluid).targets.numpy()
    variants = with_variants(maps, [_DRAWN_AS])
    # The heads as they are come first.
    drawn = variants.labels[len(maps.labels) :]
    return [torch.from_numpy(targets[head]) for head in drawn]


def _common_space(centroids: Sequence[Points]) -> Points:
    """The mean of heads' centroids (K, 3), as large as the heads are in the mean, not as the first.

    Heads are turned and scaled as a whole: a full affine would flatten their mean a little more in
    each round along the axis in which structures are least spread.
    """
    common = centroids[0]
    for _ in range(_ROUNDS):
        aligned = [moved(own, similarity_between(own, common)) for own in centroids]
        stacked = np.stack(aligned)
        known = np.isfinite(stacked).all(2, keepdims=True)
        total = np.where(known, stacked, 0).sum(0)
        heads = known.sum(0)
        common = np.where(heads > 0, total / np.maximum(heads, 1), np.nan)
    scales = []
    for own in centroids:
        linear = similarity_between(common, own)[:3, :3]
        scales.append(np.cbrt(np.linalg.det(linear)))
    middle = np.nanmean(common, 0)
    scaled = middle + (common - middle) * float(np.mean(scales))
    return np.asarray(scaled, np.float64)


def _template_grid(
    heads: Sequence[Tensor], to_heads: Sequence[Matrix]
) -> tuple[Shape, Matrix]:
    """Shape and affine of a grid around all heads' brains in their common space."""
    brains = []
    for head, to_head in zip(heads, to_heads, strict=True):
        brain = corners(occupied_box(head > 0))
        brains.append(moved(brain, np.linalg.inv(to_head)))
    low = np.min(brains, (0, 1)) - _MARGIN_MM
    high = np.max(brains, (0, 1)) + _MARGIN_MM
    shape = to_shape(np.ceil((high - low) / _SPACING_MM) + 1)
    affine = np.diag([_SPACING_MM] * 3 + [1.0])
    affine[:3, 3] = low
    return shape, affine


def _count_classes(
    heads: Sequence[Tensor],
    to_heads: Sequence[Matrix],
    shape: Shape,
    affine: Matrix,
    classes: int,
    seed: int,
) -> NDArray[np.uint16]:
    """How often each class is drawn around each voxel of a template, (X Y Z, K), in all heads.

    Places are jittered, so that an average over few heads is smooth. Beyond a head's map all is
    background.
    """
    generator = np.random.default_rng(seed)
    grid = moved(np.argwhere(np.ones(shape, bool)), affine)
    counts = np.zeros((len(grid), classes), np.uint16)
    rows = np.arange(len(grid))
    for head, to_head in zip(heads, to_heads, strict=True):
        places = moved(grid, to_head)
        last = np.array(head.shape) - 1
        for _ in range(_PLACES):
            jitter = generator.normal(0, _JITTER_MM, places.shape)
            voxels = np.rint(places + jitter).astype(int)
            inside = ((voxels >= 0) & (voxels < head.shape)).all(1)
            nearest = tuple(voxels.clip(0, last).T)
            drawn = head.numpy()[nearest] * inside
            counts[rows, drawn] += 1
    return counts


def _either_side(values: Mapping[str, float], name: str) -> float | None:
    """The value of a structure, whichever side it is on; None if it has none."""
    return values.get(name.removeprefix("Left-").removeprefix("Right-"))


def apply_prior(
    fused: Tensor,
    template: Template,
    prior: Prior,
    scheme: LabelScheme,
    affine: NDArray[np.float64],
) -> str:
    """Change fused probabilities (X, Y, Z, K) in place; returns why not, or an empty string.

    `affine` takes voxels of `fused` to RAS millimetres. Only voxels whose largest probability is
    below `prior.certain` change; the sums over classes stay.
    """
    largest, labels = most_probable(fused)
    found = _centroids(labels, affine, scheme)
    placed = robust_affine(found, template.centroids)
    if isinstance(placed, str):
        return f"anatomical prior not used: {placed}"
    to_template = np.linalg.inv(template.affine) @ placed @ affine

    device = fused.device
    shares = torch.from_numpy(template.shares).to(device)
    matrix = torch.from_numpy(to_template).float().to(device)
    weights = torch.tensor(
        [prior.per_class.get(name, prior.weight) for name in scheme.names],
        device=device,
    )
    doubtful = (largest < prior.certain).nonzero()
    for voxels in torch.split(doubtful, _CHUNK):
        at = voxels.unbind(1)
        places = voxels.float() @ matrix[:3, :3].T + matrix[:3, 3]
        expected = rows_at(shares, places).div_(255).clamp_(min=prior.floor)
        changed = _weighted_by(expected, fused[at].float(), weights)
        fused[at] = changed.to(fused.dtype)
    return ""


def most_probable(fused: Tensor) -> tuple[Tensor, Tensor]:
    """The largest probability and its class, each (X, Y, Z), of probabilities (X, Y, Z, K)."""
    values = []
    labels = []
    for slab in torch.split(fused, _SLAB):
        largest = slab.max(-1)
        values.append(largest.values)
        labels.append(largest.indices)
    return torch.cat(values), torch.cat(labels)


def _weighted_by(expected: Tensor, p: Tensor, weights: Tensor) -> Tensor:
    """Probabilities p (N, K) times expected^w, with the same sums; `weights` is (K,).

    A class of weight 0 keeps its probability: the others share what it leaves them.
    """
    is_moved = weights > 0
    # As much as the template counts, in the mean, for the classes between which networks doubt.
    counts = (p @ weights)[:, None]
    rest = p * is_moved
    likely = rest * (expected.log() * counts).exp()
    share = rest.sum(1, keepdim=True) / likely.sum(1, keepdim=True).clamp(min=1e-12)
    return torch.where(is_moved, likely * share, p)


def _centroids(
    labels: Tensor, affine: NDArray[np.float64], scheme: LabelScheme
) -> Points:
    """Centroids (K, 3) in millimetres of classes in a map (X, Y, Z) of their indices.

    NaN for classes that are not there, and for those that are spread over all the head.
    """
    classes = len(scheme)
    flat = labels.long()
    means = []
    for axis, length in enumerate(labels.shape):
        # How many voxels of each class are in each plane across this axis.
        broadcast = [1, 1, 1]
        broadcast[axis] = length
        plane = torch.arange(length, device=labels.device)
        of_class_and_plane = flat * length + plane.view(broadcast)
        histogram = torch.bincount(
            of_class_and_plane.flatten(), minlength=classes * length
        )
        histogram = histogram.view(classes, length).double()
        counts = histogram.sum(1)
        means.append((histogram @ plane.double()) / counts)
    centres = torch.stack(means, 1).cpu().numpy()
    for label, count in zip(scheme.labels, counts.tolist(), strict=True):
        if count < _FEWEST_VOXELS or label.group in _SPREAD:
            centres[label.index] = np.nan
    return moved(centres, affine)
