"""Voxels as the page gets them: all of one scan on one grid, with axes that run as RAS."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Lock

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.pipelines.view.study import Study, digest, structures_in
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
        self._study, self._lock = study, Lock()
        self._kept = lru_cache(maxsize=4)(self._read)
        self.forget = self._kept.cache_clear

    def content(self, number: int, kind: str, step: int) -> bytes:
        """Scan and entropy as NIfTI with 8 bits a voxel, every `step`-th voxel of each axis; of
        label maps for each such voxel the place of its structure in the table, 0 for none."""
        # One at a time: the page asks for a scan and its labels at once, which need each other.
        with self._lock:
            now = digest(self._study[number].labels)
            volume = self._kept(number, "labels" if kind == "surfaces" else kind, now)
        if kind == "surfaces":
            return surfaces(volume)
        affine = volume.affine @ np.diag([step, step, step, 1.0])
        data = volume.data[::step, ::step, ::step]
        if kind in ("labels", "against"):
            return data.tobytes("F")
        return bytes(nib.Nifti1Image(data, affine).to_bytes())

    def _read(self, number: int, kind: str, now: str) -> Volume:
        """What is there `now`, by the digest of the label map."""
        study, item = self._study, self._study[number]
        image = study.image(item)
        files = {
            "against": study.other(item),
            "entropy": study.entropy(item),
            "scan": image,
        }
        path = files.get(kind) or (item.labels if kind in ("scan", "labels") else None)
        if path is None:
            raise InputError(f"has no {kind}", where=item.name)
        is_labels = path not in (image, files["entropy"])
        volume = reoriented(Volume.read(path, labels=is_labels), "RAS")
        if kind == "entropy":
            return _in_bytes(volume, _BRIGHTEST_NATS)
        if kind == "scan":  # without its scan a label map is shown on black
            thin = 0 * volume.data if is_labels else volume.data[::3, ::3, ::3]
            return _in_bytes(
                volume, float(np.percentile(thin, _BRIGHTEST_PERCENT)) or np.inf
            )
        if image or kind == "against":
            volume, _ = on_grid_of(
                volume, self._kept(number, "scan", now), resample=True
            )
        folder = study.against if kind == "against" else item.folder
        return replace(volume, data=self._places(volume, folder))

    def _places(self, volume: Volume, folder: Path | None) -> NDArray[np.uint8]:
        """Numbers of a label map to places in the study's table, by the names of structures."""
        place = {x.name: n for n, x in enumerate(self._study.structures, start=1)}
        if own := structures_in(folder) if folder else []:
            names = {x.number: x.name for x in own}
        else:
            scheme = load_scheme(self._study.labels)
            indices = scheme.from_freesurfer(volume.data, spacing_mm=volume.spacing_mm)
            volume, names = replace(volume, data=indices), dict(enumerate(scheme.names))
        table = np.zeros(max(int(volume.data.max()), *names) + 1, np.uint8)
        table[list(names)] = [place.get(name, 0) for name in names.values()]
        return np.asarray(table[np.maximum(volume.data, 0)])


def surfaces(labels: Volume) -> bytes:
    """For each structure its number and counts (3 uint32), vertices and faces."""
    parts = []
    for number, box in enumerate(ndimage.find_objects(labels.data), start=1):
        if box is None:
            continue
        box = grown(box, labels.shape, 2)
        mask = (labels.data[box] == number).astype(np.float32)
        step = 2 if mask.size > _LARGE_BOX else 1
        share = ndimage.gaussian_filter(mask, 0.5 * step)[::step, ::step, ::step]
        place = np.diag([step, step, step, 1.0])
        place[:3, 3] = [s.start for s in box]
        found = surface_net(share - 0.5, labels.affine @ place)
        parts.append(struct.pack("<3I", number, len(found.vertices), len(found.faces)))
        parts += [
            found.vertices.astype("<f4").tobytes(),
            found.faces.astype("<u4").tobytes(),
        ]
    return b"".join(parts)


def _in_bytes(volume: Volume, brightest: float) -> Volume:
    """Voxels from 0 to `brightest` as 0 to 255."""
    data = volume.data.astype(np.float32) * (255 / brightest)
    return replace(volume, data=np.clip(data, 0, 255, out=data).astype(np.uint8))
