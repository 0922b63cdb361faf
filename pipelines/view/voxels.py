"""Voxels as the page gets them: all of one scan on one grid, with axes that run as RAS.

The page lays arrays over one another without a look at their affines. So every array is turned to
RAS axes here, whatever axes its file has, and label maps on another grid are resampled to the
scan's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Lock

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.pipelines.view.study import Item, Study, digest, structures_in
from trinat.segmentation.errors import InputError
from trinat.segmentation.grid import grown
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.report.mesh import surface_net
from trinat.segmentation.space.views import reoriented

_BRIGHTEST_PERCENT = 99.8
_BRIGHTEST_NATS = 2 * np.log(2)  # four structures as likely as one another
# Surfaces of larger boxes are of every other voxel: what a page can turn round smoothly.
_LARGE_BOX = 60**3


class Voxels:
    """Reads what the page asks for; the maps that were looked at last are kept."""

    def __init__(self, study: Study) -> None:
        """Of the scans of a study, by their numbers in its list."""
        self._study = study
        self._lock = Lock()
        self._kept = lru_cache(maxsize=4)(self._read)
        # With the scan's own values, for what is under the cross-hair.
        self._whole = lru_cache(maxsize=1)(_read_whole)

    def forget(self) -> None:
        """Drop all voxels that are kept."""
        self._kept.cache_clear()
        self._whole.cache_clear()

    def value(self, number: int, place_mm: Sequence[float]) -> float | None:
        """The scan's own value in the voxel at a place (3,) in RAS mm; None outside of the scan.

        InputError where the study does not have the scan.
        """
        item = self._study[number]
        path = _existing(self._study.image(item), "scan", item)
        with self._lock:
            volume = self._whole(path, path.stat().st_mtime_ns)
        to_voxels = np.linalg.inv(volume.affine)
        voxel = np.rint(to_voxels[:3, :3] @ place_mm + to_voxels[:3, 3]).astype(int)
        if (voxel < 0).any() or (voxel >= volume.shape).any():
            return None
        return float(volume.data[tuple(voxel)])

    def content(self, number: int, kind: str, step: int) -> bytes:
        """What the page gets of a scan, by its number, with every `step`-th voxel of each axis.

        Scan and entropy are NIfTI files with 8 bits a voxel. Label maps ("labels", "against") are
        a byte a voxel, the first axis first: the place of its structure in the study's table, 0
        for none. "surfaces" are those of `surfaces`, whatever the step.
        """
        # One at a time: the page asks for a scan and its labels at once, which need each other.
        with self._lock:
            now = digest(self._study[number].labels)
            of_labels = kind == "surfaces"
            volume = self._kept(number, "labels" if of_labels else kind, now)
        if of_labels:
            return surfaces(volume)
        data = volume.data[::step, ::step, ::step]
        if kind in ("labels", "against"):
            return data.tobytes("F")
        affine = volume.affine @ np.diag([step, step, step, 1.0])
        return bytes(nib.Nifti1Image(data, affine).to_bytes())

    def _read(self, number: int, kind: str, now: str) -> Volume:
        """What is there `now`, by the digest of the label map, on RAS axes and in uint8.

        The digest makes what is kept of a label map that has changed since be read again.
        """
        item = self._study[number]
        if kind == "scan":
            return self._read_scan(item)
        if kind == "entropy":
            path = _existing(self._study.entropy(item), kind, item)
            return _in_bytes(_read_ras(path), _BRIGHTEST_NATS)
        if kind == "against":
            path = _existing(self._study.other(item), kind, item)
            folder = self._study.against
        else:
            path = _existing(item.labels, kind, item)
            folder = item.folder
        volume = _read_ras(path, labels=True)
        if kind == "against" or self._study.image(item):
            scan = self._kept(number, "scan", now)
            volume, _ = on_grid_of(volume, scan, resample=True)
        return replace(volume, data=self._places(volume, folder))

    def _read_scan(self, item: Item) -> Volume:
        """A scan in 8 bits; without its scan a label map is shown on black."""
        image = self._study.image(item)
        if image is None:
            labels = _read_ras(_existing(item.labels, "scan", item), labels=True)
            return _in_bytes(labels, np.inf)
        volume = self._whole(image, image.stat().st_mtime_ns)
        thinned = volume.data[::3, ::3, ::3]
        brightest = float(np.percentile(thinned, _BRIGHTEST_PERCENT))
        return _in_bytes(volume, brightest or np.inf)

    def _places(self, volume: Volume, folder: Path | None) -> NDArray[np.uint8]:
        """Numbers of a label map to places in the study's table, by the names of structures.

        Its numbers are those of its folder's own label table, or else those of FreeSurfer.
        """
        own = []
        if folder:
            own = structures_in(folder)
        if own:
            numbers = volume.data
            names = {structure.number: structure.name for structure in own}
        else:
            scheme = load_scheme(self._study.labels)
            spacing_mm = volume.spacing_mm
            numbers = scheme.from_freesurfer(volume.data, spacing_mm=spacing_mm)
            names = dict(enumerate(scheme.names))
        places = {
            structure.name: place
            for place, structure in enumerate(self._study.structures, start=1)
        }
        largest = max(int(numbers.max()), *names)
        table = np.zeros(largest + 1, np.uint8)
        table[list(names)] = [places.get(name, 0) for name in names.values()]
        return np.asarray(table[np.maximum(numbers, 0)])


def surfaces(labels: Volume) -> bytes:
    """For each structure its number and counts (3 uint32), vertices and faces.

    Vertices are float32 in RAS mm, faces three uint32 each; all are little-endian.
    """
    parts: list[bytes] = []
    for number, box in enumerate(ndimage.find_objects(labels.data), start=1):
        if box is None:
            continue
        box = grown(box, labels.shape, 2)
        mask = (labels.data[box] == number).astype(np.float32)
        step = 1
        if mask.size > _LARGE_BOX:
            step = 2
        smooth = ndimage.gaussian_filter(mask, 0.5 * step)
        share = smooth[::step, ::step, ::step]
        place = np.diag([step, step, step, 1.0])
        place[:3, 3] = [along.start for along in box]
        found = surface_net(share - 0.5, labels.affine @ place)
        counts = (len(found.vertices), len(found.faces))
        parts.append(struct.pack("<3I", number, *counts))
        parts.append(found.vertices.astype("<f4").tobytes())
        parts.append(found.faces.astype("<u4").tobytes())
    return b"".join(parts)


def _existing(path: Path | None, kind: str, item: Item) -> Path:
    """A file of a scan; InputError if there is none."""
    if path is None:
        raise InputError(f"has no {kind}", where=item.name)
    return path


def _read_ras(path: Path, *, labels: bool = False) -> Volume:
    return reoriented(Volume.read(path, labels=labels), "RAS")


def _read_whole(path: Path, _: int) -> Volume:
    """A scan on RAS axes with its own values; kept until the time of its last change differs."""
    return _read_ras(path)


def _in_bytes(volume: Volume, brightest: float) -> Volume:
    """Voxels from 0 to `brightest` as 0 to 255."""
    data = volume.data.astype(np.float32) * (255 / brightest)
    np.clip(data, 0, 255, out=data)
    return replace(volume, data=data.astype(np.uint8))
