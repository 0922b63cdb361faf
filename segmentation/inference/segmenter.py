"""A model loaded once, and scans segmented with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from trinat.segmentation.errors import DeviceError, ModelError
from trinat.segmentation.grid import to_shape
from trinat.segmentation.inference.fusion import Fusion
from trinat.segmentation.inference.network import (
    Part,
    Precision,
    Room,
    ViewNetwork,
    choose_precision,
    room_around,
)
from trinat.segmentation.inference.prior import apply_prior
from trinat.segmentation.inference.segmentation import Segmentation
from trinat.segmentation.inference.uncertainty import (
    Samples,
    Uncertainty,
    view_agreement,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.hardware import (
    GPU,
    choose_device,
    free_gpu_memory,
    refuse_forked_gpu,
)
from trinat.segmentation.space.conform import Conformed, ConformPlan, conform
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image
from trinat.segmentation.space.views import (
    View,
    chosen_views,
    reoriented,
    source_axes,
    to_slices,
)
from trinat.segmentation.timing import stage

_T = TypeVar("_T")

# The brain is looked for in every eighth coronal slice.
_EVERY = 8
# Less sure to be background than so, a voxel of the first look may be brain.
_BACKGROUND = 0.95


class Segmenter:
    """A model on a device: a loaded one, a shipped one by name ("fast"), or a model's folder.

    Safe to use for many scans, one after another.
    """

    def __init__(
        self,
        model: Model | str | Path,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        views: Iterable[View | str] | str | None = None,
        batch: int | None = None,
        allow_cpu: bool = False,
    ) -> None:
        views = chosen_views(views)
        if not isinstance(model, Model):
            model = load_model(model, views)
        self.model = model
        self.device = choose_device(device)
        self._precision = precision
        self._batch = batch
        # Used when a GPU is out of memory even for single slices.
        self._allow_cpu = allow_cpu
        available = views or tuple(model.networks)
        # The sagittal view comes last: it is divided in the ratio of the others.
        self.views = tuple(view for view in View if view in available)
        if model.info.preprocessing.spacing_mm != 1:
            raise ModelError(
                f"wants a grid of {model.info.preprocessing.spacing_mm} mm, and only 1 mm is made",
                where=model.folder,
            )
        self._networks = self._build(self.device)

    @classmethod
    def load(
        cls,
        name_or_folder: str | Path,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        views: Iterable[View | str] | str | None = None,
        batch: int | None = None,
        allow_cpu: bool = False,
    ) -> Self:
        """A shipped model by name ("fast"), or the folder of one's own."""
        return cls(
            name_or_folder,
            device=device,
            precision=precision,
            views=views,
            batch=batch,
            allow_cpu=allow_cpu,
        )

    def segment(
        self, volume: Volume, *, mirror: bool = False, samples: int = 0, seed: int = 0
    ) -> Segmentation:
        """Labels of a scan in its own space, and what there is to doubt about them.

        `mirror` averages with the mirrored scan; `samples` predictions use dropout, or
        an ensemble's members in turn.
        """
        return self.infer(
            self.prepare(volume), mirror=mirror, samples=samples, seed=seed
        )

    def prepare(self, volume: Volume) -> Conformed:
        """The part before the networks, on the processor also for a GPU."""
        wanted = self.model.info.preprocessing
        whole = wanted.scaling == "minimum-maximum"
        in_ras = to_shape(
            wanted.shape[axis] for axis, _ in source_axes(wanted.axes, "RAS")
        )
        conformed = conform(volume, shape=in_ras if whole else None)
        seen, plan = conformed.volume, conformed.plan
        if whole:
            # From the least to the greatest as 0 to 1, over the whole working grid.
            values = resample_image(
                volume.data, GridMap.between(plan.scan, plan.working)
            )
            low, high = float(values.min()), float(values.max())
            seen = replace(seen, data=(values - low) / max(high - low, 1e-6))
        # The working grid with its array's axes in another order; places stay where they are.
        seen = reoriented(seen, wanted.axes)
        seen = replace(seen, data=np.ascontiguousarray(seen.data))
        return Conformed(seen, replace(plan, working=seen.grid))

    def infer(
        self,
        conformed: Conformed,
        *,
        mirror: bool = False,
        samples: int = 0,
        seed: int = 0,
    ) -> Segmentation:
        """The networks and their fusion; labels are restored when they are first asked for."""
        refuse_forked_gpu(self.device)
        return self._with_less_memory(
            lambda: self._infer(conformed, mirror, samples, seed)
        )

    def _infer(
        self, conformed: Conformed, mirror: bool, samples: int, seed: int
    ) -> Segmentation:
        image = torch.from_numpy(conformed.volume.data).to(self.device)
        with stage("first look"):
            room = self.find_brain(image)
        fused, maps = self._fuse(image, room, mirror)
        if room.is_too_small(fused.sum):
            room = Room.whole(image.shape)
            fused, maps = self._fuse(image, room, mirror)
        plan = conformed.plan.cropped(room.box)
        with stage("prior"):
            problem = self._apply_prior(fused, plan)
        merged = self._merged_views()
        with stage("agreement"):
            agreement = (
                view_agreement(maps, self.model.scheme, merged)
                if len(maps) > 1
                else None
            )
        uncertainty: Uncertainty | None = None
        if samples:
            with stage("samples"):
                uncertainty = self._sample(image, room, samples, seed, plan)
        return Segmentation(
            fused.sum.cpu(),
            fused.scheme,
            plan,
            Volume(conformed.volume.data[room.box], plan.working.affine),
            (*conformed.volume.notes, *([problem] if problem else [])),
            agreement if fused.scheme is self.model.scheme else None,
            uncertainty,
            () if fused.is_merged else self.model.info.not_predicted,
        )

    def _fuse(
        self, image: Tensor, room: Room, mirror: bool
    ) -> tuple[Fusion, dict[View, Tensor]]:
        """All views of an image's room, fused, and each view's own most probable classes."""
        fusion, maps = self._add_views(image[room.box], room.mask, mirror)
        with stage("fusion"):
            fusion.finish()
            # What is no number in one class of a voxel is none in all. A look at one is cheap.
            if fusion.sum[..., 0].isnan().any():
                raise ModelError(
                    "its networks give values that are not numbers",
                    where=self.model.folder,
                    remedy="its weights are wrong; copy, download or train the model again",
                )
        return fusion, maps

    def _add_views(
        self, image: Tensor, within: Tensor | None, mirror: bool
    ) -> tuple[Fusion, dict[View, Tensor]]:
        """The part of `_fuse` that only gives a GPU its work, and never waits for it."""
        wanted = self.model.info.preprocessing
        weights = self.model.fusion_weights(self.views)
        fusion = Fusion(
            to_shape(image.shape),
            self.model.scheme,
            self.views,
            dict(zip(self.views, weights, strict=True)),
            self.device,
            axes={view: wanted.slice_axes(view) for view in self.views},
            sagittal_is_merged=View.SAGITTAL in self._merged_views(),
            mean=self.model.info.fusion.mean,
        )
        maps = {
            view: torch.zeros(
                to_shape(image.shape), dtype=torch.uint8, device=self.device
            )
            for view in self.views
        }
        for view, part in self.each_view(image, mirror=mirror, within=within):
            with stage("fusion"):
                fusion.add(
                    view, part.first, part.probabilities, part.rows, part.columns
                )
                found = to_slices(maps[view], wanted.slice_axes(view))
                found[part.slices, part.rows, part.columns] = part.probabilities.argmax(
                    -1
                )
        return fusion, maps

    def each_view(
        self, image: Tensor, *, mirror: bool = False, within: Tensor | None = None
    ) -> Iterator[tuple[View, Part]]:
        """Probabilities of an image (X, Y, Z), of K or merged K classes, view after view, the
        sagittal one last; only around what is set in `within`, all else is background."""
        wanted = self.model.info.preprocessing
        from_side_to_side = source_axes(wanted.axes, "RAS")[0][0]
        for view in self.views:
            partners = self.model.classes_of(view).partner_permutation.copy()
            side = (
                (from_side_to_side, torch.from_numpy(partners).to(self.device))
                if mirror
                else None
            )
            with stage(view.value):
                for part in self._networks[view].probabilities(
                    image, wanted.slice_axes(view), mirror=side, within=within
                ):
                    yield view, part

    def find_brain(self, image: Tensor) -> Room:
        """Where brain may be, from a few slices; everywhere where none is seen."""
        if self.model.info.preprocessing.scaling == "minimum-maximum":
            return Room.whole(image.shape)
        view = self.views[0]
        axes = self.model.info.preprocessing.slice_axes(view)
        seen = torch.zeros(to_shape(image.shape), dtype=torch.bool, device=self.device)
        slices, looked = to_slices(seen, axes), list[int]()
        for part in self._networks[view].probabilities(image, axes, every=_EVERY):
            slices[part.slices] = part.probabilities[..., 0] < _BACKGROUND
            looked += range(*part.slices.indices(len(slices)))
        return room_around(seen.cpu().numpy(), looked, axes.along)

    def _apply_prior(self, fused: Fusion, plan: ConformPlan) -> str:
        """Let anatomy decide where networks are in doubt; returns why it was not asked."""
        prior, template = self.model.info.prior, self.model.template
        # Classes without sides have no template.
        if prior is None or template is None or fused.is_merged:
            return ""
        return apply_prior(
            fused.sum, template, prior, fused.scheme, plan.working.affine
        )

    def _sample(
        self, image: Tensor, room: Room, count: int, seed: int, plan: ConformPlan
    ) -> Uncertainty:
        """Segment `count` times, with dropout or each by one member; one map a sample is kept."""
        samples: Samples | None = None
        # Dropout draws from torch's own generator: it is set, and given back as it was.
        devices = [self.device] if self.device.type == GPU else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            try:
                for sample in range(count):
                    for network in self._networks.values():
                        network.vary(sample)
                    fused, _maps = self._fuse(image, room, mirror=False)
                    self._apply_prior(fused, plan)
                    samples = samples or Samples(fused.scheme)
                    samples.add(fused.sum)
            finally:
                for network in self._networks.values():
                    network.vary(None)
        assert samples is not None
        return samples.summarise()

    def _merged_views(self) -> tuple[View, ...]:
        return tuple(view for view in self.views if self.model.is_merged(view))

    def _build(self, device: torch.device) -> dict[View, ViewNetwork]:
        refuse_forked_gpu(device)
        dtype = choose_precision(self._precision, device)
        networks = {}
        for view in self.views:
            network, never = (
                self.model.networks[view],
                self.model.not_predicted_in(view),
            )
            networks[view] = ViewNetwork(
                network, device, dtype, never=never, batch=self._batch
            )
        return networks

    def _with_less_memory(self, work: Callable[[], _T]) -> _T:
        """Do GPU work; out of memory, in smaller batches, and at last on the processor."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                free_gpu_memory()
                batch = max(network.batch for network in self._networks.values())
                if batch > 1:
                    for network in self._networks.values():
                        network.batch = batch // 2
                elif self._allow_cpu:
                    self.device = torch.device("cpu")
                    self._networks = self._build(self.device)
                else:
                    raise DeviceError(
                        f"{self.device} has too little memory for one slice at a time",
                        remedy="free some of it, or use --device cpu",
                    ) from error
