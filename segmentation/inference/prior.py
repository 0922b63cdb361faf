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

from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import Prior, Template
from trinat.segmentation.space.grid import corners, moved
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.synthetic.heads import HeadMaps, Variant, with_variants
from trinat.segmentation.synthetic.targets import aim

# Where structures as large as these lie says little of where the head is: they go everywhere.
_SPREAD = frozenset({"white-matter", "cortical", "background", "csf"})
_FEWEST_VOXELS = 20
_FEWEST_STRUCTURES = 8
# How far from its place a structure may lie and still count, round by round.
_TOLERANCES_MM = (60.0, 40.0, 30.0, 20.0, 15.0, 12.0, 12.0)
# Around where an affine brings them, centroids of healthy heads scatter by about this; heads differ
# from each other in shape, scale apart, by this share.
_SCATTER_MM = 3.0
_SHAPES = 0.08
_SCALES = (0.7, 1.4)
_MOST_TURNED_DEG = 60.0
_ROUNDS = 5  # of a template's mean head
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
    "CSF": 0.1,
}
# FreeSurfer draws these larger or smaller than the label maps do: by a millimetre, and their shares
# of the template count so many times.
_DRAWN_AS: tuple[Variant, ...]
_DRAWN_AS = ("large-pallidum", "large-thalamus", "small-caudate", "small-accumbens")
_DRAWN_OTHERWISE = {
    "Pallidum": 4.0,
    "Thalamus": 2.0,
    "Caudate": 0.5,
    "Inf-Lat-Vent": 0.1,
}


def build_template(
    maps: HeadMaps, scheme: LabelScheme, seed: int = 0, *, learn_fluid: bool = False
) -> Template:
    """Average label maps, each brought to their common space by its structures' centroids.

    `learn_fluid` as the networks were taught: see `segmentation.synthetic.heads.aim`.
    """
    targets = aim(maps, scheme, learn_fluid=learn_fluid).targets.numpy()
    drawn = with_variants(maps, [_DRAWN_AS]).labels[len(maps.labels) :]
    heads = [torch.from_numpy(targets[head]) for head in drawn]
    centroids = [_centroids(head, np.eye(4), scheme) for head in heads]
    common = _common_space(centroids)
    to_heads = [_bring(common, own) for own in centroids]
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
            jittered = np.rint(
                places + generator.normal(0, _JITTER_MM, places.shape)
            ).astype(int)
            inside = ((jittered >= 0) & (jittered < head.shape)).all(1)
            at = tuple(jittered.clip(0, np.array(head.shape) - 1).T)
            counts[rows, head.numpy()[at] * inside] += 1
    weights = np.array([_of(_DRAWN_OTHERWISE, name) or 1.0 for name in scheme.names])
    weighted = counts * weights
    shares = np.rint(weighted * 255 / weighted.sum(1, keepdims=True)).astype(np.uint8)
    return Template(shares.reshape(*shape, len(scheme)), affine, common)


