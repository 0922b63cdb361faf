"""Small heads in the exact layout of each dataset, which tests read instead of gigabytes.

Every head is lateralised: left structures are larger than right ones, so that an exchange of
sides shows.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.orientations import (
    axcodes2ornt,
    inv_ornt_aff,
    io_orientation,
    ornt_transform,
)

# Boxes in RAS voxels of a 40 x 48 x 44 head, by FreeSurfer number.
SHAPE = (40, 48, 44)
_BOXES = (
    (3, (6, 10, 8), (20, 40, 38)),
    (42, (20, 10, 8), (34, 40, 38)),
    (2, (9, 13, 11), (20, 37, 35)),
    (41, (20, 13, 11), (31, 37, 35)),
    (4, (14, 18, 20), (19, 30, 28)),
    (43, (21, 18, 20), (24, 26, 26)),
    (17, (10, 20, 14), (16, 32, 18)),
    (53, (24, 22, 14), (29, 30, 17)),
    (16, (18, 18, 8), (22, 26, 18)),
)
# Bright white matter, grey cortex and dark ventricles, as in T1; the scalp is faint.
_BRIGHTNESS = {
    0: 0,
    2: 180,
    41: 180,
    3: 120,
    42: 120,
    4: 40,
    43: 40,
    17: 125,
    53: 125,
    16: 150,
}
HEMISPHERES = {"left": (2, 3, 4, 17), "right": (41, 42, 43, 53)}


def head_labels(shift: int = 0) -> np.ndarray:
    """Return FreeSurfer numbers of a head, axes RAS, 1 mm.

    `shift` moves it up for another participant.
    """
    labels = np.zeros(SHAPE, np.int16)
    for number, low, high in _BOXES:
        labels[low[0] : high[0], low[1] : high[1], low[2] + shift : high[2] + shift] = (
            number
        )
    return labels


def head_image(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a T1-like image of a label map: uint8, noisy, with a faint scalp around the brain."""
    table = np.zeros(int(labels.max()) + 1, np.float32)
    for number in np.unique(labels):
        table[number] = _BRIGHTNESS.get(int(number), 100)
    image = table[labels]
    image[2:-2, 4:-4, 3:-3] = np.maximum(image[2:-2, 4:-4, 3:-3], 15)
    noise = np.random.default_rng(seed).normal(0, 4, labels.shape)
    return np.where(image > 0, np.clip(image + noise, 1, 255), 0).astype(np.uint8)


