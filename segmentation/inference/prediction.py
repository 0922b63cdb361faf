"""Segmentation of one scan, restored to the scan's own space on access.

It can be cleaned up: one connected component per structure, without holes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from trinat.segmentation.errors import LabelError
from trinat.segmentation.grid import grown, is_empty, occupied_box
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.fusion import most_probable
from trinat.segmentation.inference.lesion_network import LesionMap
from trinat.segmentation.inference.lesions import Lesions, find_lesions
from trinat.segmentation.inference.parcels import Parcels
from trinat.segmentation.inference.uncertainty import Uncertainty, entropy_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.lesions import SMALLEST_MM3
from trinat.segmentation.labels.scheme import TISSUES, LabelScheme, tissue_numbers
from trinat.segmentation.space.conform import (
    ConformPlan,
    restore,
    restore_probabilities,
)
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.morphology import TOUCHING, largest_part, without_holes
from trinat.segmentation.space.views import (
    reoriented,
    reoriented_grid,
    source_axes,
    turned,
)

# Imported in the functions that need them: they and their imports take a tenth of the start-up.
if TYPE_CHECKING:
    from trinat.segmentation.inference.callosum import Callosum
    from trinat.segmentation.inference.thickness import CortexThickness

# Slices of the working grid whose tissues are summed at a time.
_SLAB = 8
# FreeSurfer numbers of both sides, left first.
_WHITE_MATTER = (2, 41)
_CORTEX = (3, 42)
# Groups of a label scheme: the lower end of `_ABOVE_FORAMEN` marks the foramen magnum, below which
# structures of `_THROUGH_FORAMEN` continue.
_ABOVE_FORAMEN = ("cerebellum",)
_THROUGH_FORAMEN = (CSF_GROUP, "brainstem")


@dataclass(frozen=True, eq=False)
class Tissues:
    """Grey matter, white matter and CSF of a scan, in the scan's own space.

    The three probabilities are float32, from 0 to 1. `labels` (uint8) has the most probable tissue
    of each voxel: 1 grey matter, 2 white matter, 3 CSF; 0 if none of them is the most probable.
    """

    grey_matter: Volume
    white_matter: Volume
    csf: Volume
    labels: Volume

    @property
    def by_label(self) -> dict[str, Volume]:
        """The three probabilities by the labels of the tissues in BIDS: GM, WM, CSF."""
        return dict(
            zip(TISSUES, (self.grey_matter, self.white_matter, self.csf), strict=True)
        )


@dataclass(frozen=True, eq=False)
class Prediction:
    """Segmentation of one scan: labels, volumes and probabilities.

    Attributes
    ----------
    fused : Tensor
        Fused class probabilities on the working grid (RAS axes, 1 mm), (X, Y, Z, K) float16, in
        host memory.
    scheme : LabelScheme
        The K classes.
    plan : ConformPlan
        Maps the working grid to the scan.
    image : Volume
        The scan on the working grid, before any reversal of contrast or stripping.
    notes : tuple of str
        Notes on the scan and on the way it was segmented.
    agreement : array (K,) or None
        Mean Dice of each class between views; None with one view.
    uncertainty : Uncertainty or None
        Variation of several predictions with dropout; None if none were made.
    not_predicted : tuple of str
        Structures of the scheme that the model does not predict: they have no volume.
    csf : str
        The model's definition of CSF.
    parcel_map : Parcels or None
        Parcels of the cortex on the working grid; None if they were not requested.
    lesion_map : LesionMap or None
        Probability of lesion on the working grid; None if lesions were not requested.
    smallest_lesion_mm3 : float
        Smaller lesions are left out.
    """

    fused: Tensor
    scheme: LabelScheme
    plan: ConformPlan
    image: Volume
    notes: tuple[str, ...]
    agreement: NDArray[np.float64] | None
    uncertainty: Uncertainty | None
    not_predicted: tuple[str, ...]
    csf: Csf = "region"
    parcel_map: Parcels | None = None
    lesion_map: LesionMap | None = None
    smallest_lesion_mm3: float = SMALLEST_MM3

    @cached_property
    def working(self) -> Volume:
        """Most probable class of each voxel on the working grid (RAS axes, 1 mm), uint8."""
        _, classes = most_probable(self.fused)
        return Volume(classes.numpy(), self.plan.working.affine)

    @cached_property
    def indices(self) -> Volume:
        """Class of each voxel in the scan's own space, uint8.

        Computed on first access. If voxels of the scan lie between voxels of the 1 mm working grid,
        the probabilities are resampled, not the labels.
        """
        if GridMap.between(self.plan.working, self.plan.scan).reordering:
            # Every voxel of the scan is one of the working grid, so labels can be restored
            # directly.
            found = restore(self.working, self.plan, labels=True)
        else:
            classes_first = self.fused.permute(3, 0, 1, 2)
            found = restore_probabilities(classes_first.numpy(), self.plan)
        return Volume(found.data, found.affine, found.codes, self.notes)

    @cached_property
    def labels(self) -> Volume:
        """FreeSurfer numbers in the scan's own space, int16."""
        found = self.indices
        numbers = self.scheme.to_freesurfer(found.data)
        return Volume(numbers, found.affine, found.codes, found.notes)

    @cached_property
    def voxels(self) -> dict[str, int]:
        """Number of voxels of each predicted structure in the scan's own space, by name."""
        counts = np.bincount(self.indices.data.ravel("K"), minlength=len(self.scheme))
        voxels = {}
        for label in self.scheme.labels[1:]:
            if label.name not in self.not_predicted:
                voxels[label.name] = int(counts[label.index])
        return voxels

    @cached_property
    def parcel_indices(self) -> Volume:
        """Class of each voxel in the scan's own space, uint8, with parcels in place of the cortex.

        The label scheme of these classes is `parcel_map.parcellation.whole`. Raises LabelError if
        parcels were not requested.
        """
        return self._required_parcels.restored(self.indices, self.plan)

    @cached_property
    def parcel_labels(self) -> Volume:
        """FreeSurfer numbers in the scan's own space, int16, with parcels instead of the cortex."""
        found = self.parcel_indices
        numbers = self._required_parcels.parcellation.whole.to_freesurfer(found.data)
        return replace(found, data=numbers)

    @cached_property
    def parcel_voxels(self) -> dict[str, int]:
        """Number of voxels of each parcel in the scan's own space, by name, the left ones first."""
        parcellation = self._required_parcels.parcellation
        whole = parcellation.whole
        counts = np.bincount(self.parcel_indices.data.ravel("K"), minlength=len(whole))
        voxels = {}
        for name in parcellation.names:
            voxels[name] = int(counts[whole.names.index(name)])
        return voxels

    @cached_property
    def parcel_agreement(self) -> dict[str, float] | None:
        """Mean Dice of each parcel between views, by name; None with one view.

        NaN for a parcel that no view has.
        """
        found = self._required_parcels
        if len(found.by_view) < 2:
            return None
        values = found.agreement(self.working.data)
        return dict(zip(found.parcellation.names, values.tolist(), strict=True))

    @cached_property
    def cortex_thickness(self) -> CortexThickness:
        """Thickness of the cortex and of its parcels.

        Raises LabelError if parcels were not requested.
        """
        from trinat.segmentation.inference.thickness import measure_cortex

        grid = self.plan.working
        return measure_cortex(self.fused, self.scheme, self._required_parcels, grid)

    @cached_property
    def thickness_map(self) -> Volume:
        """Thickness in mm at each voxel of cortex in the scan's own space, float32; 0 elsewhere."""
        found = self.indices
        thickness = np.zeros(found.shape, np.float32)
        for cortex in self._required_parcels.parcellation.cortex:
            assert cortex.side is not None
            measured = self.cortex_thickness.maps[cortex.side].data
            # Divide by the interpolated share of measured voxels: other voxels have the value 0.
            summed = self._to_scan_space(measured).data
            share = self._to_scan_space((measured > 0).astype(np.float32)).data
            is_shown = (found.data == cortex.index) & (share > 0)
            thickness[is_shown] = summed[is_shown] / share[is_shown]
        return Volume(thickness, found.affine, found.codes)

    @property
    def _required_parcels(self) -> Parcels:
        if self.parcel_map is None:
            raise LabelError(
                "no parcels were asked for", remedy="segment with parcels=True"
            )
        return self.parcel_map

    @cached_property
    def callosum(self) -> Callosum:
        """Corpus callosum, found within the white matter of `labels`; `labels` is not changed.

        Raises LabelError if the model has no left and right cerebral white matter.

        Examples
        --------
        >>> result.callosum.labels.shape == result.labels.shape
        True
        """
        from trinat.segmentation.inference.callosum import find_callosum, measured

        left, right = (self.scheme.find(number).index for number in _WHITE_MATTER)
        cortex = self.fused[..., [self.scheme.find(n).index for n in _CORTEX]]
        section = find_callosum(
            self.fused[..., left].float().numpy(),
            self.fused[..., right].float().numpy(),
            cortex.float().sum(-1).numpy(),
            np.asarray(self.image.data, np.float32),
        )
        found = self.indices
        is_white = (found.data == left) | (found.data == right)
        return measured(section, self.image, replace(found, data=is_white), self.plan)

    @cached_property
    def lesions(self) -> Lesions:
        """Lesions of white matter, in the scan's own space; `labels` is not changed.

        Raises LabelError if lesions were not requested.

        Examples
        --------
        >>> result = trinat.segment("flair.nii.gz", model="any", lesions=True)
        >>> result.lesions.count == len(result.lesions.lesions)
        True
        """
        if self.lesion_map is None:
            raise LabelError(
                "no lesions were asked for", remedy="segment with lesions=True"
            )
        return find_lesions(
            self._to_scan_space(self.lesion_map.probability),
            self.indices,
            self.scheme,
            is_flair=self.lesion_map.is_flair,
            is_too_thin=self.lesion_map.is_too_thin,
            is_searched=self.lesion_map.is_searched,
            smallest_mm3=self.smallest_lesion_mm3,
        )

    @property
    def voxel_mm3(self) -> float:
        """Volume of a voxel of the scan, in mm³."""
        return self.indices.grid.voxel_mm3

    @property
    def volumes_mm3(self) -> dict[str, float]:
        """Volume of each predicted structure in mm³, by name."""
        return {name: count * self.voxel_mm3 for name, count in self.voxels.items()}

    @cached_property
    def evidence(self) -> Evidence:
        """Input of the checks by which the segmentation is graded."""
        return Evidence(
            image=self.image,
            indices=self.working,
            scan=self.plan.scan,
            scheme=self.scheme,
            volumes_mm3=self.volumes_mm3,
            agreement=self.agreement,
            csf=self.csf,
        )

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Mask of the inside of the skull, with brain and fluid, on the 1 mm working grid."""
        return find_inside(self.working, self.scheme)

    @cached_property
    def brain(self) -> Volume:
        """Brain mask in the scan's own space, bool (X, Y, Z): `inside` on the scan's voxels."""
        working = Volume(self.inside.astype(np.uint8), self.plan.working.affine)
        found = restore(working, self.plan, labels=True)
        return Volume(found.data > 0, found.affine, found.codes)

    def probabilities(self, structure: str | int) -> Volume:
        """Return the probability of one structure in the scan's own space, float32, from 0 to 1.

        `structure` is a name, an abbreviation or a FreeSurfer number; LabelError if it is unknown.
        Outside of the grid that was segmented the background has the probability 1 and all else 0.
        """
        index = self.scheme.find(structure).index
        values = self.fused[..., index].float().numpy()
        if index != 0:
            return self._to_scan_space(values)
        # The background is 1 outside of the working grid, so restore its complement, which is 0.
        no_background = self._to_scan_space(1 - values)
        return replace(no_background, data=1 - no_background.data)

    def tissues(self) -> Tissues:
        """Return grey matter, white matter and CSF in the scan's own space.

        The probability of a tissue is the sum of the probabilities of its structures, so that a
        voxel between two tissues has a part of each. Outside of the grid that was segmented all
        probabilities are 0.

        Examples
        --------
        >>> tissues = result.tissues()
        >>> bool(tissues.grey_matter.data.max() <= 1)
        True
        """
        numbers = torch.from_numpy(tissue_numbers(self.scheme))
        is_of_tissue = torch.nn.functional.one_hot(numbers, 1 + len(TISSUES))[:, 1:]
        sums = torch.empty((*self.fused.shape[:3], len(TISSUES)))
        for slab, of_slab in zip(
            torch.split(self.fused, _SLAB), torch.split(sums, _SLAB), strict=True
        ):
            of_slab.copy_(slab.float() @ is_of_tissue.float())
        maps = []
        for values in sums.unbind(-1):
            found = self._to_scan_space(np.ascontiguousarray(values.numpy()))
            # Sums of float16 shares may slightly exceed 1.
            maps.append(replace(found, data=np.minimum(found.data, 1)))
        largest = np.ones(self.plan.scan.shape, np.float32)
        for found in maps:
            largest -= found.data
        classes = np.zeros(largest.shape, np.uint8)
        for number, found in enumerate(maps, start=1):
            is_larger = found.data > largest
            classes[is_larger] = number
            largest[is_larger] = found.data[is_larger]
        grey_matter, white_matter, csf = maps
        return Tissues(grey_matter, white_matter, csf, replace(csf, data=classes))

    @cached_property
    def entropy(self) -> Volume:
        """Entropy in nats in the scan's own space.

        It is computed from the fused probabilities or, if several predictions were made with
        dropout, from their mean.
        """
        if self.uncertainty is not None:
            return self._to_scan_space(self.uncertainty.entropy)
        return self._to_scan_space(entropy_of(self.fused))

    def _to_scan_space(self, values: NDArray[np.float32]) -> Volume:
        """Resample values (X, Y, Z) from the 1 mm grid to the scan's own space; 0 outside."""
        volume = Volume(values, self.plan.working.affine)
        return restore(volume, self.plan, labels=False)

    def upright(self) -> Self:
        """Return the prediction on a working grid with RAS axes; the model may need others."""
        axcodes = self.plan.working.axcodes
        if axcodes == "RAS":
            return self
        axes = source_axes(axcodes, "RAS")

        def upright(array: NDArray[Any]) -> NDArray[Any]:
            return np.ascontiguousarray(turned(array, axes))

        uncertainty = self.uncertainty
        if uncertainty is not None:
            uncertainty = replace(uncertainty, entropy=upright(uncertainty.entropy))
        parcels = self.parcel_map
        if parcels is not None:
            parcels = parcels.turned(axes)
        lesions = self.lesion_map
        if lesions is not None:
            lesions = replace(lesions, probability=upright(lesions.probability))
        return replace(
            self,
            fused=torch.from_numpy(upright(self.fused.numpy())),
            plan=replace(self.plan, working=reoriented_grid(self.plan.working, "RAS")),
            image=reoriented(self.image, "RAS"),
            uncertainty=uncertainty,
            parcel_map=parcels,
            lesion_map=lesions,
        )

    def cleaned(self) -> tuple[Self, dict[str, float]]:
        """Keep the largest component of each structure and fill its holes; return the prediction.

        Also returns a mapping from the name of each structure that changed to its number of lost
        and gained voxels, divided by its number of voxels before. The probabilities change, too, so
        that labels, pictures and volumes agree.
        """
        before = np.asarray(self.working.data)
        after, changed = clean_up(before, len(self.scheme))
        fused = with_classes(self.fused, before, after)
        by_name = {self.scheme.names[k]: share for k, share in changed.items()}
        return replace(self, fused=fused), by_name


