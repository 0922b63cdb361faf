"""Voxel data for the page: everything of a scan is on one grid, with RAS axes.

The page overlays arrays without looking at their affines. Therefore every array is reoriented to
RAS here, whatever the axes of its file, and label maps on another grid are resampled to the grid of
the scan.
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

from trinat.pipelines.study.files import ScanFile
from trinat.pipelines.study.images import read_image
from trinat.pipelines.study.naming import LAYERS, Product
from trinat.pipelines.study.study import digest
from trinat.pipelines.view.viewed import ViewedStudy, structures_in
from trinat.segmentation.errors import InputError
from trinat.segmentation.grid import Box, grown
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.rendering.mesh import Surface, surface_net
from trinat.segmentation.space.views import reoriented

_BRIGHTEST_PERCENT = 99.8
_BRIGHTEST_NATS = 2 * np.log(2)  # four equally likely structures
_LABELS = ("labels", "predicted", "against", *LAYERS, "lesions-predicted")
# Kinds of surfaces, with the kind of labels that each is made of.
_SURFACES = {"surfaces": "labels"} | {f"{layer}-surfaces": layer for layer in LAYERS}
KINDS = ("scan", "entropy", "mask", *_LABELS, *_SURFACES)
# Larger boxes are meshed from every other voxel, so that the page can rotate the surface smoothly.
_LARGE_BOX = 60**3


class Voxels:
    """Reader of the voxel data that the page requests; caches the last volumes."""

    def __init__(self, study: ViewedStudy) -> None:
        """Create a reader for a study; all methods take the number of a scan in its list."""
        self._study = study
        self._lock = Lock()
        self._read_once = lru_cache(maxsize=4)(self._read)
        # Cache of the original values, for display under the cross-hair.
        self._whole = lru_cache(maxsize=1)(_read_whole)

    def forget(self) -> None:
        """Clear the caches of volumes."""
        self._read_once.cache_clear()
        self._whole.cache_clear()

    def scan(self, number: int) -> Volume:
        """Return the image of a scan as uint8 on RAS axes."""
        return self._volume(number, "scan")

    def value(self, number: int, place_mm: Sequence[float]) -> float | None:
        """Return the value of a scan's voxel at a position in RAS mm; None outside of the scan.

        `place_mm` has three coordinates. The value is that of the file, not rescaled. Raises
        InputError if there is no such scan.
        """
        scan = self._study[number]
        path = _required(self._study.image(scan), "scan", scan)
        with self._lock:
            volume = self._whole(path, scan.labels, path.stat().st_mtime_ns)
        to_voxels = np.linalg.inv(volume.affine)
        # A position may be so far away that its index is no integer, or not even finite.
        with np.errstate(over="ignore", invalid="ignore"):
            voxel = np.rint(to_voxels[:3, :3] @ place_mm + to_voxels[:3, 3])
        is_inside = (voxel >= 0) & (voxel < volume.shape)
        if not is_inside.all():
            return None
        return float(volume.data[tuple(voxel.astype(int))])

    def content(self, number: int, kind: str, step: int) -> bytes:
        """Return voxels or surfaces of a scan as bytes; `kind` is one of `KINDS`.

        - "scan", "entropy" and "mask" (its outline): a NIfTI file with 8 bits per voxel.
        - "labels", "predicted" (before its correction) and "against" (the label map to compare
          with): one byte per voxel, the first axis fastest. The byte is the position of the voxel's
          structure in the study's table, from 1; 0 for none. "parcels", and any other layer, is the
          same for the layer's own table of structures; "lesions-predicted" are those before their
          correction.
        - "surfaces", and "parcels-surfaces": the surfaces of all structures (see `_surfaces`).

        Voxel data have every `step`-th voxel of each axis. Raises InputError if there is no such
        scan, or if it has no content of this kind.
        """
        if kind in _SURFACES:
            return _surfaces(self._volume(number, _SURFACES[kind]))
        volume = self._volume(number, kind)
        data = volume.data[::step, ::step, ::step]
        if kind in _LABELS:
            return data.tobytes("F")
        affine = volume.affine @ np.diag([step, step, step, 1.0])
        return bytes(nib.Nifti1Image(data, affine).to_bytes())

    def _volume(self, number: int, kind: str) -> Volume:
        """Return voxel data of one kind, as uint8 on RAS axes.

        `kind` is one of `KINDS`. For surfaces, the data are the label map that they are made of.
        Data are cached until the label map changes.
        """
        # Serialised: the page asks for a scan and its labels at once, and labels need the scan.
        with self._lock:
            scan = self._study[number]
            layer = _SURFACES.get(kind, kind)
            shown = scan.layers.get(layer) if layer in LAYERS else scan.newest_labels
            return self._read_once(number, kind, digest(shown))

    def _read(self, number: int, kind: str, version: str) -> Volume:
        """Read voxel data for `_volume`; `version`, the label map's digest, is a cache key."""
        scan = self._study[number]
        if kind == "scan":
            image = self._study.image(scan)
            if image is None:
                # Without an image, show black on the grid of the label map.
                path = _required(scan.labels, kind, scan)
                return _to_bytes(_read_ras(path, labels=True), np.inf)
            volume = self._whole(image, scan.labels, image.stat().st_mtime_ns)
            thinned = volume.data[::3, ::3, ::3]
            brightest = float(np.percentile(thinned, _BRIGHTEST_PERCENT))
            return _to_bytes(volume, brightest or np.inf)
        if kind == "entropy":
            path = _required(scan.output(Product.ENTROPY), kind, scan)
            return _to_bytes(_read_ras(path), _BRIGHTEST_NATS)
        if kind == "mask":
            path = _required(scan.output(Product.BRAIN_MASK), kind, scan)
            mask = _read_ras(path, labels=True)
            # Voxels that share a face with the outside.
            inside = mask.data > 0
            core = ndimage.binary_erosion(inside, border_value=1)
            outline = np.where(inside & ~core, 255, 0).astype(np.uint8)
            return replace(mask, data=outline)
        folder: Path | None = scan.folder
        has_grid_of_another = self._study.image(scan) is not None
        maps = {
            "labels": scan.newest_labels,
            "predicted": scan.labels,
            "against": self._study.other(scan),
            "lesions-predicted": scan.output(Product.LESIONS),
            **scan.layers,
        }
        if kind == "against":
            folder = self._study.against
            has_grid_of_another = True
        labels = _read_ras(_required(maps.get(kind), kind, scan), labels=True)
        if kind == "labels":
            self._study.refuse_other_numbers(scan, labels)
        if kind in ("lesions", "lesions-predicted"):
            # A mask, shown as the only structure of its layer.
            places = (labels.data > 0).astype(np.uint8)
        else:
            layer = kind if kind in LAYERS else ""
            places = self._places_in_table(labels, folder, layer)
        shown = replace(labels, data=places)
        if has_grid_of_another:
            grid = self._read_once(number, "scan", version)
            shown, _ = on_grid_of(shown, grid, resample=True)
        return shown

    def _places_in_table(
        self, labels: Volume, folder: Path | None, layer: str
    ) -> NDArray[np.uint8]:
        """Return the position of each voxel's structure in the study's table, from 1; 0 for none.

        With a `layer`, such as "parcels", this is the layer's own table. The numbers in `labels`
        are explained by the label table of `folder`, the folder of the label map; without one they
        are FreeSurfer's. Structures are matched by name.
        """
        known = self._study.structures
        if layer:
            known = self._study.layers.get(layer, [])
        structures = [] if folder is None else structures_in(folder, layer)
        if structures:
            numbers = labels.data
            name_of = {structure.number: structure.name for structure in structures}
        else:
            scheme = load_scheme(self._study.labels)
            numbers = scheme.from_freesurfer(labels.data, spacing_mm=labels.spacing_mm)
            name_of = dict(enumerate(scheme.names))
        place_of = {}
        for place, structure in enumerate(known, start=1):
            place_of[structure.name] = place

        largest = max(int(numbers.max()), *name_of)
        place_of_number = np.zeros(largest + 1, np.uint8)
        for number, name in name_of.items():
            place_of_number[number] = place_of.get(name, 0)
        # Negative numbers belong to no structure.
        return np.asarray(place_of_number[np.maximum(numbers, 0)])


