"""From each dataset's layout to a store and back, bit for bit, with sides kept."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.loopback import Server, cut, serve
from helpers.miniatures import (
    HEMISPHERES,
    SHAPE,
    freesurfer_subject,
    head_image,
    head_labels,
    ixi_scan,
    malc_scan,
    neurite_session,
    oasis_session,
    pack,
    without_orientation,
    write_nifti,
)
from helpers.overfitted import model_of_all_fluid
from helpers.prepared import (
    GRID,
    build,
    head_in,
    prepare,
    tissues,
    volume_of,
    voxels_by_class,
)
from helpers.refusals import refusal

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.prepare.catalogue import load_catalogue
from trinat.pipelines.prepare.download import fetch
from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View

SOURCES = [
    *("oasis1", "oasis1-freesurfer", "neurite", "ixi", "malc", "malc-flat"),
    *("freesurfer", "bids", "pairs"),
]


@pytest.mark.parametrize("source", SOURCES)
def test_every_view_of_every_source_gives_its_labels_back_bit_for_bit(
    tmp_path: Path, source: str
) -> None:
    subject, scheme_name, settings = build(source, tmp_path / "in")
    summary, store = prepare(
        source.partition("-")[0],
        tmp_path / "in",
        tmp_path / "out",
        labels=scheme_name,
        **settings,
    )
    assert summary.exit is Exit.OK
    assert store.subjects == (subject,)
    scheme = load_scheme(scheme_name)
    if scheme_name == "tissue4":
        expected = tissues(head_labels())
    else:
        expected = scheme.from_freesurfer(head_labels())
    for view in View:
        target = (
            expected if view is not View.SAGITTAL else scheme.merged.to_merged[expected]
        )
        got = volume_of(store, subject, view)
        assert (got > 0).sum() == (target > 0).sum(), "nothing was cut off or added"
        np.testing.assert_array_equal(head_in(got, target), target)
    assert voxels_by_class(store, subject) == tuple(
        np.bincount(
            np.pad(expected.ravel(), (0, 64**3 - expected.size)), minlength=len(scheme)
        ).tolist()
    )


def test_parcels_drawn_by_hand_are_classes_of_the_networks_for_them(
    tmp_path: Path,
) -> None:
    """The cortex of the miniature is the anterior cingulate gyrus, 101 left and 100 right."""
    malc_scan(tmp_path / "in", "1000")
    _, store = prepare(
        "malc", tmp_path / "in", tmp_path / "out", labels="neuromorphometrics49"
    )
    cortex = int(np.isin(head_labels(), (3, 42)).sum())
    voxels = voxels_by_class(store, "1000")
    assert voxels == (64**3 - cortex, cortex, *[0] * 48)


def test_oasis_images_lie_as_documented_though_their_headers_do_not_say(
    tmp_path: Path,
) -> None:
    oasis_session(tmp_path / "in", "OAS1_0001_MR1")
    labels = head_labels()
    for kind, inside in (("t88-masked", labels > 0), ("t88", None), ("subj111", None)):
        _, store = prepare(
            "oasis1", tmp_path / "in", tmp_path / kind, labels="tissue4", image=kind
        )
        got = volume_of(store, "OAS1_0001_MR1", View.CORONAL, "image")
        head = head_image(labels).astype(np.float32)
        if inside is not None:
            head = np.where(inside, head, 0)
        got = head_in(got, head)
        # Intensities were scaled, so only the pattern must agree.
        here, mirrored = (
            np.corrcoef(candidate.ravel(), head.ravel())[0, 1]
            for candidate in (got, got[::-1])
        )
        assert here > 0.995
        assert mirrored < here - 0.005, "the left of the head is the larger side"


def test_archives_are_unpacked_as_far_as_needed_and_their_images_converted(
    tmp_path: Path,
) -> None:
    oasis_session(tmp_path / "disc" / "disc1", "OAS1_0001_MR1")
    oasis_session(tmp_path / "disc" / "disc1", "OAS1_0003_MR1", n=6)
    (tmp_path / "root").mkdir()
    pack(tmp_path / "disc", tmp_path / "root" / "oasis_cross-sectional_disc1.tar.gz")
    summary, store = prepare(
        "oasis1", tmp_path / "root", tmp_path / "out", labels="tissue4"
    )
    assert (summary.made, summary.failed) == (2, 0)
    _, plain = prepare(
        "oasis1", tmp_path / "disc", tmp_path / "plain", labels="tissue4"
    )
    for subject in store.subjects:
        for view in View:
            for kind in ("labels", "image"):
                np.testing.assert_array_equal(
                    volume_of(store, subject, view, kind),
                    volume_of(plain, subject, view, kind),
                )
    assert store.metadata == plain.metadata
    files = [path.name for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert not [name for name in files if name.endswith((".img", ".hdr", ".gif"))]
    scan = next((tmp_path / "root").rglob("*t88_gfc.nii.gz"))
    assert nib.aff2axcodes(nib.load(scan).affine) == ("L", "A", "S")
    # A second run finds it unpacked.
    assert (
        prepare("oasis1", tmp_path / "root", tmp_path / "out", labels="tissue4")[
            0
        ].current
        == 2
    )


@pytest.mark.parametrize("dataset", ["oasis1", "oasis1-freesurfer", "neurite", "ixi"])
@pytest.mark.usefixtures("pauses")
def test_a_dataset_comes_over_a_bad_line_and_becomes_a_store(
    tmp_path: Path, dataset: str
) -> None:
    """Downloaded in its own layout and name from a server that cuts connections, then prepared."""
    subject, scheme, settings = build(dataset, tmp_path / "original")
    name, _, part = dataset.partition("-")
    remote = load_catalogue()[name].files(part=part or "images", discs=(1,))[0]
    if name == "ixi":  # its labels are in another folder
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
        sums = {"md5": hashlib.md5(archive).hexdigest(), "plausible_bytes": (1, 10**9)}
        local = remote.model_copy(update={"urls": (url,), **sums})
        fetched = fetch(local, tmp_path / "root")
        assert server.ranges == [None, f"bytes={third}-", f"bytes={2 * third}-"]
    finally:
        server.close()
    assert fetched.path.name == remote.name
    summary, store = prepare(
        name, tmp_path / "root", tmp_path / "out", labels=scheme, **settings
    )
    assert (summary.made, summary.failed) == (1, 0)
    assert store.subjects == (subject,)
    assert (
        store.metadata[0].participant == subject.partition("_MR")[0].partition("-")[0]
    )


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
    with refusal(DatasetError, tmp_path / "IXI-T1.tar"):
        prepare("ixi", tmp_path, tmp_path / "out")


def test_ixi_without_labels_still_makes_images(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    ixi_scan(tmp_path / "in", "IXI002-Guys-0828")
    config = PrepareConfig(source="ixi", root=tmp_path / "in", grid=GRID)
    summary = prepare_store(config, tmp_path / "out")
    assert summary.exit is Exit.OK
    (line,) = logged.messages
    assert "recon-all" in line
    store = Store(tmp_path / "out")
    assert not store.info.subjects["IXI002-Guys-0828"].has_labels
    assert summary.rows[0].reason == "no labels: for prediction only"
    assert volume_of(store, "IXI002-Guys-0828", View.AXIAL, "image").max() > 0.5


def test_label_maps_alone_are_folded_and_stored(tmp_path: Path) -> None:
    numbers = head_labels()
    numbers[numbers == 4] = 136  # the lining of the left ventricle
    numbers[0:2] = 24  # fluid around the brain
    numbers[-2:] = 507  # scalp
    write_nifti(tmp_path / "in" / "seg.nii.gz", numbers)
    _, store = prepare("labelmaps", tmp_path / "in", tmp_path / "out")
    voxels = dict(zip(store.scheme.names, voxels_by_class(store, "seg"), strict=True))
    assert voxels["Left-Lateral-Ventricle"] == (head_labels() == 4).sum()
    assert voxels["CSF"] == 0
    assert not store.file("seg").has(View.AXIAL, "image")


def test_labels_on_another_grid_are_refused_not_resampled(tmp_path: Path) -> None:
    labels = head_labels()
    write_nifti(tmp_path / "in/images/shape.nii.gz", head_image(labels))
    write_nifti(tmp_path / "in/labels/shape.nii.gz", labels[:-1])
    for name, shift_mm in (("near", 0.05), ("far", 0.2)):
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
    assert "0.2 mm away from the image" in reasons["far"]


def test_a_mask_of_the_table_says_which_voxels_count(tmp_path: Path) -> None:
    labels = head_labels()
    mask = (labels == 17).astype(np.uint8)
    write_nifti(tmp_path / "image.nii.gz", head_image(labels), "LIA")
    write_nifti(tmp_path / "labels.nii.gz", labels, "LIA")
    write_nifti(tmp_path / "mask.nii.gz", mask, "LIA")
    table = tmp_path / "pairs.csv"
    table.write_text("image,labels,mask\nimage.nii.gz,labels.nii.gz,mask.nii.gz\n")
    summary, store = prepare("pairs", table, tmp_path / "out")
    assert summary.made == 1
    file = store.file(store.subjects[0])
    counts = file.class_counts(View.AXIAL).sum(axis=0)
    left_hippocampus = load_scheme("quicknat33").names.index("Left-Hippocampus")
    assert counts[left_hippocampus] == counts.sum() == mask.sum()
    file.close()
    # Another mask makes another subject; the same mask does not.
    assert prepare("pairs", table, tmp_path / "out")[0].current == 1
    write_nifti(tmp_path / "mask.nii.gz", np.ones_like(mask), "LIA")
    assert prepare("pairs", table, tmp_path / "out")[0].made == 1

    write_nifti(tmp_path / "mask.nii.gz", np.zeros_like(mask), "LIA")
    summary, _ = prepare("pairs", table, tmp_path / "out")
    assert "no voxel counts: leave the subject out" in summary.rows[0].reason


# Real data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("sub-03",),
        pytest.param(
            ("sub-01", "sub-02", "sub-03", "sub-04", "sub-06"), marks=pytest.mark.slow
        ),
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
    summary = prepare_store(config, tmp_path / "out")
    assert (summary.made, summary.failed) == (len(names), 0)
    store = Store(tmp_path / "out")
    for subject in store.subjects:
        aseg = Volume.read(root / subject / "mri/aseg.mgz", labels=True).data
        numbers, counts = np.unique(aseg, return_counts=True)
        direct = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        voxels = dict(
            zip(
                store.scheme.fs_ids.tolist(),
                voxels_by_class(store, subject),
                strict=True,
            )
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
                assert count == folded.get(number, direct.get(number, 0)), (
                    subject,
                    number,
                )
        assert voxels[2] + voxels[41] == folded[2] + folded[41] + sideless
        assert voxels[2] >= folded[2]
        assert voxels[41] >= folded[41]


def test_the_miniature_head_is_lateralised() -> None:
    """Premise of the tests above: a mirrored head differs from the head."""
    labels = head_labels()
    assert labels.shape == SHAPE
    for left, right in zip(HEMISPHERES["left"], HEMISPHERES["right"], strict=True):
        if left != 3 and left != 2:
            assert (labels == left).sum() > (labels == right).sum()


def test_scans_that_need_a_decision_are_prepared_once_it_is_made(
    tmp_path: Path,
) -> None:
    spoilt = head_image(head_labels()).astype(np.float32)
    spoilt[3, 4, 5] = np.nan
    labels = head_labels().astype(np.float32)
    labels[0, 0, 0] = np.nan
    write_nifti(tmp_path / "in/images/a.nii.gz", spoilt, "RAS")
    write_nifti(tmp_path / "in/labels/a.nii.gz", labels, "RAS")
    for path in (tmp_path / "in").glob("*/a.nii.gz"):
        without_orientation(path)
    reasons = []
    for settings in ({}, {"trust_affine": "header"}):
        config = PrepareConfig(
            source="pairs", root=tmp_path / "in", grid=GRID, **settings
        )
        (row,) = prepare_store(config, tmp_path / "out").rows
        reasons.append(row.reason)
    assert "--trust-affine" in reasons[0]
    assert "--fill-nonfinite" in reasons[1]
    both = {"trust_affine": "header", "fill_nonfinite": True}
    summary, _ = prepare("pairs", tmp_path / "in", tmp_path / "out", **both)
    assert summary.exit is Exit.OK


@pytest.mark.slow
def test_labels_that_a_model_made_are_its_own_and_a_scan_without_them_has_failed(
    tmp_path: Path,
) -> None:
    scan = ixi_scan(tmp_path / "in", "IXI002-Guys-0828")
    (scan.parent / "IXI012-Guys-0829-T1.nii.gz").write_bytes(scan.read_bytes()[:999])
    summary, store = prepare(
        "ixi",
        tmp_path / "in",
        tmp_path / "out",
        label_with=str(model_of_all_fluid(tmp_path / "fluid")),
        views=("axial",),
    )
    assert (summary.made, summary.failed) == (1, 1)
    assert store.info.csf == "intracranial"
    ledger = {row.subject: (row.status, row.reason) for row in summary.rows}
    assert ledger["IXI012-Guys-0829"][0] == "failed"
    assert "truncated" in ledger["IXI012-Guys-0829"][1]
    made = store.info.subjects["IXI002-Guys-0828"]
    assert made.pseudo is not None
    assert (made.pseudo.model, made.labels is not None) == ("random", True)


def test_whole_and_stripped_heads_are_not_mixed_unless_it_is_asked_for(
    tmp_path: Path,
) -> None:
    for name, image in (("a", "T1.mgz"), ("b", "T1.mgz"), ("c", "brainmask.mgz")):
        freesurfer_subject(tmp_path / "fs", name, image=image)
    views = ("coronal",)
    summary, store = prepare(
        "freesurfer", tmp_path / "fs", tmp_path / "store", views=views
    )
    assert sorted(store.info.subjects) == ["a", "b"]
    (failed,) = [row for row in summary.rows if row.status == "failed"]
    assert failed.subject == "c"
    assert failed.reason.startswith("only a skull-stripped image, beside 2 whole heads")
    summary, store = prepare(
        *("freesurfer", tmp_path / "fs", tmp_path / "store"),
        views=views,
        mixed_heads=True,
    )
    assert sorted(store.info.subjects) == ["a", "b", "c"]
    reasons = {row.subject: row.reason for row in summary.rows}
    assert reasons == {
        "a": "",
        "b": "",
        "c": "skull-stripped, while other subjects are whole heads",
    }
    assert "skull-stripped" in (tmp_path / "store/ledger.tsv").read_text()
    summary, _ = prepare(
        *("freesurfer", tmp_path / "fs", tmp_path / "stripped"),
        views=views,
        image="brainmask.mgz",
    )
    # Stripped heads alone need no notice.
    assert summary.made == 1
