"""The JavaScript modules that segment in the browser give the results of Python."""

from __future__ import annotations

import gzip
import json
import re
import struct
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.dicom import classic, enhanced, save, small, write_classic
from helpers.javascript import MODULES, call, file, volume
from helpers.miniatures import head_image, head_labels, turned
from helpers.overfitted import miniature_on
from pydicom import dcmread
from pydicom.uid import RLELossless

from trinat.pipelines.view.voxels import _surfaces
from trinat.segmentation.errors import FormatError, InputError, IntegrityError
from trinat.segmentation.inference.localisation import brain_region
from trinat.segmentation.inference.network import _grown
from trinat.segmentation.inference.uncertainty import view_agreement
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.rendering.mesh import Surface
from trinat.segmentation.space.background import find_background, on_working_scale
from trinat.segmentation.space.conform import (
    ConformPlan,
    conform,
    head_box,
    restore_probabilities,
)
from trinat.segmentation.space.views import View, reoriented

# Constants that a module shares with Python, by the module of Python that has them.
SAME_CONSTANTS = {
    "anatomy.js": ("inference.checks.anatomy",),
    "background.js": ("space.background",),
    "brightness.js": ("inference.checks.brightness", "inference.checks.continuity"),
    "checks.js": ("io.limits", "io.orientation"),
    "dicom.js": ("errors", "io.dicom.frames", "io.dicom.series"),
    "conform.js": ("space.conform",),
    "evidence.js": ("errors", "inference.checks.evidence"),
    "field.js": ("inference.checks.field", "space.background"),
    "grid.js": ("space.grid_map",),
    "lesions.js": ("inference.checks.lesions",),
    "localisation.js": ("inference.localisation",),
    "measuring.js": ("inference.measuring",),
    "mgh.js": ("io.headers", "io.voxels"),
    "nifti.js": ("io.headers", "io.orientation", "io.voxels"),
    "prior.js": ("inference.prior",),
    "resample.js": ("space.interpolation", "space.grid_map", "space.resample"),
    "reversal.js": ("inference.preparation",),
    "segment.js": ("inference.predictor",),
}
# Adapters that make functions of the modules callable.
CALLABLE = "../../../tests/helpers/callable.js"
# Constants of JavaScript only, or with another name in Python.
OWN_CONSTANTS = {
    "REACH",
    "SWEEPS",
    "HEADER_BYTES",
    "HEADER_2_BYTES",
    "LABEL_INTENT",
    "MAX_VOXELS",
    "ALL",
    "MIXED",
    "SMALLEST_NORMAL",
    "VOXELS_AT",
}


# Lists and sets that a module shares with Python, and the module of Python that has them.
SAME_LISTS = {
    "evidence.js": (
        "inference.checks.evidence",
        {"NO_TISSUE", "WHITE_MATTER", "CORTEX"},
    ),
    "lesions.js": ("inference.checks.lesions", {"GREY"}),
    "measuring.js": ("inference.prediction", {"ABOVE_FORAMEN", "THROUGH_FORAMEN"}),
    "prior.js": (
        "inference.prior",
        {"GROUPS_WITHOUT_CENTROID", "TOLERANCES_MM", "SCALES"},
    ),
    "resample.js": ("space.resample", {"NUDGE_VOXELS"}),
}


def straight(axes: str) -> Volume:
    """Return the miniature head at 1 mm."""
    return Volume(*turned(head_image(head_labels(), 0), axes))


def flat(data: Any) -> np.ndarray:
    """Flatten an array as the modules store it, with the first axis fastest."""
    return np.asarray(data).ravel("F")


@pytest.mark.parametrize("module", SAME_CONSTANTS)
def test_constants_are_those_of_python(module: str) -> None:
    text = (MODULES / module).read_text()
    owners = [import_module(f"trinat.segmentation.{n}") for n in SAME_CONSTANTS[module]]
    found = re.findall(
        r"^(?:export )?const ([A-Z][A-Z_0-9]+) = ([\d.e*-]+);", text, re.M
    )
    compared = 0
    for name, value in found:
        if name in OWN_CONSTANTS:
            continue
        of_python = [
            getattr(owner, key)
            for owner in owners
            for key in (name, f"_{name}")
            if hasattr(owner, key)
        ]
        assert of_python, f"{module}: {name} is in none of {SAME_CONSTANTS[module]}"
        assert of_python[0] == float(value), f"{module}: {name}"
        compared += 1
    assert compared


