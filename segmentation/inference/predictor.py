"""A model that is loaded once, and the segmentation of scans with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from trinat.segmentation.errors import ConfigError, ModelError
from trinat.segmentation.grid import to_shape
from trinat.segmentation.inference.fusion import (
    ViewAggregator,
    multiply_csf_odds,
    multiply_odds,
    odds_by_class,
    weights_for_voxels,
)
from trinat.segmentation.inference.lesion_network import (
    LesionMap,
    find_lesion_map,
    load_lesion_network,
)
from trinat.segmentation.inference.localisation import (
    INSIDE,
    LOOK_EVERY,
    BrainRegion,
    brain_region,
    is_whole_head,
    mask_around,
)
from trinat.segmentation.inference.network import DeviceNetworks, SliceProbabilities
from trinat.segmentation.inference.parcels import (
    Parcels,
    join_views,
    likely_cortex,
    may_be_cortex,
)
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.preparation import (
    Sight,
    find_reversed_white_matter,
    prepare_scan,
)
from trinat.segmentation.inference.prior import apply_prior
from trinat.segmentation.inference.runtime import ComputePrecision
from trinat.segmentation.inference.uncertainty import (
    Samples,
    Uncertainty,
    view_agreement,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.hardware import GPU, choose_device, refuse_forked_gpu
from trinat.segmentation.models.zoo import (
    find_lesions_file,
    find_parcels_folder,
    find_stripper,
)
from trinat.segmentation.space.conform import Conformed, ConformPlan
from trinat.segmentation.space.views import (
    SliceAxes,
    View,
    chosen_views,
    source_axes,
    to_slices,
)
from trinat.segmentation.timing import stage

_T = TypeVar("_T")

# The brain is localised in every eighth coronal slice.
_EVERY = 8
# Every sixteenth slice is enough to find which tissue is brighter.
_EVERY_FOR_ORDER = 16
# A voxel with a lower probability of background may be brain.
_BACKGROUND = 0.95


class Predictor:
    """A model on a device, which segments scans one after another.

    Parameters
    ----------
    model : Model, str or path
        A loaded model, the name of a shipped one ("fast"), or a model folder.
    device : str
        "auto", "cpu" or a name of torch's such as "cuda:1".
    precision : str
        Number type of the networks; "auto" chooses it by device.
    views : optional
        Views to use, or their names. Default: all views of the model.
    batch : int, optional
        Number of slices in a batch. Default: as many as suit the device.
    allow_cpu : bool
        Continue on the CPU if a GPU is out of memory even for single slices.
    parcels, lesions : bool
        Also use the model's networks that divide the cortex into parcels, and its network that
        finds lesions of white matter.
    """

    def __init__(
        self,
        model: Model | str | Path,
        *,
        device: str = "auto",
        precision: ComputePrecision = "auto",
        views: Iterable[View | str] | str | None = None,
        batch: int | None = None,
        allow_cpu: bool = False,
        parcels: bool = False,
        lesions: bool = False,
    ) -> None:
        wanted_views = chosen_views(views)
        if not isinstance(model, Model):
            model = load_model(model, wanted_views)
        self.model = model
        chosen_device = choose_device(device)
        available = wanted_views or tuple(model.networks)
        # The sagittal view comes last, because it is divided in the ratio of the others.
        self.views = tuple(view for view in View if view in available)
        spacing_mm = model.info.preprocessing.spacing_mm
        if spacing_mm != 1:
            raise ModelError(
                f"wants a grid of {spacing_mm} mm, and only 1 mm is made",
                where=model.folder,
            )
        self._networks = DeviceNetworks(
            model,
            self.views,
            chosen_device,
            precision=precision,
            batch=batch,
            allow_cpu=allow_cpu,
        )
        load_similar = partial(
            Predictor,
            device=device,
            precision=precision,
            batch=batch,
            allow_cpu=allow_cpu,
        )
        self._stripper: Predictor | None = None
        if model.info.stripped_by:
            stripper = find_stripper(model.info.stripped_by, model.folder)
            # One view is enough to find the inside of the skull.
            self._stripper = load_similar(stripper, views=[View.CORONAL])
        self._parcels: Predictor | None = None
        if parcels:
            parcels_model = load_model(find_parcels_folder(model.folder), wanted_views)
            self._parcels = load_similar(parcels_model)
        if (parcels or lesions) and self._is_merged():
            raise ModelError(
                "the sagittal view alone does not tell left from right, as parcels and lesions "
                "need",
                where=model.folder,
                remedy="add another view",
            )

        self._lesions = None
        if lesions:
            self._lesions = load_lesion_network(find_lesions_file(model.folder))

    @property
    def axes(self) -> dict[View, SliceAxes]:
        """Axes of the 1 mm working grid along which the slices of each view are cut."""
        preprocessing = self.model.info.preprocessing
        return {view: preprocessing.slice_axes(view) for view in self.views}

    @property
    def odds(self) -> Tensor:
        """Factor on the probability of each class of the model, (K,), on the device."""
        class_odds = self.model.info.fusion.class_odds
        return odds_by_class(self.model.scheme, class_odds).to(self.device)

    @property
    def parcels_model(self) -> Model | None:
        """Model that divides the cortex into parcels; None if parcels were not requested."""
        return None if self._parcels is None else self._parcels.model

    @property
    def device(self) -> torch.device:
        """Device of the networks; the CPU after a GPU has run out of memory."""
        return self._networks.device

    def with_less_memory(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`, which uses the GPU, even if memory is short.

        If it runs out of memory, it is repeated with smaller batches, and finally on the CPU if
        this is allowed. Raises DeviceError if it is not.
        """
        return self._networks.with_less_memory(work)

    def segment(
        self,
        volume: Volume,
        *,
        mirror: bool = False,
        samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Segment a scan; the result is restored to the scan's own space.

        With `mirror`, predictions are averaged with those for the mirrored scan. `samples` is the
        number of additional predictions, with dropout, from which the uncertainty is computed.
        `seed` makes dropout reproducible.
        """
        conformed = self.prepare(volume)
        return self.infer(conformed, mirror=mirror, samples=samples, seed=seed)

    def prepare(self, volume: Volume) -> Conformed:
        """Resample a scan to voxels of 1 mm and scale it, as `infer` needs it; runs on the CPU."""
        return prepare_scan(volume, self.model.info.preprocessing)

    def infer(
        self,
        conformed: Conformed,
        *,
        mirror: bool = False,
        samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Run networks and fusion on a prepared scan; label maps are computed on first access.

        `conformed` is the result of `prepare`; the options are those of `segment`. If the GPU runs
        out of memory, smaller batches are tried, and then the CPU if that is allowed.
        """
        if samples < 0:
            raise ConfigError(f"{samples} samples", remedy="give 0 or more")
        refuse_forked_gpu(self.device)

        return self.with_less_memory(
            partial(self._infer, conformed, mirror, samples, seed)
        )

    def _infer(
        self,
        conformed: Conformed,
        mirror: bool,
        samples: int,
        seed: int,
    ) -> Prediction:
        """Predict with the current batch size and device; the arguments are those of `infer`."""
        image = self.on_device(conformed)
        sight = self.find_sight(image)
        image = sight.of(image)
        region, fused, maps = self.find_and_fuse(
            image, plan=conformed.plan, mirror=mirror
        )
        plan = conformed.plan.cropped(region.box)
        with stage("prior"):
            remarks = (self.weigh(fused, plan), *sight.remarks)
        parcels = self.find_parcels(image[region.box], fused, mirror=mirror)
        lesions = self.find_lesions(image[region.box], fused, plan)
        uncertainty: Uncertainty | None = None
        if samples:
            with stage("samples"):
                uncertainty = self._sample(image, region, samples, seed, plan)
        return self.conclude(
            conformed,
            region,
            fused,
            maps,
            remarks,
            uncertainty=uncertainty,
            parcels=parcels,
            lesions=lesions,
        )

    def find_lesions(
        self, image: Tensor, probabilities: Tensor, plan: ConformPlan
    ) -> LesionMap | None:
        """Compute the probability of lesion around the brain; None if lesions were not requested.

        `image` (X, Y, Z) is the scan, and `probabilities` (X, Y, Z, K) are those of the structures,
        both cropped to a box around the brain. `plan` maps this box, with voxels of 1 mm, to the
        scan.
        """
        if self._lesions is None:
            return None
        with stage("lesions"):
            return find_lesion_map(
                self._lesions,
                image.cpu().numpy(),
                probabilities.cpu(),
                self.model.scheme,
                max(plan.scan.spacing_mm),
            )

    def find_parcels(
        self, image: Tensor, probabilities: Tensor, *, mirror: bool = False
    ) -> Parcels | None:
        """Predict the parcel of each voxel that may be cortex; None if parcels were not requested.

        `image` (X, Y, Z) is the scan, and `probabilities` (X, Y, Z, K) are those of the structures,
        both cropped to a box around the brain. With `mirror`, predictions are averaged with those
        for the mirrored image.
        """
        parcels = self._parcels
        if parcels is None:
            return None
        parcellation = Parcellation(self.model.scheme, parcels.model.scheme)

        def work() -> Parcels:
            # The networks may have moved to the processor after a GPU ran out of memory.
            cortex = likely_cortex(probabilities, parcellation).to(parcels.device)
            within = may_be_cortex(cortex).cpu()
            parts = parcels.each_view(image, mirror=mirror, within=within)
            return join_views(
                parts,
                cortex,
                parcels.axes,
                parcels.model.fusion_weights(parcels.views),
                parcels.odds,
                parcellation,
            )

        with stage("parcels"):
            return parcels.with_less_memory(work)

    def conclude(
        self,
        conformed: Conformed,
        region: BrainRegion,
        probabilities: Tensor,
        maps: Mapping[View, Tensor],
        remarks: Sequence[str] = (),
        *,
        uncertainty: Uncertainty | None = None,
        parcels: Parcels | None = None,
        lesions: LesionMap | None = None,
    ) -> Prediction:
        """Combine all results for a scan to its prediction.

        Parameters
        ----------
        conformed : Conformed
            The scan on the 1 mm working grid: the whole grid, not only the region.
        region : BrainRegion
            Region of that grid to which all of the following are cropped.
        probabilities : Tensor (X, Y, Z, K)
            Fused class probabilities; voxels outside of the scan are changed in place.
        maps : mapping
            The most probable classes of each view, (X, Y, Z).
        remarks : sequence of str
            Notes on how the results were made; empty ones are dropped.
        uncertainty, parcels, lesions
            Results of optional computations; None for each that was not requested.
        """
        plan = conformed.plan.cropped(region.box)
        _set_background_outside_scan(probabilities, plan)
        notes = (*conformed.volume.notes, *filter(None, remarks))
        agreement = None
        with stage("agreement"):
            if len(maps) > 1:
                merged = self._merged_views()
                agreement = view_agreement(maps, self.model.scheme, merged)

        scheme = self.model.scheme
        not_predicted = self.model.info.not_predicted
        if self._is_merged():
            scheme = scheme.merged.scheme
            missing = self.model.not_predicted_in(View.SAGITTAL)
            not_predicted = tuple(scheme.names[index] for index in missing)
        prediction = Prediction(
            fused=probabilities.cpu(),
            scheme=scheme,
            plan=plan,
            image=Volume(conformed.volume.data[region.box], plan.working.affine),
            notes=notes,
            agreement=agreement,
            uncertainty=uncertainty,
            not_predicted=not_predicted,
            csf=self.model.info.csf,
            parcel_map=parcels,
            lesion_map=lesions,
        )
        return prediction.upright()

    @property
    def enough_views(self) -> tuple[View, ...]:
        """Return the first view whose network tells left from right, or all views if there is none.

        Views whose weight in the fusion is 0 are skipped.
        """
        for view, weight in self.model.fusion_weights(self.views).items():
            if weight > 0 and not self.model.is_merged(view):
                return (view,)
        return self.views

    def find_and_fuse(
        self,
        image: Tensor,
        *,
        plan: ConformPlan | None = None,
        views: tuple[View, ...] | None = None,
        mirror: bool = False,
    ) -> tuple[BrainRegion, Tensor, dict[View, Tensor]]:
        """Segment an image (X, Y, Z): find the region of the brain, and fuse the predictions there.

        If the brain reaches the edge of the region that a few slices showed, the whole image is
        segmented. `plan`, `views` and `mirror` are those of `fuse`. Returns three results: the
        region, the probabilities of the voxels in the region's box (X, Y, Z, K), and the most
        probable classes of each single view there, (X, Y, Z) uint8.
        """
        with stage("localisation"):
            region = self.find_brain(image)
        fused, maps = self.fuse(image, region, plan=plan, views=views, mirror=mirror)
        if region.is_too_small(fused):
            region = BrainRegion.whole(image.shape)
            fused, maps = self.fuse(
                image, region, plan=plan, views=views, mirror=mirror
            )
        return region, fused, maps

    def fuse(
        self,
        image: Tensor,
        region: BrainRegion,
        *,
        plan: ConformPlan | None = None,
        views: tuple[View, ...] | None = None,
        mirror: bool = False,
    ) -> tuple[Tensor, dict[View, Tensor]]:
        """Segment a region of an image with each view, and fuse the views' probabilities.

        Returns the probabilities (X, Y, Z, K), and the most probable classes of each single view,
        (X, Y, Z) uint8. `views` are some of the predictor's views in the same order; the default is
        all. The weights of the views depend on the scan of the `plan`; without it they are those
        for sharp scans. With `mirror`, predictions are averaged with those for the mirrored image.
        """
        views = views or self.views
        info = self.model.info.fusion
        weights = self.model.fusion_weights(views)
        if plan is not None:
            weights = weights_for_voxels(
                weights, self.axes, plan.voxel_sides_mm, info.blur_exponent
            )
        fusion, maps = self._add_views(
            image[region.box], views, region.mask, mirror, weights
        )
        with stage("fusion"):
            fused = fusion.finish()
            multiply_csf_odds(fused, fusion.scheme, info.csf_odds)
            # A NaN in one class of a voxel is a NaN in all, so that checking one class is enough.
            if fused[..., 0].isnan().any():
                raise ModelError(
                    "its networks give values that are not numbers",
                    where=self.model.folder,
                    remedy="its weights are wrong; copy, download or train the model again",
                )
        return fused, maps

    def _add_views(
        self,
        image: Tensor,
        views: tuple[View, ...],
        within: Tensor | None,
        mirror: bool,
        weights: Mapping[View, float],
    ) -> tuple[ViewAggregator, dict[View, Tensor]]:
        """Run the networks of all views, and start the fusion, without waiting for the GPU.

        `image` is cropped to the region already, and `within` is the mask of the region. Returns an
        aggregator, which `fuse` must finish, and the most probable classes of each view, (X, Y, Z)
        uint8.
        """
        shape = to_shape(image.shape)
        axes = self.axes
        fusion = ViewAggregator(
            shape,
            self.model.scheme,
            views,
            weights,
            self.device,
            axes=axes,
            sagittal_is_merged=View.SAGITTAL in self._merged_views(),
            mean=self.model.info.fusion.mean,
        )
        maps = {}
        for view in views:
            maps[view] = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        parts = self.each_view(image, views=views, mirror=mirror, within=within)
        for view, part in parts:
            with stage("fusion"):
                fusion.add(
                    view, part.slices.start, part.probabilities, part.rows, part.columns
                )
                labels = to_slices(maps[view], axes[view])
                # `max` finds the index in two thirds of the time of `argmax`.
                most_probable = part.probabilities.max(-1).indices
                labels[part.slices, part.rows, part.columns] = most_probable
        return fusion, maps

    def each_view(
        self,
        image: Tensor,
        *,
        views: tuple[View, ...] | None = None,
        mirror: bool = False,
        within: Tensor | None = None,
    ) -> Iterator[tuple[View, SliceProbabilities]]:
        """Yield each view with its class probabilities, batch by batch; the sagittal view is last.

        `image` is (X, Y, Z). `views` are the views to compute, by default all. With `mirror`,
        predictions are averaged with those for the mirrored image. A view has K classes, or fewer
        if its network does not tell left from right and has one class for both sides. Only the rows
        and columns around the mask `within` (X, Y, Z) are computed; all other voxels count as
        background.
        """
        if mirror and self.model.scheme.has_unpartnered_sides:
            raise ConfigError(
                f"{self.model.scheme.name} has structures on one side only, so scans cannot be "
                "mirrored",
                where=self.model.folder,
                remedy="leave --mirror out",
            )
        left_right, _, _ = source_axes(self.model.info.preprocessing.axes, "RAS")
        side_axis, _ = left_right
        for view in views or self.views:
            mirroring = None
            if mirror:
                partners = self.model.classes_of(view).partner_permutation.copy()
                mirroring = (side_axis, torch.from_numpy(partners).to(self.device))
            with stage(view.value):
                parts = self._networks.of_view[view].probabilities(
                    image,
                    self.axes[view],
                    mirror=mirroring,
                    within=within,
                )
                for part in parts:
                    yield view, part

    def batches(
        self, image: Tensor, region: BrainRegion
    ) -> Iterator[tuple[View, Tensor]]:
        """Yield the input of the networks: each view with each batch (N, C, H, W) of its slices.

        The slices are those of a region of an image (X, Y, Z).
        """
        for view, network in self._networks.of_view.items():
            parts = network.batches(
                image[region.box], self.axes[view], within=region.mask
            )
            for *_, batch in parts:
                if batch.numel():
                    yield view, batch

    def on_device(self, conformed: Conformed) -> Tensor:
        """Return a resampled scan, (X, Y, Z), on the networks' device, otherwise unchanged."""
        return torch.from_numpy(conformed.volume.data).to(self.device)

    def image_of(self, conformed: Conformed) -> Tensor:
        """Return a resampled scan as the networks receive it, (X, Y, Z) on their device.

        Its contrast is reversed and the skull is removed from it if the model needs that.
        """
        image = self.on_device(conformed)
        return self.find_sight(image).of(image)

    def find_sight(self, image: Tensor) -> Sight:
        """Determine how to change an image (X, Y, Z) for the networks: reverse it, strip the skull.

        The result has the brightness of white matter, by which the contrast is reversed, and the
        mask of the voxels inside the skull; each is None if the model or the image does not need
        it.
        """
        return Sight(self.find_reversed_white_matter(image), self.find_kept(image))

    def find_kept(self, image: Tensor) -> Tensor | None:
        """Return the mask of the voxels to keep when skull and face are removed, bool (X, Y, Z).

        None if nothing is removed from the image (X, Y, Z): only models with `stripped_by` need
        that, and only for scans of whole heads.
        """
        stripper = self._stripper
        if stripper is None:
            return None

        def work() -> Tensor | None:
            on_device = image.to(stripper.device)
            region = stripper.find_brain(on_device)
            if not is_whole_head(on_device, region):
                return None
            inside = stripper._find_foreground(on_device, region, LOOK_EVERY, INSIDE)
            if region.is_too_small(inside[region.box]):
                everywhere = BrainRegion.whole(image.shape)
                inside = stripper._find_foreground(
                    on_device, everywhere, LOOK_EVERY, INSIDE
                )
            along = stripper.axes[stripper.views[0]].along
            return torch.from_numpy(mask_around(inside.cpu().numpy(), along))

        with stage("stripping"):
            kept = stripper.with_less_memory(work)
            return None if kept is None else kept.to(image.device)

    def find_reversed_white_matter(self, image: Tensor) -> float | None:
        """Return the brightness of white matter if an image (X, Y, Z) must be reversed, else None.

        Only models with `reverse_contrast` reverse scans. A few slices are segmented to decide it.
        """
        if not self.model.info.reverse_contrast:
            return None
        view = self.views[0]
        axes = self.axes[view]
        slices = to_slices(image, axes)
        parts = self._networks.of_view[view].probabilities(
            image, axes, every=_EVERY_FOR_ORDER
        )
        seen = (
            (slices[part.slices, part.rows, part.columns], part.probabilities)
            for part in parts
        )
        with stage("contrast"):
            return find_reversed_white_matter(seen, self.model.classes_of(view))

    def find_brain(self, image: Tensor) -> BrainRegion:
        """Find a region that contains the brain, by segmenting every eighth slice of a single view.

        `image` (X, Y, Z) has voxels of 1 mm; the slices are those of the model's first view, such
        as coronal. The region is a box with a mask of the voxels that may be brain. It is the whole
        image if no brain is found, and for networks whose intensity scaling depends on the whole
        image.
        """
        everywhere = BrainRegion.whole(image.shape)
        if self.model.info.preprocessing.scaling == "minimum-maximum":
            return everywhere
        seen = self._find_foreground(image, everywhere, _EVERY, _BACKGROUND)
        along = self.axes[self.views[0]].along
        looked = range(_EVERY // 2, image.shape[along], _EVERY)
        return brain_region(seen.cpu().numpy(), looked, along)

    def _find_foreground(
        self, image: Tensor, region: BrainRegion, every: int, background: float
    ) -> Tensor:
        """Return a mask (X, Y, Z) of the voxels that have a lower probability of background.

        Only every n-th slice of the first view is segmented, within a region; the mask is empty in
        all other slices.
        """
        view = self.views[0]
        axes = self.axes[view]
        mask = torch.zeros(image.shape, dtype=torch.bool, device=self.device)
        slices = to_slices(mask[region.box], axes)
        parts = self._networks.of_view[view].probabilities(
            image[region.box], axes, every=every, within=region.mask
        )
        for part in parts:
            is_foreground = part.probabilities[..., 0] < background
            slices[part.slices, part.rows, part.columns] = is_foreground
        return mask

    def weigh(self, probabilities: Tensor, plan: ConformPlan) -> str:
        """Apply the anatomical prior and the model's factors on structures to probabilities.

        `probabilities` (X, Y, Z, K) are on the 1 mm working grid of `plan`, and are changed in
        place. The prior changes only voxels in which the networks are uncertain. Returns the reason
        why the prior was not applied, or "".
        """
        problem = ""
        prior = self.model.info.prior
        template = self.model.template
        # There is no template for classes without sides.
        if prior is not None and template is not None and not self._is_merged():
            affine = plan.working.affine
            scheme = self.model.scheme
            problem = apply_prior(probabilities, template, prior, scheme, affine)
        self.multiply_odds(probabilities)
        return problem

    def multiply_odds(self, probabilities: Tensor) -> None:
        """Multiply the probability of each structure by the model's factor for it, in place.

        `probabilities` are (X, Y, Z, K), or (N, K) of single voxels; their sums stay 1. Nothing
        changes if the classes do not tell left from right, because the factors are for structures
        with sides.
        """
        # The odds are for structures with sides; merged classes have none.
        if not self._is_merged():
            odds = self.model.info.fusion.class_odds
            multiply_odds(probabilities, self.model.scheme, odds)

    def _sample(
        self,
        image: Tensor,
        region: BrainRegion,
        count: int,
        seed: int,
        plan: ConformPlan,
    ) -> Uncertainty:
        """Predict a region of an image `count` times and return the variation of the predictions.

        Each prediction is made with dropout; `seed` makes it reproducible.
        """
        samples = Samples()
        # Dropout uses torch's global generator, so set it here and restore it afterwards.
        devices = [self.device] if self.device.type == GPU else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            try:
                self._networks.set_dropout(True)
                for _ in range(count):
                    fused, _maps = self.fuse(image, region, plan=plan)
                    self.weigh(fused, plan)
                    samples.add(fused)
            finally:
                self._networks.set_dropout(False)
        return samples.summarise()

    def _is_merged(self) -> bool:
        """Return True if no view tells left from right, so that classes have no sides."""
        return self.views == (View.SAGITTAL,) and bool(self._merged_views())

    def _merged_views(self) -> tuple[View, ...]:
        """Return the views whose networks do not tell left from right: one class for both sides."""
        return tuple(view for view in self.views if self.model.is_merged(view))


def _set_background_outside_scan(probabilities: Tensor, plan: ConformPlan) -> None:
    """Set voxels of the 1 mm working grid that lie outside of the scan to background, in place.

    Label maps of the scan cannot show labels there, so pictures and grades must not use such labels
    either.
    """
    beyond = plan.working.beyond(plan.scan)
    if not beyond.any():
        return
    outside = torch.from_numpy(beyond).to(probabilities.device)
    probabilities[outside] = 0
    background = probabilities[..., 0]
    background[outside] = 1
