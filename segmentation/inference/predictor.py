"""A model that is loaded once, and the segmentation of scans with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from trinat.segmentation.errors import ModelError
from trinat.segmentation.grid import to_shape
from trinat.segmentation.inference.fusion import (
    ViewAggregator,
    multiply_csf_odds,
    multiply_odds,
    odds_by_class,
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
    Reversal,
    Seen,
    Sight,
    find_reversal,
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
# Every sixteenth slice is enough to see the order of tissues.
_EVERY_FOR_ORDER = 16
# A voxel with a lower probability of background may be brain.
_BACKGROUND = 0.95


class Predictor:
    """A model on a device: a loaded one, a shipped one by name ("fast"), or a model folder.

    Can be used for many scans, one after another. `views` are those to run, all by default; `batch`
    is the number of slices in a batch. With `allow_cpu` the processor takes over if a GPU is out of
    memory even for single slices. With `parcels` the model's networks for parcels divide the
    cortex, and with `lesions` its network for lesions of white matter finds these.
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
        self._stripper: Predictor | None = None
        if model.info.stripped_by:
            # One view is enough to find the inside of the skull.
            self._stripper = Predictor(
                find_stripper(model.info.stripped_by, model.folder),
                device=device,
                precision=precision,
                views=[View.CORONAL],
                batch=batch,
                allow_cpu=allow_cpu,
            )
        self._parcels: Predictor | None = None
        if parcels:
            self._parcels = Predictor(
                load_model(find_parcels_folder(model.folder), wanted_views),
                device=device,
                precision=precision,
                batch=batch,
                allow_cpu=allow_cpu,
            )
            if self._is_merged():
                raise ModelError(
                    "the sagittal view alone does not tell left from right, as parcels need",
                    where=model.folder,
                    remedy="add another view",
                )

        self._lesions = None
        if lesions:
            self._lesions = load_lesion_network(find_lesions_file(model.folder))

    @property
    def axes(self) -> dict[View, SliceAxes]:
        """Axes of the working grid along which the slices of each view are cut."""
        preprocessing = self.model.info.preprocessing
        return {view: preprocessing.slice_axes(view) for view in self.views}

    @property
    def odds(self) -> Tensor:
        """Factor on the probability of each class, (K,), on the device."""
        class_odds = self.model.info.fusion.class_odds
        return odds_by_class(self.model.scheme, class_odds).to(self.device)

    @property
    def parcels_model(self) -> Model | None:
        """The model that divides the cortex into parcels; None if no parcels are wanted."""
        return None if self._parcels is None else self._parcels.model

    @property
    def device(self) -> torch.device:
        """The device of the networks; the processor once a GPU has run out of memory."""
        return self._networks.device

    def with_less_memory(self, work: Callable[[], _T]) -> _T:
        """Run GPU work; if out of memory, retry in smaller batches, finally on the processor."""
        return self._networks.with_less_memory(work)

    def segment(
        self,
        volume: Volume,
        *,
        mirror: bool = False,
        samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Segment a scan: labels in its own space, and their uncertainty.

        `mirror` averages with the mirrored scan; `samples` predictions use dropout, or the members
        of an ensemble in turn.
        """
        conformed = self.prepare(volume)
        return self.infer(conformed, mirror=mirror, samples=samples, seed=seed)

    def prepare(self, volume: Volume) -> Conformed:
        """Prepare a scan on the processor, before the networks run."""
        return prepare_scan(volume, self.model.info.preprocessing)

    def infer(
        self,
        conformed: Conformed,
        *,
        mirror: bool = False,
        samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Run networks and fusion on a prepared scan; labels are restored on first access.

        - `mirror` averages with the mirrored scan.
        - `samples` is the number of dropout samples, 0 for none; `seed` decides them.

        If the GPU runs out of memory, smaller batches are tried, and then the processor if that is
        allowed.
        """
        refuse_forked_gpu(self.device)

        def work() -> Prediction:
            return self._infer(conformed, mirror, samples, seed)

        return self.with_less_memory(work)

    def _infer(
        self,
        conformed: Conformed,
        mirror: bool,
        samples: int,
        seed: int,
    ) -> Prediction:
        """Run `infer` with the current batch size and device."""
        image = self.on_device(conformed)
        sight = self.find_sight(image)
        image = sight.of(image)
        region, fusion, maps = self.find_and_fuse(image, mirror=mirror)
        plan = conformed.plan.cropped(region.box)
        with stage("prior"):
            remarks = (self.weigh(fusion.fused, plan), *sight.remarks)
        parcels = self.find_parcels(image[region.box], fusion.fused, mirror=mirror)
        lesions = self.find_lesions(image[region.box], fusion.fused, plan)
        uncertainty: Uncertainty | None = None
        if samples:
            with stage("samples"):
                uncertainty = self._sample(image, region, samples, seed, plan)
        return self.conclude(
            conformed,
            region,
            fusion.fused,
            maps,
            remarks,
            uncertainty=uncertainty,
            parcels=parcels,
            lesions=lesions,
        )

    def find_lesions(
        self, image: Tensor, probabilities: Tensor, plan: ConformPlan
    ) -> LesionMap | None:
        """Find lesions of white matter in a region of an image; None if they are not wanted.

        `image` (X, Y, Z) and `probabilities` (X, Y, Z, K), of structures, are those of the region,
        and `plan` is the way from it to the scan.
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
        """Find the parcels of likely cortex in a region of an image; None if they are not wanted.

        `image` (X, Y, Z) and `probabilities` (X, Y, Z, K), of structures, are those of the region.
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
        """Combine the results of the views to the prediction of a scan.

        `probabilities` (X, Y, Z, K) and `maps`, each view's own classes, are those of the region,
        as are `parcels` and `lesions`. `remarks` are notes on how they were made; empty ones are
        dropped.
        """
        plan = conformed.plan.cropped(region.box)
        _forget_beyond_the_scan(probabilities, plan)
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
        return Prediction(
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

    @property
    def enough_views(self) -> tuple[View, ...]:
        """Return the first view that tells left from right, or all views if none does.

        Views without a weight are passed over.
        """
        for view, weight in self.model.fusion_weights(self.views).items():
            if weight > 0 and not self.model.is_merged(view):
                return (view,)
        return self.views

    def find_and_fuse(
        self,
        image: Tensor,
        *,
        views: tuple[View, ...] | None = None,
        mirror: bool = False,
    ) -> tuple[BrainRegion, ViewAggregator, dict[View, Tensor]]:
        """Find the region of the brain in an image (X, Y, Z), and run `fuse` on it.

        The region is the whole image if the brain extends beyond the region that a few slices show.
        """
        with stage("localisation"):
            region = self.find_brain(image)
        fusion, maps = self.fuse(image, region, views=views, mirror=mirror)
        if region.is_too_small(fusion.fused):
            region = BrainRegion.whole(image.shape)
            fusion, maps = self.fuse(image, region, views=views, mirror=mirror)
        return region, fusion, maps

    def fuse(
        self,
        image: Tensor,
        region: BrainRegion,
        *,
        views: tuple[View, ...] | None = None,
        mirror: bool = False,
    ) -> tuple[ViewAggregator, dict[View, Tensor]]:
        """Fuse the views of an image's region, and return each view's own most probable classes.

        `views` are all of the predictor's, or some of them in the same order.
        """
        fusion, maps = self._add_views(
            image[region.box], views or self.views, region.mask, mirror
        )
        with stage("fusion"):
            fusion.finish()
            csf_odds = self.model.info.fusion.csf_odds
            multiply_csf_odds(fusion.fused, fusion.scheme, csf_odds)
            # A NaN in one class of a voxel is a NaN in all, so that checking one class is enough.
            if fusion.fused[..., 0].isnan().any():
                raise ModelError(
                    "its networks give values that are not numbers",
                    where=self.model.folder,
                    remedy="its weights are wrong; copy, download or train the model again",
                )
        return fusion, maps

    def _add_views(
        self,
        image: Tensor,
        views: tuple[View, ...],
        within: Tensor | None,
        mirror: bool,
    ) -> tuple[ViewAggregator, dict[View, Tensor]]:
        """Queue the GPU work of `fuse`, without waiting for it."""
        shape = to_shape(image.shape)
        info = self.model.info
        axes = self.axes
        fusion = ViewAggregator(
            shape,
            self.model.scheme,
            views,
            self.model.fusion_weights(views),
            self.device,
            axes=axes,
            sagittal_is_merged=View.SAGITTAL in self._merged_views(),
            mean=info.fusion.mean,
        )
        maps = {}
        for view in views:
            maps[view] = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        parts = self.each_view(image, views=views, mirror=mirror, within=within)
        for view, part in parts:
            with stage("fusion"):
                fusion.add(
                    view, part.first, part.probabilities, part.rows, part.columns
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
        """Yield probabilities of an image (X, Y, Z), of K or merged K classes, view after view.

        The sagittal view comes last; `views` are as for `fuse`. Only voxels in `within` (X, Y, Z)
        are computed, all others are background.
        """
        preprocessing = self.model.info.preprocessing
        left_right, _, _ = source_axes(preprocessing.axes, "RAS")
        side_axis, _ = left_right
        for view in views or self.views:
            mirroring = None
            if mirror:
                partners = self.model.classes_of(view).partner_permutation.copy()
                mirroring = (side_axis, torch.from_numpy(partners).to(self.device))
            with stage(view.value):
                parts = self._networks.of_view[view].probabilities(
                    image,
                    preprocessing.slice_axes(view),
                    mirror=mirroring,
                    within=within,
                )
                for part in parts:
                    yield view, part

    def batches(
        self, image: Tensor, region: BrainRegion
    ) -> Iterator[tuple[View, Tensor]]:
        """Yield the batches (N, C, H, W) of an image's region that each view's network sees."""
        for view, network in self._networks.of_view.items():
            parts = network.batches(
                image[region.box], self.axes[view], within=region.mask
            )
            for *_, batch in parts:
                if batch.numel():
                    yield view, batch

    def on_device(self, conformed: Conformed) -> Tensor:
        """Return a scan unchanged, (X, Y, Z) on the device of the networks."""
        return torch.from_numpy(conformed.volume.data).to(self.device)

    def image_of(self, conformed: Conformed) -> Tensor:
        """Return a scan as the networks see it, (X, Y, Z) on their device."""
        image = self.on_device(conformed)
        return self.find_sight(image).of(image)

    def find_sight(self, image: Tensor) -> Sight:
        """Determine how networks see an image (X, Y, Z): reversed or stripped."""
        return Sight(self.find_reversal(image), self.find_kept(image))

    def find_kept(self, image: Tensor) -> Tensor | None:
        """Return the part of an image (X, Y, Z) that networks see, bool; None for all of it.

        Only models with `stripped_by` strip whole heads.
        """
        stripper = self._stripper
        if stripper is None:
            return None

        def work() -> Tensor | None:
            on_device = image.to(stripper.device)
            region = stripper.find_brain(on_device)
            if not is_whole_head(on_device, region):
                return None
            inside = stripper.find_inside(on_device, region)
            if region.is_too_small_for(inside[region.box]):
                everywhere = BrainRegion.whole(image.shape)
                inside = stripper.find_inside(on_device, everywhere)
            along = stripper.axes[stripper.views[0]].along
            return torch.from_numpy(mask_around(inside.cpu().numpy(), along))

        with stage("stripping"):
            kept = stripper.with_less_memory(work)
            return None if kept is None else kept.to(image.device)

    def find_inside(self, image: Tensor, region: BrainRegion) -> Tensor:
        """Find the inside of the skull in every second slice of a region, bool (X, Y, Z).

        One view segments them; the other slices are empty.
        """
        view = self.views[0]
        axes = self.axes[view]
        inside = torch.zeros(image.shape, dtype=torch.bool, device=self.device)
        slices = to_slices(inside[region.box], axes)
        parts = self._networks.of_view[view].probabilities(
            image[region.box], axes, every=LOOK_EVERY, within=region.mask
        )
        for part in parts:
            is_inside = part.probabilities[..., 0] < INSIDE
            slices[part.slices, part.rows, part.columns] = is_inside
        return inside

    def find_reversal(self, image: Tensor) -> Reversal | None:
        """Return how an image (X, Y, Z) is reversed before networks see it; None if it is not.

        Only models with `reverse_contrast` do this. A few slices are segmented.
        """
        if not self.model.info.reverse_contrast:
            return None
        view = self.views[0]
        axes = self.model.info.preprocessing.slice_axes(view)
        all_slices = to_slices(image, axes)
        network = self._networks.of_view[view]

        def seen() -> Iterator[Seen]:
            for part in network.probabilities(image, axes, every=_EVERY_FOR_ORDER):
                brightness = all_slices[part.slices, part.rows, part.columns]
                yield Seen(brightness, part.probabilities)

        with stage("contrast"):
            return find_reversal(seen(), self.model.classes_of(view))

    def find_brain(self, image: Tensor) -> BrainRegion:
        """Localise the brain in a few slices of an image; the whole image if there is none in them.

        `image` (X, Y, Z) is on the working grid. One view segments every n-th slice. Networks whose
        intensities depend on the whole image are run on all of it.
        """
        preprocessing = self.model.info.preprocessing
        if preprocessing.scaling == "minimum-maximum":
            return BrainRegion.whole(image.shape)
        view = self.views[0]
        axes = preprocessing.slice_axes(view)
        shape = to_shape(image.shape)
        seen = torch.zeros(shape, dtype=torch.bool, device=self.device)
        slices = to_slices(seen, axes)
        looked: list[int] = []
        network = self._networks.of_view[view]
        for part in network.probabilities(image, axes, every=_EVERY):
            background = part.probabilities[..., 0]
            slices[part.slices] = background < _BACKGROUND
            looked.extend(range(*part.slices.indices(len(slices))))
        return brain_region(seen.cpu().numpy(), looked, axes.along)

    def weigh(self, probabilities: Tensor, plan: ConformPlan) -> str:
        """Apply the anatomical prior and the odds of structures where networks are uncertain.

        Returns why the prior was not applied. `probabilities` (X, Y, Z, K) on the working grid of
        `plan` change in place.
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
        """Multiply probabilities by the odds of structures, in place.

        `probabilities` are (X, Y, Z, K), or (N, K) of single voxels.
        """
        # The odds name sided structures, which merged classes are not.
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
        """Segment `count` times, with dropout or one ensemble member each, and keep all maps."""
        samples: Samples | None = None
        # Dropout uses torch's global generator, so set it here and restore it afterwards.
        devices = [self.device] if self.device.type == GPU else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            try:
                for sample in range(count):
                    self._networks.vary(sample)
                    fusion, _maps = self.fuse(image, region)
                    self.weigh(fusion.fused, plan)
                    if samples is None:
                        samples = Samples(fusion.scheme)
                    samples.add(fusion.fused)
            finally:
                self._networks.vary(None)
        assert samples is not None
        return samples.summarise()

    def _is_merged(self) -> bool:
        """Return True if no view distinguishes sides, so that classes are merged."""
        return self.views == (View.SAGITTAL,) and bool(self._merged_views())

    def _merged_views(self) -> tuple[View, ...]:
        """Return the views with merged classes, whose networks do not distinguish sides."""
        return tuple(view for view in self.views if self.model.is_merged(view))


def _forget_beyond_the_scan(probabilities: Tensor, plan: ConformPlan) -> None:
    """Set voxels of the working grid outside of the scan to background, in place.

    Labels there are in no label map, so they must not be in pictures and grades either.
    """
    beyond = plan.working.beyond(plan.scan)
    if not beyond.any():
        return
    outside = torch.from_numpy(beyond).to(probabilities.device)
    probabilities[outside] = 0
    background = probabilities[..., 0]
    background[outside] = 1