@pytest.mark.parametrize("module", SAME_LISTS)
def test_lists_are_those_of_python(module: str) -> None:
    owner_name, names = SAME_LISTS[module]
    owner = import_module(f"trinat.segmentation.{owner_name}")
    text = (MODULES / module).read_text()
    found = dict(
        re.findall(r"^(?:export )?const ([A-Z_]+) = (\[[^\]]*\]);", text, re.M)
    )
    for name in names:
        of_python = getattr(owner, name, None) or getattr(owner, f"_{name}")
        assert sorted(json.loads(found[name])) == sorted(of_python), name


@pytest.mark.parametrize("axes", ["RAS", "LIA", "PSR"])
def test_a_scan_of_one_millimetre_is_conformed_without_interpolation(axes: str) -> None:
    scan = straight(axes)
    expected = conform(scan, shape=None).volume
    found = call("conform.js", "conform", volume(scan))
    assert found["shape"] == list(expected.shape)
    np.testing.assert_allclose(found["affine"], expected.affine.ravel(), atol=1e-6)
    np.testing.assert_array_equal(found["data"], flat(expected.data))


def test_an_oblique_scan_is_conformed_to_the_same_grid() -> None:
    scan = miniature_on((0.95, 1.2, 1.0), angle=0.2)
    expected = conform(scan, shape=None).volume
    found = call("conform.js", "conform", volume(scan))
    np.testing.assert_allclose(found["affine"], expected.affine.ravel(), atol=1e-6)
    # The blur is computed at slightly different voxels.
    np.testing.assert_allclose(found["data"], flat(expected.data), atol=2e-3)


def test_an_oblique_scan_with_a_qform_is_conformed_to_the_same_grid(
    tmp_path: Path,
) -> None:
    """The quaternion gives axes of 1 mm up to rounding, and 10 mm must be 10 voxels."""
    # Python's second axis is 1.1e-16 mm shorter than 1 mm here, JavaScript's is not.
    scan = miniature_on((1.0, 1.0, 1.0), angle=0.1)
    image = nib.Nifti1Image(scan.data.astype(np.float32), None)
    image.set_qform(scan.affine, 1)
    path = tmp_path / "scan.nii"
    image.to_filename(path)
    expected = conform(Volume.read(path), shape=None).volume
    found = call("conform.js", "conform", call("read.js", "readScan", [file(path)]))
    assert found["shape"] == list(expected.shape)
    np.testing.assert_allclose(found["affine"], expected.affine.ravel(), atol=1e-6)


def test_the_background_is_found_as_in_python() -> None:
    scan = straight("RAS")
    shifted = Volume(scan.data.astype(np.float32) * 3 - 50, scan.affine)
    padded = Volume(np.pad(shifted.data, 5, constant_values=-1000), scan.affine)
    z_scores = shifted.data - shifted.data.mean()
    z_scores[scan.data < 20] = 0
    # A skull-stripped T2 scan with much white matter and some fluid around it.
    stripped = np.where(scan.data > 20, 330 - scan.data.astype(np.float32), 0)
    stripped[scan.data > 100] = 70
    for given in (
        scan,
        shifted,
        padded,
        Volume(z_scores, scan.affine),
        Volume(stripped, scan.affine),
    ):
        expected = find_background(given)
        found = call("background.js", "findBackground", volume(given))
        assert found["level"] == expected.level
        assert found["bright"] == expected.bright
        assert found["fill"] == expected.fill
        assert found["box"]["start"] == [side.start for side in expected.box]
        assert found["box"]["stop"] == [side.stop for side in expected.box]
        scaled = call("background.js", "onWorkingScale", volume(given))
        np.testing.assert_array_equal(
            scaled["data"], flat(on_working_scale(given).data)
        )


def test_the_head_is_found_without_the_neck() -> None:
    # A head of 60 mm on a neck that goes on for 300 mm, in voxels of 3 mm; its axes run LPI.
    data = np.zeros((40, 36, 130), np.float32)
    data[10:30, 8:28, 5:25] = 1
    data[16:24, 14:22, 25:125] = 1
    image = Volume(data, np.diag([-3.0, -3, -3, 1]))
    upright = reoriented(image, "RAS")
    expected = head_box(upright)
    found = call("conform.js", "headBox", volume(upright))
    assert found["start"] == [side.start for side in expected]
    assert found["stop"] == [side.stop for side in expected]
    # The neck ends 210 mm below the top, before the image ends.
    assert expected[2].start > 0


