"""Break scans on purpose, thousands of times, and see that none is read as good.

`PYTHONPATH=tests python -m oracle.fuzz` runs the whole: 2,000 flipped bits and 500 truncations of
a .nii.gz, 5,000 headers with lies in them. A damaged file must be refused; a changed header must be
refused or be read as `oracle.careful` reads it, a second reading of the same bytes that shares no
code with the reader. One line each, and exit status 1 if anything is missed.
"""

from __future__ import annotations

import argparse
import gzip
import random
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from helpers.limits import limit_memory, time_limit
from oracle.careful import MGH, NIFTI1, NIFTI2, Fields, Reading, read_mgh, read_nifti

from trinat.segmentation.errors import InputError
from trinat.segmentation.io.volume import Volume

FLIPS, CUTS, HEADERS = 2000, 500, 5000
_MEMORY_MIB = 1024
_PATIENCE_S = 10

# What a header's author may have got wrong, beside chance.
_INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    8,
    15,
    16,
    17,
    32,
    64,
    128,
    1500,
    1501,
    32767,
    -32768,
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-3, 1e-30, 1e30, 351.0, 352.0, 368.0)
_NON_NUMBERS = (float("nan"), float("inf"), float("-inf"))


class HangError(Exception):
    """Not a TimeoutError: the reader would take that for one of the disk's."""


@dataclass
class Tally:
    """Outcomes of the cases of one kind; `missed` has the errors, and must be empty."""

    name: str
    refused: int = 0
    right: int = 0
    missed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def __str__(self) -> str:
        cases = self.refused + self.right + len(self.missed)
        return (
            f"{self.name:<18} {cases:>6} {self.refused:>8} {self.right:>11} "
            f"{len(self.missed):>7} {self.slowest_s * 1000:>8.0f} ms"
        )


@dataclass(frozen=True)
class Scan:
    """A sound file to be broken: its header's fields, and how to read it a second time."""

    name: str
    suffix: str
    content: bytes
    fields: Fields
    careful: Callable[[bytes], Reading]
    pair: bytes = b""
    axes: str | None = None


def odd_scan(
    shape: tuple[int, int, int] = (18, 17, 16), dtype: str = "i2"
) -> nib.Nifti1Image:
    """Return an oblique, anisotropic, left-handed, noisy scan, so that any shift shows."""
    angle = 0.2
    turn = np.array(
        [
            [np.cos(angle), -np.sin(angle), 0],
            [np.sin(angle), np.cos(angle), 0],
            [0, 0, 1],
        ]
    )
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([-0.9, 1.1, 1.3])
    affine[:3, 3] = (12.5, -7.25, 3.0)
    voxels = np.random.default_rng(7).integers(1, 200, shape).astype(dtype)
    image = nib.Nifti1Image(voxels, affine)
    image.set_qform(affine, 1)
    image.set_sform(affine, 1)
    image.header.set_xyzt_units("mm")
    return image


def fuzz_flips(count: int, seed: int, folder: Path) -> Tally:
    """Flip one bit of a .nii.gz at a time.

    The gzip header's flags, time, level and system (bytes 3 to 9) are left alone: they say nothing
    on the content, and have no checksum.
    """
    content = gzip.compress(odd_scan((64, 64, 64)).to_bytes(), 6, mtime=0)
    chance = random.Random(seed)
    tally = Tally("bit flips")
    for _ in range(count):
        byte = chance.randrange(len(content) - 7)
        byte += 7 if byte > 2 else 0
        bit = chance.randrange(8)
        broken = bytearray(content)
        broken[byte] ^= 1 << bit
        _must_refuse(
            tally, folder / "flip.nii.gz", bytes(broken), f"bit {bit} of byte {byte}"
        )
    return tally