def clean_up(
    indices: NDArray[np.uint8], classes: int
) -> tuple[NDArray[np.uint8], dict[int, float]]:
    """Keep the largest component of each class and fill its holes.

    `indices` (X, Y, Z) is the class map; K is `classes`. Each removed component becomes the class
    that most of its neighbours have.

    Returns the cleaned map and the changes: for each class that changed, the number of voxels that
    it lost and gained, divided by its number of voxels before.
    """
    cleaned = indices.copy()
    for k in range(1, classes):
        box = occupied_box(cleaned == k)
        if is_empty(box):
            continue
        part = cleaned[grown(box, cleaned.shape)]
        _keep_largest_component(part, k)
        # Fill background only: other structures inside, such as ventricles, stay.
        filled = ndimage.binary_fill_holes(part == k)
        part[filled & (part == 0)] = k
    sizes = np.bincount(indices.ravel(), minlength=classes)
    differs = indices != cleaned
    lost = np.bincount(indices[differs], minlength=classes)
    gained = np.bincount(cleaned[differs], minlength=classes)
    changed = (lost + gained) / np.maximum(sizes, 1)
    shares = {k: float(changed[k]) for k in range(1, classes) if changed[k] > 0}
    return cleaned, shares


def with_classes(
    probabilities: Tensor,
    before: NDArray[np.uint8],
    after: NDArray[np.uint8],
) -> Tensor:
    """Return changed probabilities (X, Y, Z, K), whose most probable classes are `after`.

    `before` (X, Y, Z) has the classes that are most probable in `probabilities`. Wherever `after`
    (X, Y, Z) differs, the two classes exchange their probabilities, which preserves the sums and
    the entropy.
    """
    places = torch.from_numpy(np.argwhere(before != after)).unbind(1)
    old = _class_index_at(before, places)
    new = _class_index_at(after, places)
    changed = probabilities[places]
    largest = changed.gather(1, old)
    smaller = changed.gather(1, new)
    changed.scatter_(1, old, smaller)
    changed.scatter_(1, new, largest)
    # The first of equally probable classes wins, so raise the new class where it would lose.
    beaten = changed.argmax(1, keepdim=True) != new
    larger = torch.nextafter(largest, torch.ones_like(largest))
    changed.scatter_(1, new, torch.where(beaten, larger, largest))
    result = probabilities.clone()
    result[places] = changed
    return result