def _common_space(centroids: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean of heads' centroids (K, 3), as large as the heads are in the mean, not as the first.

    Heads are turned and scaled as a whole: a full affine would flatten their mean a little more in
    each round along the axis in which structures are least spread.
    """
    common = centroids[0]
    for _ in range(_ROUNDS):
        brought = np.stack([moved(own, _whole(own, common)) for own in centroids])
        known = np.isfinite(brought).all(2, keepdims=True)
        total = np.where(known, brought, 0).sum(0)
        heads = known.sum(0)
        common = np.where(heads > 0, total / np.maximum(heads, 1), np.nan)
    scales = [np.cbrt(np.linalg.det(_whole(common, own)[:3, :3])) for own in centroids]
    middle = np.nanmean(common, 0)
    return np.asarray(middle + (common - middle) * float(np.mean(scales)), np.float64)


def _whole(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """The similarity that takes points (K, 3) to others; NaNs aside."""
    known = np.isfinite(start).all(1) & np.isfinite(end).all(1)
    return _similarity(start[known], end[known], np.ones(int(known.sum())))


def _bring(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """The affine that takes points (K, 3) of one head to those of another; NaNs aside."""
    as_a_whole = _whole(start, end)
    brought = moved(start, as_a_whole)
    known = np.isfinite(brought).all(1) & np.isfinite(end).all(1)
    weights = np.ones(int(known.sum()))
    return _affine_near_identity(brought[known], end[known], weights) @ as_a_whole


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
        [prior.per_class.get(name, prior.weight) for name in scheme.names],
        device=fused.device,
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
        step = torch.tensor(
            [corner >> 2 & 1, corner >> 1 & 1, corner & 1], device=places.device
        )
        x, y, z = (
            (low.long() + step).clamp(torch.zeros_like(shape), shape - 1).unbind(1)
        )
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
        histogram = torch.bincount(
            (flat * length + place).flatten(), minlength=classes * length
        )
        histogram = histogram.view(classes, length).double()
        counts = histogram.sum(1)
        means.append(
            (histogram @ torch.arange(length, device=labels.device).double()) / counts
        )
    centres = torch.stack(means, 1).cpu().numpy()
    for label, count in zip(scheme.labels, counts.tolist(), strict=True):
        if count < _FEWEST_VOXELS or label.group in _SPREAD:
            centres[label.index] = np.nan
    return moved(centres, affine)


def _place(
    found: NDArray[np.float64], template: NDArray[np.float64]
) -> NDArray[np.float64] | str:
    """An affine from a scan's millimetres to a template's, or why there is none.

    Centroids (K, 3) of structures that were found in the wrong place, or only in part, must not
    bend it. So the head is turned, moved and scaled as a whole first, structures far from their
    place count less and less, and a full affine goes no further from that than they support.
    """
    known = np.isfinite(found).all(1) & np.isfinite(template).all(1)
    if known.sum() < _FEWEST_STRUCTURES:
        return f"only {int(known.sum())} structures to place it by"
    start, end = found[known], template[known]
    weights = np.ones(len(start))
    for tolerance_mm in _TOLERANCES_MM:
        as_a_whole = _similarity(start, end, weights)
        weights = _trust(moved(start, as_a_whole) - end, tolerance_mm)
        if weights.sum() < _FEWEST_STRUCTURES / 2:
            return (
                f"structures lie {tolerance_mm:.0f} mm and more from where they should"
            )
    turned_deg = _turned_deg(as_a_whole)
    if turned_deg > _MOST_TURNED_DEG:
        # Sides that are exchanged in the header fit best by a head upside down.
        return f"the head would be turned by {turned_deg:.0f} degrees"
    brought = moved(start, as_a_whole)
    matrix = _affine_near_identity(brought, end, weights) @ as_a_whole
    scales = np.linalg.svd(matrix[:3, :3], compute_uv=False)
    if scales.min() < _SCALES[0] or scales.max() > _SCALES[1]:
        return f"the head would be scaled by {scales.min():.2f} to {scales.max():.2f}"
    return matrix


def _turned_deg(similarity: NDArray[np.float64]) -> float:
    """The angle of a similarity's rotation."""
    linear = similarity[:3, :3]
    rotation = linear / np.cbrt(np.linalg.det(linear))
    return float(np.degrees(np.arccos(np.clip((np.trace(rotation) - 1) / 2, -1, 1))))


def _trust(off_mm: NDArray[np.float64], tolerance_mm: float) -> NDArray[np.float64]:
    """Tukey's weights of residuals (K, 3): 1 for none, 0 from the tolerance on."""
    part = np.linalg.norm(off_mm, axis=1) / tolerance_mm
    return np.asarray(np.where(part < 1, (1 - part**2) ** 2, 0.0), np.float64)


def _similarity(
    start: NDArray[np.float64], end: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rotation, one scale and a shift that take points (K, 3) to others (Umeyama 1991)."""
    shares = weights / weights.sum()
    start_middle, end_middle = shares @ start, shares @ end
    start_off, end_off = start - start_middle, end - end_middle
    covariance = (end_off * shares[:, None]).T @ start_off
    left, spread, right = np.linalg.svd(covariance)
    # Never a reflection: the last axis, along which points spread least, turns if it must.
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    rotation = left @ np.diag(signs) @ right
    scale = (spread * signs).sum() / (shares @ (start_off**2).sum(1))
    matrix = np.eye(4)
    matrix[:3, :3] = scale * rotation
    matrix[:3, 3] = end_middle - matrix[:3, :3] @ start_middle
    return matrix


def _affine_near_identity(
    start: NDArray[np.float64], end: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The likeliest affine that takes points (K, 3) to others.

    Points scatter by `_SCATTER_MM` around their place, and heads differ in shape by `_SHAPES`: with
    few points or near ones the second outweighs the first.
    """
    middle = weights @ start / weights.sum()
    rows = np.c_[start - middle, np.ones(len(start))] * np.sqrt(weights)[:, None]
    wanted = (end - start) * np.sqrt(weights)[:, None]
    stiffness = np.diag([_SCATTER_MM / _SHAPES] * 3 + [0.0])[:3]
    change = np.linalg.lstsq(
        np.r_[rows, stiffness], np.r_[wanted, np.zeros((3, 3))], rcond=None
    )[0]
    matrix = np.eye(4)
    matrix[:3, :3] += change[:3].T
    matrix[:3, 3] = change[3] - change[:3].T @ middle
    return matrix
