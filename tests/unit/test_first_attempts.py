"""First attempts of a new user: each gives the result, or one line with a remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torchio
from helpers.overfitted import miniature, overfitted_model, random_model
from helpers.refusals import refusal
from helpers.serial import small_scan

import trinat
from trinat.segmentation.errors import ConfigError, OutputError


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    path = tmp_path / "scan.nii.gz"
    miniature("LIA")[0].write(path)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write half a head, which is enough for a model with random weights."""
    path = tmp_path / "scan.nii.gz"
    small_scan().write(path)
    return path


def segment(scan: object, **options: object) -> trinat.Result:
    return trinat.segment(
        scan, **{"model": overfitted_model(), "device": "cpu"} | options
    )


def refused(scan: object, message: str, **options: object) -> None:
    with pytest.raises(
        (trinat.TrinatError, OSError, TypeError), match=message
    ) as error:
        segment(scan, **options)
    assert len(str(error.value).splitlines()) == 1


def test_a_wrong_path(scan: Path) -> None:
    refused(scan.with_name("scam.nii.gz"), "scam.nii.gz: no such file: check the path")


def test_a_list_of_paths(scan: Path) -> None:
    first, second = trinat.segment(
        [scan, nib.load(scan)], model=overfitted_model(), views="axial"
    )
    np.testing.assert_array_equal(first.labels.data, second.labels.data)
    with pytest.raises(trinat.TrinatError, match="no such file") as error:
        trinat.segment([scan, scan.with_name("none.nii")], model=overfitted_model())
    assert error.value.__notes__ == ["scan 2 of 2 in the list"]
    table = trinat.segment_many([scan, scan], model=overfitted_model(), progress=False)
    assert set(table.status) == {"done", "skipped"}


def test_values_of_ct(scan: Path) -> None:
    image = nib.load(scan)
    values = np.asarray(image.dataobj, np.float32)
    hounsfield = (values / values.max() * 2000 - 1000).astype(np.int16)
    result = segment((hounsfield, image.affine), views="axial")
    assert result.labels.shape == values.shape


@pytest.mark.parametrize("name", ["SCAN.NII.GZ", "Scan.Nii.gz"])
def test_an_extension_in_upper_case(scan: Path, name: str) -> None:
    other = shutil.copy(scan, scan.with_name(name))
    one, same = (segment(path, views="axial") for path in (other, scan))
    np.testing.assert_array_equal(one.labels, same.labels)


def test_a_packed_file_without_its_extension(scan: Path) -> None:
    refused(
        scan.rename(scan.with_name("scan")),
        r"not a known kind of scan: give one of \.nii",
    )


@pytest.mark.parametrize("name", ["scans.tar.gz", "Scans.TGZ", "scans.7z"])
def test_an_archive(scan: Path, name: str) -> None:
    message = "not a known kind of scan: unpack the archive and give the folder"
    archive = scan.rename(scan.with_name(name))
    refused(archive, message)
    table = trinat.segment_many([archive], model=overfitted_model(), progress=False)
    assert table.reason.tolist() == [message]


def test_a_label_map_as_scan(scan: Path) -> None:
    result = segment(miniature("LIA")[1])
    assert result.quality.name != "pass"
    assert result.quality.reasons


def test_a_side_is_forgotten_and_a_view_misspelt(scan: Path) -> None:
    result = segment(scan, views="coronal")
    with pytest.raises(trinat.TrinatError, match="has two sides: name Left-"):
        result.mask("Cerebral-White-Matter")
    refused(
        scan, r"unknown view: \['frontal'\]: choose from coronal", views=["frontal"]
    )


def test_many_scans_are_rows_whatever_they_are(small: Path) -> None:
    (small.parent / "broken.nii.gz").write_bytes(b"no scan")
    given = [small, "broken.nii.gz", small.parent / "broken.nii.gz", None, np.zeros(3)]
    table = trinat.segment_many(given, progress=False, model=random_model()).set_index(
        "scan"
    )
    assert table.status.value_counts().to_dict() == {"failed": 4, "done": 1}
    assert table.reason["image-4.nii"].startswith("cannot use NoneType: give a path")
    assert table.reason["image-5.nii"].startswith(
        "cannot use ndarray: it has no affine"
    )
    assert (table.total_brain_mm3.notna() == (table.status == "done")).all()


