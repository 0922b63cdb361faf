"""Reruns on an existing store: what is done again, participants tables, splits."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import pytest
from helpers.miniatures import (
    freesurfer_subject,
    head_image,
    head_labels,
    ixi_scan,
    write_nifti,
)
from helpers.prepared import GRID, prepare
from helpers.refusals import refusal

from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.segmentation.data.splitting import split_store
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError, IntegrityError
from trinat.segmentation.labels.scheme import load_scheme

ROOT = Path(__file__).parents[3]


def test_a_rerun_does_only_what_changed(tmp_path: Path) -> None:
    for name in ("s1", "s2", "s3"):
        freesurfer_subject(tmp_path / "in", name)
    first, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert (first.made, first.current) == (3, 0)
    before = {
        p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/subjects").iterdir()
    }
    freesurfer_subject(tmp_path / "in", "s2", shift=1)
    freesurfer_subject(tmp_path / "in", "s4")
    (tmp_path / "in/s3").rename(tmp_path / "gone")
    second, changed = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert (second.made, second.current) == (2, 1)
    after = {
        p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/subjects").iterdir()
    }
    assert sorted(after) == ["s1.h5", "s2.h5", "s4.h5"]
    assert after["s1.h5"] == before["s1.h5"]
    assert after["s2.h5"] != before["s2.h5"]
    assert changed.fingerprint != store.fingerprint


@pytest.mark.parametrize(
    "settings",
    [
        {"labels": "tissue4"},
        {"views": ("axial",)},
        {"ignore": (17,)},
        {"extra": {17: 18}},
    ],
)
def test_other_settings_make_a_subject_anew(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    freesurfer_subject(tmp_path / "in", "s")
    prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert (
        prepare("freesurfer", tmp_path / "in", tmp_path / "out", **settings)[0].made
        == 1
    )


def test_what_was_filled_into_the_table_of_participants_stays(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        freesurfer_subject(tmp_path / "in", name)
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    table = tmp_path / "out/participants.tsv"
    text = table.read_text().replace(
        "s1\ts1\tn/a\tn/a\tn/a\tn/a", "s1\ts1\tn/a\tF1\t33\tM"
    )
    table.write_text(text)
    _, again = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    first = again.metadata[0]
    assert (first.family, first.age, first.sex) == ("F1", 33, "M")
    assert again.fingerprint == store.fingerprint


def test_a_row_of_a_subject_that_has_failed_stays(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        freesurfer_subject(tmp_path / "in", name)
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    table = tmp_path / "out/participants.tsv"
    before = table.read_text().replace("s2\ts2", "s2\tothers")
    table.write_text(before)
    image = tmp_path / "in/s2/mri/orig.mgz"
    content = image.read_bytes()
    image.write_bytes(b"cut")
    summary, _ = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert summary.failed == 1
    assert table.read_text() == before
    image.write_bytes(content)
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert [each.participant for each in store.metadata] == ["s1", "others"]


def test_a_participant_who_was_mended_in_the_table_stays_mended(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    """Two sessions whose names do not show that they are of one participant."""
    for name in ("first", "second"):
        freesurfer_subject(tmp_path / "in", name)
    prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    table = tmp_path / "out/participants.tsv"
    title, *rows = table.read_text().splitlines()
    rows[1] = rows[1].replace("second\tsecond", "second\tfirst")
    table.write_text(
        "\n".join([f"{title}\tsite", *(f"{row}\tnorth" for row in rows)]) + "\n"
    )
    config = PrepareConfig(source="freesurfer", root=tmp_path / "in", grid=GRID)
    prepare_store(config, tmp_path / "out")
    participants = [entry.participant for entry in Store(tmp_path / "out").metadata]
    assert participants == ["first", "first"]
    assert table.read_text().splitlines()[1].endswith("\tnorth")
    (line,) = [line for line in logged.messages if "of participant" in line]
    assert line.startswith("second: of participant first, as")
    assert line.endswith("to take second")


def test_a_participant_who_was_mended_in_the_source_is_mended_in_the_store(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        freesurfer_subject(tmp_path / "in", name)
    table = tmp_path / "in/pairs.csv"
    files = "{0}/mri/orig.mgz,{0}/mri/aseg.mgz"
    for first, second in (("P1", "P1"), ("P2", "P3")):
        table.write_text(
            "image,labels,subject,participant\n"
            f"{files.format('a')},a,{first}\n{files.format('b')},b,{second}\n"
        )
        _, store = prepare("pairs", table, tmp_path / "out")
        assert [one.participant for one in store.metadata] == [first, second]


def test_a_subject_that_is_no_longer_in_the_source_has_a_row_in_the_ledger(
    tmp_path: Path,
) -> None:
    for name in ("s1", "s2"):
        freesurfer_subject(tmp_path / "in", name)
    prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    (tmp_path / "in/s2").rename(tmp_path / "s2")
    summary, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert [(row.subject, row.status) for row in summary.rows] == [
        ("s1", "done"),
        ("s2", "skipped"),
    ]
    assert store.subjects == ("s1",)
    summary, _ = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert [row.subject for row in summary.rows] == ["s1"]


def test_a_store_of_another_source_is_not_replaced(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "s1")
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    with refusal(DatasetError, tmp_path / "out"):
        prepare("labelmaps", tmp_path / "in/s1/mri", tmp_path / "out")
    store.check(store.subjects)


def test_what_a_spreadsheet_would_run_is_text_in_the_tables(tmp_path: Path) -> None:
    for name in ("s", "=cmd()"):
        freesurfer_subject(tmp_path / "in", name)
    (tmp_path / "in/=1+1").mkdir()
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert store.subjects == ("cmd_", "s")
    assert store.metadata[0].participant == "'=cmd()"
    tables = [
        (tmp_path / "out" / name).read_text()
        for name in ("ledger.tsv", "participants.tsv")
    ]
    for line in "\n".join(tables).splitlines():
        assert not any(cell.startswith("=") for cell in line.split("\t"))


def test_a_table_of_age_sex_and_family_can_be_given(tmp_path: Path) -> None:
    for name in ("IXI012-HH-1211", "IXI013-HH-1212"):
        ixi_scan(tmp_path / "in", name)
    (tmp_path / "p.csv").write_text(
        "participant_id,age,sex,family\nIXI012,38.8,2,twins\n"
    )
    _, store = prepare(
        "ixi", tmp_path / "in", tmp_path / "out", participants=tmp_path / "p.csv"
    )
    first, second = store.metadata
    assert (first.age, first.family) == (38.8, "twins")
    assert (second.age, second.family) == (None, None)


def test_repeat_sessions_stay_on_one_side_of_a_split(tmp_path: Path) -> None:
    for number in range(1, 6):
        for session in ("MR1", "MR2"):
            freesurfer_subject(tmp_path / "in", f"OAS1_000{number}_{session}")
    _, store = prepare("oasis1", tmp_path / "in", tmp_path / "out", views=("axial",))
    ((path, split),) = split_store(tmp_path / "out", ratios=(3, 1, 1))
    assert path == tmp_path / "out/split.json"
    for part in (split.train, split.validation, split.test):
        assert {f"{name[:-1]}{n}" for name in part for n in "12"} == set(part)
    folds = split_store(tmp_path / "out", folds=5)
    assert [path.name for path, _ in folds] == [f"split-{n}.json" for n in range(5)]
    # Fewer folds leave none from before; a copy next to them is not a fold.
    folds = split_store(tmp_path / "out", folds=3)
    (tmp_path / "out/split-0-copy.json").touch()
    assert store.folds == tuple(path for path, _ in folds)
    assert sorted(store.tested()) == sorted(store.subjects)
    folds[0][0].unlink()
    with refusal(DatasetError, tmp_path / "out", remedy="--kfold"):
        store.tested()
    assert store.part("train", path) == split.train
    # The store changes, and the split does not fit any more.
    freesurfer_subject(tmp_path / "in", "OAS1_0009_MR1")
    prepare("oasis1", tmp_path / "in", tmp_path / "out", views=("axial",))
    with refusal(DatasetError, path):
        Store(tmp_path / "out").part("train", path)


def test_files_without_a_checksum_are_refused_on_request(tmp_path: Path) -> None:
    for name in ("a.nii.gz", "b.nii"):
        for kind in ("images", "labels"):
            array = head_labels() if kind == "labels" else head_image(head_labels())
            write_nifti(tmp_path / "in" / kind / name, array, "RAS")
    first, _ = prepare("pairs", tmp_path / "in", tmp_path / "out")
    assert (first.made, first.failed) == (2, 0)
    second, store = prepare(
        "pairs", tmp_path / "in", tmp_path / "out", require_checksum=True
    )
    assert (second.made, second.current, second.failed) == (0, 1, 1)
    assert store.subjects == ("a",)
    assert "has no checksum" in second.rows[1].reason
    table = tmp_path / "in/pairs.csv"
    table.write_text(
        "image,labels,mask\nimages/a.nii.gz,labels/a.nii.gz,labels/b.nii\n"
    )
    third, _ = prepare("pairs", table, tmp_path / "masked", require_checksum=True)
    assert "has no checksum" in third.rows[0].reason


def test_a_file_that_was_changed_is_refused_and_made_again(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        freesurfer_subject(tmp_path / "in", name)
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    path = tmp_path / "out/subjects/s1.h5"
    before = path.read_bytes()
    # A copy has another time and the same content.
    os.utime(path, ns=(1, 1))
    store.check(store.subjects)
    with h5py.File(path, "r+") as file:
        file["axial/labels"][30] = 1
    with pytest.raises(
        IntegrityError, match=r"s1\.h5: is missing, or was changed since"
    ):
        store.check(store.subjects)
    store.check(["s2"])
    again, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert (again.made, again.current) == (1, 1)
    assert path.read_bytes() == before
    store.check(store.subjects)
    path.unlink()
    with refusal(IntegrityError, path):
        store.check(store.subjects)


def test_a_store_keeps_a_label_scheme_of_ones_own(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "s")
    table = (ROOT / "configs/labels/tissue4.tsv").read_text()
    (tmp_path / "mine.tsv").write_text(table.replace("Grey-Matter", "Grey"))
    _, store = prepare(
        "freesurfer",
        tmp_path / "in",
        tmp_path / "out",
        labels=str(tmp_path / "mine.tsv"),
    )
    (tmp_path / "mine.tsv").unlink()
    # Also if the store is the only place that still has it.
    _, store = prepare(
        "freesurfer", tmp_path / "in", tmp_path / "out", labels=store.scheme_name
    )
    assert load_scheme(store.scheme_name).names == (
        "background",
        "CSF",
        "Grey",
        "White-Matter",
    )
    _, store = prepare(
        "freesurfer", tmp_path / "in", tmp_path / "out", labels="tissue4"
    )
    assert store.scheme_name == "tissue4"
