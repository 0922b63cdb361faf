"""A model loaded once, and scans segmented with it."""

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
from trinat.segmentation.inference.localisation import (
    INSIDE,
    LOOK_EVERY,
    BrainRegion,
    brain_region,
    is_whole_head,
    kept_around,
)
from trinat.segmentation.inference.network import (
    ComputePrecision,
    DeviceNetworks,
    SliceProbabilities,
)
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
from trinat.segmentation.inference.uncertainty import (
    Samples,
    Uncertainty,
    view_agreement,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.hardware import GPU, choose_device, refuse_forked_gpu
from trinat.segmentation.models.zoo import find_parcels_folder, find_stripper
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

# The brain is looked for in every eighth coronal slice.
_EVERY = 8
# The order of tissues shows in every sixteenth.
_EVERY_FOR_ORDER = 16
# A voxel that is less likely to be background than this may be brain.
_BACKGROUND = 0.95


class Predictor:
    """A model on a device: a loaded one, a shipped one by name ("fast"), or a model's folder.

    Safe to use for many scans, one after another. `views` are those to run, all by default;
    `batch` slices are computed at a time. With `allow_cpu` the processor takes over when a GPU is
    out of memory even for single slices. With `parcels` the model's networks for parcels divide the
    cortex.
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
    ) -> None:
        wanted_views = chosen_views(views)
        if not isinstance(model, Model):
            model = load_model(model, wanted_views)
        self.model = model
        chosen_device = choose_device(device)
        available = wanted_views or tuple(model.networks)
        # The sagittal view comes last: it is divided in the ratio of the others.
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
            # One view is enough for what is inside the skull.
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

    @property
    def axes(self) -> dict[View, SliceAxes]:
        """Along which axes of the working grid the slices of each view are cut."""
        preprocessing = self.model.info.preprocessing
        return {view: preprocessing.slice_axes(view) for view in self.views}

    @property
    def weights(self) -> dict[View, Tensor]:
        """How much each view counts for each class, (K,), on the device."""
        by_view = torch.from_numpy(self.model.fusion_weights(self.views))
        return dict(zip(self.views, by_view.to(self.device), strict=True))

    @property
    def odds(self) -> Tensor:
        """The factor of each class's probability, (K,), on the device."""
        class_odds = self.model.info.fusion.class_odds
        return odds_by_class(self.model.scheme, class_odds).to(self.device)

    @property
    def parcels_model(self) -> Model | None:
        """The model whose networks divide the cortex; None where no parcels are asked for."""
        return None if self._parcels is None else self._parcels.model

    @property
    def device(self) -> torch.device:
        """Where the networks are; the processor once a GPU has had too little memory for them."""
        return self._networks.device

    def with_less_memory(self, work: Callable[[], _T]) -> _T:
        """Do GPU work; out of memory, in smaller batches, and at last on the processor."""
        return self._networks.with_less_memory(work)

    def segment(
        self,
        volume: Volume,
        *,
        mirror: bool = False,
        samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """Labels of a scan in its own space, and what there is to doubt about them.

        `mirror` averages with the mirrored scan; `samples` predictions use dropout, or
        an ensemble's members in turn.
        """
        conformed = self.prepare(volume)
        return self.infer(conformed, mirror=mirror, samples=samples, seed=seed)

    def prepare(self, volume: Volume) -> Conformed:
        """The part before the networks, on the processor also for a GPU."""
        return prepare_scan(volume, self.model.info.preprocessing)

    def infer(
        self,
        conformed: Conformed,
        *,
        mirror: bool = False,
        samples: int = 0,
        seed: int = 0,
    ) -> Prediction:
        """The networks and their fusion; labels are restored when they are first asked for.

        - `mirror` averages with the mirrored scan.
        - `samples` is the number of dropout samples, 0 for none; `seed` decides them.

        If the GPU has too little memory it is tried with less, and on the processor if that is
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
        """`infer` with the batches and the device that are set now."""
        image = self.on_device(conformed)
        sight = self.find_sight(image)
        image = sight.of(image)
        region, fusion, maps = self.find_and_fuse(image, mirror=mirror)
        plan = conformed.plan.cropped(region.box)
        with stage("prior"):
            remarks = (self.weigh(fusion.fused, plan), *sight.remarks)
        parcels = self.find_parcels(image[region.box], fusion.fused, mirror=mirror)
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
        )

    def find_parcels(
        self, image: Tensor, probabilities: Tensor, *, mirror: bool = False
    ) -> Parcels | None:
        """The parcels of what may be cortex in a region of an image; None if they are not wanted.

        `image` (X, Y, Z) and `probabilities` (X, Y, Z, K), of structures, are those of the region.
        """
        parcels = self._parcels
        if parcels is None:
            return None
        parcellation = Parcellation(self.model.scheme, parcels.model.scheme)

        def work() -> Parcels:
            # After a GPU was out of memory the networks may be on the processor.
            cortex = likely_cortex(probabilities, parcellation).to(parcels.device)
            within = may_be_cortex(cortex).cpu()
            parts = parcels.each_view(image, mirror=mirror, within=within)
            return join_views(
                parts,
                cortex,
                parcels.axes,
                parcels.weights,
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
    ) -> Prediction:
        """The prediction of a scan from what its views have come to.

        `probabilities` (X, Y, Z, K) and `maps`, each view's own classes, are those of the region.
        `remarks` are notes on how they came about; empty ones are none. `parcels` are those of the
        region, too.
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
        )

    @property
    def enough_views(self) -> tuple[View, ...]:
        """The first view that knows all classes with their sides; all views where none does."""
        weights = self.model.fusion_weights(self.views)
        for view, of_view in zip(self.views, weights, strict=True):
            if of_view.all() and not self.model.is_merged(view):
                return (view,)
        return self.views

    def find_and_fuse(
        self,
        image: Tensor,
        *,
        views: tuple[View, ...] | None = None,
        mirror: bool = False,
    ) -> tuple[BrainRegion, ViewAggregator, dict[View, Tensor]]:
        """The region of the brain in an image (X, Y, Z), and what `fuse` gives for it.

        All of the image where the brain goes on beyond the region that a few slices show.
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
        """Views of an image's region, fused, and each view's own most probable classes.

        `views` are all of the predictor's, or some of them in the same order.
        """
        fusion, maps = self._add_views(
            image[region.box], views or self.views, region.mask, mirror
        )
        with stage("fusion"):
            fusion.finish()
            csf_odds = self.model.info.fusion.csf_odds
            multiply_csf_odds(fusion.fused, fusion.scheme, csf_odds)
            # What is no number in one class of a voxel is none in all. A look at one is cheap.
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
        """The part of `fuse` that only gives a GPU its work, and never waits for it."""
        shape = to_shape(image.shape)
        info = self.model.info
        axes = self.axes
        # The model's own weights, from its model.yaml.
        weights = self.model.fusion_weights(views)
        fusion = ViewAggregator(
            shape,
            self.model.scheme,
            views,
            dict(zip(views, weights, strict=True)),
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
                # `max` finds the place in two thirds of the time that `argmax` takes.
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
        """Probabilities of an image (X, Y, Z), of K or merged K classes, view after view.

        The sagittal view comes last; `views` are as for `fuse`. Only what is set in `within`
        (X, Y, Z) is looked at, all else is background.
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

    def on_device(self, conformed: Conformed) -> Tensor:
        """A scan as it is, (X, Y, Z) where the networks are."""
        return torch.from_numpy(conformed.volume.data).to(self.device)

    def image_of(self, conformed: Conformed) -> Tensor:
        """A scan as networks are to see it, (X, Y, Z) on their device."""
        image = self.on_device(conformed)
        return self.find_sight(image).of(image)

    def find_sight(self, image: Tensor) -> Sight:
        """How networks are to see an image (X, Y, Z)."""
        return Sight(self.find_reversal(image), self.find_kept(image))

    def find_kept(self, image: Tensor) -> Tensor | None:
        """The part of an image (X, Y, Z) that networks see, bool; None for all of it.

        Only models with `stripped_by` strip a whole head so.
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
            return torch.from_numpy(kept_around(inside.cpu().numpy(), along))

        with stage("stripping"):
            kept = stripper.with_less_memory(work)
            return None if kept is None else kept.to(image.device)

    def find_inside(self, image: Tensor, region: BrainRegion) -> Tensor:
        """What is inside the skull in every second slice of a region, bool (X, Y, Z).

        One view looks at them; the other slices are empty.
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
        """How an image (X, Y, Z) is reversed before networks see it; None if it is not.

        Only models with `reverse_contrast` do so. A few slices are looked at.
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
        """Where brain may be, from a few slices of an image; everywhere where none is seen.

        `image` (X, Y, Z) is on the working grid. One view looks at every n-th slice. Networks whose
        intensities depend on the whole image look everywhere.
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
        """Let anatomy and the odds of structures decide where networks are in doubt.

        Returns why anatomy was not asked. `probabilities` (X, Y, Z, K) on the working grid of
        `plan` change in place.
        """
        problem = ""
        prior = self.model.info.prior
        template = self.model.template
        # Classes without sides have no template.
        if prior is not None and template is not None and not self._is_merged():
            affine = plan.working.affine
            scheme = self.model.scheme
            problem = apply_prior(probabilities, template, prior, scheme, affine)
        self.multiply_odds(probabilities)
        return problem

    def multiply_odds(self, probabilities: Tensor) -> None:
        """The part of `weigh` that needs no place: odds of structures alone, in place.

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
        """Segment `count` times, with dropout or each by one member; one map a sample is kept."""
        samples: Samples | None = None
        # Dropout draws from torch's own generator: it is set, and given back as it was.
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
        """Whether the views that run tell no sides at all: probabilities are of merged classes."""
        return self.views == (View.SAGITTAL,) and bool(self._merged_views())

    def _merged_views(self) -> tuple[View, ...]:
        """The views whose classes are merged: their networks do not tell left from right."""
        return tuple(view for view in self.views if self.model.is_merged(view))


def _forget_beyond_the_scan(probabilities: Tensor, plan: ConformPlan) -> None:
    """Where the working grid goes on beyond the scan all is background, in place.

    Labels there are in no label map, so they must not be in pictures and grades either.
    """
    beyond = plan.working.beyond(plan.scan)
    if not beyond.any():
        return
    outside = torch.from_numpy(beyond).to(probabilities.device)
    probabilities[outside] = 0
    background = probabilities[..., 0]
    background[outside] = 1
