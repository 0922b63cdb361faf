"""From each dataset's own layout to a store and back, bit for bit; sides stay where they are."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from loopback import Server, cut, serve
from miniatures import (
    HEMISPHERES,
    SHAPE,
    freesurfer_subject,
    head_image,
    head_labels,
    ixi_scan,
    neurite_session,
    oasis_session,
    pack,
    without_orientation,
    write_nifti,
)
from PIL import Image
from typer.testing import CliRunner

from pipelines.catalogue import load_catalogue
from pipelines.cli import app
from pipelines.download import Policy, fetch
from pipelines.exits import Exit
from pipelines.prepare import PrepareConfig, Summary, export, read_config, run, run_from_png
from pipelines.split import split_store
from segmentation.data.dataset import open_slices
from segmentation.data.splits import read_split
from segmentation.data.store import Store
from segmentation.errors import ConfigError, DatasetError, LabelError
from segmentation.labels import load_scheme
from segmentation.views import View, from_slices
from segmentation.volume import Volume

GRID = (64, 64, 64)


def prepare(source: str, root: Path, out: Path, **settings: object) -> tuple[Summary, Store]:
    config = PrepareConfig(source=source, root=root, grid=GRID, **settings)
    return run(config, out), Store(out)


def volume_of(store: Store, subject: str, view: View, kind: str = "labels") -> np.ndarray:
    """A view's slices as the volume that they were cut from."""
    file = store.file(subject)
    count = file.slice_count(view)
    slices = file.labels(view, 0, count) if kind == "labels" else file.image(view, 0, count)
    return np.asarray(from_slices(slices, view))


