"""One subject's slices in one HDF5 file: three views of image and labels, and what they hold.

Layout, chunked by slice (N slices, H rows, W columns, K classes of the view's scheme):

    <view>/image          (N, H, W) uint16   value = (code - zero) * scale, see `Quantised`
    <view>/labels         (N, H, W) uint8    class indices; the merged scheme's in sagittal
    <view>/class_counts   (N, K) uint32      voxels of each class in each slice

4,096 levels are 40 times finer than a good scan's noise and twice finer than a half float near
the bright end. They stand in the lower 12 bits, so that of the shuffled bytes one half hardly
changes from voxel to voxel and the other is mere noise: both are unpacked faster than a mixture.
A random slice takes a third of the time and of the space of float32 (docs/data.md).
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import DatasetError, IntegrityError
from trinat.segmentation.io.files import atomic_write, open_regular
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, slice_axes, to_slices

# Raised whenever the same scan would be stored otherwise; older stores are then prepared again.
FORMAT = 2

# Read by every HDF5 since 1.10; without times of writing in it.
_LIBVER = ("v110", "v110")
_LEVELS = 4096
# In float32; an image with less between its values is flat.
_SMALLEST_STEP = float(np.finfo(np.float32).tiny)
_HISTOGRAM_BINS = 64
_HISTOGRAM_TOP = 1.5
_REMEDY = "run `trinat prepare` again"
# Not lzf, which unpacks images a fifth faster: what it writes depends on what memory held before.
_IMAGE_PACKING: dict[str, Any] = {
    "compression": "gzip",
    "compression_opts": 1,
    "shuffle": True,
}
_LABEL_PACKING: dict[str, Any] = {"compression": "gzip", "compression_opts": 1}


# Files are opened, looked into and closed by one thread at a time; each unpacks what it has read.
FILES = threading.RLock()


@dataclass(frozen=True, eq=False)
class Quantised:
    """Intensities as 16-bit codes: value = (code - zero) * scale, so that 0 stays exactly 0."""

    codes: NDArray[np.uint16]
    scale: float
    zero: int

    def values(self) -> NDArray[np.float32]:
        values: NDArray[np.float32] = self.codes.astype(np.float32)
        if self.zero:
            values -= np.float32(self.zero)
        values *= np.float32(self.scale)
        return values


@dataclass(frozen=True)
class Statistics:
    """What a subject holds, on the working grid of 1 mm³ voxels."""

    voxels: tuple[int, ...] = ()  # per class
    class_means: tuple[float, ...] = ()  # intensity per class; 0 where it has no voxel
    percentiles: Mapping[str, float] = field(
        default_factory=dict
    )  # of the head, intensity > 0
    histogram: tuple[
        int, ...
    ] = ()  # of the head: 64 bins from 0 to 1.5, the last open above


def quantise(image: NDArray[np.float32]) -> Quantised:
    """Spread the values from the lowest (0 or below) to the highest over 4,096 codes."""
    low, high = min(float(image.min()), 0.0), max(float(image.max()), 0.0)
    step = (high - low) / (_LEVELS - 1)
    if step < _SMALLEST_STEP:
        step = 1.0
    zero = round(-low / step)
    levels = np.rint(image / np.float32(step))
    levels += zero
    np.clip(levels, 0, _LEVELS - 1, out=levels)
    return Quantised(levels.astype(np.uint16), step, zero)


def write_subject(
    path: Path,
    *,
    image: Quantised | None,
    labels: NDArray[np.uint8] | None,
    affine: NDArray[np.float64],
    scheme: LabelScheme,
    views: tuple[View, ...],
    fingerprint: str,
    notes: tuple[str, ...] = (),
) -> Statistics:
    """Cut (X, Y, Z) arrays of the working grid into slices and write them, whole or not at all.

    The same arguments give the same bytes: nothing in the file depends on when it was written.
    """
    counts = None if labels is None else _counts_along_axes(labels, len(scheme))
    values = None if image is None else image.values()
    statistics = _describe(values, labels, len(scheme), counts)
    attributes = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "scheme": json.dumps(scheme_table(scheme)),
        "affine": affine,
        "notes": json.dumps(notes),
        "statistics": json.dumps(asdict(statistics)),
    }
    if image is not None:
        attributes |= {"image_scale": image.scale, "image_zero": image.zero}
    # Refuses a scheme without a sagittal view before there is a file.
    merged = scheme.merged if View.SAGITTAL in views and labels is not None else None
    # Made in memory: where a disk is full, HDF5 itself fails at several places and in disorder.
    with h5py.File(
        "slices",
        "w",
        driver="core",
        backing_store=False,
        block_size=1 << 24,
        libver=_LIBVER,
    ) as file:
        file.attrs.update(attributes)
        for view in views:
            group = file.create_group(view.value)
            if image is not None:
                _dataset(group, "image", to_slices(image.codes, view), **_IMAGE_PACKING)
            if labels is None or counts is None:
                continue
            stored, per_slice = labels, counts[view]
            if view is View.SAGITTAL and merged is not None:
                stored = merged.to_merged.astype(np.uint8)[labels]
                per_slice = (
                    per_slice @ np.eye(len(merged.scheme), dtype=int)[merged.to_merged]
                )
            _dataset(group, "labels", to_slices(stored, view), **_LABEL_PACKING)
            group.create_dataset("class_counts", data=per_slice.astype(np.uint32))
        file.flush()
        content = file.id.get_file_image()
    with atomic_write(path) as target:
        target.write(content)
    return statistics


class SubjectFile:
    """Reads slices of one subject; opened at first use in each process, and never pickled open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: h5py.File | None = None
        self._pid = -1
        self._datasets: dict[tuple[View, str], h5py.Dataset] = {}
        self._scale, self._zero = 1.0, 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_pid": -1, "_datasets": {}}

    def image(self, view: View, start: int, stop: int) -> NDArray[np.float32]:
        """Intensities of slices start..stop-1, (N, H, W) float32."""
        return self.codes(view, start, stop).values()

    def codes(self, view: View, start: int, stop: int) -> Quantised:
        """Slices as they are stored, (N, H, W): those there are of start..stop-1."""
        codes: NDArray[np.uint16] = self._read(view, "image", start, stop)
        return Quantised(codes, self._scale, self._zero)

    def slab(self, view: View, middle: int, thick: int) -> Quantised:
        """`thick` slices around the middle one, (C, H, W); beyond the ends is background."""
        start = middle - thick // 2
        slab = self.codes(view, max(start, 0), start + thick)
        before = max(-start, 0)
        after = thick - before - len(slab.codes)
        if before or after:
            edges = ((before, after), (0, 0), (0, 0))
            slab = replace(
                slab, codes=np.pad(slab.codes, edges, constant_values=slab.zero)
            )
        return slab

    def labels(self, view: View, start: int, stop: int) -> NDArray[np.uint8]:
        """Class indices of slices start..stop-1, (N, H, W)."""
        slices: NDArray[np.uint8] = self._read(view, "labels", start, stop)
        return slices

    def slice_count(self, view: View) -> int:
        return len(
            self._dataset(view, "image" if self.has(view, "image") else "labels")
        )

    def class_counts(self, view: View) -> NDArray[np.uint32]:
        """Voxels of each class in each slice, (N, K)."""
        counts: NDArray[np.uint32] = self._dataset(view, "class_counts")[:]
        return counts

    def has(self, view: View, name: str) -> bool:
        return f"{view.value}/{name}" in self._opened()

    @property
    def affine(self) -> NDArray[np.float64]:
        affine: NDArray[np.float64] = self._opened().attrs["affine"]
        return affine

    @property
    def fingerprint(self) -> str:
        return str(self._opened().attrs["fingerprint"])

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(json.loads(self._opened().attrs["notes"]))

    @property
    def statistics(self) -> Statistics:
        values = json.loads(self._opened().attrs["statistics"])
        values.pop("class_stds", None)  # of older stores
        percentiles = values.pop("percentiles")
        return Statistics(
            **{k: tuple(v) for k, v in values.items()}, percentiles=percentiles
        )

    def close(self) -> None:
        with FILES:
            if self._file is not None and self._pid == os.getpid():
                self._file.close()
            self._file, self._datasets = None, {}

    def _read(self, view: View, name: str, start: int, stop: int) -> NDArray[Any]:
        try:
            with FILES:
                dataset = self._dataset(view, name)
                kind, shape, is_shuffled = (
                    dataset.dtype,
                    dataset.shape[1:],
                    bool(dataset.shuffle),
                )
                numbers = range(len(dataset))[start:stop]
                chunks = [
                    dataset.id.read_direct_chunk((number, 0, 0)) for number in numbers
                ]
            slices: NDArray[Any] = np.empty((len(chunks), *shape), kind)
            for empty, (filters_left_out, packed) in zip(slices, chunks, strict=True):
                _unpack(packed, filters_left_out, empty, is_shuffled)
        except (OSError, ValueError, zlib.error) as error:
            what = f"damaged: {view.value} {name} of slices {start} to {stop - 1} cannot be read"
            raise IntegrityError(what, where=self.path, remedy=_REMEDY) from error
        return slices

    def _dataset(self, view: View, name: str) -> h5py.Dataset:
        file = self._opened()
        if (view, name) not in self._datasets:
            if f"{view.value}/{name}" not in file:
                raise DatasetError(f"holds no {view.value} {name}", where=self.path)
            self._datasets[view, name] = file[f"{view.value}/{name}"]
        return self._datasets[view, name]

    def _opened(self) -> h5py.File:
        # A handle that came along through fork shares its file position with the parent.
        if self._file is None or self._pid != os.getpid():
            self._datasets = {}
            try:
                # HDF5 opens by name: what it would wait for is refused here.
                open_regular(self.path).close()
                # Random slices gain nothing from a chunk cache; read-only disks know no locks.
                self._file = h5py.File(self.path, "r", rdcc_nbytes=0, locking=False)
            except OSError as error:
                what = "not a readable slice file"
                raise IntegrityError(what, where=self.path, remedy=_REMEDY) from error
            self._pid = os.getpid()
            found = self._file.attrs.get("format")
            if found != FORMAT:
                what = f"has slice format {found}, this version reads {FORMAT}"
                raise DatasetError(what, where=self.path, remedy=_REMEDY)
            self._scale = float(self._file.attrs.get("image_scale", 1.0))
            self._zero = int(self._file.attrs.get("image_zero", 0))
        return self._file


