"""Attacks on output: files of the user in every place, and traces of the patient."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
from helpers.dicom import write_classic

from attacks.jobs import Bench
from attacks.verdicts import Refused, lost, wrong
from attacks.workshop import Try, checked, tiny_scan
from trinat.segmentation.io.volume import Volume

_MINE = b"written by hand"


def users_files(attempt: Try) -> None:
    """Place a file, folder or link of the user in an output folder, also where an output goes."""
    chance = attempt.chance
    bench = Bench.in_turn(attempt)
    name = chance.choice(sorted(bench.known["files"]))
    place = "of an output"
    if chance.random() < 0.4:
        name = chance.choice(
            (
                f"{name}.old",
                f"mine-{Path(name).name}",
                "notes.txt",
                f"{name}/x",
                "sub/dir/scan.nii.gz",
            )
        )
        place = "beside the outputs"
    path = bench.out / name
    if bench.job.built_on and path.exists():
        path = bench.out / "summary.tsv"
        place = "of an output"
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = chance.choice(("file", "file", "file", "link", "dangling link", "folder"))
    elsewhere = attempt.folder / "elsewhere"
    if kind == "file":
        path.write_bytes(_MINE)
    elif kind == "link":
        elsewhere.write_bytes(_MINE)
        path.symlink_to(elsewhere)
    elif kind == "dangling link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
        (path / "mine").write_bytes(_MINE)
    what = f"{bench.job.name}, a {kind} in the place {place}: {path.relative_to(bench.out)}"
    # A folder that is not empty belongs to somebody: no --resume, no --overwrite.
    line = bench.job.line(attempt.sound, bench.inputs, bench.out)
    try:
        checked(attempt.run(*line, home=bench.inputs))
    finally:
        if kind == "folder":
            kept = (path / "mine").is_file() and (path / "mine").read_bytes() == _MINE
        elif kind == "dangling link":
            kept = path.is_symlink() and not elsewhere.exists()
        else:
            kept = path.is_file() and path.read_bytes() == _MINE
            kept = kept and (kind == "file" or path.is_symlink())
        if not kept:
            raise lost(what)
    if place == "of an output" and kind != "folder":
        raise wrong(f"said to be done without it: {what}")


_MARK = b"CANARY^PATIENT^19331122"


def _poisoned(
    path: Path, image: np.ndarray, affine: np.ndarray, *, packed_name: bool
) -> None:
    """Return a scan whose every free field, extension and wrapper names the patient."""
    scan = nib.Nifti1Image(image, affine)
    header = scan.header
    for field, size in (
        ("descrip", 80),
        ("aux_file", 24),
        ("db_name", 18),
        ("intent_name", 16),
    ):
        header[field] = _MARK[:size]
    header["data_type"] = _MARK[:10]
    for code in (2, 4, 6):  # DICOM, AFNI, comment
        scan.header.extensions.append(
            nib.nifti1.Nifti1Extension(code, b"PatientName " + _MARK)
        )
    content = scan.to_bytes()
    if packed_name:
        # RFC 1952: original name and comment in the wrapper's header.
        body = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = body.compress(content) + body.flush()
        start = b"\x1f\x8b\x08\x18" + bytes(6) + _MARK + b"\0" + _MARK + b"\0"
        end = struct.pack("<II", zlib.crc32(content), len(content))
        path.write_bytes(start + packed + end)
    else:
        path.write_bytes(gzip.compress(content))


def canaries(attempt: Try) -> None:
    """Check that no output, log or page repeats the patient's name from a header."""
    chance = attempt.chance
    out = attempt.folder / "out"
    work = attempt.folder / "in"
    for name in ("scans", "labels", "images"):
        (work / name).mkdir(parents=True)
    for number, name in enumerate(("a", "b")):
        image, labels, affine = tiny_scan(number)
        for folder, data in (("scans", image), ("images", image), ("labels", labels)):
            path = work / folder / f"{name}.nii.gz"
            _poisoned(path, data, affine, packed_name=chance.random() < 0.5)
    sound = attempt.sound
    lines = (
        [
            "predict",
            work / "scans",
            "--out",
            out,
            "--model",
            sound / "model",
            "--threads",
            "1",
        ]
        + ["--stats", "--entropy", "--probabilities"] * (chance.random() < 0.7),
        ["prepare", "--config", work / "prepare.yaml", "--out", out],
        [
            "evaluate",
            "--truth",
            work / "labels",
            "--pred",
            work / "labels",
            "--out",
            out,
        ]
        + ["--jobs", "1", "--images", work / "scans"]
        + ["--tables-only"] * (attempt.number % 4 != 0),
        ["report", work / "labels", "--out", out, "--jobs", "1"],
    )
    image, _, affine = tiny_scan(2)
    write_classic(work / "scans/c", Volume(image.astype(np.int16), affine))
    (work / "prepare.yaml").write_text(
        f"source: pairs\nroot: {work}\ngrid: [32, 32, 32]\n"
    )
    line = lines[attempt.number % len(lines)]
    if chance.random() < 0.3:
        # Error messages must name the fault without quoting the header.
        broken = work / "scans/a.nii.gz"
        broken.write_bytes(broken.read_bytes()[:-9])
    done = (
        attempt.run(*line, "--debug") if chance.random() < 0.2 else attempt.run(*line)
    )
    _without_mark("what was printed", done.said.encode())
    for path in out.rglob("*"):
        _without_mark("a file's name", os.fsencode(path.name))
        if not path.is_file():
            continue
        content = path.read_bytes()
        _without_mark(path.name, content)
        if content[:2] == b"\x1f\x8b":
            _without_mark(path.name, gzip.decompress(content))
        if path.suffix == ".png":
            _without_mark(path.name, _png_text(content))
    try:
        checked(done)
    except Refused:
        if done.status not in (3, 4, 6):
            raise wrong(f"{line[0]}: {done.err[-200:]}") from None
        raise


def _without_mark(what: str, content: bytes) -> None:
    for mark in (_MARK[:10], b"PatientName"):
        if mark in content:
            raise wrong(f"{what} holds {mark.decode()}")


def _png_text(content: bytes) -> bytes:
    """Return the text chunks of a PNG file, decompressed."""
    at, found = 8, b""
    while at + 8 <= len(content):
        (size,), kind = (
            struct.unpack(">I", content[at : at + 4]),
            content[at + 4 : at + 8],
        )
        if kind in (b"tEXt", b"zTXt", b"iTXt", b"eXIf"):
            found += content[at + 8 : at + 8 + size]
        at += 12 + size
    return found


ATTACKS = {"users' files": users_files, "canaries of patient data": canaries}
