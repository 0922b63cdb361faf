"""Small files that unpack to gigabytes."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from faults.test_not_regular import READERS
from helpers.limits import limit_memory
from oracle.careful import MGH, NIFTI1
from oracle.fuzz import odd_scan

from attacks.scans import mgh, nifti
from attacks.verdicts import wrong
from attacks.workshop import Try, time_limit
from trinat.segmentation.errors import TrinatError
from trinat.segmentation.io.volume import Volume


def bombs(attempt: Try) -> None:
    """Read each under a memory limit of half a gigabyte."""
    chance = attempt.chance
    path, read = BOMBS[attempt.number % len(BOMBS)](attempt.folder, chance)
    if path.stat().st_size > 40 * 2**20:
        raise AssertionError("no bomb")
    limit_memory(512)
    try:
        with time_limit(60):
            read(path)
    except MemoryError:
        raise wrong(f"{path.name}: more than half a gigabyte of memory") from None
    except TrinatError as error:
        if "out of memory" in str(error):
            raise wrong(f"{path.name}: {error}") from None
        raise


Bomb = tuple[Path, Callable[[Path], object]]


def _gz_bomb(folder: Path, chance: random.Random) -> Bomb:
    header = odd_scan(dtype="u1").to_bytes()[:352]
    side = chance.choice((700, 1000, 1290))
    for axis in (1, 2, 3):
        header = NIFTI1.put(header, "dim", axis, side)
    zeros = gzip.compress(bytes(2**26))
    path = folder / "bomb.nii.gz"
    path.write_bytes(gzip.compress(header) + zeros * (side**3 // 2**26 + 1))
    return path, lambda p: Volume.read(p, labels=chance.random() < 0.5)


def _gz_tail(folder: Path, chance: random.Random) -> Bomb:
    path = folder / "tail.nii.gz"
    path.write_bytes(
        gzip.compress(nifti()) + gzip.compress(bytes(2**26)) * chance.randint(1, 60)
    )
    return path, Volume.read


def _mgz_bomb(folder: Path, chance: random.Random) -> Bomb:
    header = mgh()[:284]
    for axis in (0, 1, 2):
        header = MGH.put(header, "dims", axis, chance.choice((900, 1200)), order=">")
    path = folder / "bomb.mgz"
    path.write_bytes(gzip.compress(header) + gzip.compress(bytes(2**26)) * 40)
    return path, Volume.read


def _npz_bomb(folder: Path, chance: random.Random) -> Bomb:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (2**31,)}
    )
    path = folder / "heads.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("labels.npy", "label_maps.npy", "heads.npy", "numbers.npy"):
            with file.open(name, "w", force_zip64=True) as member:
                member.write(header.getvalue())
                for _ in range(16):
                    member.write(bytes(2**26))
    return path, READERS["heads.npz"]


def _yaml_bomb(folder: Path, chance: random.Random) -> Bomb:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    name = chance.choice(("recipe.yaml", "model.yaml"))
    path = folder / name
    path.write_text("\n".join(lines))
    return path, READERS[name]


def _bracket_bomb(folder: Path, chance: random.Random) -> Bomb:
    name = chance.choice(("recipe.yaml", "model.yaml", "split.json", "run.jsonl"))
    path = folder / name
    mark = chance.choice("[{") if name.endswith("yaml") else "["
    path.write_text(mark * chance.choice((2_000, 20_000, 100_000)))
    return path, READERS[name]


def _tar_bomb(folder: Path, chance: random.Random) -> Bomb:
    path = folder / "disc.tar.gz"
    way = chance.randrange(4)
    with gzip.open(path, "wb", 6) as file:
        if way == 0:  # many zeros behind the end
            tarfile.open(fileobj=file, mode="w|").close()
            for _ in range(chance.choice((16, 64))):
                file.write(bytes(2**26))
        elif way == 1:  # a long name
            info = tarfile.TarInfo("././@LongLink")
            info.type, info.size = tarfile.GNUTYPE_LONGNAME, 8 * 2**26
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            for _ in range(8):
                file.write(b"a" * 2**26)
        elif way == 2:  # a long header
            info = tarfile.TarInfo("pax")
            info.type, info.size = tarfile.XHDTYPE, 8 * 2**26
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            file.write(b"536870912 comment=" + b"a" * (2**26 - 18))
            for _ in range(7):
                file.write(b"a" * 2**26)
        else:
            with tarfile.open(fileobj=file, mode="w|") as tar:
                for number in range(2000):
                    tar.addfile(tarfile.TarInfo(f"m{number}"), io.BytesIO())
    return path, READERS["disc.tar.gz"]


BOMBS = (_gz_bomb, _gz_tail, _mgz_bomb, _npz_bomb, _yaml_bomb, _bracket_bomb, _tar_bomb)

ATTACKS = {"bombs": bombs}
