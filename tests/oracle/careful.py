"""An independent reader of scan headers, slow and literal, to compare the real reader with.

Written from the formats' definitions (nifti1.h, nifti2.h, FreeSurfer's MGH page) with `struct`
alone. It raises ValueError if a header contradicts itself, and makes no other judgement.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fields:
    """Positions of the fields that matter: name -> (first byte, struct types)."""

    length: int
    places: dict[str, tuple[int, str]]

    def put(
        self, content: bytes, name: str, index: int, value: float, *, order: str = "<"
    ) -> bytes:
        """Return a copy of a file with one field changed."""
        at, kinds = self.places[name]
        changed = bytearray(content)
        struct.pack_into(
            order + kinds[index],
            changed,
            at + struct.calcsize(order + kinds[:index]),
            value,
        )
        return bytes(changed)


class Reading(NamedTuple):
    shape: tuple[int, ...]
    affine: NDArray[np.float64]
    values: NDArray[Any]


NIFTI1 = Fields(
    348,
    {
        "sizeof_hdr": (0, "i"),
        "dim": (40, "h" * 8),
        "datatype": (70, "h"),
        "bitpix": (72, "h"),
        "pixdim": (76, "f" * 8),
        "vox_offset": (108, "f"),
        "scl": (112, "f" * 2),
        "xyzt_units": (123, "B"),
        "codes": (252, "h" * 2),
        "quatern": (256, "f" * 3),
        "qoffset": (268, "f" * 3),
        "srow": (280, "f" * 12),
        "magic": (344, "B" * 4),
    },
)

NIFTI2 = Fields(
    540,
    {
        "sizeof_hdr": (0, "i"),
        "magic": (4, "B" * 8),
        "datatype": (12, "h"),
        "bitpix": (14, "h"),
        "dim": (16, "q" * 8),
        "pixdim": (104, "d" * 8),
        "vox_offset": (168, "q"),
        "scl": (176, "d" * 2),
        "codes": (344, "i" * 2),
        "quatern": (352, "d" * 3),
        "qoffset": (376, "d" * 3),
        "srow": (400, "d" * 12),
        "xyzt_units": (500, "i"),
    },
)

MGH = Fields(
    90,
    {
        "version": (0, "i"),
        "dims": (4, "i" * 4),
        "type": (20, "i"),
        "dof": (24, "i"),
        "good": (28, "h"),
        "delta": (30, "f" * 3),
        "cosines": (42, "f" * 9),
        "centre": (78, "f" * 3),
    },
)

_NIFTI_TYPES = {
    2: "u1",
    4: "i2",
    8: "i4",
    16: "f4",
    64: "f8",
    256: "i1",
    512: "u2",
    768: "u4",
}
_NIFTI_TYPES |= {1024: "i8", 1280: "u8"}
_MGH_TYPES = {0: "u1", 1: "i4", 3: "f4", 4: "i2", 10: "u2"}


def read_nifti(block: bytes, voxels: bytes | None = None, *, axes: str = "") -> Reading:
    """Read a NIfTI file, or with `voxels` the header of a pair; with `axes` an Analyze header."""
    fields = NIFTI2 if 540 in (_int(block, "<"), _int(block, ">")) else NIFTI1
    # As nifti1.h advises, the byte order is the one in which dim[0] makes sense.
    order = next((o for o in "<>" if 1 <= _get(block, fields, "dim", o)[0] <= 7), None)
    if order is None:
        raise ValueError("dim[0] makes no sense in either byte order")

    def get(name: str) -> tuple[Any, ...]:
        return _get(block, fields, name, order)

    dims = [int(n) for n in get("dim")[1 : 1 + get("dim")[0]]]
    shape = _squeezed(dims)
    pixdim = get("pixdim")
    if not all(math.isfinite(size) and size > 0 for size in pixdim[1:4]):
        raise ValueError("a voxel has no size")
    offset = get("vox_offset")[0]
    if offset != int(offset) or offset < (
        0 if voxels is not None else fields.length + 4
    ):
        raise ValueError("voxels do not start after the header")
    slope, inter = (1.0, 0.0) if axes else get("scl")
    if slope == 0 or math.isnan(slope):
        slope, inter = 1.0, 0.0
    if get("datatype")[0] not in _NIFTI_TYPES:
        raise ValueError("no number has this type")
    stored = np.dtype(order + _NIFTI_TYPES[get("datatype")[0]])
    if stored.itemsize * 8 != get("bitpix")[0]:
        raise ValueError("type and bits do not agree")
    data = (block if voxels is None else voxels)[int(offset) :]
    values = _values(data, stored, shape) * slope + inter
    if axes:
        return Reading(shape, _from_axes(axes, pixdim[1:4], shape), values)
    if get("xyzt_units")[0] & 7 not in (0, 2):
        raise ValueError("units are not millimetres")
    forms = {
        "s": np.vstack([np.reshape(get("srow"), (3, 4)), [0, 0, 0, 1]]).astype(
            np.float64
        ),
        "q": _from_quaternion(get("quatern"), get("qoffset"), pixdim),
    }
    qcode, scode = get("codes")
    if not (qcode > 0 or scode > 0):
        raise ValueError("no form is coded")
    if qcode > 0 and scode > 0:
        handedness = [np.linalg.det(form[:3, :3]) for form in forms.values()]
        if not handedness[0] * handedness[1] > 0:
            raise ValueError("one form mirrors the other")
    return Reading(shape, _sound(forms["s" if scode > 0 else "q"]), values)


def read_mgh(block: bytes) -> Reading:
    """Read an .mgh file: big-endian, 284 bytes of header."""

    def get(name: str) -> tuple[Any, ...]:
        return _get(block, MGH, name, ">")

    shape = _squeezed(list(get("dims")))
    if (
        get("version") != (1,)
        or get("type")[0] not in _MGH_TYPES
        or get("good") != (1,)
    ):
        raise ValueError("version, type or orientation flag are not known")
    values = _values(block[284:], np.dtype(">" + _MGH_TYPES[get("type")[0]]), shape)
    affine = np.eye(4)
    cosines, centre = get("cosines"), get("centre")
    for axis, size in enumerate(get("delta")):
        if not size > 0:
            raise ValueError("a voxel has no size")
        for row in range(3):
            affine[row, axis] = cosines[3 * axis + row] * size
    # c_ras is the position of the voxel with index dims / 2.
    for row in range(3):
        affine[row, 3] = centre[row] - sum(
            affine[row, axis] * shape[axis] / 2 for axis in range(3)
        )
    return Reading(shape, _sound(affine), values)


def _int(block: bytes, order: str) -> int:
    return int(struct.unpack_from(order + "i", block)[0])


def _get(block: bytes, fields: Fields, name: str, order: str) -> tuple[Any, ...]:
    at, kinds = fields.places[name]
    return struct.unpack_from(order + kinds, block, at)


def _squeezed(dims: list[int]) -> tuple[int, ...]:
    if min(dims) <= 0 or len(dims) < 3 or math.prod(dims[3:]) != 1:
        raise ValueError(f"{dims} are not the sides of one 3D image")
    return tuple(dims[:3])


def _values(data: bytes, stored: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    count = math.prod(shape)
    if count * stored.itemsize > len(data):
        raise ValueError("the file ends before its voxels do")
    with np.errstate(all="ignore"):
        return (
            np.frombuffer(data, stored, count)
            .reshape(shape, order="F")
            .astype(np.float64)
        )


def _from_quaternion(
    bcd: tuple[float, ...], offset: tuple[float, ...], pixdim: tuple[float, ...]
) -> NDArray[np.float64]:
    """Return the affine by method 2 of nifti1.h, formula by formula."""
    b, c, d = bcd
    a = math.sqrt(max(0.0, 1.0 - (b * b + c * c + d * d)))
    rotation = np.array(
        [
            [
                a * a + b * b - c * c - d * d,
                2 * b * c - 2 * a * d,
                2 * b * d + 2 * a * c,
            ],
            [
                2 * b * c + 2 * a * d,
                a * a + c * c - b * b - d * d,
                2 * c * d - 2 * a * b,
            ],
            [
                2 * b * d - 2 * a * c,
                2 * c * d + 2 * a * b,
                a * a + d * d - c * c - b * b,
            ],
        ]
    )
    affine = np.eye(4)
    affine[:3, :3] = rotation * [
        pixdim[1],
        pixdim[2],
        pixdim[3] * (-1 if pixdim[0] < 0 else 1),
    ]
    affine[:3, 3] = offset
    return affine


def _from_axes(
    axes: str, sizes: tuple[float, ...], shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return an affine with given axes and the middle of the image at the origin."""
    directions = {
        "R": (0, 1),
        "L": (0, -1),
        "A": (1, 1),
        "P": (1, -1),
        "S": (2, 1),
        "I": (2, -1),
    }
    affine = np.eye(4)
    affine[:3, :3] = 0
    for axis, letter in enumerate(axes):
        row, sign = directions[letter]
        affine[row, axis] = sign * sizes[axis]
        affine[row, 3] = -sign * sizes[axis] * (shape[axis] - 1) / 2
    return affine


def _sound(affine: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(affine).all() or np.linalg.det(affine[:3, :3]) == 0:
        raise ValueError("the affine is not one")
    return affine