def test_the_region_of_the_brain_is_found_as_in_python() -> None:
    generator = np.random.default_rng(0)
    seen = np.zeros((60, 70, 64), bool)
    slices = list(range(4, 70, 8))
    for number in slices[1:-1]:
        seen[15:45, number, 20:50] = generator.random((30, 30)) > 0.1
        seen[25:31, number, 2:20] = True  # a cord
    seen[50:58, 28, 50:58] = True  # a speck
    expected = brain_region(seen, slices, 1)
    found = call(
        "localisation.js",
        "brainRegion",
        seen.astype(np.uint8),
        list(seen.shape),
        slices,
        1,
    )
    assert found["box"]["start"] == [side.start for side in expected.box]
    assert found["box"]["stop"] == [side.stop for side in expected.box]
    np.testing.assert_array_equal(found["mask"], flat(expected.mask))
    np.testing.assert_array_equal(found["rim"], flat(expected.rim))


def test_halves_are_those_of_numpy() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    found = call(CALLABLE, "allHalves")
    np.testing.assert_array_equal(found, bits.view(np.float16).astype(np.float32))
    generator = np.random.default_rng(0)
    halves = generator.random(2000).astype(np.float16)
    # Exactly between two half-precision numbers, a little above, and random values.
    between = (halves.astype(np.float32) + np.nextafter(halves, np.float16(2))) / 2
    values = np.concatenate(
        [between, np.nextafter(between, 2), generator.random(2000) ** 20]
    ).astype(np.float32)
    rounded = call(CALLABLE, "halvesOf", values)
    np.testing.assert_array_equal(rounded, values.astype(np.float16).view(np.uint16))


def test_a_scan_is_segmented_by_the_model_that_was_chosen_when_it_was_dropped() -> None:
    found = call(CALLABLE, "modelsOfScans")
    # With its scans, whether it still runs, and whether scans may be of any contrast.
    assert found["before"] == ["fast"]
    assert found["workers"] == [
        ["fast", ["one"], False, False],
        ["any", ["two"], False, True],
        ["fast", ["three"], True, False],
    ]


def test_rejected_scans_and_structures_are_no_part_of_the_study() -> None:
    results = [
        {
            "grade": grade,
            "reasons": [],
            "structure_grades": {"A": of_structure},
            "volumes_mm3": {"A": mm3},
        }
        for grade, of_structure, mm3 in (
            ("pass", "pass", 200),
            ("look", "pass", 100),
            ("reject", "pass", 9000),
            ("pass", "reject", 1),
        )
    ]
    assert call(CALLABLE, "rankedAmong", "A", results) == [100, 200]


def test_a_graphics_card_counts_that_finds_the_same_and_sooner() -> None:
    # 4 slices of 96 x 96 pixels, of which a thousandth is 36.
    compared = {
        (others, took_ms): call(CALLABLE, "comparedWith", others, took_ms, 60)
        for others, took_ms in ((0, 1), (36, 1), (37, 1), (0, 120))
    }
    assert compared == {
        (0, 1): {"isSame": True, "isSooner": True},
        (36, 1): {"isSame": True, "isSooner": True},
        (37, 1): {"isSame": False, "isSooner": True},
        (0, 120): {"isSame": True, "isSooner": False},
    }


def test_a_countdown_never_grows_by_more_than_a_quarter() -> None:
    """A slow view follows a quick one: 196 s, then 313 s and more at its speed."""
    points = [(1, 0.02), (60, 0.234), (110, 0.26), (200, 0.3), (300, 0.8), (400, 0.99)]
    found = call(CALLABLE, "countdown", points)
    assert found == [None, 196, 245, 245, 75, 4]


def test_a_countdown_goes_on_after_the_last_slice_and_ends_when_the_time_is_up() -> (
    None
):
    points = [(100, 0.8), (110, None), (124, None), (126, None)]
    assert call(CALLABLE, "countdown", points) == [25, 15, 1, None]


def test_rows_are_grown_as_in_python() -> None:
    for first, end, length in [(3, 20, 64), (0, 5, 64), (60, 63, 64), (2, 30, 31)]:
        line = torch.zeros(length, dtype=torch.bool)
        line[first:end] = True
        expected = _grown(line, 16)
        found = call("fusion.js", "grownSpan", first, end, length, 16)
        assert found == [expected.start, expected.stop]


def test_agreement_of_views_is_that_of_python() -> None:
    scheme = load_scheme("quicknat33")
    generator = np.random.default_rng(1)
    merged = scheme.merged.to_merged
    coronal = generator.integers(0, 33, (8, 9, 10)).astype(np.uint8)
    axial = np.where(generator.random(coronal.shape) > 0.3, coronal, 5).astype(np.uint8)
    sagittal = merged[axial].astype(np.uint8)
    # No view has the class of the highest index.
    coronal[coronal == 32] = 0
    axial[axial == 32] = 0
    maps = {View.CORONAL: coronal, View.AXIAL: axial, View.SAGITTAL: sagittal}
    tensors = {view: torch.from_numpy(found) for view, found in maps.items()}
    expected = view_agreement(tensors, scheme, (View.SAGITTAL,))
    settings = {
        "classes": [{"merged": int(number)} for number in merged],
        "views": [
            {"name": view.value, "merged": view is View.SAGITTAL} for view in maps
        ],
    }
    named = {view.value: found for view, found in maps.items()}
    found = call("measures.js", "viewAgreement", {"$map": named}, settings)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float32])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".mgz"])