def head_in(volume: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The part of the working grid that the head's box fills, by where its voxels lie."""
    inside = np.argwhere(volume > 0).min(axis=0) - np.argwhere(expected > 0).min(axis=0)
    return volume[tuple(slice(a, a + n) for a, n in zip(inside, expected.shape, strict=True))]


def tissues(numbers: np.ndarray) -> np.ndarray:
    table = {4: 1, 43: 1, 3: 2, 42: 2, 17: 2, 53: 2, 2: 3, 41: 3, 16: 3}
    return np.vectorize(lambda number: table.get(number, 0))(numbers)


def build(source: str, root: Path) -> tuple[str, str, dict[str, object]]:
    """One miniature subject: its id, its scheme, further settings."""
    if source == "oasis1":
        oasis_session(root / "disc1", "OAS1_0001_MR1")
        return "OAS1_0001_MR1", "tissue4", {}
    if source == "oasis1-freesurfer":
        freesurfer_subject(root / "disc1", "OAS1_0001_MR1")
        return "OAS1_0001_MR1", "quicknat33", {}
    if source == "neurite":
        neurite_session(root, "OAS1_0001_MR1")
        return "OAS1_0001_MR1", "quicknat33", {}
    if source == "ixi":
        ixi_scan(root, "IXI002-Guys-0828")
        freesurfer_subject(root / "fs", "IXI002")
        return "IXI002-Guys-0828", "quicknat33", {"subjects_dir": root / "fs"}
    if source == "freesurfer":
        freesurfer_subject(root, "sub-01")
        return "sub-01", "quicknat33", {}
    if source == "bids":
        anat = Path("sub-01/anat")
        write_nifti(root / anat / "sub-01_T1w.nii.gz", head_image(head_labels()), "PIR")
        labels = root / "derivatives/seg" / anat / "sub-01_desc-aseg_dseg.nii.gz"
        write_nifti(labels, head_labels(), "PIR")
        return "sub-01", "quicknat33", {}
    write_nifti(root / "images/a.nii.gz", head_image(head_labels()), "SAL")
    write_nifti(root / "labels/a.nii.gz", head_labels(), "SAL")
    return "a", "quicknat33", {}


SOURCES = ["oasis1", "oasis1-freesurfer", "neurite", "ixi", "freesurfer", "bids", "pairs"]


@pytest.mark.parametrize("source", SOURCES)
def test_every_view_of_every_source_gives_its_labels_back_bit_for_bit(
    tmp_path: Path, source: str
) -> None:
    subject, scheme_name, settings = build(source, tmp_path / "in")
    summary, store = prepare(
        source.partition("-")[0], tmp_path / "in", tmp_path / "out", labels=scheme_name, **settings
    )
    assert summary.exit is Exit.OK
    assert store.subjects == (subject,)
    scheme = load_scheme(scheme_name)
    if scheme_name == "tissue4":
        expected = tissues(head_labels())
    else:
        expected = scheme.from_freesurfer(head_labels())
    for view in View:
        target = expected if view is not View.SAGITTAL else scheme.merged.to_merged[expected]
        got = volume_of(store, subject, view)
        assert (got > 0).sum() == (target > 0).sum(), "nothing was cut off or added"
        np.testing.assert_array_equal(head_in(got, target), target)
    assert store.file(subject).statistics.voxels == tuple(
        np.bincount(
            np.pad(expected.ravel(), (0, 64**3 - expected.size)), minlength=len(scheme)
        ).tolist()
    )


@pytest.mark.parametrize("view", [View.CORONAL, View.AXIAL])
@pytest.mark.parametrize("source", ["neurite", "ixi", "freesurfer", "bids", "pairs"])
def test_what_is_on_the_left_is_on_the_left_in_slices_of_every_source(
    tmp_path: Path, source: str, view: View
) -> None:
    subject, _, settings = build(source, tmp_path / "in")
    _, store = prepare(source, tmp_path / "in", tmp_path / "out", **settings)
    file = store.file(subject)
    numbers = store.scheme.to_freesurfer(file.labels(view, 0, 64))
    # Columns grow to the person's right.
    middle = {
        side: np.argwhere(np.isin(numbers, HEMISPHERES[side]))[:, 2].mean() for side in HEMISPHERES
    }
    assert middle["left"] + 5 < middle["right"]


def test_oasis_images_lie_as_documented_though_their_headers_do_not_say(tmp_path: Path) -> None:
    oasis_session(tmp_path / "in", "OAS1_0001_MR1")
    labels = head_labels()
    for kind, inside in (("t88-masked", labels > 0), ("t88", None), ("subj111", None)):
        _, store = prepare("oasis1", tmp_path / "in", tmp_path / kind, labels="tissue4", image=kind)
        got = volume_of(store, "OAS1_0001_MR1", View.CORONAL, "image")
        head = head_image(labels).astype(np.float32)
        if inside is not None:
            head = np.where(inside, head, 0)
        got = head_in(got, head)
        # Intensities were scaled, so it is the pattern that has to agree.
        here, mirrored = (
            np.corrcoef(candidate.ravel(), head.ravel())[0, 1] for candidate in (got, got[::-1])
        )
        assert here > 0.995
        assert mirrored < here - 0.005, "the left of the head is the larger side"


def test_archives_are_unpacked_as_far_as_needed_and_their_images_converted(tmp_path: Path) -> None:
    oasis_session(tmp_path / "disc" / "disc1", "OAS1_0001_MR1")
    oasis_session(tmp_path / "disc" / "disc1", "OAS1_0003_MR1", n=6)
    (tmp_path / "root").mkdir()
    pack(tmp_path / "disc", tmp_path / "root" / "oasis_cross-sectional_disc1.tar.gz")
    summary, store = prepare("oasis1", tmp_path / "root", tmp_path / "out", labels="tissue4")
    assert (summary.made, summary.failed) == (2, 0)
    _, plain = prepare("oasis1", tmp_path / "disc", tmp_path / "plain", labels="tissue4")
    for subject in store.subjects:
        for view in View:
            for kind in ("labels", "image"):
                np.testing.assert_array_equal(
                    volume_of(store, subject, view, kind), volume_of(plain, subject, view, kind)
                )
    assert store.participants == plain.participants
    files = [path.name for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert not [name for name in files if name.endswith((".img", ".hdr", ".gif"))]
    scan = next((tmp_path / "root").rglob("*t88_gfc.nii.gz"))
    assert nib.aff2axcodes(nib.load(scan).affine) == ("L", "A", "S")
    # Another run finds it unpacked.
    assert prepare("oasis1", tmp_path / "root", tmp_path / "out", labels="tissue4")[0].current == 2


@pytest.mark.parametrize("dataset", ["oasis1", "oasis1-freesurfer", "neurite", "ixi"])
def test_a_dataset_comes_over_a_bad_line_and_becomes_a_store(tmp_path: Path, dataset: str) -> None:
    """Fetched in its own layout and under its own name from a server that cuts, then prepared."""
    subject, scheme, settings = build(dataset, tmp_path / "original")
    name, _, part = dataset.partition("-")
    remote = load_catalogue()[name].files(part=part or "images", discs=(1,))[0]
    if name == "ixi":  # its labels come from elsewhere
        (tmp_path / "original/fs").rename(tmp_path / "fs")
        settings = {"subjects_dir": tmp_path / "fs"}
    archive = pack(tmp_path / "original", tmp_path / remote.name).read_bytes()
    server = Server()
    try:
        third = len(archive) // 3
        url = server.plays(
            lambda h: cut(h, archive, third),
            lambda h: cut(h, archive, third),
            lambda h: serve(h, archive),
        )
        local = remote.model_copy(update={"urls": (url,), "md5": hashlib.md5(archive).hexdigest()})
        fetched = fetch(local, tmp_path / "root", policy=Policy(pause=lambda seconds: None))
        assert server.ranges == [None, f"bytes={third}-", f"bytes={2 * third}-"]
    finally:
        server.close()
    assert fetched.path.name == remote.name
    summary, store = prepare(name, tmp_path / "root", tmp_path / "out", labels=scheme, **settings)
    assert (summary.made, summary.failed) == (1, 0)
    assert store.subjects == (subject,)
    assert store.participants[0].person == subject.partition("_MR")[0].partition("-")[0]


def test_an_archive_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    neurite_session(tmp_path / "in", "OAS1_0001_MR1")
    (tmp_path / "root").mkdir()
    archive = pack(tmp_path / "in", tmp_path / "root" / "neurite-oasis.v1.0.tar")
    archive.write_bytes(archive.read_bytes()[:-20000])
    with pytest.raises(Exception, match="damaged"):
        prepare("neurite", tmp_path / "root", tmp_path / "out")
    assert [path.name for path in (tmp_path / "root").iterdir()] == [archive.name]


def test_an_archive_of_something_else_is_told(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "IXI-T1.tar", "w") as tar:
        (tmp_path / "README").write_text("no scans")
        tar.add(tmp_path / "README", "README")
    with pytest.raises(DatasetError, match="holds nothing that this source uses"):
        prepare("ixi", tmp_path, tmp_path / "out")


def test_ixi_without_labels_still_makes_images(tmp_path: Path) -> None:
    ixi_scan(tmp_path / "in", "IXI002-Guys-0828")
    said: list[str] = []
    config = PrepareConfig(source="ixi", root=tmp_path / "in", grid=GRID)
    summary = run(config, tmp_path / "out", say=said.append)
    assert summary.exit is Exit.OK
    assert len(said) == 1
    assert "recon-all" in said[0]
    store = Store(tmp_path / "out")
    assert not store.info.subjects["IXI002-Guys-0828"].has_labels
    assert store.ledger[0].reason == "no labels: for prediction only"
    assert volume_of(store, "IXI002-Guys-0828", View.AXIAL, "image").max() > 0.5


def test_label_maps_alone_are_folded_and_stored(tmp_path: Path) -> None:
    numbers = head_labels()
    numbers[numbers == 4] = 136  # the lining of the left ventricle
    numbers[0:2] = 24  # fluid around the brain
    numbers[-2:] = 507  # scalp
    write_nifti(tmp_path / "in" / "seg.nii.gz", numbers)
    _, store = prepare("labelmaps", tmp_path / "in", tmp_path / "out")
    voxels = dict(zip(store.scheme.names, store.file("seg").statistics.voxels, strict=True))
    assert voxels["Left-Lateral-Ventricle"] == (head_labels() == 4).sum()
    assert voxels["CSF"] == 0
    assert not store.file("seg").has(View.AXIAL, "image")


def test_labels_on_another_grid_are_refused_not_resampled(tmp_path: Path) -> None:
    labels = head_labels()
    write_nifti(tmp_path / "in/images/shape.nii.gz", head_image(labels))
    write_nifti(tmp_path / "in/labels/shape.nii.gz", labels[:-1])
    for name, shift_mm in (("near", 0.0005), ("far", 0.01)):
        write_nifti(tmp_path / f"in/images/{name}.nii.gz", head_image(labels))
        path = write_nifti(tmp_path / f"in/labels/{name}.nii.gz", labels)
        image = nib.load(path)
        affine = image.affine.copy()
        affine[0, 3] += shift_mm
        moved = nib.Nifti1Image(np.asarray(image.dataobj), affine)
        moved.set_qform(affine, 1)
        moved.set_sform(affine, 1)
        nib.save(moved, path)
    summary, store = prepare("pairs", tmp_path / "in", tmp_path / "out")
    assert store.subjects == ("near",)
    reasons = {row.subject: row.reason for row in summary.rows}
    assert "labels have shape (39, 48, 44), the image (40, 48, 44)" in reasons["shape"]
    assert "0.01 mm away from the image" in reasons["far"]


def test_a_rerun_does_only_what_changed(tmp_path: Path) -> None:
    for name in ("s1", "s2", "s3"):
        freesurfer_subject(tmp_path / "in", name)
    first, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert (first.made, first.current) == (3, 0)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/subjects").iterdir()}
    freesurfer_subject(tmp_path / "in", "s2", shift=1)
    freesurfer_subject(tmp_path / "in", "s4")
    (tmp_path / "in/s3").rename(tmp_path / "gone")
    second, changed = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert (second.made, second.current) == (2, 1)
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/subjects").iterdir()}
    assert sorted(after) == ["s1.h5", "s2.h5", "s4.h5"]
    assert after["s1.h5"] == before["s1.h5"]
    assert after["s2.h5"] != before["s2.h5"]
    assert changed.fingerprint != store.fingerprint


@pytest.mark.parametrize(
    "settings",
    [{"labels": "tissue4"}, {"views": ("axial",)}, {"ignore": (17,)}, {"extra": {17: 18}}],
)
def test_other_settings_make_a_subject_anew(tmp_path: Path, settings: dict[str, object]) -> None:
    freesurfer_subject(tmp_path / "in", "s")
    prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert prepare("freesurfer", tmp_path / "in", tmp_path / "out", **settings)[0].made == 1


def test_what_was_filled_into_the_table_of_participants_stays(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        freesurfer_subject(tmp_path / "in", name)
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    table = tmp_path / "out/participants.tsv"
    text = table.read_text().replace("s1\ts1\tn/a\tn/a\tn/a\tn/a", "s1\ts1\tn/a\tF1\t33\tM")
    table.write_text(text)
    _, again = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    first = again.participants[0]
    assert (first.family, first.age, first.sex) == ("F1", 33, "M")
    assert again.fingerprint == store.fingerprint


def test_what_a_spreadsheet_would_run_is_text_in_the_tables(tmp_path: Path) -> None:
    for name in ("s", "=cmd()"):
        freesurfer_subject(tmp_path / "in", name)
    (tmp_path / "in/=1+1").mkdir()
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out")
    assert store.subjects == ("cmd_", "s")
    assert store.participants[0].person == "'=cmd()"
    tables = [(tmp_path / "out" / name).read_text() for name in ("ledger.tsv", "participants.tsv")]
    for line in "\n".join(tables).splitlines():
        assert not any(cell.startswith("=") for cell in line.split("\t"))


def test_a_table_of_age_sex_and_family_can_be_given(tmp_path: Path) -> None:
    for name in ("IXI012-HH-1211", "IXI013-HH-1212"):
        ixi_scan(tmp_path / "in", name)
    (tmp_path / "p.csv").write_text("participant_id,age,sex,family\nIXI012,38.8,2,twins\n")
    _, store = prepare("ixi", tmp_path / "in", tmp_path / "out", participants=tmp_path / "p.csv")
    first, second = store.participants
    assert (first.age, first.family) == (38.8, "twins")
    assert (second.age, second.family) == (None, None)


def test_repeat_sessions_stay_on_one_side_of_a_split(tmp_path: Path) -> None:
    for number in range(1, 6):
        for session in ("MR1", "MR2"):
            freesurfer_subject(tmp_path / "in", f"OAS1_000{number}_{session}")
    prepare("oasis1", tmp_path / "in", tmp_path / "out", views=("axial",))
    ((path, split),) = split_store(tmp_path / "out", ratios=(3, 1, 1))
    assert path == tmp_path / "out/split.json"
    for part in (split.train, split.validation, split.test):
        assert {f"{name[:-1]}{n}" for name in part for n in "12"} == set(part)
    folds = split_store(tmp_path / "out", folds=5)
    assert [path.name for path, _ in folds] == [f"split-{n}.json" for n in range(5)]
    dataset = open_slices(tmp_path / "out", path, "train", View.AXIAL)
    assert dataset.subjects == split.train
    # The store moves on; the split does not fit any more.
    freesurfer_subject(tmp_path / "in", "OAS1_0009_MR1")
    prepare("oasis1", tmp_path / "in", tmp_path / "out", views=("axial",))
    with pytest.raises(DatasetError, match="made for another store"):
        open_slices(tmp_path / "out", path, "train", View.AXIAL)


def test_training_refuses_a_split_that_shares_a_person(tmp_path: Path) -> None:
    for session in ("MR1", "MR2"):
        freesurfer_subject(tmp_path / "in", f"OAS1_0001_{session}")
    freesurfer_subject(tmp_path / "in", "OAS1_0002_MR1")
    _, store = prepare("oasis1", tmp_path / "in", tmp_path / "out", views=("axial",))
    ((path, split),) = split_store(tmp_path / "out", ratios=(1, 1, 0))
    shared = {
        "train": ["OAS1_0001_MR1", "OAS1_0002_MR1"],
        "validation": ["OAS1_0001_MR2"],
    }
    path.write_text(json.dumps({**split.model_dump(), **shared}))
    with pytest.raises(DatasetError, match="OAS1_0001 is in train and validation"):
        open_slices(tmp_path / "out", path, "train", View.AXIAL)
    assert read_split(path).store == store.fingerprint


# Pictures -----------------------------------------------------------------------------------


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


# The command line ---------------------------------------------------------------------------


def test_the_command_prepares_splits_and_tells_what_it_did(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        freesurfer_subject(tmp_path / "in", name)
    freesurfer_subject(tmp_path / "in", "fsaverage")
    (tmp_path / "c.yaml").write_text("grid: [64, 64, 64]\nignore: [16]\n")
    out = tmp_path / "out"
    runner = CliRunner()
    words = ["prepare", "--source", "freesurfer", "--root", str(tmp_path / "in"), "--out", str(out)]
    words += ["--views", "coronal", "axial", "--config", str(tmp_path / "c.yaml")]
    result = runner.invoke(app, words, standalone_mode=False)
    assert result.exception is None, result.exception
    assert result.return_value == Exit.OK
    assert "4 in, 3 made, 0 up to date, 0 failed, 1 skipped" in result.output
    assert "fsaverage: skipped: a template" in result.output
    store = Store(out)
    assert store.views == (View.CORONAL, View.AXIAL)
    voxels = dict(zip(store.scheme.names, store.file("a").statistics.voxels, strict=True))
    assert voxels["Brain-Stem"] == 0
    result = runner.invoke(
        app, ["split", str(out), "--ratios", "1", "1", "1"], standalone_mode=False
    )
    assert result.return_value == Exit.OK
    assert "1 train, 1 validation, 1 test" in result.output
    result = runner.invoke(app, ["data", "list"], standalone_mode=False)
    assert "oasis1: OASIS-1" in result.output


def test_terms_must_be_accepted_before_anything_is_fetched(tmp_path: Path) -> None:
    words = ["data", "get", "oasis1", "--disc", "1", "--root", str(tmp_path / "x")]
    result = CliRunner().invoke(app, words, standalone_mode=False)
    assert isinstance(result.exception, ConfigError)
    assert "add --accept-terms" in str(result.exception)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("suorce: bids", "suorce: there is no such setting"),
        ("views: [oblique]", "views.0: Input should be"),
        ("grid: [60, 64, 64]", "grid.0: Input should be a multiple of 16"),
        ("- a list", "holds no settings"),
        ("a: [", "is not readable YAML, line 1"),
    ],
)
def test_a_wrong_setting_names_its_key_and_file(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    given = {"source": "bids", "root": tmp_path}
    with pytest.raises(ConfigError, match=reason) as caught:
        read_config(tmp_path / "c.yaml", given)
    assert "c.yaml" in str(caught.value)
    with pytest.raises(ConfigError, match="source: is missing"):
        read_config(None, {"root": tmp_path})


def test_a_wrong_option_names_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"command line: views\.0"):
        read_config(None, {"source": "bids", "root": "x", "views": ["oblique"]})


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("source: bids\nroot: x\nlabels: tissue4\n")
    config = read_config(tmp_path / "c.yaml", {"source": "pairs", "labels": None})
    assert (config.source, config.labels) == ("pairs", "tissue4")


def test_a_one_sided_scheme_gets_the_views_that_it_can_have(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "s")
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out", labels="left4")
    assert store.views == (View.CORONAL, View.AXIAL)
    with pytest.raises(LabelError, match="one side only"):
        prepare("freesurfer", tmp_path / "in", tmp_path / "o2", labels="left4", views=("sagittal",))


# Real data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("sub-03",),
        pytest.param(("sub-01", "sub-02", "sub-03", "sub-04", "sub-06"), marks=pytest.mark.slow),
    ],
    ids=["stripped", "all"],
)
def test_real_freesurfer_subjects_keep_every_voxel_of_every_class(
    dev_data: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    root = tmp_path / "in"
    root.mkdir()
    for name in names:
        (root / name).symlink_to(dev_data / "freesurfer" / name)
    config = PrepareConfig(source="freesurfer", root=root, views=("axial",))
    summary = run(config, tmp_path / "out")
    assert (summary.made, summary.failed) == (len(names), 0)
    store = Store(tmp_path / "out")
    for subject in store.subjects:
        aseg = Volume.read(root / subject / "mri/aseg.mgz", labels=True).data
        numbers, counts = np.unique(aseg, return_counts=True)
        direct = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        voxels = dict(
            zip(store.scheme.fs_ids.tolist(), store.file(subject).statistics.voxels, strict=True)
        )
        to_nothing = sum(direct.get(n, 0) for n in (30, 62, 72, 80, 81, 82, 85))
        sideless = sum(direct.get(n, 0) for n in (77, 251, 252, 253, 254, 255))
        folded = {
            2: direct[2] + direct.get(78, 0),
            41: direct[41] + direct.get(79, 0),
            4: direct[4] + direct.get(31, 0),
            43: direct[43] + direct.get(63, 0),
            0: direct[0] + to_nothing,
        }
        for number, count in voxels.items():
            if number not in (2, 41):
                assert count == folded.get(number, direct.get(number, 0)), (subject, number)
        assert voxels[2] + voxels[41] == folded[2] + folded[41] + sideless
        assert voxels[2] >= folded[2]
        assert voxels[41] >= folded[41]


def test_the_miniature_head_is_lateralised() -> None:
    """What the tests above rely on: a mirrored head is another head."""
    labels = head_labels()
    assert labels.shape == SHAPE
    for left, right in zip(HEMISPHERES["left"], HEMISPHERES["right"], strict=True):
        if left != 3 and left != 2:
            assert (labels == left).sum() > (labels == right).sum()


def test_scans_that_need_a_decision_are_prepared_once_it_is_made(tmp_path: Path) -> None:
    spoilt = head_image(head_labels()).astype(np.float32)
    spoilt[3, 4, 5] = np.nan
    write_nifti(tmp_path / "in/images/a.nii.gz", spoilt, "RAS")
    write_nifti(tmp_path / "in/labels/a.nii.gz", head_labels(), "RAS")
    for path in (tmp_path / "in").glob("*/a.nii.gz"):
        without_orientation(path)
    reasons = []
    for settings in ({}, {"trust_affine": "header"}):
        config = PrepareConfig(source="pairs", root=tmp_path / "in", grid=GRID, **settings)
        (row,) = run(config, tmp_path / "out").rows
        reasons.append(row.reason)
    assert "--trust-affine" in reasons[0]
    assert "--fill-nonfinite" in reasons[1]
    both = {"trust_affine": "header", "fill_nonfinite": True}
    summary, _ = prepare("pairs", tmp_path / "in", tmp_path / "out", **both)
    assert summary.exit is Exit.OK
