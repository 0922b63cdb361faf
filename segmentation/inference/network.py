"""One network on one device: slices of a volume in, probabilities out, batch by batch.

Networks look only where brain may be, as a first look at some slices shows (`Room`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor, nn

from trinat.segmentation.errors import DeviceError
from trinat.segmentation.grid import Box, grown, whole
from trinat.segmentation.models.architectures import Ensemble
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.hardware import GPU, bfloat16_hardware
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import SliceAxes, to_slices

Precision = Literal["auto", "float32", "bfloat16", "float16"]

# A class that the model was never taught must not win by chance.
_NEVER = -1e4
# Slices of the working grid at a time. More do not run faster on a processor, and fill its caches
# and memory: wider networks than of so many filters get fewer.
_BATCH = {"cpu": 4, GPU: 32}
_FILTERS = {"cpu": 32, GPU: 64}
# Room to spare around what was seen of a brain: half of the way from one looked slice to the next,
# and the error of a first look.
_SPARE = 12
# Brain that comes so near to the end of the room, in voxels, may go on beyond it ...
_NEAR_END = 3
# ... if there is more of it than specks.
_MANY_VOXELS = 400
# What a network takes for brain in the neck is left out: what is thinner than this, in voxels, as
# the cord is by which necks hang on brains, and then parts below this share of the largest.
_THIN = 7
_SPECK = 0.05


def choose_precision(name: Precision, device: torch.device) -> torch.dtype:
    """bfloat16 where the device computes in it, else float32; float16 on GPUs alone."""
    if name == "float16" and device.type == "cpu":
        raise DeviceError(
            "processors do not compute in float16", remedy="use bfloat16 or float32"
        )
    if name == "auto":
        return torch.bfloat16 if bfloat16_hardware(device) else torch.float32
    known = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }
    if name not in known:
        raise DeviceError(
            f"{name!r} is no precision", remedy=f"use auto, {', '.join(known)}"
        )
    return known[name]


class Part(NamedTuple):
    """Probabilities (N, H, W, K) float32 of slices from the first on, within rows and columns."""

    first: int
    rows: slice
    columns: slice
    probabilities: Tensor
    every: int = 1

    @property
    def slices(self) -> slice:
        return slice(
            self.first, self.first + self.every * len(self.probabilities), self.every
        )


class ViewNetwork:
    """A view's network made ready: norms folded, channels last, in the device's best precision."""

    def __init__(
        self,
        network: Network,
        device: torch.device,
        dtype: torch.dtype,
        *,
        never: NDArray[np.int64] | None = None,
        batch: int | None = None,
    ) -> None:
        self.channels = network.config.channels
        self.classes = network.config.classes
        self._multiple = network.config.multiple
        self.device = device
        kind = "cpu" if device.type == "cpu" else GPU
        most = _BATCH[kind] * _FILTERS[kind] * network.config.pixels
        self.batch = batch or min(max(most // network.config.filters, 1), _BATCH[kind])
        folded = network.fold()
        if never is not None and len(never):
            folded.classifier.by_class()["bias"][torch.from_numpy(never)] = _NEVER
        for module in folded.modules():
            # Norms that do not fold keep their statistics in full precision.
            if isinstance(module, nn.Conv2d | nn.PReLU):
                module.to(dtype)
        self.dtype = dtype
        self.network = folded.to(device)

    def probabilities(
        self,
        volume: Tensor,
        axes: SliceAxes,
        *,
        mirror: tuple[int, Tensor] | None = None,
        every: int = 1,
        within: Tensor | None = None,
    ) -> Iterator[Part]:
        """Yield the probabilities of a volume (X, Y, Z), some slices at a time.

        With `mirror`, the axis that runs from side to side and the classes' partners, the mean
        with the mirrored slice. With `every`, only every n-th slice, on a processor one at a
        time. With `within`, a mask (X, Y, Z) in the host's memory, only the rows and columns
        around what it shows of a part.

        On a GPU nothing here waits for it: one copy of the volume, and no value is read back.
        """
        slices = thick(to_slices(volume.to(self.device), axes), self.channels)
        places = None if within is None else to_slices(within, axes)
        count = len(slices)
        size = 1 if every > 1 and self.device.type == "cpu" else self.batch
        for start in range(every // 2, count, every * size):
            some = slice(start, start + every * size, every)
            rows, columns = slice(0, slices.shape[2]), slice(0, slices.shape[3])
            if places is not None:
                rows, columns = self._around(places[some].any(0))
            batch = slices[some, :, rows, columns].to(self.dtype)
            if not batch.numel():
                nothing = torch.zeros(
                    len(batch), 0, 0, self.classes, device=self.device
                )
                yield Part(start, rows, columns, nothing, every)
                continue
            found = self._run(batch)
            if mirror is not None:
                found = (found + self._run_mirrored(batch, axes, *mirror)) / 2
            yield Part(start, rows, columns, found, every)

    def _around(self, mask: Tensor) -> tuple[slice, slice]:
        """Rows and columns of a mask (H, W), grown where they can to what networks would pad."""
        if not mask.any():
            return slice(0, 0), slice(0, 0)
        rows, columns = (
            _grown(line.nonzero().flatten(), len(line), self._multiple)
            for line in (mask.any(1), mask.any(0))
        )
        return rows, columns

    def vary(self, sample: int | None) -> None:
        """For a sample by number: an ensemble's next member, else dropout as in training.

        None: all members and no dropout again.
        """
        if isinstance(self.network, Ensemble):
            members = len(self.network.networks)
            self.network.only = None if sample is None else sample % members
            return
        for module in self.network.modules():
            if isinstance(module, nn.Dropout2d):
                module.train(sample is not None)

    def _run(self, batch: Tensor) -> Tensor:
        with torch.inference_mode():
            # Classes lie innermost in channels-last logits: this is no copy.
            logits: Tensor = self.network(batch)
            return _softmax(logits.permute(0, 2, 3, 1).float())

    def _run_mirrored(
        self, batch: Tensor, axes: SliceAxes, side_axis: int, partners: Tensor
    ) -> Tensor:
        # From the other side, a thick slice's neighbours change places as its rows or columns do.
        axis = (axes.along, axes.rows, axes.columns).index(side_axis) + 1
        found = self._run(batch.flip(axis))[..., partners]
        return found.flip(axis - 1) if axis > 1 else found


def _softmax(logits: Tensor) -> Tensor:
    """Over the last axis; may change what it is given."""
    if logits.device.type != "cpu":
        return logits.softmax(-1)
    # With rows of 33 numbers torch's own takes three times as long on a processor.
    logits = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    return logits.div_(logits.sum(-1, keepdim=True))


def _grown(set_: Tensor, length: int, multiple: int) -> slice:
    """From the first to the last that is set, and as far to both sides as makes a multiple."""
    first, last = int(set_[0]), int(set_[-1]) + 1
    wanted = min(length, -(-(last - first) // multiple) * multiple)
    start = min(max(0, first - (wanted - (last - first)) // 2), length - wanted)
    return slice(start, start + wanted)


def thick(slices: Tensor, channels: int) -> Tensor:
    """Slices (N, H, W) with their neighbours as channels, (N, C, H, W); zeros beyond the ends."""
    if channels == 1:
        return slices[:, None]
    reach = channels // 2
    empty = slices.new_zeros((reach, *slices.shape[1:]))
    padded = torch.cat((empty, slices, empty))
    return padded.unfold(0, channels, 1).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Room:
    """A box of a volume and, within it, the voxels where brain may be (all, if None)."""

    box: Box
    mask: Tensor | None = None
    rim: Tensor | None = None

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Room:
        return cls(whole(shape))

    def is_too_small(self, probabilities: Tensor) -> bool:
        """Whether brain, by probabilities (X, Y, Z, K) of the box, comes up to an end beyond
        which the scan goes on."""
        if self.rim is None:
            return False
        at_rim = probabilities[self.rim.to(probabilities.device)]
        return int((at_rim.argmax(-1) != 0).sum()) > _MANY_VOXELS


def room_around(seen: NDArray[np.bool_], slices: Sequence[int], axis: int) -> Room:
    """Room for the brain of which `seen` (X, Y, Z) shows some slices along an axis."""
    seen = np.moveaxis(seen, axis, 0)
    # Slices that were not looked at lie between these, and would keep all apart.
    cleaned = np.zeros_like(seen)
    cleaned[slices] = _large_parts(_thick_parts(seen[slices]))
    found = np.moveaxis(cleaned, 0, axis)
    if not found.any():
        return Room.whole(found.shape)
    box = grown(occupied_box(found), found.shape, _SPARE)
    found = found[box]
    mask = _dilated(found, *[_SPARE] * 3)
    # Where the scan itself ends both end alike, and nothing is rim.
    rim = mask & ~_dilated(found, *[_SPARE - _NEAR_END] * 3)
    return Room(box, torch.from_numpy(mask), torch.from_numpy(rim))


def _dilated(mask: NDArray[np.bool_], *reach: int) -> NDArray[np.bool_]:
    """A mask dilated by a number of voxels along each of its axes."""
    for axis, voxels in enumerate(reach):
        mask = ndimage.maximum_filter1d(
            mask, 2 * voxels + 1, axis=axis, mode="constant"
        )
    return mask


def _thick_parts(slices: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Slices (N, H, W) without what is thinner than `_THIN` and no end of something thicker."""
    thick = np.asarray(ndimage.binary_opening(slices, np.ones((1, _THIN, _THIN))))
    # An end is rounded off, or all that the next slice shows.
    return _dilated(thick, 1, _THIN // 2, _THIN // 2) & slices


def _large_parts(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A mask without parts that are small beside the largest."""
    parts, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return np.asarray((sizes >= _SPECK * sizes.max())[parts] & mask)
