"""Voxels as the page gets them: all of one scan on one grid, with axes that run as RAS."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from pipelines.common.naming import Product
from pipelines.view.study import Item, Study, structures_in
from segmentation.errors import InputError
from segmentation.io.volume import Volume
from segmentation.labels.scheme import load_scheme
from segmentation.metrics.common_grid import on_grid_of
from segmentation.report.mesh import surface_net
from segmentation.space.views import reoriented

__all__ = ["Voxels"]

_BRIGHTEST_PERCENT = 99.8
# Surfaces of larger boxes are of every other voxel: what a page can turn round smoothly.
_LARGE_BOX = 60**3


@dataclass(frozen=True, eq=False)
class Voxels:
    """Reads what the page asks for; the scan that was looked at last is kept."""

    study: Study
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_read", lru_cache(maxsize=4)(self._read_once))

    def scan(self, number: int, step: int) -> bytes:
        """The scan as NIfTI with 8 bits a voxel, every `step`-th voxel of each axis."""
        volume = self._known(number, "scan")
        return _nifti(_thinned(volume, step))

    def labels(self, number: int, step: int, kind: str = "labels") -> bytes:
        """For each voxel of the scan the place of its structure in the table, 0 for background."""
        return _thinned(self._known(number, kind), step).data.tobytes("F")

    def entropy(self, number: int) -> bytes:
        path = self.study[number].output(Product.ENTROPY)
        if path is None:
            raise InputError("no entropy was written: use trinat predict --entropy")
        return _nifti(_in_bytes(reoriented(Volume.read(path), "RAS"), 100))

    def surfaces(self, number: int) -> bytes:
        """For each structure its place in the table and counts (3 uint32), vertices and faces."""
        labels = self._known(number, "labels")
        parts = []
        for place, box in enumerate(ndimage.find_objects(labels.data), start=1):
            if box is None:
                continue
            box = tuple(slice(max(0, s.start - 2), s.stop + 2) for s in box)
            mask = (labels.data[box] == place).astype(np.float32)
            step = 2 if mask.size > _LARGE_BOX else 1
            share = ndimage.gaussian_filter(mask, 0.5 * step)[::step, ::step, ::step]
            to_volume = np.diag([step, step, step, 1.0])
            to_volume[:3, 3] = [s.start for s in box]
            surface = surface_net(share - 0.5, labels.affine @ to_volume)
            if len(surface.faces):
                parts.append(struct.pack("<3I", place, len(surface.vertices), len(surface.faces)))
                parts += [surface.vertices.astype("<f4").tobytes()]
                parts += [surface.faces.astype("<u4").tobytes()]
        return b"".join(parts)

    def _known(self, number: int, kind: str) -> Volume:
        # One at a time: the page asks for a scan and its labels at once, which need each other.
        with self._lock:
            item = self.study[number]
            path = _file(self.study, item, kind)
            return self._read(number, kind, path.stat().st_mtime_ns)  # type: ignore[attr-defined, no-any-return]

    def _read_once(self, number: int, kind: str, _: int) -> Volume:
        item = self.study[number]
        path = _file(self.study, item, kind)
        if kind == "scan" and self.study.image(item):
            scan = reoriented(Volume.read(path), "RAS")
            brightest = float(np.percentile(scan.data[::3, ::3, ::3], _BRIGHTEST_PERCENT))
            return _in_bytes(scan, brightest)
        volume = reoriented(Volume.read(path, labels=True), "RAS")
        if kind == "scan":  # without its scan a label map is shown on black
            return replace(volume, data=np.zeros(volume.shape, np.uint8))
        if (image := _file(self.study, item, "scan")) != path:
            image_time = image.stat().st_mtime_ns
            scan = self._read(number, "scan", image_time)  # type: ignore[attr-defined]
            volume, _note = on_grid_of(volume, scan, resample=True)
        folder = self.study.against if kind == "against" else item.folder
        return replace(volume, data=self._places(volume, folder))

    def _places(self, volume: Volume, folder: Path | None) -> NDArray[np.uint8]:
        """Numbers of a label map to places in the study's table, by the names of structures."""
        place = {x.name: n for n, x in enumerate(self.study.structures, start=1)}
        if own := structures_in(folder) if folder else []:
            names = {x.number: x.name for x in own}
        else:
            scheme = load_scheme(self.study.labels)
            indices = scheme.from_freesurfer(volume.data, spacing_mm=volume.spacing_mm)
            volume, names = replace(volume, data=indices), dict(enumerate(scheme.names))
        top = max(int(volume.data.max()), *names)
        table = np.zeros(top + 1, np.uint8)
        for number, name in names.items():
            table[number] = place.get(name, 0)
        return np.asarray(table[np.maximum(volume.data, 0)])


def _file(study: Study, item: Item, kind: str) -> Path:
    path = study.other(item) if kind == "against" else item.labels
    if kind == "scan":
        path = study.image(item) or item.labels
    if path is None:
        raise InputError(f"{item.name} has no {kind}")
    return path


def _thinned(volume: Volume, step: int) -> Volume:
    if step == 1:
        return volume
    affine = volume.affine @ np.diag([step, step, step, 1.0])
    return replace(volume, data=volume.data[::step, ::step, ::step], affine=affine)


def _in_bytes(volume: Volume, brightest: float) -> Volume:
    """Voxels from 0 to `brightest` as 0 to 255."""
    data: NDArray[Any] = volume.data.astype(np.float32) * (255 / (brightest or 1))
    return replace(volume, data=np.clip(data, 0, 255, out=data).astype(np.uint8))


def _nifti(volume: Volume) -> bytes:
    image = nib.Nifti1Image(volume.data, volume.affine)
    image.header["cal_max"] = 255
    return bytes(image.to_bytes())