def _class_index_at(classes: NDArray[np.uint8], places: tuple[Tensor, ...]) -> Tensor:
    """Return the classes of a map at N positions as an index for `gather`, (N, 1) int64.

    `places` has the indices of the positions along each axis, (N,) each.
    """
    found = torch.from_numpy(classes)[places]
    return found.to(torch.int64)[:, None]


def _keep_largest_component(part: NDArray[np.uint8], k: int) -> None:
    """Replace all components of class k but the largest, in place.

    Each becomes the class that most of its neighbouring voxels have. `part` (X, Y, Z) is a class
    map.
    """
    pieces, count = ndimage.label(part == k, TOUCHING)
    if count < 2:
        return
    sizes = np.bincount(pieces.ravel())
    largest = 1 + int(sizes[1:].argmax())
    for number, box in enumerate(ndimage.find_objects(pieces), start=1):
        if number == largest:
            continue
        around = part[grown(box, part.shape)]
        piece = pieces[grown(box, part.shape)] == number
        rim = ndimage.binary_dilation(piece, TOUCHING) & ~piece
        neighbours = around[rim]
        # A component surrounded by nothing becomes background.
        around[piece] = 0
        if neighbours.size:
            around[piece] = np.bincount(neighbours).argmax()


def find_inside(indices: Volume, scheme: LabelScheme) -> NDArray[np.bool_]:
    """Return the inside of the skull as a mask (X, Y, Z), from the classes of a whole head.

    `indices` has the classes of `scheme` on the 1 mm working grid. The mask is empty if nothing is
    labelled, and nothing is cut off below if there is no cerebellum.

    The inside consists of every structure, the ventricles among them, and of CSF if the model
    predicts all fluid inside the skull. Three rules make one solid space of these labels:

    - The foramen magnum, where the skull ends, is assumed at the height of the lowest voxel of the
      cerebellum. Brain stem and fluid below it belong to the neck. Label maps for synthesis are cut
      in the same way, so that networks learn it (`segmentation/synthetic/heads.py`).
    - Only the largest component counts: specks in neck and face are left out.
    - Enclosed voxels belong to it: vessels, dura and holes between labels.
    """
    inside = np.asarray(indices.data > 0)
    inside &= ~_below_foramen(indices, scheme)
    return without_holes(largest_part(inside))


def _below_foramen(indices: Volume, scheme: LabelScheme) -> NDArray[np.bool_]:
    """Return a mask of brain stem and fluid below the foramen magnum, (X, Y, Z)."""
    cerebellum = scheme.in_groups(_ABOVE_FORAMEN)[indices.data]
    if not cerebellum.any():
        return np.zeros(indices.shape, bool)
    up_x, up_y, up_z = indices.affine[2, :3]
    x, y, z = indices.shape
    i, j, k = np.ogrid[:x, :y, :z]
    heights_mm = up_x * i + up_y * j + up_z * k
    heights_mm = np.broadcast_to(heights_mm, indices.shape)
    lowest_mm = heights_mm[largest_part(cerebellum)].min()
    through = scheme.in_groups(_THROUGH_FORAMEN)[indices.data]
    return np.asarray(through & (heights_mm < lowest_mm))
