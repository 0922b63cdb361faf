"""Series in folders and zips that are scans, and their names."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from helpers.dicom import (
    SLICES,
    classic,
    enhanced,
    header,
    packed,
    same,
    save,
    small,
    uid,
    write_classic,
)
from helpers.refusals import refusal

from trinat.pipelines.study.discovery import find_cases
from trinat.segmentation.errors import FormatError, InputError
from trinat.segmentation.io.dicom.series import find_series
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume


def test_series_are_told_apart_by_uid_and_named_without_the_patient(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path / "p", small())
    for number in range(SLICES):
        image = classic(small(), number, "second", SeriesNumber=12)
        save(image, tmp_path / "p" / f"second{number}")
    save(enhanced(small(), "third", SeriesNumber=None), tmp_path / "q" / "x")
    write_classic(
        tmp_path / "q", small(), "loc", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]
    )
    (tmp_path / "q" / "notes.txt").write_text("no DICOM")
    found = find_cases([tmp_path])
    names = [case.id for case in found.cases]
    assert [name.rpartition("-")[0] for name in names] == [
        "p/series-5",
        "p/series-12",
        "q/series",
    ]
    reasons = {
        r.shown.rpartition("-")[0]: (r.reason, r.harmless) for r in found.refusals
    }
    assert reasons == {"q/series-5": ("left out: a localiser", True)}
    for case in found.cases:
        volume = Volume.read(case.path, series=case.series)
        same(volume, small())
        assert volume.source_sha256 == sha256_of(*case.files)


def test_a_series_has_the_names_of_its_folders_as_given(tmp_path: Path) -> None:
    write_classic(tmp_path / "P01 é_V1", small())
    (case,) = find_cases([tmp_path]).cases
    assert case.id.isascii()
    assert case.named.folders == ("P01 é_V1",)


def test_what_a_disc_holds_beside_its_scans_is_no_scan_that_was_skipped(
    tmp_path: Path,
) -> None:
    place = tmp_path / "disc"
    write_classic(place / "IMAGES", small())
    (place / "README.TXT").write_text("how to open this disc")
    (place / "report.pdf").write_bytes(b"%PDF-1.4")
    (place / "VERSION").write_text("2")
    (place / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    # A directory file of a disc: it begins like DICOM and has no image.
    index = header(SOPClassUID="1.2.840.10008.1.3.10", SeriesInstanceUID=None)
    index.SOPInstanceUID = uid("index")
    save(index, place / "DICOMDIR")
    found = find_cases([place])
    assert len(found.cases) == 1
    assert found.refusals == ()
    assert found.remarks == (
        "disc/: files that are neither DICOM nor scans are not read: "
        "3 (.pdf, .txt, without suffix)",
    )


@pytest.mark.parametrize(
    "words", ["Sag T1 FLAIR", "3D headcoil", "MPRAGE after BOLD", None]
)
def test_a_description_that_names_no_other_contrast_is_no_reason(
    tmp_path: Path, words
) -> None:
    write_classic(tmp_path, small(), SeriesDescription=words)
    assert len(find_cases([tmp_path]).cases) == 1


def test_a_series_whose_identifier_was_removed_is_one_scan(tmp_path: Path) -> None:
    write_classic(tmp_path, small(), SeriesInstanceUID=None)
    (case,) = find_cases([tmp_path]).cases
    same(Volume.read(tmp_path, series=case.series), small())


def test_series_whose_identifiers_were_removed_are_told_apart_by_their_frames(
    tmp_path: Path,
) -> None:
    for name in ("p1", "p2"):
        changes = {"SeriesInstanceUID": None, "FrameOfReferenceUID": uid(name)}
        write_classic(tmp_path / name, small(), **changes)
    assert len({case.stem for case in find_cases([tmp_path]).cases}) == 2


@pytest.mark.parametrize("given", [["."], ["IM*"], [f"IM{n:04d}" for n in range(17)]])
def test_files_that_cannot_be_read_are_refused_beside_their_scan(
    tmp_path: Path, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = write_classic(tmp_path, small())[-1]
    opened = os.open

    def refusing(path: str | Path, *arguments: Any, **options: Any) -> int:
        # Root, who runs tests in containers, may read every file.
        if path == last:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    found = find_cases([tmp_path / name for name in given])
    (case,) = found.cases
    assert len(case.series) == SLICES - 1
    (failure,) = found.refusals
    assert (failure.shown, failure.harmless) == (".", False)
    assert found.remarks == ()
    with refusal(InputError, last):
        Volume.read(tmp_path)


def test_scans_beside_dicom_are_found_as_before(tmp_path: Path) -> None:
    write_classic(tmp_path / "d", small())
    small().write(tmp_path / "a.nii.gz")
    assert [case.id.partition("-")[0] for case in find_cases([tmp_path]).cases] == [
        "a",
        "d/series",
    ]


def test_files_of_a_series_may_be_named_by_a_pattern_or_one_by_one(
    tmp_path: Path,
) -> None:
    paths = write_classic(tmp_path, small())
    (by_pattern,) = find_cases([f"{tmp_path}/IM*"]).cases
    (one_by_one,) = find_cases(paths).cases
    assert by_pattern.series == one_by_one.series
    assert len(by_pattern.series) == SLICES


def test_one_zip_is_named_after_itself_and_not_after_what_is_in_it(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path / "in", small())
    (case,) = find_cases([packed(tmp_path / "in", tmp_path / "upload.zip")]).cases
    assert case.id.startswith("upload/series-5-")
    assert case.files == (tmp_path / "upload.zip",)


def test_zips_in_several_folders_keep_the_names_of_their_folders(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path / "in", small())
    for name in ("sub-01", "sub-02"):
        (tmp_path / name).mkdir()
        packed(tmp_path / "in", tmp_path / name / "t1.zip")
    found = find_cases([f"{tmp_path}/sub-*/t1.zip"])
    folders = [case.id.rpartition("/")[0] for case in found.cases]
    assert folders == ["sub-01/t1", "sub-02/t1"]


def test_without_the_extra_one_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch
) -> None:
    write_classic(tmp_path, small())
    monkeypatch.setitem(sys.modules, "pydicom", None)
    (refusal,) = find_cases([tmp_path]).refusals
    assert refusal.reason == "DICOM needs more packages: scripts/install dicom"


@pytest.mark.parametrize(
    ("facts", "taken"),
    [
        ({"MRAcquisitionType": "2D"}, True),
        ({"EchoTime": 388}, True),
        ({"SeriesDescription": "t2_flair_tra"}, True),
        ({"SeriesDescription": "ep2d_diff_3scan"}, False),
        ({"ScanningSequence": ["EP", "GR"]}, False),
        ({"ImageType": ["DERIVED", "SECONDARY", "MPR"]}, False),
    ],
)
def test_for_any_contrast_each_anatomical_series_is_a_scan(
    tmp_path: Path, facts: dict[str, Any], taken: bool
) -> None:
    write_classic(tmp_path, small(), **facts)
    names = [path.name for path in tmp_path.iterdir()]
    (for_t1,) = find_series(tmp_path, names)
    assert for_t1.reason
    (found,) = find_series(tmp_path, names, any_contrast=True)
    assert (not found.reason) == taken
    with pytest.raises(FormatError):
        Volume.read(tmp_path)
    with nullcontext() if taken else pytest.raises(FormatError):
        assert Volume.read(tmp_path, any_contrast=True).shape[2] == SLICES
