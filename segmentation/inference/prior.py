"""What anatomy says before a network has looked: which structures are likely where in a head.

A prior is one template, averaged over whole-head label maps, that is brought to a scan by the
centroids of the structures that the networks found there. Where the networks are in doubt, the
probability p of a class becomes p q^w, where q is what the template says and w how much it counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segmentation.labels.scheme import LabelScheme
from segmentation.models.model_info import Prior, Template
from segmentation.space.grid import corners, moved
from segmentation.space.resample import occupied_box
from segmentation.synthetic.heads import HeadMaps, Variant, aim, with_variants

# Where structures as large as these lie says little of where the head is: they go everywhere.
_SPREAD = frozenset({"white-matter", "cortical", "background", "csf"})
_FEWEST_VOXELS = 20
_FEWEST_STRUCTURES = 8
_OUTLIER_MM = 12.0
_SCALES = (0.7, 1.4)
_SPACING_MM = 2.0
_JITTER_MM = 1.5
_PLACES = 4
_MARGIN_MM = 10.0
_CHUNK = 1 << 17
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
}
# FreeSurfer draws these larger or smaller than the label maps do: by a millimetre, and their shares
# of the template count so many times.
_DRAWN_AS: tuple[Variant, ...]
_DRAWN_AS = ("large-pallidum", "large-thalamus", "small-caudate", "small-accumbens")
_DRAWN_OTHERWISE = {"Pallidum": 4.0, "Thalamus": 2.0, "Caudate": 0.5, "Inf-Lat-Vent": 0.1}


def build_template(maps: HeadMaps, scheme: LabelScheme, seed: int = 0) -> Template:
    """Average label maps, each brought to their common space by its structures' centroids."""
    targets = aim(maps, scheme).targets.numpy()
    drawn = with_variants(maps, [_DRAWN_AS]).labels[len(maps.labels) :]
    heads = [torch.from_numpy(targets[head]) for head in drawn]
    centroids = [_centroids(head, np.eye(4), scheme) for head in heads]
    common: NDArray[np.float64] = centroids[0]
    for _ in range(3):
        brought = [moved(own, _affine(own, common)) for own in centroids]
        known = np.isfinite(brought).all(2, keepdims=True)
        total = np.where(known, brought, 0).sum(0)
        common = np.asarray(total / np.where(known.any(0), known.sum(0), np.nan), np.float64)
    # Every head as large as the heads are in the mean, not as the first.
    volumes = [abs(np.linalg.det(_affine(common, own)[:3, :3])) for own in centroids]
    middle = np.nanmean(common, 0)
    common = middle + (common - middle) * float(np.mean(volumes)) ** (1 / 3)

    to_heads = [_affine(common, own) for own in centroids]
    brains = [
        moved(corners(occupied_box(head > 0)), np.linalg.inv(to))
        for head, to in zip(heads, to_heads, strict=True)
    ]
    low = np.min(brains, (0, 1)) - _MARGIN_MM
    high = np.max(brains, (0, 1)) + _MARGIN_MM
    shape = tuple((np.ceil((high - low) / _SPACING_MM) + 1).astype(int))
    affine = np.diag([_SPACING_MM] * 3 + [1.0])
    affine[:3, 3] = low
    grid = moved(np.argwhere(np.ones(shape, bool)), affine)

    generator = np.random.default_rng(seed)
    counts = np.zeros((len(grid), len(scheme)), np.uint16)
    rows = np.arange(len(grid))
    for head, to in zip(heads, to_heads, strict=True):
        places = moved(grid, to)
        for _ in range(_PLACES):
            jittered = np.rint(places + generator.normal(0, _JITTER_MM, places.shape)).astype(int)
            inside = ((jittered >= 0) & (jittered < head.shape)).all(1)
            at = tuple(jittered.clip(0, np.array(head.shape) - 1).T)
            counts[rows, head.numpy()[at] * inside] += 1
    weights = np.array([_of(_DRAWN_OTHERWISE, name) or 1.0 for name in scheme.names])
    weighted = counts * weights
    shares = np.rint(weighted * 255 / weighted.sum(1, keepdims=True)).astype(np.uint8)
    return Template(shares.reshape(*shape, len(scheme)), affine, common)


def default_prior(scheme: LabelScheme) -> Prior:
    """The template counts less where heads differ: folds of the cortex, the size of ventricles."""
    weights = {name: _of(_COUNTS_LESS, name) for name in scheme.names}
    per_class = {name: weight for name, weight in weights.items() if weight is not None}
    return Prior(weight=_COUNTS, per_class=per_class)


def _of(values: Mapping[str, float], name: str) -> float | None:
    """The value of a structure, whichever side it is on."""
    return values.get(name.removeprefix("Left-").removeprefix("Right-"))