def fuzz_cuts(count: int, seed: int, folder: Path) -> Tally:
    """Cut a .nii.gz short; the last bytes, where only the checksum is lost, are all tried."""
    content = gzip.compress(odd_scan((64, 64, 64)).to_bytes(), 6, mtime=0)
    chance = random.Random(seed)
    last = min(16, count)
    lengths = [len(content) - missing for missing in range(1, last + 1)]
    lengths += [chance.randrange(len(content)) for _ in range(count - last)]
    tally = Tally("truncations")
    for length in lengths:
        _must_refuse(
            tally, folder / "cut.nii.gz", content[:length], f"cut to {length} bytes"
        )
    return tally


def fuzz_headers(count: int, seed: int, folder: Path) -> Tally:
    """Change fields, bytes or bits of headers of every kind that is read."""
    sound = scans()
    chance = random.Random(seed)
    tally = Tally("header mutations")
    for index in range(count):
        scan = sound[index % len(sound)]
        content, what = mutate(scan, chance)
        path = folder / f"header{scan.suffix}"
        path.write_bytes(
            gzip.compress(content, 1) if scan.suffix.endswith("gz") else content
        )
        if scan.pair:
            path.with_suffix(".img").write_bytes(scan.pair)
        volume = _read(tally, path, f"{scan.name}: {what}", axes=scan.axes)
        if volume is not None:
            problem = contradiction(volume, scan, content)
            if problem:
                tally.missed.append(f"{scan.name}: {what}: {problem}")
            else:
                tally.right += 1
    return tally


def scans() -> list[Scan]:
    """Return one sound file of each kind."""
    image = odd_scan()
    nifti = image.to_bytes()
    scaled = odd_scan(dtype="u1")
    scaled.header.set_slope_inter(0.25, -3)
    # nibabel would scale anew on writing.
    slope = struct.pack("<2f", 0.25, -3)
    scaled_bytes = scaled.to_bytes()[:112] + slope + scaled.to_bytes()[120:]
    swapped = nib.Nifti1Image(
        image.dataobj, image.affine, image.header.as_byteswapped(">")
    )
    extended = odd_scan()
    extended.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"x" * 20))
    second = nib.Nifti2Image(np.asarray(image.dataobj), image.affine)
    mgh = nib.MGHImage(np.asarray(image.dataobj), image.affine).to_bytes()
    hdr, img = _pair(nib.Nifti1Pair.from_image(image))
    old_hdr, old_img = _pair(nib.AnalyzeImage.from_image(image))
    return [
        Scan("nii", ".nii", nifti, NIFTI1, read_nifti),
        Scan("nii.gz", ".nii.gz", nifti, NIFTI1, read_nifti),
        Scan("scaled", ".nii", scaled_bytes, NIFTI1, read_nifti),
        Scan("big-endian", ".nii", swapped.to_bytes(), NIFTI1, read_nifti),
        Scan("extended", ".nii", extended.to_bytes(), NIFTI1, read_nifti),
        Scan("NIfTI-2", ".nii", second.to_bytes(), NIFTI2, read_nifti),
        Scan("mgh", ".mgh", mgh, MGH, read_mgh),
        Scan("mgz", ".mgz", mgh, MGH, read_mgh),
        Scan("pair", ".hdr", hdr, NIFTI1, lambda block: read_nifti(block, img), img),
        Scan(
            "Analyze",
            ".hdr",
            old_hdr,
            NIFTI1,
            lambda block: read_nifti(block, old_img, axes="ASL"),
            old_img,
            "ASL",
        ),
    ]