def test_files_are_read_as_in_python(kind: type, suffix: str, tmp_path: Path) -> None:
    scan = miniature_on((0.95, 1.2, 1.0), angle=0.2)
    path = tmp_path / f"scan{suffix}"
    Volume(scan.data.astype(kind), scan.affine).write(path)
    expected = Volume.read(path)
    found = call("read.js", "readScan", [file(path)])
    assert found["shape"] == list(expected.shape)
    np.testing.assert_allclose(found["affine"], expected.affine.ravel(), atol=1e-5)
    np.testing.assert_array_equal(found["data"], flat(expected.data))


def test_an_mgh_file_without_orientation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scan.mgh"
    straight("RAS").write(tmp_path / "scan.mgz")
    content = bytearray(gzip.decompress((tmp_path / "scan.mgz").read_bytes()))
    content[28:30] = b"\x00\x00"
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="no orientation"):
        call("read.js", "readScan", [file(path)])


def test_scaled_voxels_are_read_as_in_python(tmp_path: Path) -> None:
    path = tmp_path / "scan.nii"
    straight("RAS").write(path)
    content = bytearray(path.read_bytes())
    content[112:120] = np.array([0.3, -7], "<f4").tobytes()
    path.write_bytes(content)
    expected = Volume.read(path)
    found = call("read.js", "readScan", [file(path)])
    np.testing.assert_array_equal(found["data"], flat(expected.data))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("scaling", [(1, 0), (0.3, -7)])
