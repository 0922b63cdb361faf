"""The library's front door: a model loaded once, and scans segmented with it.

segmenter = Segmenter.load("fast")
found = segmenter.segment(Volume.read("scan.nii.gz"))
found.labels.write("labels.nii.gz", labels=True)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import nibabel as nib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segmentation.conform import Conformed, ConformPlan, conform
from segmentation.errors import DeviceError, ModelError
from segmentation.inference.disagreement import view_agreement
from segmentation.inference.fusion import Fusion
from segmentation.inference.network import (
    Part,
    Precision,
    ViewNetwork,
    choose_device,
    choose_precision,
)
from segmentation.inference.prior import apply_prior
from segmentation.inference.room import Room, room_around
from segmentation.inference.segmentation import Segmentation
from segmentation.inference.uncertainty import Samples, Uncertainty
from segmentation.models.checkpoint import Model, load_model
from segmentation.models.zoo import find_model
from segmentation.resample import GridMap, Shape, resample_image
from segmentation.views import View, to_slices
from segmentation.volume import Volume

__all__ = ["Prepared", "Segmenter"]

_T = TypeVar("_T")

# The brain is looked for in every eighth coronal slice.
_EVERY = 8


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scan ready for the networks; made on the processor, also for a GPU."""

    conformed: Conformed
    seconds: float


