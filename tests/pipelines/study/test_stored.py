"""Metadata in a store about the files that it was made from, for every source."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import random_model
from helpers.prepared import build, prepare
from helpers.refusals import refusal
from helpers.studies import add_result

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
)
from trinat.pipelines.evaluate.gather import gather, plan_tasks
from trinat.pipelines.predict.case import CaseWorker
from trinat.pipelines.predict.case_in_progress import read
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Case, Found
from trinat.pipelines.study.stored import stored_cases, stored_files
from trinat.segmentation.data.splits import Split
from trinat.segmentation.data.store import SPLIT, Store
from trinat.segmentation.errors import DatasetError, TrinatError
from trinat.segmentation.io.volume import Volume

SOURCES = [
    *("oasis1", "oasis1-freesurfer", "neurite", "ixi", "malc", "malc-flat"),
    *("freesurfer", "bids", "pairs"),
]


def store_of(source: str, folder: Path) -> Store:
    """Prepare one miniature subject of a source, for testing."""
    subject, scheme, settings = build(source, folder / "in")
    _, store = prepare(
        source.partition("-")[0],
        folder / "in",
        folder / "store",
        labels=scheme,
        **settings,
    )
    write_split(store, subject)
    return store


def write_split(store: Store, *test: str) -> None:
    split = Split(store=store.fingerprint, seed=0, train=(), test=test)
    split.write(store.root / SPLIT)


def cases_of(store: Store) -> Found:
    return stored_cases(store, store.part("test"))


def measured(store: Store, out: Path) -> Exit:
    """Evaluate the predictions in `found` next to the store."""
    models = {"m": out.with_name("found")}
    return evaluate_predictions(
        EvaluationSettings(
            store.root, models, out, part="test", jobs=1, tables_only=True
        )
    )


@pytest.mark.parametrize("source", SOURCES)
def test_predictions_of_a_stores_scans_are_measured_by_its_label_maps(
    source: str, tmp_path: Path
) -> None:
    store = store_of(source, tmp_path)
    (case,) = cases_of(store).cases
    (truth,) = stored_files(store, store.part("test"), "labels")
    scan = Volume.read(case.path, axes=case.axes)
    read = Volume.read(truth.path, labels=True, axes=truth.stored.axes)
    # A perfect prediction in FreeSurfer's numbers, on the scan's own grid.
    indices = store.scheme.from_freesurfer(
        read.data, extra=truth.stored.numbers, fold=truth.stored.fold
    )
    assert len(np.unique(indices)) > 3
    (tmp_path / "found").mkdir()
    perfect = Volume(store.scheme.to_freesurfer(indices), scan.affine)
    perfect.write(tmp_path / "found" / f"{case.stem}_dseg.nii.gz", labels=True)
    assert measured(store, tmp_path / "report") == Exit.OK
    with (tmp_path / "report/metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "dice"]
    assert {row["subject"] for row in rows} == {store.metadata[0].participant}
    assert {float(row["value"]) for row in rows if row["value"]} == {1.0}


def test_label_maps_that_were_filled_for_the_store_are_filled_for_measuring(
    tmp_path: Path,
) -> None:
    build("pairs", tmp_path / "in")
    path = tmp_path / "in/labels/a.nii.gz"
    labels = Volume.read(path, labels=True)
    numbers = labels.data.astype(np.float32)
    numbers[0, 0, 0] = np.nan
    Volume(numbers, labels.affine).write(path)
    _, store = prepare(
        "pairs", tmp_path / "in", tmp_path / "store", fill_nonfinite=True
    )
    write_split(store, "a")
    (tmp_path / "found").mkdir()
    labels.write(tmp_path / "found/a_dseg.nii.gz", labels=True)
    assert measured(store, tmp_path / "report") == Exit.OK


def test_label_maps_with_a_mask_are_no_ground_truth(tmp_path: Path) -> None:
    build("pairs", tmp_path / "in")
    table = tmp_path / "in/pairs.csv"
    table.write_text(
        "image,labels,mask\nimages/a.nii.gz,labels/a.nii.gz,labels/a.nii.gz\n"
    )
    _, store = prepare("pairs", table, tmp_path / "store")
    with refusal(DatasetError, tmp_path / "store"):
        stored_files(store, store.subjects, "labels")
    assert stored_files(store, store.subjects, "image")


def test_an_original_that_is_gone_is_told_with_its_place(tmp_path: Path) -> None:
    store = store_of("pairs", tmp_path)
    image = tmp_path / "in/images/a.nii.gz"
    image.rename(tmp_path / "elsewhere.nii.gz")
    with refusal(DatasetError, tmp_path / "store"):
        cases_of(store)
    # If the other file still exists, the store does not apply to it.
    for kind in ("images", "labels"):
        shutil.copy(tmp_path / "in/labels/a.nii.gz", tmp_path / f"in/{kind}/b.nii.gz")
    (tmp_path / "elsewhere.nii.gz").rename(image)
    _, store = prepare("pairs", tmp_path / "in", tmp_path / "store")
    write_split(store, "a", "b")
    image.unlink()
    found = cases_of(store)
    assert [case.id for case in found.cases] == ["b"]
    assert [(r.shown, str(image) in r.reason) for r in found.refusals] == [("a", True)]


def test_numbers_that_the_store_was_told_of_are_folded_alike(tmp_path: Path) -> None:
    build("pairs", tmp_path / "in")
    told = {"extra": {17: 18}, "ignore": (53,)}
    _, store = prepare("pairs", tmp_path / "in", tmp_path / "store", **told)
    (truth,) = stored_files(store, store.subjects, "labels")
    assert truth.stored.numbers == {17: 18, 53: 0}


@pytest.mark.parametrize(
    ("is_pseudo", "expected"), [(False, "region"), (True, "intracranial")]
)
def test_csf_is_that_of_the_label_map_not_of_the_slices(
    tmp_path: Path, is_pseudo: bool, expected: str
) -> None:
    """CSF of --csf-with is in the slices only; pseudo-labels have that of their model."""
    store = store_of("pairs", tmp_path)
    path = store.root / "store.json"
    content = json.loads(path.read_text()) | {"csf": "intracranial"}
    if is_pseudo:
        content["subjects"]["a"]["pseudo"] = {"model": "fast", "sha256": "0"}
    path.write_text(json.dumps(content))
    # The ledger of the model whose CSF was added.
    (store.root / "labels").mkdir()
    add_result(store.root / "labels", "a", csf="intracranial")
    shutil.copytree(tmp_path / "in/labels", tmp_path / "found")
    models = {"m": tmp_path / "found"}
    settings = EvaluationSettings(store.root, models, tmp_path / "out", part="test")
    (task,) = plan_tasks(gather(settings))
    assert task.truth_csf == expected


@pytest.mark.parametrize(
    ("name", "participant", "session"),
    [
        ("sub-03_ses-B", "sub-03", "ses-B"),
        ("sub-03_ses-B", "sub-02", "sub-03_ses-B"),
        ("03_V2", "03", "V2"),
        ("03_V2", "02", "03_V2"),
        ("03_V2", "03_V2", ""),
    ],
)
def test_the_participant_of_a_label_map_is_that_in_the_store(
    tmp_path: Path, name: str, participant: str, session: str
) -> None:
    for kind, volume in (
        ("images", head_image(head_labels())),
        ("labels", head_labels()),
    ):
        write_nifti(tmp_path / f"in/{kind}/{name}.nii.gz", volume, "RAS")
    _, store = prepare("pairs", tmp_path / "in", tmp_path / "store")
    table = store.root / "participants.tsv"
    head, row = table.read_text().splitlines()
    cells = row.split("\t")
    cells[1] = participant
    table.write_text("\n".join([head, "\t".join(cells)]))
    (truth,) = stored_files(Store(store.root), [name], "labels")
    assert (truth.participant, truth.session) == (participant, session)
    # The name of the scan still finds its prediction.
    assert truth.name.removesuffix("_dseg") == name


def test_a_label_map_that_was_changed_is_not_measured(tmp_path: Path) -> None:
    store = store_of("pairs", tmp_path)
    labels = tmp_path / "in/labels/a.nii.gz"
    shutil.copytree(tmp_path / "in/labels", tmp_path / "found")
    changed = Volume.read(labels, labels=True)
    changed.data[10, 10, 10] = 17
    changed.write(labels, labels=True)
    with refusal(TrinatError, tmp_path / "report/pairs.csv"):
        measured(store, tmp_path / "report")


def test_a_scan_that_was_changed_fails_and_says_so(tmp_path: Path) -> None:
    store = store_of("pairs", tmp_path)
    (case,) = cases_of(store).cases
    settings = RunSettings(
        tmp_path / "out", random_model(), "", tmp_path / "out/staging"
    )
    (scan,) = read(case, settings).scans
    assert scan.digest == case.sha256
    image = Volume.read(case.path)
    image.data[10, 10, 10] += 1
    image.write(case.path)
    (entry,) = CaseWorker(settings, "cpu").begin(case)()
    assert entry.status == "failed"
    assert entry.reason.startswith("was changed since the store was made")
    # A scan that is in no store is used as it is.
    read(Case("a", case.path, "a"), settings)


def test_a_store_that_names_no_scan_of_a_subject_is_refused(tmp_path: Path) -> None:
    store = store_of("pairs", tmp_path)
    path = store.root / "store.json"
    content = json.loads(path.read_text())
    content["subjects"]["a"]["image"] = None
    path.write_text(json.dumps(content))
    with refusal(DatasetError, tmp_path / "store", remedy="--store"):
        cases_of(Store(store.root))