def apply_prior(
    fused: Tensor,
    template: Template,
    prior: Prior,
    scheme: LabelScheme,
    affine: NDArray[np.float64],
) -> str:
    """Change fused probabilities (X, Y, Z, K) in place; returns why not, or nothing.

    `affine` takes voxels of `fused` to RAS millimetres.
    """
    largest, labels = (
        torch.cat(parts)
        for parts in zip(*(slab.max(-1) for slab in torch.split(fused, 8)), strict=True)
    )
    found = _centroids(labels, affine, scheme)
    placed = _place(found, template.centroids)
    if isinstance(placed, str):
        return f"anatomical prior not used: {placed}"
    to_template = np.linalg.inv(template.affine) @ placed @ affine
    weights = torch.tensor(
        [prior.per_class.get(name, prior.weight) for name in scheme.names], device=fused.device
    )
    # Of a class for which the template counts nothing, what the networks say stays as it is.
    is_moved = weights > 0
    shares = torch.from_numpy(template.shares).to(fused.device)
    matrix = torch.from_numpy(to_template).float().to(fused.device)
    for voxels in torch.split((largest < prior.certain).nonzero(), _CHUNK):
        at = voxels.unbind(1)
        p = fused[at].float()
        q = _sample(shares, voxels.float() @ matrix[:3, :3].T + matrix[:3, 3])
        # As much as it counts, in the mean, for the classes between which a network is in doubt.
        counts = (p @ weights)[:, None]
        rest = p * is_moved
        likely = rest * (q.clamp(min=prior.floor).log() * counts).exp()
        share = rest.sum(1, keepdim=True) / likely.sum(1, keepdim=True).clamp(min=1e-12)
        fused[at] = torch.where(is_moved, likely * share, p).to(fused.dtype)
    return ""


def _sample(shares: Tensor, places: Tensor) -> Tensor:
    """Shares (X, Y, Z, K) at places (N, 3) in voxels, trilinearly, as 0 to 1; edges go on."""
    shape = torch.tensor(shares.shape[:3], device=places.device)
    low = places.floor()
    part = places - low
    flat = shares.view(-1, shares.shape[3])
    found = torch.zeros(len(places), shares.shape[3], device=places.device)
    for corner in range(8):
        step = torch.tensor([corner >> 2 & 1, corner >> 1 & 1, corner & 1], device=places.device)
        x, y, z = (low.long() + step).clamp(torch.zeros_like(shape), shape - 1).unbind(1)
        weight = torch.where(step.bool(), part, 1 - part).prod(1)
        rows = flat.index_select(0, (x * shape[1] + y) * shape[2] + z)
        found.addcmul_(rows.float(), weight[:, None])
    return found / 255


def _centroids(
    labels: Tensor, affine: NDArray[np.float64], scheme: LabelScheme
) -> NDArray[np.float64]:
    """(K, 3) in millimetres; NaN for classes that are not there or lie all over the head."""
    classes = len(scheme)
    flat = labels.long()
    means = []
    for axis, length in enumerate(labels.shape):
        place = torch.arange(length, device=labels.device)
        place = place.view([-1 if a == axis else 1 for a in range(3)])
        histogram = torch.bincount((flat * length + place).flatten(), minlength=classes * length)
        histogram = histogram.view(classes, length).double()
        counts = histogram.sum(1)
        means.append((histogram @ torch.arange(length, device=labels.device).double()) / counts)
    centres = torch.stack(means, 1).cpu().numpy()
    for label, count in zip(scheme.labels, counts.tolist(), strict=True):
        if count < _FEWEST_VOXELS or label.group in _SPREAD:
            centres[label.index] = np.nan
    return moved(centres, affine)


def _place(found: NDArray[np.float64], template: NDArray[np.float64]) -> NDArray[np.float64] | str:
    """An affine from a scan's millimetres to a template's, or why there is none."""
    known = np.asarray(np.isfinite(found + template).all(1))
    for _ in range(2):
        if known.sum() < _FEWEST_STRUCTURES:
            return f"only {int(known.sum())} structures to place it by"
        found = np.where(known[:, None], found, np.nan)
        matrix = _affine(found, template)
        off: NDArray[np.float64] = np.linalg.norm(moved(found, matrix) - template, axis=1)
        outliers = known & (off > _OUTLIER_MM)
        if not outliers.any():
            break
        known &= ~outliers
    else:
        return f"structures lie up to {np.nanmax(off):.0f} mm from where they should"
    scales = np.linalg.svd(matrix[:3, :3], compute_uv=False)
    if scales.min() < _SCALES[0] or scales.max() > _SCALES[1] or np.linalg.det(matrix) < 0:
        return f"the head would be scaled by {scales.min():.2f} to {scales.max():.2f}"
    return matrix


def _affine(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """The affine that takes points (K, 3) to others best, in the least squares; NaNs aside."""
    known = np.isfinite(start).all(1) & np.isfinite(end).all(1)
    with_one = np.c_[start[known], np.ones(known.sum())]
    matrix = np.eye(4)
    matrix[:3] = np.linalg.lstsq(with_one, end[known], rcond=None)[0].T
    return matrix