class Segmenter:
    """A model on a device. Safe to use for many scans, one after another."""

    def __init__(
        self,
        model: Model,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        views: Sequence[View] | None = None,
        batch: int | None = None,
        allow_cpu: bool = False,
    ) -> None:
        self.model = model
        self.device = choose_device(device)
        self._precision = precision
        self._batch = batch
        # Where a GPU's memory does not do even for single slices.
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
        views: Sequence[View] | None = None,
        batch: int | None = None,
        allow_cpu: bool = False,
    ) -> Segmenter:
        """A shipped model by name ("fast"), or the folder of one's own."""
        model = load_model(find_model(name_or_folder), views)
        return cls(
            model,
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

        `mirror` averages with the mirrored scan; `samples` draws so many with dropout.
        """
        return self.infer(self.prepare(volume), mirror=mirror, samples=samples, seed=seed)

    def prepare(self, volume: Volume) -> Prepared:
        """The part before the networks."""
        start = time.perf_counter()
        wanted = self.model.info.preprocessing
        whole = wanted.scaling == "minimum-maximum"
        conformed = conform(volume, shape=_in_ras(wanted.shape, wanted.axes) if whole else None)
        if whole:
            conformed = _rescaled(volume, conformed)
        conformed = _turned(conformed, wanted.axes)
        return Prepared(conformed, time.perf_counter() - start)

    def infer(
        self, prepared: Prepared, *, mirror: bool = False, samples: int = 0, seed: int = 0
    ) -> Segmentation:
        """The networks and their fusion; labels are restored when they are first asked for."""
        return self._with_less_memory(lambda: self._infer(prepared, mirror, samples, seed))

    def _infer(self, prepared: Prepared, mirror: bool, samples: int, seed: int) -> Segmentation:
        timings = {"conform": prepared.seconds}
        image = torch.from_numpy(prepared.conformed.volume.data)
        with _timed(timings, "localise"):
            room = self.find_brain(image)
        with _timed(timings, "networks"):
            fused, maps = self._fuse(image, room, mirror)
            if room.is_too_small(fused.sum):
                room = Room.whole(image.shape)
                fused, maps = self._fuse(image, room, mirror)
        conformed = prepared.conformed
        plan = conformed.plan.cropped(room.box)
        with _timed(timings, "prior"):
            problem = self._apply_prior(fused, plan)
        merged = self._merged_views()
        agreement = view_agreement(maps, self.model.scheme, merged) if len(maps) > 1 else None
        uncertainty: Uncertainty | None = None
        if samples:
            with _timed(timings, "samples"):
                uncertainty = self._sample(image, room, samples, seed, plan)
        return Segmentation(
            fused.sum.cpu(),
            fused.scheme,
            plan,
            Volume(conformed.volume.data[room.box], np.array(plan.affine)),
            (*conformed.volume.notes, *([problem] if problem else [])),
            agreement if fused.scheme is self.model.scheme else None,
            uncertainty,
            () if fused.is_merged else self.model.info.not_predicted,
            timings,
            {view: found.cpu() for view, found in maps.items()},
        )

    def _fuse(self, image: Tensor, room: Room, mirror: bool) -> tuple[Fusion, dict[View, Tensor]]:
        """All views of an image's room, fused, and each view's own most probable classes."""
        image = image[room.box]
        wanted = self.model.info.preprocessing
        weights = self.model.fusion_weights(self.views)
        fusion = Fusion(
            _shape(image),
            self.model.scheme,
            self.views,
            dict(zip(self.views, weights, strict=True)),
            self.device,
            axes={view: wanted.slice_axes(view) for view in self.views},
            sagittal_is_merged=View.SAGITTAL in self._merged_views(),
            mean=self.model.info.fusion.mean,
        )
        maps = {
            view: torch.zeros(_shape(image), dtype=torch.uint8, device=self.device)
            for view in self.views
        }
        for view, part in self.each_view(image, mirror=mirror, within=room.mask):
            fusion.add(view, part.first, part.probabilities, part.rows, part.columns)
            found = to_slices(maps[view], wanted.slice_axes(view))
            found[part.slices, part.rows, part.columns] = part.probabilities.argmax(-1)
        fusion.finish()
        return fusion, maps

    def each_view(
        self, image: Tensor, *, mirror: bool = False, within: Tensor | None = None
    ) -> Iterator[tuple[View, Part]]:
        """Probabilities of an image (X, Y, Z), of K or merged K classes, view after view, the
        sagittal one last; only around what is set in `within`, all else is background."""
        wanted = self.model.info.preprocessing
        for view in self.views:
            side = (_side_axis(wanted.axes), self._partners(view)) if mirror else None
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
        seen = torch.zeros(_shape(image), dtype=torch.bool)
        looked = []
        for part in self._networks[view].probabilities(image, axes, every=_EVERY):
            to_slices(seen, axes)[part.first] = (part.probabilities[0].argmax(-1) != 0).cpu()
            looked.append(part.first)
        return room_around(seen.numpy(), looked, axes.along)

    def _apply_prior(self, fused: Fusion, plan: ConformPlan) -> str:
        """Let anatomy decide where networks are in doubt; returns why it was not asked."""
        prior, template = self.model.info.prior, self.model.template
        # Classes without sides have no template.
        if prior is None or template is None or fused.is_merged:
            return ""
        return apply_prior(fused.sum, template, prior, fused.scheme, np.array(plan.affine))

    def _sample(
        self, image: Tensor, room: Room, count: int, seed: int, plan: ConformPlan
    ) -> Uncertainty:
        """Segment `count` times with dropout; one map a sample is kept."""
        samples: Samples | None = None
        # Dropout draws from torch's own generator: it is set, and given back as it was.
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            for network in self._networks.values():
                network.drop_out(True)
            try:
                for _ in range(count):
                    fused, _maps = self._fuse(image, room, mirror=False)
                    self._apply_prior(fused, plan)
                    samples = samples or Samples(fused.scheme)
                    samples.add(fused.sum)
            finally:
                for network in self._networks.values():
                    network.drop_out(False)
        assert samples is not None
        return samples.summarise()

    def _merged_views(self) -> tuple[View, ...]:
        return tuple(view for view in self.views if self.model.is_merged(view))

    def _partners(self, view: View) -> NDArray[np.int64]:
        scheme = self.model.scheme
        return (
            scheme.merged.scheme if self.model.is_merged(view) else scheme
        ).partner_permutation.copy()

    def _build(self, device: torch.device) -> dict[View, ViewNetwork]:
        dtype = choose_precision(self._precision, device)
        never = self.model.not_predicted
        return {
            view: ViewNetwork(
                self.model.networks[view],
                device,
                dtype,
                never=np.unique(self.model.scheme.merged.to_merged[never])
                if self.model.is_merged(view)
                else never,
                batch=self._batch,
            )
            for view in self.views
        }

    def _with_less_memory(self, work: Callable[[], _T]) -> _T:
        """Do GPU work, in smaller batches if memory does not do, at last on the processor."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
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


def _rescaled(volume: Volume, conformed: Conformed) -> Conformed:
    """Intensities from the least to the greatest as 0 to 1, over the whole working grid."""
    plan = conformed.plan
    to = GridMap.between(volume.affine, plan.affine, plan.shape)
    values = resample_image(volume.data, to)
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / max(high - low, 1e-6)
    given = conformed.volume
    return Conformed(Volume(scaled, given.affine, given.codes, given.notes), plan)


def _turned(conformed: Conformed, axes: str) -> Conformed:
    """The working grid with its array's axes in another order; places stay where they are."""
    if axes == "RAS":
        return conformed
    volume, plan = conformed.volume, conformed.plan
    turn = nib.orientations.ornt_transform(
        nib.orientations.axcodes2ornt("RAS"), nib.orientations.axcodes2ornt(axes)
    )
    data = np.ascontiguousarray(nib.orientations.apply_orientation(volume.data, turn))
    affine = volume.affine @ nib.orientations.inv_ornt_aff(turn, volume.shape)
    moved = Volume(data, affine, volume.codes, volume.notes)
    return Conformed(
        moved,
        ConformPlan.from_dict(
            {**plan.to_dict(), "shape": moved.shape, "affine": moved.affine.tolist()}
        ),
    )


def _in_ras(shape: Shape, axes: str) -> Shape:
    """The shape of an array whose axes run as `axes` say, once they run R, A, S."""
    order = nib.orientations.axcodes2ornt(axes)[:, 0]
    x, y, z = (shape[list(order).index(axis)] for axis in range(3))
    return x, y, z


def _side_axis(axes: str) -> int:
    """The array's axis that runs from one side of the head to the other."""
    return next(i for i, code in enumerate(axes) if code in "LR")


def _shape(image: Tensor) -> tuple[int, int, int]:
    x, y, z = image.shape
    return x, y, z


@contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[name] = time.perf_counter() - start