def turned(
    array: np.ndarray, axes: str, spacing_mm: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return a RAS array in another voxel order, and the affine that keeps its place in space."""
    ras = np.diag([spacing_mm] * 3 + [1.0])
    ras[:3, 3] = -(np.array(array.shape) - 1) / 2 * spacing_mm
    way = ornt_transform(io_orientation(ras), axcodes2ornt(tuple(axes)))
    data = nib.orientations.apply_orientation(array, way)
    return np.ascontiguousarray(data), ras @ inv_ornt_aff(way, array.shape)


def own_bytes(path: Path) -> bytes:
    """Return bytes that differ between participants, because splits group identical scans."""
    return "/".join(path.parts[-3:]).encode()[-79:]


def write_nifti(path: Path, array: np.ndarray, axes: str = "RAS") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data, affine = turned(array, axes)
    image = nib.Nifti1Image(data, affine)
    image.set_qform(affine, 1)
    image.set_sform(affine, 1)
    image.header["descrip"] = own_bytes(path)
    nib.save(image, path)
    return path


def without_orientation(path: Path) -> None:
    """Set both orientation codes of a NIfTI file to 0."""
    image = nib.load(path)
    image.header["qform_code"] = image.header["sform_code"] = 0
    bare = nib.Nifti1Image(np.asarray(image.dataobj), None, image.header)
    path.unlink()
    nib.save(bare, path)


def write_mgz(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data, affine = turned(array, "LIA")
    image = nib.MGHImage(data, affine)
    image.header["tr"] = zlib.crc32(own_bytes(path)) % 10_000
    nib.save(image, path)
    return path


def write_analyze(path: Path, array: np.ndarray, axes: str) -> Path:
    """Write Analyze 7.5 as in OASIS: big-endian int16, a trailing dimension, no orientation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data, _ = turned(array, axes)
    header = nib.AnalyzeHeader(endianness=">")
    header.set_data_dtype(np.int16)
    image = nib.AnalyzeImage(data.astype(np.int16)[..., None], np.eye(4), header)
    image.header.set_zooms((1, 1, 1, 1))
    image.header["db_name"] = own_bytes(path)[-18:]
    image.to_filename(path.with_suffix(".hdr"))
    path.with_suffix(".mat").unlink(missing_ok=True)
    return path.with_suffix(".hdr")


def oasis_session(
    disc: Path, session: str, *, n: int = 4, age: int = 74, sex: str = "Female"
) -> Path:
    """Write a session of an OASIS disc.

    Atlas space with tissue labels, own space, and the table.
    """
    folder = disc / session
    labels = head_labels()
    # The noise differs between participants: OAS1_0001 has seed 0.
    participant = int(session.split("_")[1])
    image = head_image(labels, seed=participant - 1)
    tissues = np.select(
        [
            np.isin(labels, (4, 43)),
            np.isin(labels, (3, 42, 17, 53)),
            np.isin(labels, (2, 41, 16)),
        ],
        [1, 2, 3],
    )
    atlas = folder / "PROCESSED/MPRAGE/T88_111"
    name = f"{session}_mpr_n{n}_anon"
    write_analyze(atlas / f"{name}_111_t88_gfc", image, "LAS")
    write_analyze(
        atlas / f"{name}_111_t88_masked_gfc", np.where(labels > 0, image, 0), "LAS"
    )
    (atlas / f"{name}_111_t88_masked_gfc_cor_110.gif").write_bytes(b"GIF89a")
    write_analyze(folder / f"FSL_SEG/{name}_111_t88_masked_gfc_fseg", tissues, "LAS")
    write_analyze(folder / f"PROCESSED/MPRAGE/SUBJ_111/{name}_sbj_111", image, "ASL")
    write_analyze(folder / f"RAW/{session}_mpr-1_anon", image, "ASL")
    sheet = (
        "SESSION ID:   " + session,
        "",
        f"AGE:          {age}",
        f"M/F:          {sex}",
        "",
    )
    (folder / f"{session}.txt").write_text("\n".join(sheet))
    return folder


def freesurfer_subject(
    subjects_dir: Path,
    name: str,
    *,
    image: str = "orig.mgz",
    labels: str = "aseg.mgz",
    shift: int = 0,
) -> Path:
    numbers = head_labels(shift)
    write_mgz(subjects_dir / name / "mri" / image, head_image(numbers))
    write_mgz(subjects_dir / name / "mri" / labels, numbers.astype(np.int32))
    return subjects_dir / name


def neurite_session(root: Path, session: str) -> Path:
    folder = root / f"OASIS_{session}"
    numbers = head_labels()
    own = {0: 0, 2: 1, 3: 2, 4: 3, 16: 13, 17: 14, 41: 20, 42: 21, 43: 22, 53: 30}
    table = np.zeros(64, np.int16)
    table[list(own)] = list(own.values())
    write_nifti(folder / "orig.nii.gz", head_image(numbers), "LIA")
    write_nifti(
        folder / "norm.nii.gz", np.where(numbers > 0, head_image(numbers), 0), "LIA"
    )
    write_nifti(folder / "seg35.nii.gz", table[numbers], "LIA")
    return folder


def ixi_scan(root: Path, name: str) -> Path:
    return write_nifti(root / f"{name}-T1.nii.gz", head_image(head_labels()), "PSR")


# Neuromorphometrics numbers of the structures in the miniature head, by FreeSurfer number.
_MANUAL = {
    **{2: 45, 41: 44, 3: 101, 42: 100, 4: 52, 43: 51},
    **{17: 48, 53: 47, 16: 35},
}


def malc_labels(shift: int = 0) -> np.ndarray:
    """Return the miniature head in Neuromorphometrics numbers."""
    numbers = head_labels(shift)
    manual = np.zeros(numbers.shape, np.int16)
    for freesurfer, number in _MANUAL.items():
        manual[numbers == freesurfer] = number
    return manual


def malc_scan(root: Path, scan: str, *, part: str = "", shift: int = 0) -> Path:
    """Write a scan of the labelling challenge of 2012 and return its path.

    With `part` (training or testing) in the layout of the challenge, as a whole head; without
    it in the flat layout, skull-stripped.
    """
    numbers = head_labels(shift)
    image = head_image(numbers)
    if part:
        path = write_nifti(root / f"{part}-images/{scan}_3.nii.gz", image, "LAS")
        labels = root / f"{part}-labels/{scan}_3_glm.nii.gz"
    else:
        image = np.where(numbers > 0, image, 0)
        path = write_nifti(root / f"{scan}_SS.nii.gz", image, "LAS")
        labels = root / f"{scan}_glm.nii.gz"
    write_nifti(labels, malc_labels(shift), "LAS")
    return path


def malc_table(root: Path, *rows: str) -> Path:
    """Write demographics.csv with rows such as 1000,OAS1_0061,F,20."""
    table = root / "demographics.csv"
    table.write_text("\n".join(("id,Subject,Gender,Age", *rows, "")))
    return table


def pack(folder: Path, archive: Path) -> Path:
    """Pack the content of a folder in a tar file, compressed according to its name."""
    with tarfile.open(archive, "w:gz" if archive.name.endswith("gz") else "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=path.name)
    return archive
