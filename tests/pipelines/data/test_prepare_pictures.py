"""A store as pictures and back: exact, edited, and refused where they make no volume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import freesurfer_subject, ixi_scan
from helpers.overfitted import random_model
from helpers.prepared import prepare, volume_of
from PIL import Image

from pipelines.common.exits import Exit
from pipelines.data.prepare import export, run_from_png
from segmentation.data.store import Store
from segmentation.space.views import View


def test_pictures_are_exact_and_make_the_same_store(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "sub-01")
    freesurfer_subject(tmp_path / "in", "s2", shift=1)
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    folder = export(tmp_path / "out")
    name = "sub-01_view-coronal_slice-030.png"
    with Image.open(folder / "sub-01/coronal/labels" / name) as picture:
        assert picture.mode == "P"
        drawn = np.asarray(picture)[::-1]  # a picture's first row is its top
        palette = picture.getpalette()
    np.testing.assert_array_equal(drawn, store.file("sub-01").labels(View.CORONAL, 30, 31)[0])
    cortex = store.scheme.labels[2]
    assert tuple(palette[6:9]) == cortex.color
    with Image.open(folder / "sub-01/coronal/images" / name) as picture:
        assert picture.mode == "I;16"
        greys = np.asarray(picture)[::-1]
    np.testing.assert_array_equal(greys, 16 * store.file("sub-01").codes(View.CORONAL).codes[30])
    assert (folder / "s2/axial/images/sub-s2_view-axial_slice-000.png").is_file()

    summary = run_from_png(folder, tmp_path / "again")
    assert summary.exit is Exit.OK
    again = Store(tmp_path / "again")
    assert again.participants == store.participants
    for subject in store.subjects:
        assert again.file(subject).statistics == store.file(subject).statistics
        for view in View:
            for kind in ("labels", "image"):
                np.testing.assert_array_equal(
                    volume_of(again, subject, view, kind), volume_of(store, subject, view, kind)
                )
    assert run_from_png(folder, tmp_path / "again").current == 2


def test_sagittal_pictures_alone_are_refused(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "s")
    prepare("freesurfer", tmp_path / "in", tmp_path / "out", views=("sagittal",))
    summary = run_from_png(export(tmp_path / "out"), tmp_path / "again")
    assert summary.exit is Exit.ALL_FAILED
    assert "left and right are one" in summary.rows[0].reason


def test_an_edited_picture_changes_its_subject_alone(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        freesurfer_subject(tmp_path / "in", name)
    prepare("freesurfer", tmp_path / "in", tmp_path / "out", views=("axial", "sagittal"))
    folder = export(tmp_path / "out")
    run_from_png(folder, tmp_path / "again")
    path = folder / "s1/axial/labels/sub-s1_view-axial_slice-030.png"
    with Image.open(path) as picture:
        edited = picture.copy()
    edited.putpixel((0, 63), 5)  # column 0 of the lowest row: j = 0
    edited.save(path)
    summary = run_from_png(folder, tmp_path / "again")
    assert (summary.made, summary.current) == (1, 1)
    store = Store(tmp_path / "again")
    assert volume_of(store, "s1", View.AXIAL)[0, 0, 30] == 5
    merged = store.scheme.merged.to_merged[5]
    assert volume_of(store, "s1", View.SAGITTAL)[0, 0, 30] == merged


def test_pictures_that_cannot_be_a_volume_are_refused(tmp_path: Path) -> None:
    for name in ("lost", "grey", "torn", "good"):
        freesurfer_subject(tmp_path / "in", name)
    prepare("freesurfer", tmp_path / "in", tmp_path / "out", views=("axial",))
    folder = export(tmp_path / "out")
    (folder / "lost/axial/labels/sub-lost_view-axial_slice-007.png").unlink()
    Image.new("L", (64, 64)).save(folder / "grey/axial/labels/sub-grey_view-axial_slice-003.png")
    (folder / "torn/axial/images/sub-torn_view-axial_slice-001.png").write_bytes(b"\x89PNG\r\n")
    summary = run_from_png(folder, tmp_path / "again")
    reasons = {row.subject: row.reason for row in summary.rows if row.status == "failed"}
    assert sorted(reasons) == ["grey", "lost", "torn"]
    assert "slice 7 is missing" in reasons["lost"]
    assert "is L, not 8-bit with a palette" in reasons["grey"]
    assert "not a readable picture" in reasons["torn"]
    assert summary.exit is Exit.SOME_FAILED


@pytest.mark.slow
def test_labels_that_a_model_made_stay_its_own_and_a_scan_without_them_has_failed(
    tmp_path: Path,
) -> None:
    scan = ixi_scan(tmp_path / "in", "IXI002-Guys-0828")
    (scan.parent / "IXI012-Guys-0829-T1.nii.gz").write_bytes(scan.read_bytes()[:999])
    summary, store = prepare(
        "ixi", tmp_path / "in", tmp_path / "out", label_with=str(random_model()), views=("axial",)
    )
    assert (summary.made, summary.failed) == (1, 1)
    ledger = {row.subject: (row.status, row.reason) for row in store.ledger}
    assert ledger["IXI012-Guys-0829"][0] == "failed"
    assert "truncated" in ledger["IXI012-Guys-0829"][1]
    made = store.info.subjects["IXI002-Guys-0828"]
    assert made.pseudo is not None
    assert (made.pseudo.model, made.labels is not None) == ("random", True)
    run_from_png(export(tmp_path / "out"), tmp_path / "again")
    again = Store(tmp_path / "again").info.subjects["IXI002-Guys-0828"]
    assert again.pseudo == made.pseudo
