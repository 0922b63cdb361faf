"""A subject's slices as pictures, exactly: 16-bit greyscale images, indexed 8-bit labels.

    <folder>/<subject>/slices.json                     scale, zero, affine, scheme, views
    <folder>/<subject>/<view>/images/sub-<subject>_view-<view>_slice-090.png
    <folder>/<subject>/<view>/labels/sub-<subject>_view-<view>_slice-090.png

Grey values are codes spread over 16 bits, for viewers. A picture's row 0 is at its top, a slice's
at its bottom; they are turned over on the way.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import numpy as np
from natsort import natsorted
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, ValidationError

from segmentation.data.slices import FORMAT, Quantised, SubjectFile, write_subject
from segmentation.data.store import Pseudo, Store, scheme_from_table
from segmentation.errors import DatasetError, IntegrityError
from segmentation.io.files import open_regular, read_bytes, read_text
from segmentation.space.views import View, from_slices

__all__ = ["PngInfo", "export_png", "import_png", "png_fingerprint", "read_png_info"]

# Grey values to a code: 4,096 levels in 65,536.
_SPREAD = 16

_SLICE = re.compile(r"_slice-(\d+)\.png")


class PngInfo(BaseModel):
    """slices.json: what the pictures alone do not say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    fingerprint: str  # of the subject that was exported
    scale: float | None  # value = (grey - zero) * scale
    zero: int | None
    affine: tuple[tuple[float, float, float, float], ...]
    scheme: dict[str, object]
    views: tuple[View, ...]
    notes: tuple[str, ...]
    pseudo: Pseudo | None = None


def export_png(file: SubjectFile, folder: Path, subject: str, store: Store) -> int:
    """Write all slices of a subject as a new folder below `folder`; return how many pictures.

    The folder appears whole: to sync each of 1,536 pictures to the disk would take minutes.
    """
    written = 0
    target = folder / f".{subject}.partial"
    shutil.rmtree(target, ignore_errors=True)
    for view in file.views:
        palette = [c for label in store.scheme.seen_in(view).labels for c in label.color]
        if file.has(view, "image"):
            greys = file.codes(view).codes * np.uint16(_SPREAD)
            for path, slice_ in _named(target, view, "images", subject, greys):
                Image.fromarray(slice_).save(path, compress_level=1)
                written += 1
        if file.has(view, "labels"):
            count = file.slice_count(view)
            for path, slice_ in _named(
                target, view, "labels", subject, file.labels(view, 0, count)
            ):
                picture = Image.fromarray(slice_, "P")
                picture.putpalette(palette)
                picture.save(path, compress_level=1)
                written += 1
    has_image = any(file.has(view, "image") for view in file.views)
    codes = file.codes(file.views[0]) if has_image else None
    info = PngInfo(
        fingerprint=file.fingerprint,
        scale=codes.scale / _SPREAD if codes else None,
        zero=codes.zero * _SPREAD if codes else None,
        affine=tuple(tuple(row) for row in file.affine.tolist()),
        scheme=store.info.scheme,
        views=file.views,
        notes=file.notes,
        pseudo=store.info.subjects[subject].pseudo,
    )
    (target / "slices.json").write_text(info.model_dump_json(indent=1) + "\n")
    shutil.rmtree(folder / subject, ignore_errors=True)
    target.rename(folder / subject)
    return written


def import_png(folder: Path, path: Path) -> PngInfo:
    """Make the slices of one exported (and perhaps edited) subject into a file of a store.

    The volume is put together from a view that tells left from right, and cut into slices again.
    """
    info = read_png_info(folder)
    whole = next((view for view in info.views if view is not View.SAGITTAL), None)
    if whole is None:
        raise DatasetError(
            "holds sagittal slices alone, in which left and right are one",
            where=folder,
            remedy="export the coronal or the axial slices too",
        )
    scheme = scheme_from_table(dict(info.scheme))
    greys = _stack(folder / whole.value / "images", np.uint16)
    labels = _stack(folder / whole.value / "labels", np.uint8)
    image = None
    if greys is not None:
        if info.scale is None or info.zero is None:
            raise DatasetError("slices.json has no scale for the images", where=folder)
        codes = np.ascontiguousarray(from_slices(greys // _SPREAD, whole))
        image = Quantised(codes, info.scale * _SPREAD, info.zero // _SPREAD)
    write_subject(
        path,
        image=image,
        labels=None if labels is None else np.ascontiguousarray(from_slices(labels, whole)),
        affine=np.array(info.affine),
        scheme=scheme,
        views=info.views,
        fingerprint=png_fingerprint(folder),
        notes=info.notes,
    )
    return info


def read_png_info(folder: Path) -> PngInfo:
    try:
        return PngInfo.model_validate_json(read_text(folder / "slices.json"))
    except FileNotFoundError:
        raise DatasetError(
            "no slices.json: not exported by trinat", where=folder, remedy="see --export png"
        ) from None
    except (ValidationError, UnicodeDecodeError):
        raise DatasetError("slices.json cannot be understood", where=folder) from None


def png_fingerprint(folder: Path) -> str:
    """SHA-256 over all pictures and what goes with them."""
    digest = hashlib.sha256(str(FORMAT).encode())
    for path in natsorted(folder.rglob("*.*"), key=str):
        if path.suffix in {".png", ".json"}:
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(read_bytes(path))
    return digest.hexdigest()


def _named(
    target: Path,
    view: View,
    kind: str,
    subject: str,
    slices: NDArray[np.uint16] | NDArray[np.uint8],
) -> list[tuple[Path, NDArray[np.uint16] | NDArray[np.uint8]]]:
    """Slices with the names of their pictures, rows turned over."""
    folder = target / view.value / kind
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"sub-{subject.removeprefix('sub-')}_view-{view.value}"
    return [
        (folder / f"{stem}_slice-{number:03d}.png", np.ascontiguousarray(slice_[::-1]))
        for number, slice_ in enumerate(slices)
    ]


def _stack(folder: Path, kind: type[np.uint16] | type[np.uint8]) -> NDArray[np.generic] | None:
    """All pictures of a folder in natural order, (N, H, W); None where there is none."""
    if not folder.is_dir():
        return None
    paths = natsorted(folder.glob("*.png"), key=lambda path: path.name)
    numbers = [int(match[1]) for path in paths if (match := _SLICE.search(path.name))]
    if numbers != list(range(len(paths))) or not paths:
        missing = next((n for n in range(len(paths) + 1) if n not in numbers), 0)
        raise DatasetError(f"slice {missing} is missing", where=folder)
    mode = "I;16" if kind is np.uint16 else "P"
    slices = []
    for path in paths:
        try:
            with open_regular(path) as file, Image.open(file) as picture:
                if picture.mode != mode:
                    wanted = "16-bit greyscale" if mode == "I;16" else "8-bit with a palette"
                    raise DatasetError(f"is {picture.mode}, not {wanted}", where=path)
                slices.append(np.asarray(picture)[::-1])
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise IntegrityError("not a readable picture", where=path) from error
    if len({slice_.shape for slice_ in slices}) > 1:
        raise DatasetError("pictures differ in size", where=folder)
    return np.stack(slices).astype(kind)