def test_nifti_2_is_read_as_in_python(
    order: str, scaling: tuple[float, float], tmp_path: Path
) -> None:
    scan = miniature_on((0.95, 1.2, 1.0), angle=0.2)
    header = nib.Nifti2Header(endianness=order)
    header.set_data_dtype(np.int16)
    image = nib.Nifti2Image(scan.data.astype(np.int16), scan.affine, header)
    image.header.set_slope_inter(*scaling)
    path = tmp_path / "scan.nii"
    image.to_filename(path)
    expected = Volume.read(path)
    found = call("read.js", "readScan", [file(path)])
    assert found["shape"] == list(expected.shape)
    np.testing.assert_allclose(found["affine"], expected.affine.ravel(), atol=1e-5)
    np.testing.assert_allclose(found["data"], flat(expected.data), rtol=1e-6)


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
def test_half_a_turn_stays_one_though_its_quaternion_is_rounded(
    kind: type[nib.Nifti1Image], tmp_path: Path
) -> None:
    # The square of the quaternion's first number is 3e-8 instead of 0.
    sides = np.array([[-1.0, 0, 0], [0, 0, 2.5], [0, -1, 0]])
    affine = np.block([[sides, np.full((3, 1), 100.0)], [0, 0, 0, 1]])
    voxels = np.arange(40**3, dtype=np.int16).reshape(40, 40, 40)
    image = kind(voxels, None)
    image.set_qform(affine, 1)
    path = tmp_path / "scan.nii"
    image.to_filename(path)
    found = call("read.js", "readScan", [file(path)])
    np.testing.assert_allclose(found["affine"], affine.ravel(), atol=1e-5)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scan.nii.gz"
    straight("RAS").write(path)
    content = bytearray(path.read_bytes())
    content[-6] ^= 1  # in the checksum
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="damaged"):
        call("read.js", "readScan", [file(path)])


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (42, b"\x05\x00", "fewer than 16 slices"),
        (46, b"\x11\x00", "more data than its header"),  # 17 slices
        (40, b"\x04\x00", "2 volumes in one file"),
        (70, b"\x80\x00", "not one number a voxel"),
        (123, b"\x03", "units are not millimetres"),
        (252, b"\x00\x00\x00\x00", "no orientation"),
        (344, b"ni1", "not a single-file NIfTI"),
        (280, b"\x00\x00\x80\x7f", "s-form is not finite"),
        (108, b"\x00\x00\xae\x43", "ends before its voxels"),  # voxels at byte 348
    ],
)
def test_headers_are_refused(at: int, value: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "scan.nii"
    straight("RAS").write(path)
    content = bytearray(path.read_bytes())
    content[48:50] = (
        b"\x02\x00"  # the size of a fourth dimension, which a 3D image does not have
    )
    content[at : at + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match=said):
        call("read.js", "readScan", [file(path)])


def test_bytes_behind_the_voxels_are_refused_as_in_python(tmp_path: Path) -> None:
    straight("RAS").write(tmp_path / "scan.nii")
    straight("RAS").write(tmp_path / "scan.mgz")
    nifti = (tmp_path / "scan.nii").read_bytes()
    mgh = gzip.decompress((tmp_path / "scan.mgz").read_bytes())
    most = 16 * 2**20
    accepted = {"a.nii": nifti + bytes(4096), "b.mgh": mgh + b"\1" * 100}
    refused = {
        "c.nii": nifti + bytes(4097),
        "d.nii": nifti + b"\1",
        "e.mgh": mgh + bytes(most + 1),
    }
    for name, content in (accepted | refused).items():
        path = tmp_path / name
        path.write_bytes(content)
        if name in accepted:
            Volume.read(path)
            call("read.js", "readScan", [file(path)])
            continue
        with pytest.raises(IntegrityError):
            Volume.read(path)
        with pytest.raises(RuntimeError, match="more data than its header"):
            call("read.js", "readScan", [file(path)])


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
@pytest.mark.parametrize("scaling", [(1, 0), (0.3, -7)])
def test_wide_integers_are_read_as_in_python(
    kind: type[np.integer[Any]], scaling: tuple[float, float], tmp_path: Path
) -> None:
    voxels = np.arange(40**3).reshape(40, 40, 40).astype(kind)
    image = nib.Nifti1Image(voxels, np.eye(4), dtype=kind)
    image.header.set_slope_inter(*scaling)
    path = tmp_path / "scan.nii"
    image.to_filename(path)
    found = call("read.js", "readScan", [file(path)])
    np.testing.assert_array_equal(found["data"], flat(Volume.read(path).data))


def header_of(**fields: Any) -> nib.Nifti1Header:
    """Return the header of a straight scan of 40 voxels a side, with these fields changed."""
    header = nib.Nifti1Header()
    header.set_data_shape((40, 40, 40))
    header.set_data_dtype(np.uint8)
    header.set_qform(np.eye(4), 1)
    header.set_sform(np.eye(4), 1)
    header.set_xyzt_units("mm")
    header["vox_offset"] = 352
    header["magic"] = b"n+1"
    for name, value in fields.items():
        header[name] = value
    return header


@pytest.mark.parametrize(
    "fields",
    [
        {"srow_x": (-1, 0, 0, 0), "srow_y": (0, -1, 0, 0)},  # half a turn
        {"srow_x": (-1, 0, 0, 0)},  # mirrored
        {"srow_x": (0, 0, 1, 0), "srow_z": (-1, 0, 0, 0)},  # to the side
        {"qform_code": -1},
        {"sform_code": 7},
        {"qform_code": 7, "sform_code": 0},
        {"quatern_b": 1, "quatern_c": 1},
        {"quatern_b": np.nan},
        {"pixdim": (3, 1, 1, 1, 1, 1, 1, 1)},
        {"bitpix": 12},
        {"magic": b"n+1x"},
        {"dim": (9, 40, 40, 40, 1, 1, 1, 1)},
    ],
)
def test_headers_that_contradict_themselves_are_refused_as_in_python(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "scan.nii"
    voxels = np.arange(40**3).astype(np.uint8).tobytes()
    path.write_bytes(header_of(**fields).binaryblock + bytes(4) + voxels)
    with pytest.raises(InputError):
        Volume.read(path)
    with pytest.raises(RuntimeError):
        call("read.js", "readScan", [file(path)])


@pytest.mark.parametrize("size", [0, 4, 24])
def test_extensions_that_reach_into_the_voxels_are_refused_as_in_python(
    size: int, tmp_path: Path
) -> None:
    """There are 16 bytes for an extension of this size."""
    path = tmp_path / "scan.nii"
    content = header_of(vox_offset=368).binaryblock + b"\1" + bytes(3)
    content += struct.pack("<ii", size, 4) + bytes(8)
    path.write_bytes(content + np.arange(40**3).astype(np.uint8).tobytes())
    with pytest.raises(InputError):
        Volume.read(path)
    with pytest.raises(RuntimeError, match="extension"):
        call("read.js", "readScan", [file(path)])


@pytest.mark.parametrize(
    ("stored", "named"), [("scan.nii", "a.nii.gz"), ("scan.nii.gz", "b.nii")]
)
def test_a_name_that_contradicts_the_compression_is_refused_as_in_python(
    stored: str, named: str, tmp_path: Path
) -> None:
    straight("RAS").write(tmp_path / stored)
    path = (tmp_path / stored).rename(tmp_path / named)
    with pytest.raises(InputError) as caught:
        Volume.read(path)
    with pytest.raises(RuntimeError) as of_page:
        call("read.js", "readScan", [file(path)])
    assert str(of_page.value) == f"{caught.value.what}: {caught.value.remedy}"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"qoffset_x": 3},  # the forms differ
        {"pixdim": (1, 2, 2, 2, 1, 1, 1, 1), "qform_code": 0},
        {"pixdim": (0, 1, 1, 1, 1, 1, 1, 1)},
        {"quatern_b": 1, "quatern_c": 1, "qform_code": 0},  # no rotation, and not coded
        {"srow_x": (0.8, -0.6, 0, 0), "srow_y": (0.6, 0.8, 0, 0)},  # 37° apart
    ],
)
def test_headers_are_noted_as_in_python(fields: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "scan.nii"
    voxels = np.arange(40**3).astype(np.uint8).tobytes()
    path.write_bytes(header_of(**fields).binaryblock + bytes(4) + voxels)
    found = call("read.js", "readScan", [file(path)])
    expected = Volume.read(path)
    np.testing.assert_allclose(found["affine"], expected.affine.ravel())
    assert found["notes"] == list(expected.notes)


def read_folder(folder: Path, *, any_contrast: bool = False) -> dict[str, Any]:
    """Return what the modules make of all files in a folder."""
    files = [file(path) for path in sorted(folder.iterdir())]
    return call("read.js", "readScan", files, any_contrast)


@pytest.mark.parametrize(
    ("names", "scans"),
    [
        # Files whose names begin with IM are DICOM.
        (["a.nii.gz", "a.json", "README"], [["a.nii.gz"]]),
        (["IM1", "b.mgz", "b.json", "IM2"], [["b.mgz"], ["IM1", "IM2"]]),
        (["IM1", "README"], [["IM1", "README"]]),
        # Refused later, in a sentence.
        (["README"], [["README"]]),
        ([".DS_Store"], [[".DS_Store"]]),
        (["._a.nii.gz", "a.nii.gz", ".DS_Store", "IM1"], [["a.nii.gz"], ["IM1"]]),
    ],
)
def test_sidecars_beside_images_are_no_scan(
    names: list[str], scans: list[list[str]]
) -> None:
    files = []
    for name in names:
        content = bytes(128) + b"DICM" if name.startswith("IM") else b"{}"
        files.append({"$file": content, "name": name})
    assert call(CALLABLE, "namesOfScans", files) == scans


def assert_same_scan(found: dict[str, Any], expected: Volume) -> None:
    assert found["shape"] == list(expected.shape)
    np.testing.assert_allclose(found["affine"], expected.affine.ravel(), atol=1e-9)
    np.testing.assert_array_equal(found["data"], flat(expected.data))
    assert found["notes"] == list(expected.notes)


@pytest.mark.parametrize("axes", ["LPS", "PIR", "LIP"])
@pytest.mark.parametrize("kind", [np.int16, np.uint8])
def test_a_folder_of_dicom_is_read_as_in_python(
    axes: str, kind: type, tmp_path: Path
) -> None:
    write_classic(tmp_path, small(axes, kind))
    assert_same_scan(read_folder(tmp_path), Volume.read(tmp_path))


def test_scaled_and_padded_dicom_is_read_as_in_python(tmp_path: Path) -> None:
    write_classic(
        tmp_path,
        small(),
        RescaleSlope="1.5",
        RescaleIntercept="-20",
        PixelPaddingValue=0,
        PixelPaddingRangeLimit=200,
    )
    found = read_folder(tmp_path)
    expected = Volume.read(tmp_path)
    np.testing.assert_array_equal(found["data"], flat(expected.data))


def test_voxels_of_padding_are_noted_as_in_python(tmp_path: Path) -> None:
    write_classic(tmp_path, small(), PixelPaddingValue=40, PixelPaddingRangeLimit=200)
    assert_same_scan(read_folder(tmp_path), Volume.read(tmp_path))


def test_an_emptied_padding_is_none(tmp_path: Path) -> None:
    # The next tag begins with 40, the value of some voxels.
    scan = small()
    scan.data[:, :, 0] = 40
    write_classic(tmp_path, scan, PixelPaddingValue=None)
    assert_same_scan(read_folder(tmp_path), Volume.read(tmp_path))


def test_an_unknown_sequence_is_skipped_and_bytes_behind_the_pixels_are_not_read(
    tmp_path: Path,
) -> None:
    rows = b"\x28\x00\x10\x00US"
    name = b"\x10\x00\x10\x00" + struct.pack("<I", 4) + b"ABCD"
    item = b"\xfe\xff\x00\xe0" + struct.pack("<I", len(name)) + name
    unknown = b"\x21\x00\x10\x10UN\0\0\xff\xff\xff\xff" + item
    unknown += b"\xfe\xff\xdd\xe0" + bytes(4)
    for path in write_classic(tmp_path, small()):
        content = path.read_bytes()
        assert content.count(rows) == 1
        path.write_bytes(content.replace(rows, unknown + rows) + bytes(20))
    assert_same_scan(read_folder(tmp_path), Volume.read(tmp_path))


def test_an_enhanced_file_is_read_as_in_python(tmp_path: Path) -> None:
    save(enhanced(small("PIR")), tmp_path / "all")
    assert_same_scan(read_folder(tmp_path), Volume.read(tmp_path))


def test_of_several_series_the_t1_is_taken(tmp_path: Path) -> None:
    write_classic(tmp_path, small())
    other = tmp_path / "other"
    other.mkdir()
    write_classic(other, small("PIR"), "t2", SeriesDescription="T2 TSE")
    for path in other.iterdir():
        path.rename(tmp_path / f"t2-{path.name}")
    other.rmdir()
    (tmp_path / "notes.txt").write_text("no image")
    found = read_folder(tmp_path)
    assert found["shape"] == list(small().shape)


@pytest.mark.parametrize(
    "changes",
    [
        {"SeriesDescription": "T2 TSE"},
        {"MRAcquisitionType": "2D"},
        {"EchoTime": 80},
        {"Modality": "CT"},
        {"ImageType": ["DERIVED", "PRIMARY", "MPR"]},
        {"ImageType": ["ORIGINAL", "", "P"]},
    ],
)
def test_other_series_are_refused_with_the_words_of_python(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    write_classic(tmp_path, small(), **changes)
    with pytest.raises(FormatError) as error:
        Volume.read(tmp_path)
    # Python's message names the series as well.
    (reason,) = re.findall(r": ([^:]*)\)$", error.value.what)
    with pytest.raises(RuntimeError) as said:
        read_folder(tmp_path)
    assert str(said.value) == (
        f"no T1-weighted series in it ({reason}): give the files of one"
    )


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        ({"SeriesDescription": "T2 FLAIR"}, True),
        ({"MRAcquisitionType": "2D"}, True),
        ({"EchoTime": 80}, True),
        ({"AcquisitionContrast": "T2"}, True),
        ({"ImageType": ["DERIVED", "PRIMARY", "MPR"]}, False),
    ],
)
def test_series_of_any_contrast_are_read_as_in_python(
    changes: dict[str, Any], is_read: bool, tmp_path: Path
) -> None:
    write_classic(tmp_path, small(), **changes)
    if is_read:
        expected = Volume.read(tmp_path, any_contrast=True)
        assert_same_scan(read_folder(tmp_path, any_contrast=True), expected)
        return
    with pytest.raises(RuntimeError, match=r"^no anatomical series in it \(derived"):
        read_folder(tmp_path, any_contrast=True)


