"""trinat predict on DICOM.

Labels equal to those from NIfTI, SEG files, no patient data elsewhere.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
from helpers.dicom import enhanced, save, write_classic
from helpers.overfitted import miniature, overfitted_model, random_model
from helpers.serial import QUICK, run_serially, small_scan, table

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.progress import listener
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.discovery import find_cases
from trinat.pipelines.study.ledger import read_entries
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.space.views import reoriented

# Axes along which columns, rows and slices increase, for each slice orientation.
STRAIGHT = {"axial": "LPS", "sagittal": "PIR", "coronal": "LIP"}
SEG = replace(QUICK, dicom_seg=True)
ALL = replace(SEG, picture=True, stats=True, entropy=True, probabilities=True)


def head(axes: str) -> Volume:
    volume = miniature(axes)[0]
    return Volume(volume.data.astype(np.int16), volume.affine)


def small() -> Volume:
    volume = reoriented(small_scan(), "LPS")
    return replace(volume, data=volume.data.astype(np.int16))


def oblique() -> Volume:
    a, b = np.radians(11), np.radians(-7)
    volume, turn = head("LPS"), np.eye(4)
    turn[:2, :2] = [[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]
    tip = np.eye(4)
    tip[1:3, 1:3] = [[np.cos(b), -np.sin(b)], [np.sin(b), np.cos(b)]]
    return Volume(volume.data, turn @ tip @ volume.affine)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segment the same heads as NIfTI, classic and enhanced DICOM, with the same model."""
    root = tmp_path_factory.mktemp("dicom")
    volumes = {name: head(axes) for name, axes in STRAIGHT.items()} | {
        "oblique": oblique()
    }
    (root / "nifti").mkdir()
    for name, volume in volumes.items():
        volume.write(root / "nifti" / f"{name}.nii.gz")
        if name == "coronal":
            save(enhanced(volume, name), root / "dicom" / name / "a")
        else:
            write_classic(root / "dicom" / name, volume, name)
    scout = {"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}
    write_classic(root / "dicom/scout", head("LPS"), "scout", **scout)
    (root / "dicom/notes.txt").write_text("no DICOM")
    model = str(overfitted_model())
    seg, plain = (replace(kind, views=("axial",)) for kind in (SEG, QUICK))
    done = run_serially(root / "dicom", root / "out", output=seg, model=model)
    assert (done.done, done.failed, done.skipped, done.exit) == (4, 0, 1, Exit.OK)
    truth = run_serially(root / "nifti", root / "truth", output=plain, model=model)
    assert truth.done == 4
    return root


def result(runs: Path, name: str, suffix: str) -> Path:
    (path,) = (runs / "out" / name).glob(f"*_{suffix}")
    return path


@pytest.mark.parametrize("name", STRAIGHT)
def test_a_straight_series_gets_the_label_bytes_of_its_nifti(
    runs: Path, name: str
) -> None:
    found, truth = (
        result(runs, name, "dseg.nii.gz"),
        runs / "truth" / f"{name}_dseg.nii.gz",
    )
    assert len(np.unique(nib.load(truth).dataobj)) > 3
    assert found.read_bytes() == truth.read_bytes()


def test_an_oblique_series_gets_the_labels_of_its_nifti(runs: Path) -> None:
    found = nib.load(result(runs, "oblique", "dseg.nii.gz"))
    truth = nib.load(runs / "truth/oblique_dseg.nii.gz")
    np.testing.assert_allclose(found.affine, truth.affine, atol=1e-4)
    assert (np.asarray(found.dataobj) == np.asarray(truth.dataobj)).mean() >= 0.9999


@pytest.mark.parametrize("name", [*STRAIGHT, "oblique"])
def test_a_dicom_seg_has_the_voxels_of_the_label_map(runs: Path, name: str) -> None:
    labels = nib.load(result(runs, name, "dseg.nii.gz"))
    table = (runs / "out/labels.tsv").read_text().splitlines()[1:]
    numbers = {row.split("\t")[1]: int(row.split("\t")[0]) for row in table}
    seg = pydicom.dcmread(result(runs, name, "seg.dcm"))
    names = {s.SegmentNumber: s.SegmentLabel for s in seg.SegmentSequence}
    found = np.zeros(labels.shape, np.int16)
    to_voxels = np.linalg.inv(np.diag([-1, -1, 1, 1]) @ labels.affine)
    frames = zip(seg.pixel_array, seg.PerFrameFunctionalGroupsSequence, strict=True)
    for frame, group in frames:
        at = [float(v) for v in group.PlanePositionSequence[0].ImagePositionPatient]
        number = group.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        part = found[:, :, round((to_voxels @ [*at, 1])[2])]
        part[frame.T > 0] = numbers[names[number]]
    np.testing.assert_array_equal(found, np.asarray(labels.dataobj))


def test_what_is_left_out_is_named_with_its_reason(runs: Path) -> None:
    entries = read_entries([runs / "out/run.jsonl"]).values()
    left_out = [entry.reason for entry in entries if entry.status == "skipped"]
    assert left_out == ["left out: a localiser"]
    summary = (runs / "out/summary.tsv").read_text()
    assert all(reason in summary for reason in left_out)


def test_a_model_for_any_contrast_takes_a_t2_series_that_fast_leaves_out(
    tmp_path: Path,
) -> None:
    write_classic(tmp_path / "in", small(), SeriesDescription="t2_space", EchoTime=388)
    random = load_model(random_model())
    description = Description(name="any-contrast", contrast="any")
    save_model(tmp_path / "any", description, random.networks)
    taken = run_serially(tmp_path / "in", tmp_path / "out", model=str(tmp_path / "any"))
    assert (taken.done, taken.failed, taken.skipped) == (1, 0, 0)
    left = run_serially(tmp_path / "in", tmp_path / "none", model="fast")
    assert left.exit == Exit.ALL_FAILED
    (entry,) = read_entries([tmp_path / "none/run.jsonl"]).values()
    assert entry.reason.endswith("its echo time is above 25 ms")


def test_the_ledger_has_the_hash_of_the_series_files(runs: Path) -> None:
    entries = read_entries([runs / "out/run.jsonl"])
    (entry,) = (entry for case, entry in entries.items() if case.startswith("coronal/"))
    content = (runs / "dicom/coronal/a").read_bytes()
    assert entry.input_sha256 == hashlib.sha256(content).hexdigest()


def test_what_is_done_is_not_done_again_and_what_has_changed_is(tmp_path: Path) -> None:
    path = save(enhanced(small()), tmp_path / "in/a.dcm")
    assert run_serially(tmp_path / "in", tmp_path / "out").done == 1
    assert run_serially(tmp_path / "in", tmp_path / "out").skipped == 1
    save(enhanced(small(), EchoTrainLength=2), path)
    assert run_serially(tmp_path / "in", tmp_path / "out").done == 1


def test_two_series_in_a_zip_are_two_scans(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        for series in ("first", "second"):
            for path in write_classic(tmp_path / series, small(), series):
                archive.write(path, f"{series}/{path.name}")
    given = [str(tmp_path / "two.zip")]
    assert run_serially(given, tmp_path / "out").done == 2
    assert len(table(tmp_path / "out/volumes.tsv")) == 2


@pytest.mark.parametrize("folder", ["", "p1"])
def test_several_patients_in_a_folder_that_counts_as_a_participant_are_named(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / "in" / folder).mkdir(parents=True)
    for patient in ("ANNA", "BOB"):
        image = enhanced(small(), patient, PatientID=patient)
        save(image, tmp_path / "in" / folder / patient)
    found = find_cases([tmp_path / "in"])
    assert len(found.cases) == 2
    if folder:
        [remark] = found.remarks
        assert remark.startswith("p1: ")
        assert "ANNA" not in remark
    else:
        assert not found.remarks


def test_a_series_that_is_given_again_with_another_folder_counts_once(
    tmp_path: Path,
) -> None:
    for series in ("a", "b"):
        save(enhanced(small(), series), tmp_path / "in" / series / "image")
    run_serially(tmp_path / "in/a", tmp_path / "out")
    run_serially(tmp_path / "in", tmp_path / "out")
    rows = table(tmp_path / "out/volumes.tsv")
    assert [row["case"].split("/")[0] for row in rows] == ["a", "b"]


def test_a_dicom_seg_of_another_format_is_refused_in_one_line(
    tmp_path: Path, capsys
) -> None:
    small().write(tmp_path / "a.nii.gz")
    with listener(quiet=False, as_json=False, interactive=False) as heard:
        entries = []
        outcome = run_serially(tmp_path, tmp_path / "out", output=SEG)
        entries = list(read_entries([tmp_path / "out/run.jsonl"]).values())
        heard.on_entry(entries[0])
    assert outcome.exit == Exit.ALL_FAILED
    assert "--dicom-seg needs scans given as DICOM" in capsys.readouterr().err


def test_a_zip_that_was_not_looked_into_gets_the_dicom_seg_that_its_case_asks_for(
    tmp_path,
) -> None:
    with zipfile.ZipFile(tmp_path / "scan.zip", "w") as archive:
        for path in write_classic(tmp_path / "in", small()):
            archive.write(path, path.name)
    settings = RunSettings(
        tmp_path, random_model(), "", tmp_path / "staging", output=QUICK, threads=1
    )
    case = Case("a", tmp_path / "scan.zip", "a", also=("dicom_seg",))
    ((entry,),) = SerialEngine(settings).run([case], lambda: False)
    assert (entry.status, entry.reason) == ("done", "")
    assert pydicom.dcmread(Path(entry.staged) / "a_seg.dcm").Modality == "SEG"


def unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    return content + gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def test_nothing_of_the_patient_is_in_any_other_output(tmp_path: Path, capfd) -> None:
    """Marks are in names, numbers, dates, descriptions, private elements and names in a zip."""
    write_classic(tmp_path / "in/a", small())
    write_classic(tmp_path / "in/b", small(), "scout", SeriesDescription="CANARY scout")
    write_classic(tmp_path / "in/c", small(), "gap")[8].unlink()
    with zipfile.ZipFile(tmp_path / "study.zip", "w") as archive:
        for path in (tmp_path / "in/a").iterdir():
            archive.write(path, f"CANARY^PATIENT/{path.name}")
        archive.writestr("CANARY^PATIENT/broken", bytes(128) + b"DICM" + b"CANARY" * 99)
    given = [str(tmp_path / "in"), str(tmp_path / "study.zip")]
    with listener(quiet=False, as_json=False, interactive=False) as heard:
        outcome = run_serially(given, tmp_path / "out", output=ALL)
        for told in read_entries([tmp_path / "out/run.jsonl"]).values():
            heard.on_entry(told)
    assert (outcome.done, outcome.failed) == (2, 2)
    marks = (b"CANARY", b"canary", b"19331122", b"20190713", b"PatientName")
    said = "".join(capfd.readouterr()).encode()
    searched = 0
    for path in (tmp_path / "out").rglob("*"):
        said += os.fsencode(path.relative_to(tmp_path))
        if path.is_file() and not path.name.endswith("_seg.dcm"):
            said += unpacked(path)
            searched += 1
    assert searched > 9
    assert not [mark for mark in marks if mark in said]


@pytest.mark.slow
@pytest.mark.important
def test_nifti_needs_no_package_for_dicom(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    head("RAS").write(tmp_path / "scans" / "a.nii.gz")
    # Importing them is an error here; nibabel imports pydicom only if it is available.
    probe = (
        "import sys; sys.modules['pydicom'] = sys.modules['highdicom'] = None\n"
        "from pathlib import Path; from helpers.serial import run_serially\n"
        "run_serially(Path(sys.argv[1]), Path(sys.argv[2]), model=sys.argv[3])"
    )
    places = [tmp_path / "scans", tmp_path / "out", random_model()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-c", probe, *map(str, places)]
    subprocess.run(line, check=True, env=environment)
    assert (tmp_path / "out" / "a_dseg.nii.gz").is_file()