def _pair(image: Any) -> tuple[bytes, bytes]:
    """Return the bytes of the two files of a pair."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scan.hdr"
        nib.save(image, path)
        return path.read_bytes(), path.with_suffix(".img").read_bytes()


def mutate(scan: Scan, chance: random.Random) -> tuple[bytes, str]:
    """Return the file with one to three false values in its header, and a description of them."""
    broken = scan.content
    end = scan.fields.length
    # A NIfTI header's first bytes tell its byte order; NIfTI-2 starts alike.
    order = ">" if scan.fields is MGH or scan.content[0] == 0 else "<"
    told = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        way = chance.random()
        if way < 0.7:
            name = chance.choice(sorted(scan.fields.places))
            _, kinds = scan.fields.places[name]
            index = chance.randrange(len(kinds))
            value = _lie(kinds[index], chance)
            broken = scan.fields.put(broken, name, index, value, order=order)
            told.append(f"{name}[{index}] = {value}")
        else:
            at, value = chance.randrange(end), chance.randrange(256)
            value = broken[at] ^ 1 << value % 8 if way < 0.85 else value
            broken = broken[:at] + bytes([value]) + broken[at + 1 :]
            told.append(f"byte {at} = {value}")
    return broken, ", ".join(told)


def _lie(kind: str, chance: random.Random) -> float:
    """Return a value for a field of this struct type."""
    if kind in "fd":
        special = (*_FLOATS, *_NON_NUMBERS, chance.uniform(-2, 2), chance.gauss(0, 1e3))
        return float(chance.choice(special))
    bits = 8 * struct.calcsize("<" + kind)
    low, high = (
        (0, (1 << bits) - 1)
        if kind.isupper()
        else (-1 << bits - 1, (1 << bits - 1) - 1)
    )
    value: int = chance.choice((*_INTEGERS, low, high, chance.randint(low, high)))
    return min(max(value, low), high)


def _must_refuse(tally: Tally, path: Path, content: bytes, what: str) -> None:
    path.write_bytes(content)
    if _read(tally, path, what) is not None:
        tally.missed.append(f"{what}: read as good")


def _read(
    tally: Tally, path: Path, what: str, *, axes: str | None = None
) -> Volume | None:
    """Read a file; count refusals, crashes and delays in the tally."""
    start = time.perf_counter()
    try:
        late = HangError(f"not done after {_PATIENCE_S} s")
        with time_limit(_PATIENCE_S, late), warnings.catch_warnings(action="error"):
            return Volume.read(path, axes=axes)
    except InputError as error:
        if len(str(error).splitlines()) == 1 and error.where and error.remedy:
            tally.refused += 1
        else:
            tally.missed.append(
                f"{what}: not one line of file, problem and remedy: {error}"
            )
    except Exception as error:  # any other exception is recorded as a miss
        tally.missed.append(f"{what}: {type(error).__name__}: {error}")
    finally:
        tally.slowest_s = max(tally.slowest_s, time.perf_counter() - start)
    return None


def contradiction(volume: Volume, scan: Scan, content: bytes) -> str:
    """Return how a volume differs from a careful second reading of the same bytes."""
    try:
        careful = scan.careful(content)
    except ValueError as error:
        return f"read as good, though {error}"
    if volume.shape != careful.shape:
        return f"shape {volume.shape}, not {careful.shape}"
    if not np.allclose(volume.affine, careful.affine, rtol=1e-5, atol=1e-4):
        return f"affine {volume.affine.tolist()}, not {careful.affine.tolist()}"
    if not np.allclose(volume.data, careful.values, rtol=1e-5, atol=1e-5):
        return "other voxels"
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run the three kinds, print a table, and return 1 if anything was missed."""
    parser = argparse.ArgumentParser(prog="python -m oracle.fuzz", description=__doc__)
    parser.add_argument("--flips", type=int, default=FLIPS)
    parser.add_argument("--cuts", type=int, default=CUTS)
    parser.add_argument("--headers", type=int, default=HEADERS)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="trinat-fuzz-") as name:
        folder = Path(name)
        # Read one file first, so that lazy imports do not count.
        odd_scan().to_filename(folder / "sound.nii.gz")
        Volume.read(folder / "sound.nii.gz")
        limit_memory(_MEMORY_MIB)
        tallies = [
            fuzz_flips(chosen.flips, chosen.seed, folder),
            fuzz_cuts(chosen.cuts, chosen.seed, folder),
            fuzz_headers(chosen.headers, chosen.seed, folder),
        ]
    print(
        f"{'':<18} {'cases':>6} {'refused':>8} {'read right':>11} {'missed':>7} {'slowest':>11}"
    )
    for tally in tallies:
        print(tally)
    for miss in (miss for tally in tallies for miss in tally.missed[:20]):
        print(f"missed: {miss}")
    return int(any(tally.missed for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