def compressed(path: Path) -> None:
    """Compress the pixels of a DICOM file."""
    image = dcmread(path)
    image.compress(RLELossless)
    image.save_as(path)


def test_compressed_files_beside_a_series_are_left_out(tmp_path: Path) -> None:
    write_classic(tmp_path, small())
    shot = classic(small(), 0, "shot", Modality="CT")
    compressed(save(shot, tmp_path / "shot.dcm"))
    assert_same_scan(read_folder(tmp_path), Volume.read(tmp_path))


def test_damaged_files_are_refused_with_the_words_of_python(tmp_path: Path) -> None:
    # A missing last slice is not seen as a gap.
    last = write_classic(tmp_path, small())[-1]
    last.write_bytes(last.read_bytes()[:400])
    with pytest.raises(IntegrityError) as error:
        Volume.read(tmp_path)
    with pytest.raises(RuntimeError) as said:
        read_folder(tmp_path)
    assert str(said.value) == f"{error.value.what}: {error.value.remedy}"


def test_compressed_series_and_zips_are_refused_in_a_sentence(tmp_path: Path) -> None:
    paths = write_classic(tmp_path, small())
    for path in paths:
        compressed(path)
    with pytest.raises(RuntimeError, match=r"^compressed DICOM files: export them unc"):
        read_folder(tmp_path)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(paths[0])
    with pytest.raises(RuntimeError, match=r"^a zip: unpack it, and drop the folder$"):
        call("read.js", "readScan", [file(tmp_path / "all.zip")])