def _unpack(
    packed: bytes, filters_left_out: int, into: NDArray[Any], is_shuffled: bool
) -> None:
    """Fill a slice from its chunk. HDF5 would let one thread do this at a time; zlib lets all.

    HDF5 leaves out a filter that gains nothing, and sets its bit: in the order of writing.
    """
    is_plain = bool(filters_left_out >> is_shuffled & 1)
    data = packed if is_plain else zlib.decompress(packed, bufsize=into.nbytes)
    if not is_shuffled or filters_left_out & 1:
        into[...] = np.frombuffer(data, into.dtype).reshape(into.shape)
        return
    # Shuffled: the first bytes of all values, then the second bytes.
    values = into.view(np.uint8).reshape(-1, into.itemsize)
    for byte, part in enumerate(
        np.frombuffer(data, np.uint8).reshape(into.itemsize, -1)
    ):
        values[:, byte] = part


def scheme_table(scheme: LabelScheme) -> dict[str, Any]:
    """A scheme as a plain value: enough to compare and to rebuild names, numbers and colours."""
    return {"name": scheme.name, "labels": [asdict(label) for label in scheme.labels]}


def _dataset(
    group: h5py.Group, name: str, slices: NDArray[Any], **packing: Any
) -> None:
    group.create_dataset(
        name,
        data=np.ascontiguousarray(slices),
        chunks=(1, *slices.shape[1:]),
        **packing,
    )


