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
from scipy import ndimage
from torch import Tensor

from segmentation.conform import Conformed, ConformPlan, conform
from segmentation.errors import DeviceError, ModelError
from segmentation.inference.disagreement import view_agreement
from segmentation.inference.fusion import Fusion
from segmentation.inference.network import (
    Precision,
    ViewNetwork,
    choose_device,
    choose_precision,
)
from segmentation.inference.segmentation import Segmentation
from segmentation.inference.uncertainty import Samples, Uncertainty
from segmentation.models.checkpoint import Model, load_model
from segmentation.models.zoo import find_model
from segmentation.resample import Box, GridMap, Shape, occupied_box, resample_image
from segmentation.views import View, to_slices
from segmentation.volume import Volume

__all__ = ["Prepared", "Segmenter"]

_T = TypeVar("_T")

# The brain is looked for in every eighth coronal slice ...
_EVERY = 8
# ... and given this much room: half of those 8 mm, and the error of a first look.
_ROOM = 12
# What a network takes for brain in the neck is left out: what is thinner than this, in voxels, as
# the cord is by which necks hang on brains, and then parts below this share of the largest.
_THIN = 7
_SPECK = 0.05
# Brain that lies so near to the end of the room, in voxels, may go on beyond it ...
_NEAR_EDGE = 3
# ... if there is more of it than specks.
_MANY_VOXELS = 400


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
            box = self.find_brain(image)
        with _timed(timings, "networks"):
            fused, maps = self._fuse(image[box], mirror)
            if self._touches_edge(fused, box, image):
                box = _whole(image)
                fused, maps = self._fuse(image[box], mirror)
        merged = self._merged_views()
        agreement = view_agreement(maps, self.model.scheme, merged) if len(maps) > 1 else None
        uncertainty: Uncertainty | None = None
        if samples:
            with _timed(timings, "samples"):
                uncertainty = self._sample(image[box], samples, seed)
        conformed = prepared.conformed
        plan = conformed.plan.cropped(box)
        return Segmentation(
            fused.sum.cpu(),
            fused.scheme,
            plan,
            Volume(conformed.volume.data[box], np.array(plan.affine)),
            conformed.volume.notes,
            agreement if fused.scheme is self.model.scheme else None,
            uncertainty,
            () if fused.is_merged else self.model.info.not_predicted,
            timings,
            {view: found.cpu() for view, found in maps.items()},
        )

    def _fuse(self, image: Tensor, mirror: bool) -> tuple[Fusion, dict[View, Tensor]]:
        """All views of an image (X, Y, Z), fused, and each view's own most probable classes."""
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
        )
        maps = {
            view: torch.zeros(_shape(image), dtype=torch.uint8, device=self.device)
            for view in self.views
        }
        for view, start, part in self.each_view(image, mirror=mirror):
            fusion.add(view, start, part)
            found = to_slices(maps[view], wanted.slice_axes(view))
            found[start : start + len(part)] = part.argmax(-1)
        fusion.finish()
        return fusion, maps

    def each_view(
        self, image: Tensor, *, mirror: bool = False
    ) -> Iterator[tuple[View, int, Tensor]]:
        """Yield (view, first slice, probabilities (N, H, W, K or merged K)) of an image (X, Y, Z),
        view after view, the sagittal one last."""
        wanted = self.model.info.preprocessing
        for view in self.views:
            side = (_side_axis(wanted.axes), self._partners(view)) if mirror else None
            parts = self._networks[view].probabilities(image, wanted.slice_axes(view), mirror=side)
            for start, part in parts:
                yield view, start, part

    def find_brain(self, image: Tensor) -> Box:
        """A box around the brain with room to spare, from a few slices; all where none is seen."""
        if self.model.info.preprocessing.scaling == "minimum-maximum":
            return _whole(image)
        view = self.views[0]
        axes = self.model.info.preprocessing.slice_axes(view)
        seen = torch.zeros(_shape(image), dtype=torch.bool)
        looked = []
        for start, part in self._networks[view].probabilities(image, axes, every=_EVERY):
            to_slices(seen, axes)[start] = (part[0].argmax(-1) != 0).cpu()
            looked.append(start)
        slices = to_slices(seen, axes)
        # Slices that were not looked at lie between them, and would keep all apart.
        slices[looked] = _large_parts(_thick_parts(slices[looked]))
        box = occupied_box(seen)
        if box[0].start == box[0].stop:
            return _whole(image)
        x, y, z = (
            slice(max(0, s.start - _ROOM), min(n, s.stop + _ROOM))
            for s, n in zip(box, image.shape, strict=True)
        )
        return x, y, z

    def _touches_edge(self, fused: Fusion, box: Box, image: Tensor) -> bool:
        """Whether brain reaches an end of the box where the image goes on."""
        for axis, (part, length) in enumerate(zip(box, image.shape, strict=True)):
            lower = fused.sum.narrow(axis, 0, _NEAR_EDGE)
            upper = fused.sum.narrow(axis, part.stop - part.start - _NEAR_EDGE, _NEAR_EDGE)
            for goes_on, rim in ((part.start > 0, lower), (part.stop < length, upper)):
                if goes_on and int((rim.argmax(-1) != 0).sum()) > _MANY_VOXELS:
                    return True
        return False

    def _sample(self, image: Tensor, count: int, seed: int) -> Uncertainty:
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
                    fused, _maps = self._fuse(image, mirror=False)
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


def _thick_parts(mask: Tensor) -> Tensor:
    """Slices (N, H, W) without what is thinner than `_THIN`."""
    opened = ndimage.binary_opening(mask.numpy(), np.ones((1, _THIN, _THIN)))
    return torch.from_numpy(opened)


def _large_parts(mask: Tensor) -> Tensor:
    """A mask without parts that are small beside the largest."""
    parts, count = ndimage.label(mask.numpy())
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return torch.from_numpy((sizes >= _SPECK * sizes.max())[parts] & mask.numpy())


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


def _whole(image: Tensor) -> Box:
    x, y, z = (slice(0, n) for n in image.shape)
    return x, y, z


@contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[name] = time.perf_counter() - start