def test_a_series_with_a_hole_is_refused(tmp_path: Path) -> None:
    paths = write_classic(tmp_path, small())
    paths[8].unlink()
    with pytest.raises(RuntimeError, match="slices are missing within it: 1"):
        read_folder(tmp_path)


@pytest.mark.parametrize("axes", ["RAS", "LIA"])
def test_a_label_map_is_written_where_its_scan_is(axes: str, tmp_path: Path) -> None:
    scan = (
        miniature_on((0.95, 1.2, 1.0), angle=0.2) if axes == "LIA" else straight(axes)
    )
    labels = np.arange(scan.data.size, dtype=np.int16).reshape(scan.shape) % 5
    given = volume(Volume(labels, scan.affine))
    found = call("nifti.js", "writeNifti", given, {"labels": True})
    path = tmp_path / "labels.nii.gz"
    path.write_bytes(gzip.compress(found.tobytes()))
    # Python refuses a file whose q- and s-form disagree.
    read = Volume.read(path, labels=True)
    np.testing.assert_array_equal(read.data, labels)
    np.testing.assert_allclose(read.affine, scan.affine, atol=1e-5)
    assert not read.notes


def test_surfaces_are_those_of_the_viewer() -> None:
    labels = np.zeros((30, 26, 28), np.uint8)
    x, y, z = np.ogrid[:30, :26, :28]
    labels[(x - 14) ** 2 + (y - 12) ** 2 / 2 + (z - 13) ** 2 < 80] = 1
    labels[4:9, 20:, 5:12] = 2  # up to the edge
    labels[2, 2, 2] = 3
    volume_ = Volume(labels, np.diag([0.9, 1.1, 1.2, 1]))
    expected = meshes_in(_surfaces(volume_))
    found = meshes_in(call("surfaces.js", "surfacesOf", volume(volume_), 4))
    assert list(found) == list(expected) == [1, 2, 3]
    for number, (vertices, faces) in expected.items():
        own_vertices, own_faces = found[number]
        np.testing.assert_allclose(
            sorted(own_vertices.tolist()), sorted(vertices.tolist()), atol=1e-4
        )
        assert len(own_faces) == len(faces)
        one = Surface(own_vertices, own_faces)
        other = Surface(vertices, faces)
        # Faces point outwards: the signed volume is positive.
        assert one.volume_mm3 == pytest.approx(other.volume_mm3, rel=1e-4)
        assert one.area_mm2 == pytest.approx(other.area_mm2, rel=1e-2)


