"""Attacks on scans and label maps that are read in this process."""

from __future__ import annotations

import functools
import gzip
import itertools
import random
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
from oracle import fuzz
from oracle.careful import NIFTI1
from oracle.fuzz import odd_scan

from attacks.verdicts import wrong
from attacks.workshop import READ_S, Try, time_limit
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import conform, restore

_AXES = [
    "".join(letters)
    for order in itertools.permutations(("RL", "AP", "SI"))
    for letters in itertools.product(*order)
]
_SUFFIXES = (".nii", ".nii.gz", ".mgz")


@functools.cache
def nifti() -> bytes:
    content: bytes = odd_scan((24, 20, 22)).to_bytes()
    return content


@functools.cache
def _true() -> Volume:
    image = odd_scan((24, 20, 22))
    return Volume(np.asarray(image.dataobj), image.affine)


def _read(path: Path, *, labels: bool = False) -> Volume:
    with time_limit(READ_S):
        return Volume.read(path, labels=labels)


Damage = Callable[[bytes, random.Random], bytes]


def _put(name: str, index: int, *values: float) -> Damage:
    """Return a damage that sets a header field to one of these values."""

    def damage(content: bytes, chance: random.Random) -> bytes:
        value = chance.choice(values)
        damaged: bytes = NIFTI1.put(content, name, index, value, order="<")
        return damaged

    return damage


def _voxels(kind: str, value: float) -> Damage:
    """Return a damage that changes the data type and makes one voxel odd."""

    def damage(content: bytes, chance: random.Random) -> bytes:
        data = _true().data.astype(kind)
        data[tuple(chance.randrange(n) for n in data.shape)] = value
        image = nib.Nifti1Image(data, _true().affine)
        return bytes(image.to_bytes())

    return damage


def _shape(*shape: int) -> Damage:
    def damage(content: bytes, chance: random.Random) -> bytes:
        data = (
            np.random.default_rng(chance.randrange(99))
            .integers(1, 99, shape)
            .astype("i2")
        )
        return bytes(nib.Nifti1Image(data, np.eye(4)).to_bytes())

    return damage


def _typed(kind: str) -> Damage:
    def damage(content: bytes, chance: random.Random) -> bytes:
        data = np.zeros((20, 20, 20), kind)
        return bytes(nib.Nifti1Image(data, np.eye(4), dtype=kind).to_bytes())

    return damage