def _surfaces(labels: Volume) -> bytes:
    """Return the surfaces of all structures as bytes, one after the other.

    Each structure has its number, its count of vertices and of faces (3 uint32), followed by the
    vertices (3 float32 each, RAS mm) and the faces (3 uint32 each); all little-endian. Structures
    without a surface are omitted. `labels` has positions in the study's table.
    """
    parts: list[bytes] = []
    for number, box in enumerate(ndimage.find_objects(labels.data), start=1):
        if box is None:
            continue
        surface = _surface_of(labels, number, grown(box, labels.shape, 2))
        if not len(surface.faces):
            continue
        head = struct.pack("<3I", number, len(surface.vertices), len(surface.faces))
        parts.append(head)
        parts.append(surface.vertices.astype("<f4").tobytes())
        parts.append(surface.faces.astype("<u4").tobytes())
    return b"".join(parts)


def _surface_of(labels: Volume, number: int, box: Box) -> Surface:
    """Return the smoothed surface of one structure, whose voxels have the value `number`.

    `box` is a box around it. In a large box, every other voxel is used. A structure of one or two
    voxels, which smoothing would remove, is not smoothed.
    """
    mask = (labels.data[box] == number).astype(np.float32)
    step = 1
    if mask.size > _LARGE_BOX:
        step = 2
    smooth = ndimage.gaussian_filter(mask, 0.5 * step)
    share = smooth[::step, ::step, ::step]
    if share.max() <= 0.5:
        step = 1
        share = mask
    to_voxels = np.diag([step, step, step, 1.0])
    to_voxels[:3, 3] = [along.start for along in box]
    return surface_net(share - 0.5, labels.affine @ to_voxels)


def _required(path: Path | None, kind: str, scan: ScanFile) -> Path:
    """Return `path`; raise InputError if it is None, because the scan has no data of this kind."""
    if path is None:
        raise InputError(f"has no {kind}", where=scan.case)
    return path


def _read_ras(path: Path, *, labels: bool = False) -> Volume:
    return reoriented(Volume.read(path, labels=labels), "RAS")


def _read_whole(path: Path, labels: Path | None, _: int) -> Volume:
    """Read a scan, with the label map `labels`, on RAS axes with its own values.

    The last argument is only a cache key.
    """
    return reoriented(read_image(path, labels), "RAS")


def _to_bytes(volume: Volume, brightest: float) -> Volume:
    """Rescale voxels to uint8: 0 stays 0, and `brightest` becomes 255."""
    data = volume.data.astype(np.float32) * (255 / brightest)
    np.clip(data, 0, 255, out=data)
    return replace(volume, data=data.astype(np.uint8))