def meshes_in(content: bytes) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return vertices and faces by number from the bytes that the page receives."""
    found = {}
    at = 0
    while at < len(content):
        number, points, faces = np.frombuffer(content, "<u4", 3, at)
        at += 12
        vertices = np.frombuffer(content, "<f4", 3 * points, at).reshape(-1, 3)
        at += vertices.nbytes
        corners = np.frombuffer(content, "<u4", 3 * faces, at).reshape(-1, 3)
        at += corners.nbytes
        found[int(number)] = vertices, corners
    return found


def test_labels_are_restored_as_in_python() -> None:
    scan = miniature_on((0.95, 1.2, 1.0), angle=0.2)
    plan = conform(scan, shape=None).plan
    generator = np.random.default_rng(2)
    # Smooth probabilities of four classes.
    coarse = generator.random((4, 8, 8, 8)).astype(np.float32) ** 4
    fine = torch.nn.functional.interpolate(
        torch.from_numpy(coarse)[None], plan.working.shape, mode="trilinear"
    )[0]
    probabilities = (fine / fine.sum(0)).numpy()
    expected = restore_probabilities(probabilities, plan)
    found = call_restore(probabilities, plan)
    same = found == flat(expected.data)
    assert same.mean() > 0.9995


def call_restore(probabilities: np.ndarray, plan: ConformPlan) -> np.ndarray:
    """Call `restore` with the values in an array, classes innermost."""
    classes = probabilities.argmax(0).astype(np.uint8)
    innermost = np.concatenate([p.ravel("F")[:, None] for p in probabilities], axis=1)
    grids = [
        {"shape": list(grid.shape), "affine": grid.affine.ravel().tolist()}
        for grid in (plan.working, plan.scan)
    ]
    return call(
        CALLABLE,
        "restoreValues",
        classes,
        *grids,
        len(probabilities),
        innermost.ravel().astype(np.float32),
    )