NAN, INF = float("nan"), float("inf")
# Damages of the bytes of a scan, by name.
NIFTI_DAMAGE: dict[str, Damage] = {
    "empty": lambda c, r: b"",
    "one byte": lambda c, r: c[:1],
    "zeros": lambda c, r: bytes(len(c)),
    "ones": lambda c, r: b"\xff" * len(c),
    "noise": lambda c, r: r.randbytes(r.randint(1, 5000)),
    "text": lambda c, r: b"<!doctype html><html>not found</html>\n" * r.randint(1, 50),
    "cut in the header": lambda c, r: c[: r.randrange(1, 348)],
    "cut behind the header": lambda c, r: c[: r.randrange(348, 353)],
    "cut in the voxels": lambda c, r: c[: r.randrange(353, len(c) - 1)],
    "the last byte is missing": lambda c, r: c[:-1],
    "bytes behind the voxels": lambda c, r: c + r.randbytes(r.randint(5000, 9000)),
    "half of it twice": lambda c, r: c[: len(c) // 2] * 2 + b"x" * 5000,
    "a byte inserted in the header": lambda c, r: (
        lambda at: c[:at] + b"\x01" + c[at:]
    )(r.randrange(344)),
    "header twice": lambda c, r: c[:352] + c + bytes(8),
    "bytes swapped": lambda c, r: bytes(
        np.frombuffer(c[: len(c) // 2 * 2], "u2").byteswap().tobytes()
    ),
    "sizeof_hdr": _put("sizeof_hdr", 0, 0, 1, -1, 347, 349, 2**31 - 1),
    "no dimension": _put("dim", 0, 0, -1, 8, 32767),
    "a dimension of nothing": _put("dim", 1, 0, -1, -32768),
    "a dimension too large": _put("dim", 2, 1501, 32767),
    "more voxels than there are": _put("dim", 3, 23, 30, 1000),
    "fewer voxels than there are": _put("dim", 1, 16, 17, 23),
    "a small dimension": _put("dim", 2, 1, 2, 15),
    "a fourth dimension": lambda c, r: NIFTI1.put(
        NIFTI1.put(c, "dim", 0, 4), "dim", 4, r.choice((0, 2, 3, 100))
    ),
    "type unknown": _put("datatype", 0, 0, 1, 3, 5, 9999, -1),
    "type complex or coloured": _put("datatype", 0, 32, 128, 1792, 2304, 1536, 2048),
    "bits do not agree": _put("bitpix", 0, 0, 1, 8, 15, 32, 64),
    "a voxel without size": _put("pixdim", 2, 0, -1, NAN, INF, 1e-9, 1e9),
    "offset in the header": _put("vox_offset", 0, 0, 1, 347, 348, 351),
    "offset behind the end": _put("vox_offset", 0, 1e6, 1e9, 1e30, INF),
    "offset not whole": _put("vox_offset", 0, 352.5, NAN, -352),
    "slope is no number": _put("scl", 0, INF, -INF),
    "slope makes infinities": _put("scl", 0, 3e38, -3e38),
    "intercept is no number": lambda c, r: NIFTI1.put(
        NIFTI1.put(c, "scl", 0, 2.0), "scl", 1, r.choice((NAN, INF, -INF))
    ),
    "units are not mm": _put("xyzt_units", 0, 1, 3, 9),
    "no form is coded": lambda c, r: NIFTI1.put(
        NIFTI1.put(c, "codes", 0, 0), "codes", 1, 0
    ),
    "codes unknown": lambda c, r: NIFTI1.put(
        NIFTI1.put(c, "codes", 1, -3), "codes", 0, -7
    ),
    "s-form singular": lambda c, r: functools.reduce(
        lambda b, i: NIFTI1.put(b, "srow", i, 0.0), range(4), c
    ),
    "s-form not finite": _put("srow", 5, NAN, INF, 1e38),
    "forms mirror each other": _put("srow", 0, 0.9, 5.0),
    "forms disagree": _put("srow", 3, -200.0, 300.0),
    "quaternion too long": _put("quatern", 0, 1.5, -3, 1e20, NAN),
    "magic": _put("magic", 1, 0, 65, 255),
    "magic of a pair": lambda c, r: c[:344] + b"ni1\0" + c[348:],
    "extension without end": lambda c, r: (
        c[:348] + b"\1\0\0\0" + struct.pack("<2i", 2**30, 4) + c[360:]
    ),
    "all voxels alike": lambda c, r: (
        c[:352] + struct.pack("<h", r.randrange(99)) * ((len(c) - 352) // 2)
    ),
    "a voxel is NaN": _voxels("f4", NAN),
    "a voxel is infinite": _voxels("f8", INF),
    "a voxel beyond float32": _voxels("f8", 1e300),
    "two-dimensional": _shape(30, 30),
    "four-dimensional": _shape(20, 20, 20, 3),
    "one slice": _shape(30, 30, 1),
    "complex": _typed("c8"),
    "gzip inside .nii": lambda c, r: gzip.compress(c),
}
GZIP_DAMAGE: dict[str, Damage] = {
    "not gzip": lambda c, r: c,
    "gzip of nothing": lambda c, r: gzip.compress(b""),
    "gzip in gzip": lambda c, r: gzip.compress(gzip.compress(c)),
    "gzip cut": lambda c, r: gzip.compress(c, mtime=0)[: r.randrange(1, 2000)],
    "gzip without its checksum": lambda c, r: gzip.compress(c, mtime=0)[
        : -r.randint(1, 8)
    ],
    "gzip with a wrong checksum": lambda c, r: (
        gzip.compress(c, mtime=0)[:-8] + r.randbytes(8)
    ),
    "garbage behind gzip": lambda c, r: (
        gzip.compress(c, mtime=0) + b"x" + r.randbytes(99)
    ),
    "two streams of one scan": lambda c, r: gzip.compress(c) + gzip.compress(c),
    "reserved flags": lambda c, r: (lambda g: g[:3] + b"\xe0" + g[4:])(
        gzip.compress(c)
    ),
    "another method": lambda c, r: (lambda g: g[:2] + b"\x07" + g[3:])(
        gzip.compress(c)
    ),
}


def malformed(attempt: Try) -> None:
    """Read a scan with one of some 60 kinds of damage, in one of the formats.

    It must be refused, or read as a second reader reads it.
    """
    kinds = [("nii", n, d) for n, d in NIFTI_DAMAGE.items()]
    kinds += [("gz", n, d) for n, d in GZIP_DAMAGE.items()]
    kind, name, damage = kinds[attempt.number % len(kinds)]
    chance = attempt.chance
    content = damage(nifti(), chance)
    suffix = ".nii.gz"
    if kind == "nii":
        suffix = (
            chance.choice((".nii", ".nii.gz")) if name != "gzip inside .nii" else ".nii"
        )
        content = gzip.compress(content) if suffix == ".nii.gz" else content
    path = attempt.folder / f"scan{suffix}"
    path.write_bytes(content)
    labels = chance.random() < 0.3
    volume = _read(path, labels=labels)
    # If it was read, a second reader must read the same from these bytes.
    try:
        raw = gzip.decompress(content) if suffix == ".nii.gz" else content
        careful = fuzz.read_nifti(raw)
    except (ValueError, OSError, EOFError, zlib.error, struct.error) as error:
        raise wrong(f"{name} ({suffix}): read as good, though {error}") from None
    if volume.shape != careful.shape or not np.allclose(
        volume.affine, careful.affine, atol=1e-4
    ):
        raise wrong(f"{name} ({suffix}): another geometry than the header's")
    if not np.allclose(volume.data, careful.values, rtol=1e-5):
        raise wrong(f"{name} ({suffix}): other voxels than the file's")


def orientations(attempt: Try) -> None:
    """Write a head in 48 orientations and 3 formats.

    Conform must agree, and labels must come back.
    """
    axes = _AXES[attempt.number % 48]
    suffix = _SUFFIXES[attempt.number // 48 % 3]
    chance = np.random.default_rng(attempt.chance.getrandbits(32))
    shape = tuple(int(n) for n in chance.integers(17, 26, 3))
    image = chance.integers(1, 200, shape).astype(np.int16)
    numbers = chance.choice([0, 2, 41, 17, 53], shape).astype(np.uint8)
    affine = np.diag([1.0, 1.0, 1.0, 1.0])
    affine[:3, 3] = chance.integers(-30, 30, 3)
    way = nib.orientations.ornt_transform(
        nib.io_orientation(affine), nib.orientations.axcodes2ornt(axes)
    )
    place = affine @ nib.orientations.inv_ornt_aff(way, shape)
    for name, array, labels in (("scan", image, False), ("labels", numbers, True)):
        turned = nib.orientations.apply_orientation(array, way)
        Volume(turned, place).write(attempt.folder / f"{name}{suffix}", labels=labels)
        other = nib.load(attempt.folder / f"{name}{suffix}")
        if nib.aff2axcodes(other.affine) != tuple(axes):
            raise wrong(
                f"{axes} {suffix}: nibabel reads {nib.aff2axcodes(other.affine)}"
            )
    scan, truth = (
        _read(attempt.folder / f"scan{suffix}"),
        _read(attempt.folder / f"labels{suffix}", labels=True),
    )
    plain = conform(Volume(image, affine), shape=None)
    found = conform(scan, shape=None)
    if not np.array_equal(found.volume.data, plain.volume.data):
        raise wrong(f"{axes} {suffix}: another head on the working grid")
    there = conform(truth, labels=True, plan=found.plan)
    here = conform(Volume(numbers, affine), labels=True, plan=plain.plan)
    if not np.array_equal(there.volume.data, here.volume.data):
        raise wrong(f"{axes} {suffix}: other labels on the working grid")
    back = restore(there.volume, found.plan, labels=True)
    if not np.array_equal(back.data, truth.data) or not np.allclose(
        back.affine, place, atol=1e-5
    ):
        raise wrong(f"{axes} {suffix}: other labels in the scan's own space")


def header_mutations(attempt: Try) -> None:
    """Change one to three fields of a header of any format that is read; see oracle.fuzz."""
    sound = _scans()
    scan = sound[attempt.number % len(sound)]
    content, what = fuzz.mutate(scan, attempt.chance)
    path = attempt.folder / f"header{scan.suffix}"
    path.write_bytes(
        gzip.compress(content, 1) if scan.suffix.endswith("gz") else content
    )
    if scan.pair:
        path.with_suffix(".img").write_bytes(scan.pair)
    with time_limit(READ_S):
        volume = Volume.read(path, axes=scan.axes)
    if problem := fuzz.contradiction(volume, scan, content):
        raise wrong(f"{scan.name}: {what}: {problem}")


_scans = functools.cache(fuzz.scans)


def label_faults(attempt: Try) -> None:
    """Put numbers that are no labels into a label map that is read and folded to classes."""
    chance = np.random.default_rng(attempt.chance.getrandbits(32))
    numbers = chance.choice(
        [0, 2, 41, 3, 42, 17, 53, 77, 251, 1001, 2035], (18, 17, 16)
    )
    value = attempt.chance.choice(
        (
            2.5,
            -1,
            -1e9,
            5000,
            13999,
            2**15,
            2**31,
            2**40,
            1e38,
            NAN,
            INF,
            0.999,
            300,
            3000,
        )
    )
    kind = attempt.chance.choice(("f4", "f8", "i2", "i4", "u2", "i8"))
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        data = numbers.astype(kind)
        places = tuple(chance.integers(0, n, 5) for n in data.shape)
        data[places] = np.asarray(value).astype(kind)
    path = attempt.folder / f"labels{attempt.chance.choice(('.nii', '.nii.gz'))}"
    nib.Nifti1Image(data, np.eye(4), dtype=kind).to_filename(path)
    volume = _read(path, labels=True)
    if not np.array_equal(volume.data.astype("f8"), data.astype("f8")):
        raise wrong(f"{value} as {kind}: other numbers")
    scheme = load_scheme("quicknat33")
    classes = scheme.from_freesurfer(volume.data)
    known = {int(n) for label in scheme.labels for n in label.numbers}
    plain = np.isin(data, sorted(known))
    for label in scheme.labels[1:]:
        if not np.array_equal(
            (classes == label.index) & plain, np.isin(data, [*label.numbers]) & plain
        ):
            raise wrong(f"{value} as {kind}: {label.name} elsewhere")


ATTACKS = {
    "malformed inputs": malformed,
    "orientations": orientations,
    "header mutations": header_mutations,
    "label faults": label_faults,
}
