"""HDF5 file of one subject: slices of image and labels in three views, and class counts.

Layout, chunked by slice (N slices, H rows, W columns, K classes of the view's scheme):

    <view>/image          (N, H, W) uint16   value = (code - zero) * scale, see `Quantised`
    <view>/labels         (N, H, W) uint8    class indices; in sagittal, of the merged scheme
    <view>/counted        (N, H, W) uint8    1 where labels are used in training; absent if all are
    <view>/class_counts   (N, K) uint32      per slice and class, voxels that are used in training

A random slice takes half the time and a third of the space of float32 (docs/notes/data.md).

4,096 levels are 40 times finer than a good scan's noise and twice as fine as a half float near the
bright end. They are in the lower 12 bits, so that after shuffling one half of the bytes hardly
changes from voxel to voxel and the other half is pure noise: both decompress faster than a mixture.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import DatasetError, IntegrityError
from trinat.segmentation.grid import occupied_box
from trinat.segmentation.io.files import atomic_write, open_regular
from trinat.segmentation.labels.scheme import LabelScheme, MergedScheme
from trinat.segmentation.space.views import View, slice_axes, to_slices

# Incremented whenever the same scan would be stored differently; older stores are then prepared
# again.
FORMAT = 2

# This file format can be read by every HDF5 since 1.10, and it has no timestamps.
_LIBVER = ("v110", "v110")
_BLOCK_BYTES = 1 << 24
_REMEDY = "run `trinat prepare` again"
# gzip rather than lzf, whose output is not deterministic.
_IMAGE_PACKING: dict[str, Any] = {
    "compression": "gzip",
    "compression_opts": 1,
    "shuffle": True,
}
_LABEL_PACKING: dict[str, Any] = {"compression": "gzip", "compression_opts": 1}

# Lock for opening, inspecting and closing files. Each thread decompresses its own data without it.
FILES = threading.RLock()

_LEVELS = 4096
# An image whose step between codes would be smaller than this, in float32, is constant.
_SMALLEST_STEP = float(np.finfo(np.float32).tiny)


def write_subject(
    path: Path,
    *,
    image: Quantised | None,
    labels: NDArray[np.uint8] | None,
    counted: NDArray[np.bool_] | None = None,
    affine: NDArray[np.float64],
    scheme: LabelScheme,
    views: tuple[View, ...],
    fingerprint: str,
    notes: tuple[str, ...] = (),
) -> None:
    """Cut (X, Y, Z) arrays of the 1 mm working grid into slices and write them atomically.

    `counted` is True where labels are used in training; None means everywhere. `affine` (4, 4) maps
    voxels of the working grid to RAS mm. The same arguments give the same bytes, whenever they are
    written. Raises DatasetError if `labels` has classes that `scheme` lacks.
    """
    counts: dict[View, NDArray[np.int64]] = {}
    if labels is not None:
        used = labels if counted is None else np.where(counted, labels, 0)
        counts = _count_along_axes(used, len(scheme))
    if labels is not None and counted is not None:
        for view, per_slice in counts.items():
            sizes = to_slices(counted, view).sum(axis=(1, 2))
            per_slice[:, 0] = sizes - per_slice[:, 1:].sum(axis=1)
    attributes: dict[str, Any] = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "scheme": json.dumps(scheme_table(scheme)),
        "affine": affine,
        "notes": json.dumps(notes),
    }
    if image is not None:
        attributes["image_scale"] = image.scale
        attributes["image_zero"] = image.zero
    # Get the merged scheme before the file is created: this raises if the scheme has none.
    merged = None
    if labels is not None and View.SAGITTAL in views:
        merged = scheme.merged
    # Build the file in memory: on a full disk, HDF5 fails in several places and unpredictably.
    with h5py.File(
        "slices",
        "w",
        driver="core",
        backing_store=False,
        block_size=_BLOCK_BYTES,
        libver=_LIBVER,
    ) as file:
        file.attrs.update(attributes)
        for view in views:
            group = file.create_group(view.value)
            if image is not None:
                _add_slices(group, "image", image.codes, view, _IMAGE_PACKING)
            if labels is not None:
                _add_labels(group, labels, counts[view], view, merged)
            if labels is not None and counted is not None:
                as_numbers = counted.astype(np.uint8)
                _add_slices(group, "counted", as_numbers, view, _LABEL_PACKING)
        file.flush()
        content = file.id.get_file_image()
    with atomic_write(path) as target:
        target.write(content)


def _add_labels(
    group: h5py.Group,
    labels: NDArray[np.uint8],
    per_slice: NDArray[np.int64],
    view: View,
    merged: MergedScheme | None,
) -> None:
    """Add the datasets `labels` and `class_counts` to the HDF5 group of a view.

    `labels` are class indices (X, Y, Z), and `per_slice` (N, K) are voxels per slice and class. For
    the sagittal view both are converted to `merged`, a scheme with one class for both sides of a
    structure; it is None if there is no sagittal view.
    """
    if view is View.SAGITTAL and merged is not None:
        labels = merged.to_merged.astype(np.uint8)[labels]
        # (K, classes of the merged scheme): 1 where a class maps to a merged class.
        membership = np.eye(len(merged.scheme), dtype=int)[merged.to_merged]
        per_slice = per_slice @ membership
    _add_slices(group, "labels", labels, view, _LABEL_PACKING)
    group.create_dataset("class_counts", data=per_slice.astype(np.uint32))


def _add_slices(
    group: h5py.Group,
    name: str,
    array: NDArray[Any],
    view: View,
    packing: dict[str, Any],
) -> None:
    """Add a view's slices of an array (X, Y, Z) as the dataset `name`.

    Each slice is one compressed chunk. `packing` has h5py's options for compression.
    """
    slices = np.ascontiguousarray(to_slices(array, view))
    chunks = (1, *slices.shape[1:])
    group.create_dataset(name, data=slices, chunks=chunks, **packing)


def scheme_table(scheme: LabelScheme) -> dict[str, Any]:
    """Return a scheme as JSON values: its name, and a dictionary for each label."""
    return {"name": scheme.name, "labels": [asdict(label) for label in scheme.labels]}


class SubjectFile:
    """Reader of one subject's slices.

    The file is opened at first use in each process, and a pickled reader is closed. Threads may
    share a reader. All methods raise IntegrityError if the file is damaged, and DatasetError if it
    has another format or lacks the requested data.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: h5py.File | None = None
        self._pid = -1
        self._datasets: dict[tuple[View, str], h5py.Dataset] = {}
        self._scale = 1.0
        self._zero = 0

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_file"] = None
        state["_pid"] = -1
        state["_datasets"] = {}
        return state

    def image(self, view: View, start: int, stop: int) -> NDArray[np.float32]:
        """Read the intensities of slices `start` to `stop` - 1, (N, H, W) float32."""
        return self.codes(view, start, stop).values()

    def codes(self, view: View, start: int, stop: int) -> Quantised:
        """Read the intensities, as 16-bit codes, of slices `start` to `stop` - 1, (N, H, W).

        Slices beyond the end of the volume are left out.
        """
        codes: NDArray[np.uint16] = self._read(view, "image", start, stop)
        return Quantised(codes, self._scale, self._zero)

    def slab(self, view: View, middle: int, thick: int) -> Quantised:
        """Read the codes of `thick` slices around slice `middle` of a view, (C, H, W).

        C is `thick`. The intensities are 16-bit codes, see `Quantised`. Beyond the ends of the
        volume the slab is padded with background: the code of intensity 0. The file is opened if it
        is closed, and stays open.
        """
        start = middle - thick // 2
        slab = self.codes(view, max(start, 0), start + thick)
        before = max(-start, 0)
        after = thick - before - len(slab.codes)
        if not before and not after:
            return slab
        edges = ((before, after), (0, 0), (0, 0))
        padded = np.pad(slab.codes, edges, constant_values=slab.zero)
        return replace(slab, codes=padded)

    def labels(self, view: View, start: int, stop: int) -> NDArray[np.uint8]:
        """Read the class indices of slices `start` to `stop` - 1, (N, H, W)."""
        slices: NDArray[np.uint8] = self._read(view, "labels", start, stop)
        return slices

    def counted(self, view: View, start: int, stop: int) -> NDArray[np.bool_] | None:
        """Read the mask of labels that are used in training, (N, H, W); None if all are used.

        It covers slices `start` to `stop` - 1.
        """
        if not self.has(view, "counted"):
            return None
        return np.asarray(self._read(view, "counted", start, stop) > 0)

    def slice_count(self, view: View) -> int:
        """Return the number of slices of the view."""
        name = "image" if self.has(view, "image") else "labels"
        return len(self._dataset(view, name))

    def class_counts(self, view: View) -> NDArray[np.uint32]:
        """Return the number of voxels of each class in each slice, (N, K).

        Voxels whose labels are not used in training are left out.
        """
        counts: NDArray[np.uint32] = self._dataset(view, "class_counts")[:]
        return counts

    def has(self, view: View, name: str) -> bool:
        """Return True if the view has a dataset `name`, such as image or labels."""
        return f"{view.value}/{name}" in self._open_file()

    @property
    def affine(self) -> NDArray[np.float64]:
        """Affine (4, 4) from voxels of the slices' 1 mm grid to RAS millimetres."""
        affine: NDArray[np.float64] = self._open_file().attrs["affine"]
        return affine

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all settings and inputs that the slices were made from."""
        return str(self._open_file().attrs["fingerprint"])

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that were made when the scan was read."""
        return tuple(json.loads(self._open_file().attrs["notes"]))

    def close(self) -> None:
        """Close the file; the next call of another method opens it again.

        Closing twice does nothing. In a forked process the parent's file is dropped without being
        closed.
        """
        with FILES:
            if self._file is not None and self._pid == os.getpid():
                self._file.close()
            self._file = None
            self._datasets = {}

    def _read(self, view: View, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read slices `start` to `stop` - 1 of the dataset `name` of a view.

        Slices beyond the end of the volume are left out.
        """
        try:
            with FILES:
                dataset = self._dataset(view, name)
                is_shuffled = bool(dataset.shuffle)
                numbers = range(len(dataset))[start:stop]
                chunks = [
                    dataset.id.read_direct_chunk((number, 0, 0)) for number in numbers
                ]
                shape = (len(chunks), *dataset.shape[1:])
                kind = dataset.dtype
            slices: NDArray[Any] = np.empty(shape, kind)
            for empty, (filters_left_out, packed) in zip(slices, chunks, strict=True):
                _unpack(packed, filters_left_out, empty, is_shuffled)
        except (OSError, ValueError, zlib.error) as error:
            what = f"damaged: {view.value} {name} of slices {start} to {stop - 1} cannot be read"
            raise IntegrityError(what, where=self.path, remedy=_REMEDY) from error
        return slices

    def _dataset(self, view: View, name: str) -> h5py.Dataset:
        """Return the dataset `name` of a view, from the cache after the first call."""
        file = self._open_file()
        dataset = self._datasets.get((view, name))
        if dataset is None:
            place = f"{view.value}/{name}"
            if place not in file:
                raise DatasetError(f"holds no {view.value} {name}", where=self.path)
            dataset = file[place]
            self._datasets[view, name] = dataset
        return dataset

    def _open_file(self) -> h5py.File:
        """Return the open HDF5 file; open it if this process has not opened it yet."""
        # A handle that was inherited through fork shares its file position with the parent.
        if self._file is None or self._pid != os.getpid():
            self._file = self._open()
            self._pid = os.getpid()
        return self._file

    def _open(self) -> h5py.File:
        """Open the file, check its format, and read scale and zero of its intensities."""
        self._datasets = {}
        try:
            # HDF5 opens files by name and would block on a pipe or a device, so refuse these first.
            open_regular(self.path).close()
            # Random slices gain nothing from a chunk cache; read-only disks do not support locks.
            file = h5py.File(self.path, "r", rdcc_nbytes=0, locking=False)
        except OSError as error:
            what = "not a readable slice file"
            raise IntegrityError(what, where=self.path, remedy=_REMEDY) from error
        found = file.attrs.get("format")
        if found != FORMAT:
            file.close()
            what = f"has slice format {found}, this version reads {FORMAT}"
            raise DatasetError(what, where=self.path, remedy=_REMEDY)
        self._scale = float(file.attrs.get("image_scale", 1.0))
        self._zero = int(file.attrs.get("image_zero", 0))
        return file


def _unpack(
    packed: bytes,
    filters_left_out: int,
    into: NDArray[Any],
    is_shuffled: bool,
) -> None:
    """Decompress the chunk `packed` into the array `into`, with zlib instead of HDF5.

    HDF5 decompresses in one thread at a time; zlib does so in several.

    HDF5 leaves out a filter that gains nothing, and sets its bit in `filters_left_out`: the lowest
    bit for the filter that was applied first. If `is_shuffled`, the bytes were shuffled before they
    were compressed.
    """
    compression_bit = 0b10 if is_shuffled else 0b01
    if filters_left_out & compression_bit:
        data = packed
    else:
        data = zlib.decompress(packed, bufsize=into.nbytes)

    shuffling_bit = 0b01
    if not is_shuffled or filters_left_out & shuffling_bit:
        into[...] = np.frombuffer(data, into.dtype).reshape(into.shape)
        return
    # Shuffled order: the first bytes of all values, then the second bytes.
    values = into.view(np.uint8).reshape(-1, into.itemsize)
    parts = np.frombuffer(data, np.uint8).reshape(into.itemsize, -1)
    for byte, part in enumerate(parts):
        values[:, byte] = part


def _count_along_axes(
    labels: NDArray[np.uint8], classes: int
) -> dict[View, NDArray[np.int64]]:
    """Count the voxels of each class in each slice of each view, (N, K), in labels (X, Y, Z).

    `classes` is K. Raises DatasetError if a class index is K or larger.
    """
    if labels.size and int(labels.max()) >= classes:
        raise DatasetError(f"class {labels.max()} in a map of {classes} classes")
    # Only the bounding box of the labels needs counting: a fifth of the working grid.
    box = occupied_box(labels > 0)
    counts = {}
    for view in View:
        slices = to_slices(labels, view)
        per_slice = np.zeros((len(slices), classes), np.int64)
        first = box[slice_axes(view).along].start
        for number, inside in enumerate(to_slices(labels[box], view), start=first):
            per_slice[number] = np.bincount(inside.ravel(), minlength=classes)
        foreground = per_slice[:, 1:].sum(axis=1)
        per_slice[:, 0] = slices[0].size - foreground
        counts[view] = per_slice
    return counts


@dataclass(frozen=True, eq=False)
class Quantised:
    """Intensities as 16-bit codes: value = (code - zero) * scale, so that 0 is stored exactly.

    `codes` are 0 to 4,095 in an array of any shape; `zero` is the code of intensity 0. The error of
    a value is at most half of `scale`.
    """

    codes: NDArray[np.uint16]
    scale: float
    zero: int

    def values(self) -> NDArray[np.float32]:
        """Return the intensities as a new float32 array, in the shape of the codes."""
        values: NDArray[np.float32] = self.codes.astype(np.float32)
        if self.zero:
            values -= np.float32(self.zero)
        values *= np.float32(self.scale)
        return values


def quantise(image: NDArray[np.float32]) -> Quantised:
    """Quantise an image of any shape to 4,096 codes.

    The codes are evenly spaced from the lowest value, or 0 if that is lower, to the highest, or 0
    if that is higher. An image that is 0 everywhere gets the scale 1. Values must be finite.
    """
    low = min(float(image.min()), 0.0)
    high = max(float(image.max()), 0.0)
    step = (high - low) / (_LEVELS - 1)
    if step < _SMALLEST_STEP:
        step = 1.0
    zero = round(-low / step)
    levels = np.rint(image / np.float32(step))
    levels += zero
    np.clip(levels, 0, _LEVELS - 1, out=levels)
    return Quantised(levels.astype(np.uint16), step, zero)