def _counts_along_axes(
    labels: NDArray[np.uint8], classes: int
) -> dict[View, NDArray[np.int64]]:
    """Voxels of each class in each slice of each view, (N, K)."""
    if labels.size and int(labels.max()) >= classes:
        raise DatasetError(f"class {labels.max()} in a map of {classes} classes")
    # Only the box around what is labelled needs counting: a fifth of the working grid.
    box = occupied_box(labels > 0)
    counts = {}
    for view in View:
        slices = to_slices(labels, view)
        inner = to_slices(labels[box], view)
        per_slice = np.zeros((len(slices), classes), np.int64)
        start = box[slice_axes(view).along].start
        for offset, one in enumerate(inner):
            per_slice[start + offset] = np.bincount(one.ravel(), minlength=classes)
        per_slice[:, 0] = slices[0].size - per_slice[:, 1:].sum(axis=1)
        counts[view] = per_slice
    return counts


def _describe(
    image: NDArray[np.float32] | None,
    labels: NDArray[np.uint8] | None,
    classes: int,
    counts: dict[View, NDArray[np.int64]] | None,
) -> Statistics:
    voxels = () if counts is None else tuple(counts[View.AXIAL].sum(axis=0).tolist())
    if image is None:
        return Statistics(voxels=voxels)
    head = image[image > 0]
    # The fill of the histogram's last bin: everything above its top.
    histogram, _ = np.histogram(
        np.minimum(head, np.float32(_HISTOGRAM_TOP)),
        _HISTOGRAM_BINS,
        (0, _HISTOGRAM_TOP),
    )
    levels = np.percentile(head, (1, 50, 99)).tolist() if head.size else [0.0] * 3
    means: tuple[float, ...] = ()
    if labels is not None:
        inside = labels > 0
        classes_in, values = labels[inside], image[inside].astype(np.float64)
        number = np.maximum(np.bincount(classes_in, minlength=classes), 1)
        means = tuple((np.bincount(classes_in, values, classes) / number).tolist())
    return Statistics(
        voxels,
        means,
        dict(zip(("p1", "p50", "p99"), levels, strict=True)),
        tuple(histogram.tolist()),
    )
