"""Anatomical prior: the probability of structures by position in the head.

A prior is one template, averaged over whole-head label maps, that is registered to a scan by the
centroids of the structures that the networks found. Where the networks are uncertain, the
probability p of a class becomes p q^w, where q is the template's probability and w its weight.

Centroids are arrays (K, 3) in millimetres, one row per class, NaN for missing classes. Transforms
between heads are estimated from pairs of them: 4×4 matrices that map the first head's millimetres
to the second's. All distances are in millimetres.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.grid import Shape, corners, moved, occupied_box, to_shape
from trinat.segmentation.inference.fusion import most_probable
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import Prior, Template
from trinat.segmentation.space.interpolation import rows_at
from trinat.segmentation.synthetic.heads import HeadMaps, Variant, with_variants
from trinat.segmentation.synthetic.targets import aim

Points = NDArray[np.float64]
Matrix = NDArray[np.float64]

# Groups of structures that extend over the whole head, whose centroids are uninformative.
_GROUPS_WITHOUT_CENTROID = frozenset({"white-matter", "cortical", "background", "csf"})
# Least number of voxels for a centroid.
_MIN_VOXELS_OF_CENTROID = 20
# Number of alternations between aligning heads to their mean and computing the mean.
_MEAN_ROUNDS = 5
# Voxel size of a template, and its margin around the brains.
_TEMPLATE_SPACING_MM = 2.0
_TEMPLATE_MARGIN_MM = 10.0
# Random positions around each voxel of a template at which each head's class is counted, and their
# distance from it (standard deviation along each axis).
_PLACES_PER_VOXEL = 4
_JITTER_MM = 1.5
# Voxels whose probabilities are changed at a time.
_VOXELS_AT_A_TIME = 1 << 17
# Weight of the template in new models, and lower weights for structures whose position or size
# varies more between heads, as measured on two scans (docs/notes/fast.md). The weight of lateral
# ventricles is 0, so that the wide ventricles of old age are not lost.
_DEFAULT_WEIGHT = 1.5
_LOWER_WEIGHTS = {
    "background": 0.1,
    "Cerebral-White-Matter": 0.1,
    "Cerebral-Cortex": 0.1,
    "Cerebellum-Cortex": 0.1,
    "Cerebellum-White-Matter": 0.6,
    "3rd-Ventricle": 0.6,
    "Lateral-Ventricle": 0.0,
    "CSF": 0.1,
}
# FreeSurfer delineates some structures larger or smaller than the label maps do. The template is
# therefore made of maps in which these structures are changed by a millimetre
# (`_FREESURFER_VARIANTS`), and counts of structures are multiplied by `_COUNT_FACTORS`.
_FREESURFER_VARIANTS: tuple[Variant, ...] = (
    "large-pallidum",
    "large-thalamus",
    "small-caudate",
    "small-accumbens",
)
_COUNT_FACTORS = {
    "Pallidum": 4.0,
    "Thalamus": 2.0,
    "Caudate": 0.5,
    "Inf-Lat-Vent": 0.1,
}

# Least number of structures for a registration.
_FEWEST_STRUCTURES = 8
# Largest distance between a structure and its expected position at which it is used, by round.
_TOLERANCES_MM = (60.0, 40.0, 30.0, 20.0, 15.0, 12.0, 12.0)
# Scatter of healthy heads' centroids around an affine fit; and the share by which heads differ in
# shape, apart from scale.
_SCATTER_MM = 3.0
_SHAPES = 0.08
_SCALES = (0.7, 1.4)
_MOST_TURNED_DEG = 60.0


def default_prior(scheme: LabelScheme) -> Prior:
    """Return the prior of a new model.

    Its weights are lower for structures whose position or size varies between heads: the folds of
    the cortex, and ventricles.
    """
    per_class = {}
    for name in scheme.names:
        weight = _value_of_either_side(_LOWER_WEIGHTS, name)
        if weight is not None:
            per_class[name] = weight
    return Prior(weight=_DEFAULT_WEIGHT, per_class=per_class)


def build_template(
    maps: HeadMaps,
    scheme: LabelScheme,
    *,
    learn_fluid: bool = False,
) -> Template:
    """Build a template: the average of label maps, registered to a common space by centroids.

    `maps` have voxels of 1 mm. `scheme` has the classes of the template. With `learn_fluid`,
    everything between brain and skull is CSF, otherwise background; it must have the same value as
    in the training of the networks.
    """
    # Use only the changed copies, which come after the original heads: their structures are as
    # large as FreeSurfer's.
    class_of_entry = aim(maps, scheme, learn_fluid=learn_fluid).targets.numpy()
    with_copies = with_variants(maps, [_FREESURFER_VARIANTS])
    changed = with_copies.labels[len(maps.labels) :]
    heads = [torch.from_numpy(class_of_entry[entries]) for entries in changed]

    centroids = [_centroids(head, np.eye(4), scheme) for head in heads]
    common = _common_space(centroids)
    to_heads = [_affine_between(common, of_head) for of_head in centroids]
    shape, affine = _template_grid(heads, to_heads)
    counts = _count_classes(heads, to_heads, shape, affine, len(scheme))

    factors = np.ones(len(scheme))
    for index, name in enumerate(scheme.names):
        factor = _value_of_either_side(_COUNT_FACTORS, name)
        if factor is not None:
            factors[index] = factor
    weighted = counts * factors
    shares = weighted * 255 / weighted.sum(1, keepdims=True)
    rounded = np.rint(shares).astype(np.uint8)
    return Template(rounded.reshape(*shape, len(scheme)), affine, common)


def _common_space(centroids: Sequence[Points]) -> Points:
    """Return the centroids of the mean head, (K, 3), from the centroids (K, 3) of several heads.

    The mean head has the mean size of the heads. To compute it, heads are rotated and scaled as a
    whole. Full affine registrations would flatten it a little more in each round, along the axis in
    which structures vary least.
    """
    common = centroids[0]
    for _ in range(_MEAN_ROUNDS):
        aligned = []
        for of_head in centroids:
            to_common = _similarity_between(of_head, common)
            aligned.append(moved(of_head, to_common))
        # The mean over the heads that have a structure.
        points = np.stack(aligned)
        is_known = np.isfinite(points).all(2, keepdims=True)
        total = np.where(is_known, points, 0).sum(0)
        heads = is_known.sum(0)
        common = np.where(heads > 0, total / np.maximum(heads, 1), np.nan)
    scales = []
    for of_head in centroids:
        linear = _similarity_between(common, of_head)[:3, :3]
        scales.append(np.cbrt(np.linalg.det(linear)))
    middle = np.nanmean(common, 0)
    scaled = middle + (common - middle) * float(np.mean(scales))
    return np.asarray(scaled, np.float64)


def _template_grid(
    heads: Sequence[Tensor], to_heads: Sequence[Matrix]
) -> tuple[Shape, Matrix]:
    """Return the shape and the affine of a template grid that encloses the brains of all heads.

    `heads` are class maps (X, Y, Z) with voxels of 1 mm; `to_heads` maps the common space to each
    head.
    """
    brains = []
    for head, to_head in zip(heads, to_heads, strict=True):
        brain = corners(occupied_box((head > 0).cpu().numpy()))
        brains.append(moved(brain, np.linalg.inv(to_head)))
    low = np.min(brains, (0, 1)) - _TEMPLATE_MARGIN_MM
    high = np.max(brains, (0, 1)) + _TEMPLATE_MARGIN_MM
    steps = np.ceil((high - low) / _TEMPLATE_SPACING_MM)
    shape = to_shape(steps + 1)
    affine = np.diag([_TEMPLATE_SPACING_MM] * 3 + [1.0])
    affine[:3, 3] = low
    return shape, affine


def _count_classes(
    heads: Sequence[Tensor],
    to_heads: Sequence[Matrix],
    shape: Shape,
    affine: Matrix,
    classes: int,
) -> NDArray[np.uint16]:
    """Count the classes of all heads around each voxel of a template, (X Y Z, K).

    `heads` are class maps; `to_heads` maps the template's millimetres to voxels of each head.
    `shape` and `affine` are those of the template, K is `classes`. Positions are jittered, so that
    an average over few heads is smooth. Outside of a head's map is background.
    """
    generator = np.random.default_rng(0)
    voxels_mm = moved(np.argwhere(np.ones(shape, bool)), affine)
    counts = np.zeros((len(voxels_mm), classes), np.uint16)
    rows = np.arange(len(voxels_mm))
    for head, to_head in zip(heads, to_heads, strict=True):
        places = moved(voxels_mm, to_head)
        last = np.array(head.shape) - 1
        for _ in range(_PLACES_PER_VOXEL):
            jitter = generator.normal(0, _JITTER_MM, places.shape)
            voxels = np.rint(places + jitter).astype(int)
            is_inside = ((voxels >= 0) & (voxels < head.shape)).all(1)
            nearest = tuple(voxels.clip(0, last).T)
            found = np.where(is_inside, head.numpy()[nearest], 0)
            counts[rows, found] += 1
    return counts


def _value_of_either_side(values: Mapping[str, float], name: str) -> float | None:
    """Look up the value of a structure by its name without the side; None if it has no value."""
    return values.get(name.removeprefix("Left-").removeprefix("Right-"))


def apply_prior(
    fused: Tensor,
    template: Template,
    prior: Prior,
    scheme: LabelScheme,
    affine: NDArray[np.float64],
) -> str:
    """Apply the prior to fused probabilities (X, Y, Z, K) in place.

    `affine` maps voxels of `fused` to RAS millimetres. Only voxels whose largest probability is
    below `prior.certain` change; the sums over classes stay. Returns the reason why the prior was
    not applied, or "".
    """
    largest, labels = most_probable(fused)
    centroids = _centroids(labels, affine, scheme)
    head_to_template_mm = _robust_affine(centroids, template.centroids)
    if isinstance(head_to_template_mm, str):
        return f"anatomical prior not used: {head_to_template_mm}"
    to_template = np.linalg.inv(template.affine) @ head_to_template_mm @ affine

    device = fused.device
    shares = torch.from_numpy(template.shares).to(device).float()
    matrix = torch.from_numpy(to_template).float().to(device)
    weights = weights_by_class(prior, scheme).to(device)
    doubtful = (largest < prior.certain).nonzero()
    for voxels in torch.split(doubtful, _VOXELS_AT_A_TIME):
        places = voxels.float() @ matrix[:3, :3].T + matrix[:3, 3]
        expected = rows_at(shares, places)
        indices = voxels.unbind(1)
        probabilities = fused[indices].float()
        changed = weighted_by(expected, probabilities, weights, prior.floor)
        fused[indices] = changed.to(fused.dtype)
    return ""


def weights_by_class(prior: Prior, scheme: LabelScheme) -> Tensor:
    """Return the weight of the template for each class of a scheme, (K,)."""
    return torch.tensor(
        [prior.per_class.get(name, prior.weight) for name in scheme.names]
    )


def weighted_by(
    shares: Tensor, probabilities: Tensor, weights: Tensor, floor: float
) -> Tensor:
    """Multiply probabilities (N, K) by powers of expected probabilities; their sums stay.

    `shares` (N, K) are the template's values, from 0 to 255: divided by 255 and limited to at least
    `floor`, they are the expected probabilities. The exponent of a voxel is the mean of the
    classes' `weights` (K,), weighted by the voxel's probabilities. A class of weight 0 keeps its
    probability, and the other classes share the rest.
    """
    expected = (shares / 255).clamp(min=floor)
    is_changed = weights > 0
    weight_of_voxel = (probabilities @ weights)[:, None]
    before = probabilities * is_changed
    after = before * (expected.log() * weight_of_voxel).exp()
    sum_before = before.sum(1, keepdim=True)
    sum_after = after.sum(1, keepdim=True).clamp(min=1e-12)
    return torch.where(is_changed, after * (sum_before / sum_after), probabilities)


def _centroids(
    labels: Tensor, affine: NDArray[np.float64], scheme: LabelScheme
) -> Points:
    """Return the centroid of each class of a map (X, Y, Z), (K, 3), in millimetres.

    `affine` maps voxels of the map to millimetres. NaN for classes that are missing or very small,
    and for those that extend over the whole head.
    """
    classes = len(scheme)
    class_of_voxel = labels.long()
    means = []
    for axis, length in enumerate(labels.shape):
        # Number of voxels of each class in each plane across this axis.
        along_axis = [1, 1, 1]
        along_axis[axis] = length
        plane = torch.arange(length, device=labels.device)
        class_and_plane = class_of_voxel * length + plane.view(along_axis)
        histogram = torch.bincount(
            class_and_plane.flatten(), minlength=classes * length
        )
        histogram = histogram.view(classes, length).double()
        counts = histogram.sum(1)
        means.append((histogram @ plane.double()) / counts)
    centroids = torch.stack(means, 1).cpu().numpy()
    for label, count in zip(scheme.labels, counts.tolist(), strict=True):
        if count < _MIN_VOXELS_OF_CENTROID or label.group in _GROUPS_WITHOUT_CENTROID:
            centroids[label.index] = np.nan
    return moved(centroids, affine)


def _similarity_between(start: Points, end: Points) -> Matrix:
    """Return the rotation, uniform scaling and shift, (4, 4), that maps centroids to others.

    Both are (K, 3). Classes that are missing in either of them are ignored.
    """
    known = _present_in_both(start, end)
    return _fit_similarity(start[known], end[known], np.ones(known.sum()))


def _affine_between(start: Points, end: Points) -> Matrix:
    """Return the affine, (4, 4), that maps the centroids of a head to those of another.

    Both are (K, 3). Classes that are missing in either of them are ignored.
    """
    similarity = _similarity_between(start, end)
    aligned = moved(start, similarity)
    known = _present_in_both(aligned, end)
    weights = np.ones(known.sum())
    remaining = _fit_affine_near_identity(aligned[known], end[known], weights)
    return remaining @ similarity


def _robust_affine(found: Points, template: Points) -> Matrix | str:
    """Return an affine (4, 4) from a scan's millimetres to a template's.

    `found` and `template` are the centroids (K, 3) of both. A str is returned in place of the
    affine if registration is not possible: the reason.

    Structures that were found in the wrong position, or partly, must not distort the affine.
    Therefore the head is first rotated, shifted and scaled as a whole, and distant structures get
    lower weights. The full affine then deviates from that no further than the structures support.
    """
    known = _present_in_both(found, template)
    if known.sum() < _FEWEST_STRUCTURES:
        return f"only {int(known.sum())} structures to place it by"
    start = found[known]
    end = template[known]

    weights = np.ones(len(start))
    for tolerance_mm in _TOLERANCES_MM:
        similarity = _fit_similarity(start, end, weights)
        # Tukey's weight: 1 for a structure in its position, 0 from the tolerance on.
        off_mm = np.linalg.norm(moved(start, similarity) - end, axis=1)
        part = off_mm / tolerance_mm
        weights = np.where(part < 1, (1 - part**2) ** 2, 0.0)
        if weights.sum() < _FEWEST_STRUCTURES / 2:
            return (
                f"structures lie {tolerance_mm:.0f} mm and more from where they should"
            )
    turned_deg = _rotation_angle_deg(similarity)
    if turned_deg > _MOST_TURNED_DEG:
        # A header with exchanged sides fits best with the head upside down.
        return f"the head would be turned by {turned_deg:.0f} degrees"

    aligned = moved(start, similarity)
    matrix = _fit_affine_near_identity(aligned, end, weights) @ similarity
    scales = np.linalg.svd(matrix[:3, :3], compute_uv=False)
    if scales.min() < _SCALES[0] or scales.max() > _SCALES[1]:
        return f"the head would be scaled by {scales.min():.2f} to {scales.max():.2f}"
    return matrix


def _present_in_both(start: Points, end: Points) -> NDArray[np.bool_]:
    """Return a mask of the classes that have a centroid in both heads, (K,)."""
    in_start = np.isfinite(start).all(1)
    in_end = np.isfinite(end).all(1)
    return np.asarray(in_start & in_end)


def _rotation_angle_deg(similarity: Matrix) -> float:
    """Return the rotation angle of a similarity transform (4, 4), in degrees."""
    linear = similarity[:3, :3]
    scale = np.cbrt(np.linalg.det(linear))
    rotation = linear / scale
    cosine = (np.trace(rotation) - 1) / 2
    angle = np.arccos(np.clip(cosine, -1, 1))
    return float(np.degrees(angle))


def _fit_similarity(start: Points, end: Points, weights: NDArray[np.float64]) -> Matrix:
    """Return the rotation, uniform scaling and shift, (4, 4), from points (K, 3) to others.

    This is the weighted least-squares solution of Umeyama (1991), with `weights` (K,).
    """
    shares = weights / weights.sum()
    start_middle = shares @ start
    end_middle = shares @ end
    start_off = start - start_middle
    end_off = end - end_middle
    weighted_end_off = end_off * shares[:, None]
    covariance = weighted_end_off.T @ start_off
    left, spread, right = np.linalg.svd(covariance)
    # Never a reflection: if necessary, the last axis, along which points vary least, is flipped.
    handedness = np.sign(np.linalg.det(left @ right))
    signs = np.array([1.0, 1.0, handedness])
    rotation = left @ np.diag(signs) @ right
    variance = shares @ (start_off**2).sum(1)
    scale = (spread * signs).sum() / variance
    matrix = np.eye(4)
    matrix[:3, :3] = scale * rotation
    matrix[:3, 3] = end_middle - matrix[:3, :3] @ start_middle
    return matrix


def _fit_affine_near_identity(
    start: Points, end: Points, weights: NDArray[np.float64]
) -> Matrix:
    """Return the most likely affine (4, 4) from points (K, 3) to others.

    It is found by ridge regression towards the identity with `weights` (K,). Points scatter by
    `_SCATTER_MM` around their positions, and heads differ in shape by `_SHAPES`. With few points,
    or with points close to each other, the affine stays near the identity.
    """
    middle = weights @ start / weights.sum()
    root_weights = np.sqrt(weights)[:, None]
    with_constant = np.c_[start - middle, np.ones(len(start))]
    rows = with_constant * root_weights
    wanted = (end - start) * root_weights
    # Three more equations pull the linear part towards the identity, but not the shift.
    strength = _SCATTER_MM / _SHAPES
    penalty = np.diag([strength, strength, strength, 0.0])[:3]
    all_rows = np.r_[rows, penalty]
    all_wanted = np.r_[wanted, np.zeros((3, 3))]
    change, *_ = np.linalg.lstsq(all_rows, all_wanted, rcond=None)
    linear = change[:3].T
    shift = change[3]
    matrix = np.eye(4)
    matrix[:3, :3] += linear
    matrix[:3, 3] = shift - linear @ middle
    return matrix
