"""DICOM SEG: labels voxel by voxel, read by other libraries; coded structures."""

from __future__ import annotations

import subprocess
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import pytest
from helpers.dicom import classic, enhanced, save, write_classic
from helpers.refusals import refusal
from pydicom.sr.codedict import codes

from trinat.segmentation.errors import (
    FormatError,
    GeometryError,
    IntegrityError,
    LabelError,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.dicom_seg import code_of, write_seg
from trinat.segmentation.labels.scheme import load_scheme

SCHEME = load_scheme("quicknat33")
TURN = np.array([[0.96, -0.28, 0], [0.28, 0.96, 0], [0, 0, 1]])


def scan() -> Volume:
    """Return (18, 20, 17) voxels of 0.9 x 1.1 x 1.5 mm, turned in their plane."""
    affine = np.eye(4)
    affine[:3, :3] = TURN @ np.diag([-0.9, -1.1, 1.5])
    affine[:3, 3] = 12.5, -30.25, 7
    data = np.random.default_rng(1).integers(0, 4000, (18, 20, 17)).astype(np.int16)
    return Volume(data, affine)


def indices(scan: Volume) -> Volume:
    """Return blocks of all classes but the last, without any symmetry."""
    data = np.zeros(scan.shape, np.uint8)
    data[2:14, 3:17, 2:15] = np.random.default_rng(2).integers(0, 32, (12, 14, 13))
    return Volume(data, scan.affine)


def written(folder: Path, kind: str, **changes: Any) -> Path:
    source = folder / "in"
    if kind == "classic":
        write_classic(source, scan(), **changes)
    else:
        save(enhanced(scan(), **changes), source / "a.dcm")
    read = Volume.read(source)
    names = sorted(path.name for path in source.iterdir())
    path = folder / "labels.dcm"
    digest = Volume.read(source, series=names).source_sha256 or ""
    write_seg(path, indices(read), SCHEME, source, names, digest=digest, model="tiny")
    return path


@pytest.fixture(scope="module")
def classic_seg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the segmentation of a classic series, for tests that only read it."""
    return written(tmp_path_factory.mktemp("classic"), "classic")


def by_pydicom(path: Path, truth: Volume) -> np.ndarray:
    """Return class indices (X, Y, Z) on the grid of `truth`, by position and name of frames."""
    seg = pydicom.dcmread(path)
    names = {s.SegmentNumber: s.SegmentLabel for s in seg.SegmentSequence}
    found = np.zeros(truth.shape, np.uint8)
    to_voxels = np.linalg.inv(np.diag([-1, -1, 1, 1]) @ truth.affine)
    bits = seg.pixel_array
    for frame, group in zip(bits, seg.PerFrameFunctionalGroupsSequence, strict=True):
        at = [float(v) for v in group.PlanePositionSequence[0].ImagePositionPatient]
        voxel = to_voxels @ [*at, 1]
        np.testing.assert_allclose(voxel[:2], 0, atol=1e-3)
        assert abs(voxel[2] - round(voxel[2])) < 1e-3
        number = group.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        part = found[:, :, round(voxel[2])]
        assert not (part[frame.T > 0]).any()
        part[frame.T > 0] = SCHEME.find(names[number]).index
    return found


@pytest.mark.parametrize("kind", ["classic", "enhanced"])
def test_pydicom_finds_every_voxel_where_it_is(tmp_path: Path, kind: str) -> None:
    found = by_pydicom(written(tmp_path, kind), scan())
    np.testing.assert_array_equal(found, indices(scan()).data)


def test_what_3d_slicer_reads_with_finds_every_voxel_where_it_is(
    classic_seg: Path, tmp_path: Path
) -> None:
    tool = Path(sysconfig.get_path("scripts")) / "segimage2itkimage"
    if not tool.exists():
        pytest.skip("dcmqi is not installed")
    line = [
        tool,
        "--inputDICOM",
        classic_seg,
        "--outputDirectory",
        tmp_path,
        "-p",
        "x",
        "-t",
        "nii",
    ]
    done = subprocess.run(
        [*line, "--mergeSegments"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    found = np.zeros(scan().shape, np.uint8)
    for file in tmp_path.glob("x*.nii*"):
        image = nib.load(file)
        turn = np.linalg.inv(scan().affine) @ image.affine
        at = np.argwhere(np.asarray(image.dataobj))
        voxels = np.rint(at @ turn[:3, :3].T + turn[:3, 3]).astype(int)
        found[tuple(voxels.T)] = np.asarray(image.dataobj)[tuple(at.T)]
    np.testing.assert_array_equal(found, indices(scan()).data)


def test_a_segmentation_belongs_to_patient_study_and_frame_of_its_series(
    classic_seg: Path,
) -> None:
    seg = pydicom.dcmread(classic_seg)
    source = classic(scan(), 0)
    for keyword in (
        "PatientName",
        "PatientID",
        "StudyInstanceUID",
        "FrameOfReferenceUID",
    ):
        assert seg[keyword].value == source[keyword].value
    assert seg.Modality == "SEG"
    assert seg.SegmentationType == "BINARY"
    assert seg.SeriesInstanceUID != source.SeriesInstanceUID
    (referenced,) = seg.ReferencedSeriesSequence
    assert referenced.SeriesInstanceUID == source.SeriesInstanceUID
    assert len(referenced.ReferencedInstanceSequence) == 17


def test_segments_are_coded_coloured_and_have_their_side(classic_seg: Path) -> None:
    seg = pydicom.dcmread(classic_seg)
    assert [s.SegmentLabel for s in seg.SegmentSequence] == list(SCHEME.names[1:])
    left = next(s for s in seg.SegmentSequence if s.SegmentLabel == "Left-Hippocampus")
    (kind,) = left.SegmentedPropertyTypeCodeSequence
    assert (kind.CodeValue, kind.CodingSchemeDesignator) == ("5366008", "SCT")
    (side,) = kind.SegmentedPropertyTypeModifierCodeSequence
    assert (side.CodeValue, side.CodeMeaning) == ("7771000", "Left")
    (category,) = left.SegmentedPropertyCategoryCodeSequence
    assert category.CodeMeaning == "Anatomical Structure"
    assert len(left.RecommendedDisplayCIELabValue) == 3
    middle = next(s for s in seg.SegmentSequence if s.SegmentLabel == "3rd-Ventricle")
    assert (
        "SegmentedPropertyTypeModifierCodeSequence"
        not in (middle.SegmentedPropertyTypeCodeSequence[0])
    )


def test_the_same_labels_get_the_same_identifiers_and_others_get_others(
    tmp_path: Path,
) -> None:
    first, again = (written(tmp_path / name, "classic") for name in ("a", "b"))
    other = written(tmp_path / "c", "classic", series="other")
    uids = [pydicom.dcmread(path).SOPInstanceUID for path in (first, again, other)]
    assert uids[0] == uids[1] != uids[2]


def test_a_file_made_anonymous_has_a_segmentation_too(tmp_path: Path) -> None:
    gone = dict.fromkeys(
        ("PatientName", "PatientID", "StudyDate", "AccessionNumber", "StudyID")
    )
    seg = pydicom.dcmread(written(tmp_path, "classic", **gone))
    assert not seg.PatientName


def test_names_in_no_usual_form_are_neither_refused_nor_printed(
    tmp_path: Path, capfd
) -> None:
    changes = {"PatientName": "canary without carets", "SoftwareVersions": "x"}
    assert pydicom.dcmread(written(tmp_path, "classic", **changes)).PatientName
    assert "canary" not in "".join(capfd.readouterr())


def test_structures_that_a_model_was_not_taught_are_left_out(tmp_path: Path) -> None:
    write_classic(tmp_path / "in", scan())
    names = [f"IM{n:04d}" for n in range(17)]
    read = Volume.read(tmp_path / "in", series=names)
    write_seg(
        tmp_path / "a.dcm",
        Volume(np.where(indices(read).data == 1, 0, indices(read).data), read.affine),
        SCHEME,
        tmp_path / "in",
        names,
        digest=read.source_sha256 or "",
        model="tiny",
        left_out=[SCHEME.names[1]],
    )
    found = by_pydicom(tmp_path / "a.dcm", scan())
    np.testing.assert_array_equal(
        found, np.where(indices(read).data == 1, 0, indices(read).data)
    )
    assert len(pydicom.dcmread(tmp_path / "a.dcm").SegmentSequence) == 31


def test_a_zip_of_one_series_needs_no_names(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in write_classic(tmp_path / "in", scan()):
            archive.write(file, file.name)
    read = Volume.read(path)
    digest = read.source_sha256 or ""
    write_seg(
        tmp_path / "a.dcm", indices(read), SCHEME, path, (), digest=digest, model="tiny"
    )
    np.testing.assert_array_equal(
        by_pydicom(tmp_path / "a.dcm", scan()), indices(scan()).data
    )


@pytest.mark.parametrize(
    ("character_set", "name"),
    [
        ("", "MUELLER^HANS"),
        ("ISO_IR 144", "Люкceмбypг^Иван"),
        (["", "ISO 2022 IR 100"], "MÜLLER^JÖRG"),
        (["", "ISO 2022 IR 87"], "Yamada^Tarou=山田^太郎"),
    ],
)
def test_names_in_any_character_set_are_written_in_utf_8(
    tmp_path: Path, character_set: str | list[str], name: str
) -> None:
    header = {"SpecificCharacterSet": character_set, "PatientName": name}
    seg = pydicom.dcmread(written(tmp_path, "classic", **header))
    assert (seg.SpecificCharacterSet, seg.PatientName) == ("ISO_IR 192", name)


@pytest.mark.parametrize("keyword", ["FrameOfReferenceUID", "StudyInstanceUID"])
def test_a_missing_identifier_is_refused(tmp_path: Path, keyword: str) -> None:
    with refusal(FormatError, tmp_path / "in"):
        written(tmp_path, "classic", **{keyword: None})


def test_a_structure_without_a_code_is_refused() -> None:
    with refusal(LabelError, remedy="DICOM SEG"):
        code_of(load_scheme("left4").labels[1])


def test_a_series_that_has_changed_is_refused(tmp_path: Path) -> None:
    write_classic(tmp_path, scan())
    names = [f"IM{n:04d}" for n in range(17)]
    with refusal(IntegrityError, tmp_path):
        write_seg(
            tmp_path / "a",
            indices(scan()),
            SCHEME,
            tmp_path,
            names,
            digest="x",
            model="m",
        )


def test_another_grid_is_refused(tmp_path: Path) -> None:
    write_classic(tmp_path, scan())
    names = [f"IM{n:04d}" for n in range(17)]
    read = Volume.read(tmp_path, series=names)
    affine = read.affine.copy()
    affine[0, 3] += 0.5
    elsewhere, digest = Volume(indices(read).data, affine), read.source_sha256 or ""
    with refusal(GeometryError, tmp_path):
        write_seg(
            tmp_path / "a", elsewhere, SCHEME, tmp_path, names, digest=digest, model="m"
        )


@pytest.mark.parametrize("scheme", ["quicknat33", "tissue4"])
def test_every_code_is_one_of_the_standard(scheme: str) -> None:
    for label in load_scheme(scheme).labels[1:]:
        for code in code_of(label):
            known = getattr(codes, code.scheme)
            meanings = {
                getattr(known, word).value: word
                for word in known.dir(code.meaning.split()[0])
            }
            assert code.value in meanings, (label.name, code)
