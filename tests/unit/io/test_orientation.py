"""Choice of the affine among q- and s-form, and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray
from oracle.careful import NIFTI1
from oracle.fuzz import odd_scan

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.io.volume import Volume

SHAPE = (18, 17, 16)


def turned(
    degrees: float, axis: int = 2, sizes: tuple[float, ...] = (-1, 1, 1)
) -> NDArray[Any]:
    """Return an affine with these voxel sizes, rotated about one world axis."""
    one, two = (i for i in range(3) if i != axis)
    angle = math.radians(degrees)
    rotation = np.eye(3)
    rotation[one, one] = rotation[two, two] = math.cos(angle)
    rotation[one, two], rotation[two, one] = -math.sin(angle), math.sin(angle)
    affine = np.eye(4)
    affine[:3, :3] = rotation @ np.diag(sizes)
    return affine


def read(
    folder: Path,
    *,
    qform: tuple[NDArray[Any], int] | None = None,
    sform: tuple[NDArray[Any], int] | None = None,
    changes: tuple[tuple[str, int, float], ...] = (),
    **options: Any,
) -> Volume:
    """Read a scan with these forms and codes, and these fields changed afterwards."""
    sound = odd_scan()
    header = sound.header.copy()
    header["vox_offset"] = 352
    header.set_qform(*(qform or (None, 0)))
    header.set_sform(*(sform or (None, 0)))
    if qform is None and sform is not None:
        header.set_zooms(nib.affines.voxel_sizes(sform[0]))
    # nibabel's images force their own idea of both forms on a header; bytes do not.
    content = header.binaryblock + sound.to_bytes()[348:]
    for name, index, value in changes:
        content = NIFTI1.put(content, name, index, value)
    path = folder / "scan.nii"
    path.write_bytes(content)
    return Volume.read(path, **options)


def test_either_form_alone_is_taken_and_its_code_written_for_both(
    tmp_path: Path,
) -> None:
    for form in ("qform", "sform"):
        volume = read(tmp_path, **{form: (turned(10), 2)})
        np.testing.assert_allclose(volume.affine, turned(10), atol=1e-6)
        assert (volume.codes, volume.notes) == ((2, 2), ())


def test_forms_that_agree_keep_their_codes(tmp_path: Path) -> None:
    volume = read(tmp_path, qform=(turned(10), 1), sform=(turned(10), 4))
    assert (volume.codes, volume.notes) == ((1, 4), ())


@pytest.mark.parametrize("apart_mm", [2.5, 0.5])
def test_forms_that_differ_a_little_take_the_s_form_and_leave_a_note(
    tmp_path: Path, apart_mm: float
) -> None:
    moved = turned(10)
    moved[0, 3] = apart_mm
    volume = read(tmp_path, qform=(turned(10), 1), sform=(moved, 4))
    np.testing.assert_allclose(volume.affine, moved, atol=1e-6)
    assert volume.codes == (4, 4)
    assert volume.notes == (
        f"q- and s-form differ by up to {apart_mm} mm; the s-form is used",
    )


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(turned(0, sizes=(1, 1, 1)), id="mirrored, left to right"),
        pytest.param(turned(0, sizes=(-1, -1, 1)), id="mirrored, front to back"),
        pytest.param(turned(180), id="turned around"),
        pytest.param(turned(90), id="another axis is left-right"),
        pytest.param(turned(61), id="more than 60 degrees apart"),
    ],
)
def test_forms_that_disagree_on_the_left_are_refused(
    tmp_path: Path, other: NDArray[Any]
) -> None:
    forms: dict[str, Any] = {"qform": (turned(0), 1), "sform": (other, 1)}
    with pytest.raises(
        GeometryError, match="disagree about which side is left"
    ) as caught:
        read(tmp_path, **forms)
    assert "--trust-affine" in caught.value.remedy
    for trust, expected in (("qform", turned(0)), ("sform", other), ("header", other)):
        volume = read(tmp_path, **forms, trust_affine=trust)
        np.testing.assert_allclose(volume.affine, expected, atol=1e-6)


def test_the_size_of_voxels_does_not_bring_directions_nearer(tmp_path: Path) -> None:
    sizes = (-2, 1, 1)
    with pytest.raises(GeometryError, match="disagree about which side is left"):
        read(
            tmp_path,
            qform=(turned(0, sizes=sizes), 1),
            sform=(turned(70, sizes=sizes), 1),
        )


def test_forms_60_degrees_apart_still_agree(tmp_path: Path) -> None:
    assert read(tmp_path, qform=(turned(0), 1), sform=(turned(59), 1)).notes


def test_a_scan_without_orientation_is_refused_unless_someone_vouches(
    tmp_path: Path,
) -> None:
    pixdim = (("pixdim", 1, 2.0), ("pixdim", 2, 3.0), ("pixdim", 3, 4.0))
    with pytest.raises(GeometryError, match="no orientation in its header"):
        read(tmp_path, changes=pixdim)

    asl = read(tmp_path, changes=pixdim, axes="ASL")
    assert (asl.axcodes, asl.spacing_mm, asl.codes) == ("ASL", (2, 3, 4), (1, 1))
    # Index (0, 0, 0) is the rearmost, lowest, rightmost; the middle of the image is at 0 mm.
    np.testing.assert_allclose(
        asl.affine, [[0, 0, -4, 30], [2, 0, 0, -17], [0, 3, 0, -24], [0, 0, 0, 1]]
    )

    header = read(tmp_path, changes=pixdim, trust_affine="header")
    assert header.axcodes == "LAS"
    np.testing.assert_allclose(
        header.affine @ [8.5, 8, 7.5, 1], [0, 0, 0, 1], atol=1e-6
    )


def test_forms_without_a_code_can_be_trusted_by_name(tmp_path: Path) -> None:
    uncoded = (("codes", 0, 0), ("codes", 1, 0))
    forms: dict[str, Any] = {"qform": (turned(20), 1), "sform": (turned(30), 1)}
    for trust, degrees in (("qform", 20), ("sform", 30)):
        volume = read(tmp_path, **forms, changes=uncoded, trust_affine=trust)
        np.testing.assert_allclose(volume.affine, turned(degrees), atol=1e-6)
        assert volume.codes == (1, 1)


@pytest.mark.parametrize("form", ["qform", "sform"])
@pytest.mark.parametrize("trust", ["qform", "sform"])
def test_the_only_form_with_a_code_decides_whichever_is_trusted(
    tmp_path: Path, form: str, trust: str
) -> None:
    volume = read(tmp_path, **{form: (turned(10), 2)}, trust_affine=trust)
    np.testing.assert_allclose(volume.affine, turned(10), atol=1e-6)
    assert (volume.codes, volume.notes) == ((2, 2), ())


def test_axes_that_the_header_contradicts_are_refused(tmp_path: Path) -> None:
    form: dict[str, Any] = {"sform": (turned(10), 1)}
    assert read(tmp_path, **form, axes="LAS").axcodes == "LAS"
    with pytest.raises(GeometryError, match="its header says axes LAS, not RAS"):
        read(tmp_path, **form, axes="RAS")
    assert read(tmp_path, **form, axes="RAS", trust_affine="header").axcodes == "LAS"


@pytest.mark.parametrize("axes", ["RA", "RAR", "XRA", "RAX", "RASL", "ras", "RLS"])
def test_axes_that_are_none_are_a_mistake_of_the_caller(
    tmp_path: Path, axes: str
) -> None:
    with pytest.raises(ValueError, match="must name three axes"):
        read(tmp_path, axes=axes)


def sheared(amount: float) -> NDArray[Any]:
    affine = turned(0)
    affine[0, 1] = amount
    return affine


def with_column(column: tuple[float, float, float]) -> NDArray[Any]:
    affine = turned(0)
    affine[:3, 1] = column
    return affine


def with_origin(x: float) -> NDArray[Any]:
    affine = turned(0)
    affine[0, 3] = x
    return affine


@pytest.mark.parametrize(
    ("affine", "problem"),
    [
        (with_column((0, math.nan, 0)), "is not finite"),
        (with_origin(math.inf), "is not finite"),
        (with_column((0, 0, 0)), "is singular"),
        (with_column((-1, 0, 0)), "is singular"),
        (with_column((-1e-4, 0, 1)), "is singular"),
        (with_column((0, 101, 0)), "has impossible voxel sizes"),
        (with_column((0, 0.009, 0)), "has impossible voxel sizes"),
        (sheared(0.0011), "has shear"),
        (with_origin(1.01e5), "puts the scan more than 100 m away"),
        (with_origin(-1.01e5), "puts the scan more than 100 m away"),
    ],
)
def test_an_impossible_s_form_is_refused(
    tmp_path: Path, affine: NDArray[Any], problem: str
) -> None:
    fields = tuple(("srow", i, float(x)) for i, x in enumerate(affine[:3].ravel()))
    with pytest.raises(GeometryError, match=f"its s-form {problem}") as caught:
        read(tmp_path, qform=(turned(0), 1), sform=(turned(0), 1), changes=fields)
    assert "--trust-affine" in caught.value.remedy
    with pytest.raises(GeometryError, match=f"its s-form {problem}") as caught:
        read(tmp_path, sform=(turned(0), 1), changes=fields)
    assert "--trust-affine" not in caught.value.remedy


def test_a_shear_within_the_limit_is_kept(tmp_path: Path) -> None:
    np.testing.assert_allclose(
        read(tmp_path, sform=(sheared(0.0009), 1)).affine, sheared(0.0009), atol=1e-7
    )


@pytest.mark.parametrize("change", [("quatern", 0, 1.5), ("pixdim", 0, 0.5)])
def test_an_impossible_q_form_is_refused_even_beside_an_s_form(
    tmp_path: Path, change: tuple[str, int, float]
) -> None:
    forms: dict[str, Any] = {"qform": (turned(10), 1), "sform": (turned(10), 1)}
    with pytest.raises(GeometryError, match="its q-form is not a rotation"):
        read(tmp_path, **forms, changes=(change,))
    read(tmp_path, **forms, changes=(change,), trust_affine="sform")
    uncoded = (change, ("codes", 0, 0))
    read(tmp_path, **forms, changes=uncoded)


def test_a_quaternion_sign_of_0_means_1(tmp_path: Path) -> None:
    upright = turned(10, sizes=(1, 1, 1))
    volume = read(tmp_path, qform=(upright, 1), changes=(("pixdim", 0, 0),))
    np.testing.assert_allclose(volume.affine, upright, atol=1e-6)


def test_voxel_sizes_that_contradict_the_affine_are_noted(tmp_path: Path) -> None:
    volume = read(tmp_path, sform=(turned(0), 1), changes=(("pixdim", 1, 1.02),))
    assert volume.spacing_mm == (1, 1, 1)
    assert volume.notes == (
        "its header's voxel size of 1.02 x 1 x 1 mm is not that of the s-form, which is used",
    )
