"""trinat suspects on a small store in which the labels of two subjects are wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import trinat
from helpers.miniatures import freesurfer_subject, head_labels, write_mgz
from helpers.overfitted import overfitted_model
from helpers.prepared import prepare
from helpers.refusals import refusal
from helpers.small_store import partly_labelled

from trinat.pipelines.prepare.suspects import _sampled_views
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import (
    Store,
)
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.models.quicknat import QuickNatConfig
from trinat.segmentation.space.views import View, to_slices

SIDES = {2: 41, 3: 42, 4: 43, 17: 53}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suspects")
    for number in range(1, 8):
        freesurfer_subject(folder / "fs", f"sub-{number}")
    right = head_labels()
    exchanged = {**SIDES, **{b: a for a, b in SIDES.items()}}
    swapped = np.vectorize(lambda number: exchanged.get(number, number))(right)
    write_mgz(folder / "fs/sub-3/mri/aseg.mgz", swapped.astype(np.int32))
    moved = np.roll(right, 5, axis=2)
    write_mgz(folder / "fs/sub-6/mri/aseg.mgz", moved.astype(np.int32))
    views = ("coronal", "axial")
    prepare("freesurfer", folder / "fs", folder / "store", views=views)
    return folder / "store"


def test_wrong_labels_are_found_shown_and_left_out_of_the_split(store: Path) -> None:
    printed = trinat("suspects", store, "--model", overfitted_model(), "--every", 2)
    with (store / "suspects/suspects.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert len(rows) == 7
    assert {row["subject"] for row in rows[:2]} == {"sub-3", "sub-6"}
    (swapped,) = (row for row in rows if row["subject"] == "sub-3")
    assert float(swapped["sides"]) > 0.9
    assert float(rows[2]["score"]) < 8 < float(rows[1]["score"])
    # Subjects that are not suspect have no reason, and every score is a number of at least
    # zero.
    assert {row["why"] for row in rows[2:]} == {"n/a"}
    assert {row["structure"] for row in rows[2:]} == {"n/a"}
    assert all(float(row["score"]) >= 0 for row in rows)
    page = (store / "suspects/suspects.html").read_text()
    assert page.count("<figure") == 7
    # In the caption of each picture, and in its alternative text.
    assert page.count("nothing stands out") == 2 * 5
    assert "7 subjects say little about what is usual" in page
    assert "sub-3: " in printed
    trinat(
        "split", store, "--ratios", 3, 1, 1, "--exclude", store / "suspects/exclude.txt"
    )
    split = read_split(store / "split.json")
    placed = {*split.train, *split.validation, *split.test}
    assert placed == {"sub-1", "sub-2", "sub-4", "sub-5", "sub-7"}


def test_a_model_of_other_labels_is_refused(store: Path, tmp_path: Path) -> None:
    from helpers.small_store import small_store

    other = small_store(tmp_path / "other", dict.fromkeys("abcdef", (16, 16, 16)))
    with refusal(ConfigError, other):
        trinat("suspects", other, "--model", overfitted_model())


def test_an_exclusion_list_names_subjects_of_the_store(
    store: Path, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("# by hand\nsub-9  # blurred\n\n")
    with pytest.raises(DatasetError, match="no subject 'sub-9' to exclude"):
        trinat("split", store, "--exclude", names)
    with refusal(DatasetError, tmp_path / "missing.txt"):
        trinat("split", store, "--exclude", tmp_path / "missing.txt")


def test_labels_that_do_not_count_are_not_judged(tmp_path: Path) -> None:
    scheme = load_scheme("tissue4")
    labels = np.full((24, 24, 20), 3, np.uint8)
    counted = np.zeros(labels.shape, bool)
    counted[:, 4:] = True
    root = partly_labelled(tmp_path / "store", labels, counted, scheme)
    network = build(QuickNatConfig(classes=4, filters=4, kernel=3, depth=2))
    description = Description(name="m", labels="tissue4")
    save_model(tmp_path / "m", description, {View.AXIAL: network})
    model = load_model(tmp_path / "m")
    (view,) = _sampled_views(Store(root), model, ["a"], 6, torch.device("cpu"))
    look, _ = view.look("a", [10])
    is_counted = to_slices(counted, View.AXIAL)[10]
    np.testing.assert_array_equal(look.truth[0] == 3, is_counted)
    assert not look.predicted[0][~is_counted].any()
