"""A small results folder as `trinat predict` leaves it, made without networks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from trinat.pipelines.predict.settings import TABLES
from trinat.pipelines.predict.tables import write_label_table, write_tables
from trinat.pipelines.study.corrections import (
    Correction,
    Saving,
    save_correction,
)
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.record import (
    CallosumResult,
    FurtherResult,
    LesionResult,
    LesionsResult,
    ScanResult,
)
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

AFFINE = np.diag([4.0, 4.0, 4.0, 1.0])
GRADES = ("pass", "look", "reject")


def write_study(
    out: Path,
    names: Sequence[str],
    *,
    scans: Path | None = None,
    with_parcels: Sequence[str] = (),
) -> Path:
    """Write a scan of two boxes for each name, with label map, ledger and tables; grades in turn.

    Scans in `with_parcels` also have a box of cortex, and maps in which it is two parcels.
    """
    scans = scans or out.parent / "scans"
    for folder in (out, scans):
        folder.mkdir(parents=True, exist_ok=True)
    scheme = load_scheme("quicknat33")
    write_label_table(out / "labels.tsv", scheme, by_index=False)
    if with_parcels:
        parcels = load_scheme("desikan")
        write_label_table(out / "parcel_labels.tsv", parcels, by_index=False)
    with Ledger(out / "run.jsonl") as ledger:
        for n, name in enumerate(names):
            entry = _entry(out, scans, n, name, has_parcels=name in with_parcels)
            ledger.add(entry)
        for table in TABLES:
            (out / table).unlink(missing_ok=True)
        write_tables(out, ledger.entries.values())
    return out


def replace_scan(out: Path, scan: Path, image: nib.Nifti1Image) -> None:
    """Replace a scan of a study, as if its results were of this image."""
    before = sha256_of(scan)
    image.to_filename(scan)
    ledger = out / "run.jsonl"
    ledger.write_text(ledger.read_text().replace(before, sha256_of(scan)))


def add_result(folder: Path, case: str, *outputs: str, **result: Any) -> None:
    """Add a scan that is done to the ledger of a folder."""
    hashes = {name: sha256_of(folder / name) for name in outputs}
    with Ledger(folder / "run.jsonl") as ledger:
        ledger.add(Entry(case, "done", outputs=hashes, result=ScanResult(**result)))


def correct_voxel(
    result: Path, voxel: tuple[int, int, int], number: int, name: str
) -> Correction:
    """Give a voxel of a result the number of the structure `name`, as a rater does.

    The result is a label map or a mask of lesions.
    """
    volume = Volume.read(result, labels=True)
    volume.data[voxel] = number
    return save_correction(
        result,
        volume,
        Saving(by="anna", at="2026-01-01T00:00:00+00:00", minutes=1),
        builds_on=sha256_of(result),
        names={number: name},
        lock=result.with_name("lock"),
    )


def add_callosum(out: Path, name: str) -> None:
    """Add a map of the corpus callosum to a result: 8 voxels of its hind part, 4 of the front."""
    labels = Volume.read(out / f"{name}_dseg.nii.gz", labels=True)
    callosum = np.zeros(labels.shape, np.int16)
    callosum[9:11, 8:12, 9] = 251
    callosum[9:11, 12:14, 9] = 255
    table = out / "callosum_labels.tsv"
    write_label_table(table, load_scheme("callosum"), by_index=False)
    result = CallosumResult(
        grade="pass",
        reasons=[],
        volumes_mm3={"CC_Posterior": 512, "CC_Anterior": 256},
        total_mm3=768,
        area_mm2=None,
        length_mm=None,
        midline_mm=None,
        mean_thickness_mm=None,
        max_thickness_mm=None,
        thickness_mm=[],
    )
    _add_map(out, name, "callosum", Volume(callosum, labels.affine), result)


def add_lesions(out: Path, name: str) -> None:
    """Add a mask of lesions to a result: one of 4 voxels (256 mm³) and one of 1 (64 mm³)."""
    labels = Volume.read(out / f"{name}_dseg.nii.gz", labels=True)
    mask = np.zeros(labels.shape, np.int16)
    mask[4:6, 9:11, 12] = 1
    mask[14, 10, 8] = 1
    lesions = []
    for number, middle in enumerate([(4.5, 9.5, 12), (14, 10, 8)], start=1):
        x, y, z, _ = labels.affine @ [*middle, 1]
        lesions.append(
            LesionResult(
                lesion=number,
                mm3=(256, 64)[number - 1],
                region="deep",
                x_mm=x,
                y_mm=y,
                z_mm=z,
                probability=0.9,
            )
        )
    result = LesionsResult(grade="pass", reasons=[], lesions=lesions)
    _add_map(out, name, "lesions", Volume(mask, labels.affine), result)


def _add_map(
    out: Path, name: str, product: str, volume: Volume, result: FurtherResult
) -> None:
    """Write a further map of a result, such as "callosum", and list it in the ledger."""
    path = out / f"{name}_{product}.nii.gz"
    volume.write(path, labels=True)
    lines = []
    for line in (out / "run.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["case"] == name:
            entry["outputs"][path.name] = sha256_of(path)
            entry["result"][product] = result.model_dump(mode="json")
        lines.append(json.dumps(entry))
    (out / "run.jsonl").write_text("\n".join(lines) + "\n")


def _entry(
    out: Path, scans: Path, n: int, name: str, *, has_parcels: bool = False
) -> Entry:
    """Write the files of a scan and return its ledger entry.

    Thalami have 64 + n and 27 voxels in a head of 20 × 24 × 18, all of it in the brain mask.
    With parcels, there are an insula of 32 voxels and a cuneus of 16.
    """
    labels = np.zeros((20, 24, 18), np.uint8)
    labels[3:7, 8:12, 6:10] = 10
    labels[7, 8 : 8 + min(n, 4), 6] = 10
    labels[12:15, 8:11, 6:9] = 49
    parcels = labels.astype(np.int16)
    if has_parcels:
        labels[3:7, 16:19, 6:10] = 3
        parcels[3:7, 16:18, 6:10] = 1035
        parcels[3:7, 18, 6:10] = 1005
    head = np.zeros(labels.shape, np.int16)
    head[2:18, 2:22, 2:16] = 200
    head += (labels * 4).astype(np.int16)
    scan = scans / f"scan{n}.nii.gz"
    Volume(head, AFFINE).write(scan)
    outputs = {f"{name}_dseg.nii.gz": Volume(labels, AFFINE)}
    entropy = Volume((labels > 0) * np.float32(0.5), AFFINE)
    outputs[f"{name}_entropy.nii.gz"] = entropy
    mask = Volume((head > 0).astype(np.uint8), AFFINE)
    outputs[f"{name}_brainmask.nii.gz"] = mask
    if has_parcels:
        outputs[f"{name}_parcels.nii.gz"] = Volume(parcels, AFFINE)
    for path, volume in outputs.items():
        volume.write(out / path, labels="entropy" not in path)
    voxels = {"Left-Thalamus": int((labels == 10).sum()), "Right-Thalamus": 27}
    volumes = {structure: count * 64.0 for structure, count in voxels.items()}
    result = {
        "grade": GRADES[n % 3],
        "reasons": [] if n % 3 == 0 else ["the views agree too little"],
        "structure_grades": dict.fromkeys(volumes, GRADES[n % 3]),
        "volumes_mm3": volumes,
        "total_brain_mm3": sum(volumes.values()),
        "mean_agreement": 0.9 - n / 100,
        "agreement": dict.fromkeys(volumes, 0.9 - n / 100),
        "model": "fast",
    }
    if has_parcels:
        volumes["Left-Cerebral-Cortex"] = 48 * 64.0
        result["parcels"] = {
            parcel: {
                "freesurfer": number,
                "side": "left",
                "lobe": lobe,
                "mm3": voxels * 64.0,
                "share": voxels / 48,
                "asymmetry": None,
                "agreement": 0.85,
                "grade": grade,
            }
            for parcel, number, lobe, voxels, grade in (
                ("ctx-lh-insula", 1035, "insula", 32, "look"),
                ("ctx-lh-cuneus", 1005, "occipital", 16, "pass"),
            )
        }
    return Entry(
        name,
        "done",
        f"{scan.name}",
        input_sha256=sha256_of(scan),
        scan=os.path.relpath(scan, out.resolve()),
        model="m",
        outputs={path: sha256_of(out / path) for path in outputs},
        result=ScanResult(**result),
    )
