"""Figures for docs/quality.md: a head in other forms, and what they do to its labels and grade.

`scripts/bench stored SCAN OUT [MODEL]` writes forms of a scan of 8 bits below OUT/scans, segments
them, and prints for each its grade, how many voxels have another label than in the scan as it was,
and the reasons. DICOM and slopes are the same image, and should change no voxel.
"""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
from helpers.dicom import write_classic
from scipy.ndimage import zoom

import trinat
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.views import reoriented

# Of an image of 8 bits, what is darker is air.
_AIR = 12


def run(scan: str, out: str, model: str = "fast") -> None:
    """Write the forms of a scan, segment them, and print what became of each."""
    scans = Path(out) / "scans"
    write_forms(Volume.read(scan), scans)
    results = Path(out) / "results"
    table = trinat.segment_many(scans, results, model=model, picture=False)
    plain = upright(results / "plain_dseg.nii.gz")
    for row in table.itertuples():
        labels = upright(row.labels)
        differ = "on another grid"
        if labels.shape == plain.shape:
            differ = f"{np.count_nonzero(labels != plain)} voxels differ"
        print(f"{row.scan}: {row.grade}, {differ}; {row.reason}")


def upright(path: str | Path) -> np.ndarray:
    """The voxels of a label map in the order RAS: DICOM has another than the scan."""
    return reoriented(Volume.read(path), "RAS").data


def write_forms(scan: Volume, folder: Path) -> None:
    """Write a scan of 8 bits as it is and in other forms."""
    folder.mkdir(parents=True)
    data = scan.data.astype(np.int16)
    noise = np.random.default_rng(0).uniform(0, 4095, data.shape)
    half = scan.affine.copy()
    # The first voxel's middle lies a quarter of a voxel nearer to the corner.
    half[:3, 3] -= half[:3, :3].sum(1) / 4
    half[:3, :3] /= 2
    forms = {
        "plain": (data, scan.affine),
        "inverted": (255 - data, scan.affine),
        "noise-as-mp2rage": (np.where(data < _AIR, noise, 16 * data), scan.affine),
        "half-mm-and-offset": (8 * zoom(data, 2, order=1) + 100, half),
    }
    for name, (values, affine) in forms.items():
        image = nib.Nifti1Image(values.astype(np.int16), affine)
        nib.save(image, folder / f"{name}.nii.gz")
    image = nib.Nifti1Image(data, scan.affine)
    image.header.set_slope_inter(2.5, -1000)
    nib.save(image, folder / "slope.nii.gz")
    for name, slope, intercept in (
        ("dicom-slope", "2.5", "-1000"),
        ("dicom-intercept", "1", "-1024"),
    ):
        write_classic(
            folder / name,
            Volume(data, scan.affine),
            series=name,
            PatientID=name,
            RescaleSlope=slope,
            RescaleIntercept=intercept,
        )