def test_many_scans_take_the_settings_of_the_command_line(
    small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings = {"views": ("axial",), "stats": True, "picture": False}
    trinat.segment_many([small], out, model=random_model(), progress=False, **settings)
    written = {path.name for path in out.iterdir()}
    assert {"scan_aseg.stats", "scan_dseg.nii.gz"} <= written
    assert not any(name.endswith(".png") for name in written)


@pytest.mark.parametrize(
    "setting",
    [
        {"mirorr": True},
        {"threads": 2},
        {"format": "freesurfer"},
        {"mirror": "banana"},
        {"samples": "some"},
    ],
)
def test_settings_of_many_scans_are_checked_before_any_is_segmented(
    small: Path, tmp_path: Path, setting: dict[str, object]
) -> None:
    with refusal(ConfigError):
        trinat.segment_many(
            [small], tmp_path / "out", model=random_model(), progress=False, **setting
        )
    assert not (tmp_path / "out").exists()


def test_images_in_memory_are_rows_and_are_done_once(small: Path) -> None:
    image = nib.load(small)
    t1 = torchio.ScalarImage(small)
    subject = torchio.Subject(t1=t1, t2=t1)
    given = [image, subject, torchio.Subject(t2=t1), small]
    first, again = (
        trinat.segment_many(
            given,
            small.parent / "out",
            model=random_model(),
            progress=False,
            image="t1",
        )
        for _ in range(2)
    )
    pd.testing.assert_frame_equal(first, again)
    rows = first.set_index("scan")
    assert rows.status.to_dict() == {
        "image-1.nii": "done",
        "image-2.nii": "done",
        "image-3.nii": "failed",
        "scan.nii.gz": "done",
    }
    assert rows.reason["image-3.nii"] == "Subject: no image 't1': choose from t2"
    summary = pd.read_csv(small.parent / "out/summary.tsv", sep="\t")
    assert summary.reason[summary.status == "done"].isna().all()
    labels = [nib.load(path).get_fdata() for path in rows.labels.dropna()]
    assert len(labels) == 3
    for other in labels[1:]:
        np.testing.assert_array_equal(other, labels[0])


def test_many_scans_take_views_as_one_scan_does(small: Path) -> None:
    for views in ("axial", [trinat.View.AXIAL]):
        table = trinat.segment_many(
            small, small.parent / "out", model=random_model(), views=views
        )
        assert table.status.tolist() == ["done"]
    ledger = (small.parent / "out/run.jsonl").read_text()
    assert ledger.count('"status":"done"') == 1


def test_no_scans_are_a_table_without_rows(tmp_path: Path) -> None:
    columns = ["scan", "status", "grade", "reason", "total_brain_mm3"]
    table = trinat.segment_many([], model=random_model())
    assert (table.columns.tolist(), len(table)) == (columns, 0)
    columns.insert(4, "labels")
    table = trinat.segment_many([], tmp_path / "out", model=random_model())
    assert (table.columns.tolist(), len(table)) == (columns, 0)


def test_many_scans_into_a_file_are_refused(small: Path) -> None:
    with refusal(OutputError, small):
        trinat.segment_many(small, small, model=random_model(), progress=False)


def test_an_empty_path_is_not_the_current_folder(small: Path) -> None:
    with refusal(ConfigError):
        trinat.Volume.of("")
    with refusal(ConfigError):
        trinat.segment_many(small, "", model=random_model(), progress=False)


def test_options_that_do_not_go_together_are_refused_in_python_too(
    small: Path,
) -> None:
    with pytest.raises(
        ConfigError, match="--longitudinal cannot be combined with --uncertainty"
    ):
        trinat.segment_many(
            small, model=random_model(), progress=False, longitudinal=True, samples=2
        )


def test_one_image_is_taken_without_a_list(small: Path) -> None:
    volume = trinat.Volume.read(small)
    array = (volume.data, volume.affine)
    for one in (volume, torchio.ScalarImage(small), array):
        table = trinat.segment_many(one, model=random_model(), progress=False)
        assert table.status.tolist() == ["done"]


def test_a_tuple_of_arrays_with_their_affines_is_two_scans(small: Path) -> None:
    volume = trinat.Volume.read(small)
    holes = volume.data.astype(np.float32)
    holes[0, 0, 0] = np.nan
    given = ((holes, volume.affine), (volume.data, volume.affine))
    table = trinat.segment_many(
        given, model=random_model(), progress=False, fill_nonfinite=True
    )
    assert table.status.tolist() == ["done", "done"]


def test_trust_in_a_form_counts_for_images_among_many_scans(small: Path) -> None:
    image = nib.load(small)
    image.set_sform(image.affine @ np.diag([-1.0, 1, 1, 1]), 1)
    image.set_qform(nib.load(small).affine, 1)
    for trusted, status in ((None, "failed"), ("qform", "done")):
        table = trinat.segment_many(
            [image], model=random_model(), progress=False, trust_affine=trusted
        )
        assert table.status.tolist() == [status]


def test_a_tuple_of_a_scan_and_an_array_with_its_affine_is_two_scans(
    small: Path,
) -> None:
    volume = trinat.Volume.read(small)
    for first in (small, volume):
        given = (first, (volume.data, volume.affine))
        table = trinat.segment_many(given, model=random_model(), progress=False)
        assert table.status.tolist() == ["done", "done"]


def test_a_refused_image_does_not_show_an_earlier_result(small: Path) -> None:
    out = small.parent / "out"
    image = nib.load(small)
    masked = (np.ones((3, 3, 3), bool), np.eye(4))
    for given, status in (
        ([image, image], ["done", "done"]),
        ([image, masked], ["done", "failed"]),
        ([None, 3], ["failed", "failed"]),
    ):
        rows = trinat.segment_many(given, out, model=random_model(), progress=False)
        assert rows.status.tolist() == status
        summary = pd.read_csv(out / "summary.tsv", sep="\t")
        assert summary.status.tolist() == status
        assert summary.input.tolist() == rows.scan.tolist()
        volumes = pd.read_csv(out / "volumes.tsv", sep="\t")
        assert len(volumes) == status.count("done")


def test_many_scans_into_a_folder_are_done_once(small: Path, capsys) -> None:
    out = small.parent / "out"
    first, again = (
        trinat.segment_many(small, out, model=random_model(), progress=not n)
        for n in range(2)
    )
    assert first.to_dict() == again.to_dict()
    assert Path(first.labels[0]) == out / "scan_dseg.nii.gz"
    said = capsys.readouterr().err
    assert said.count("1 done: ") == 1


def test_short_texts_stand_for_long_things(scan: Path) -> None:
    result = segment(scan)
    assert repr(result.labels) == "Volume(40×44×48 int16, 1×1×1 mm, LIA)"
    assert repr(result).startswith("Result(40×44×48 voxels, model overfitted: ")
