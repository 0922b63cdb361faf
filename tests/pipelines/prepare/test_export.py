"""trinat data export: upright pictures from which every voxel can be recovered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.small_store import VIEWS, all_train, damage, small_store, stored_subject
from PIL import Image
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.prepare.options import ExportSettings
from trinat.pipelines.prepare.store_pictures import Exported, export_slices
from trinat.segmentation.data.slices import quantise, scheme_table, write_subject
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.data.store import (
    Store,
    StoreInfo,
    subject_path,
    write_participants,
)
from trinat.segmentation.errors import DatasetError, OutputError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View

TWO = {"a": (14, 16, 18), "b": (14, 16, 18)}


def marked_store(root: Path, shape: tuple[int, int, int] = (4, 5, 6)) -> Path:
    """Write one subject, dark except for voxel (3, 1, 5): right, towards the back, at the top.

    Its values are -1 and 3: a quarter of the 4,096 codes, less one, is below zero.
    """
    scheme = load_scheme("quicknat33")
    image = np.zeros(shape, np.float32)
    labels = np.zeros(shape, np.uint8)
    image[3, 1, 5] = 3
    image[0, 0, 0] = -1
    labels[3, 1, 5] = scheme.names.index("Right-Thalamus")
    (root / "subjects").mkdir(parents=True)
    write_subject(
        subject_path(root, "sub-01"),
        image=quantise(image),
        labels=labels,
        affine=np.eye(4),
        scheme=scheme,
        views=tuple(View),
        fingerprint="f",
    )
    write_participants(root, [Subject("sub-01", "=anna", None, None)])
    stored = {"sub-01": stored_subject(root, "sub-01")}
    StoreInfo(
        source="pairs",
        scheme=scheme_table(scheme),
        views=tuple(View),
        subjects=stored,
    ).write(root)
    return root


def export(store: Path, out: Path, **settings: object) -> list[Exported]:
    return export_slices(ExportSettings(store, out, **settings))  # type: ignore[arg-type]


def table_of(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "slices.csv", keep_default_na=False)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


@pytest.mark.parametrize(
    ("view", "number", "row", "column"),
    [
        # Rows from the top: superior (k = 5) is 0. Columns to the right: i = 3.
        ("coronal", 1, 0, 3),
        # Rows from the front: of five voxels, j = 1 is the fourth.
        ("axial", 5, 3, 3),
        # Columns to the front: j = 1.
        ("sagittal", 3, 0, 1),
    ],
)
def test_a_picture_stands_upright_with_right_and_front_to_the_right(
    tmp_path: Path, view: str, number: int, row: int, column: int
) -> None:
    export(marked_store(tmp_path / "store"), tmp_path / "out")
    name = f"{view}/sub-01_{number:03}.png"
    labels = pixels(tmp_path / "out/labels" / name)
    assert np.argwhere(labels).tolist() == [[row, column]]
    image = pixels(tmp_path / "out/images" / name)
    assert np.argwhere(image == image.max()).tolist() == [[row, column]]


def test_pixels_are_16_bit_grey_and_scale_and_zero_make_the_values(
    tmp_path: Path,
) -> None:
    export(marked_store(tmp_path / "store"), tmp_path / "out")
    with Image.open(tmp_path / "out/images/axial/sub-01_005.png") as picture:
        assert picture.mode == "I;16"
    image = pixels(tmp_path / "out/images/axial/sub-01_005.png")
    # -1 to 3 in 4,095 steps: zero is code 1,024; in sixteenths of a step 16,384, and 3 is 65,520.
    assert (image[3, 3], image[0, 0]) == (65520, 16384)
    row = table_of(tmp_path / "out").query("view == 'axial' and slice == 5").iloc[0]
    assert row.image_zero == 16384
    assert row.image_scale == pytest.approx(4 / 4095 / 16)


def test_every_voxel_comes_back_bit_for_bit(tmp_path: Path) -> None:
    root = small_store(tmp_path / "store", TWO)
    export(root, tmp_path / "out")
    table = table_of(tmp_path / "out")
    assert len(table) == 2 * (16 + 18)
    for row in table.itertuples():
        file = Store(root).file(row.subject)
        view, after = View(row.view), row.slice + 1
        codes = pixels(tmp_path / "out" / row.image)[::-1].astype(np.float32)
        values = (codes - np.float32(row.image_zero)) * np.float32(row.image_scale)
        np.testing.assert_array_equal(values, file.image(view, row.slice, after)[0])
        labels = pixels(tmp_path / "out" / row.labels)[::-1]
        np.testing.assert_array_equal(labels, file.labels(view, row.slice, after)[0])


def test_label_pictures_have_the_colours_and_numbers_of_their_view(
    tmp_path: Path,
) -> None:
    export(marked_store(tmp_path / "store"), tmp_path / "out")
    scheme = load_scheme("quicknat33")
    classes = pd.read_csv(tmp_path / "out/classes.csv")
    # The sagittal network has one thalamus, where the others have the right one.
    for view, number, name in (
        ("axial", 5, "Right-Thalamus"),
        ("sagittal", 3, "Thalamus"),
    ):
        is_it = (classes.view == view) & (classes.name == name)
        row = classes[is_it].iloc[0]
        with Image.open(
            tmp_path / f"out/labels/{view}/sub-01_{number:03}.png"
        ) as found:
            assert found.mode == "P"
            assert np.asarray(found).max() == row["index"]
            colors = np.asarray(found.convert("RGB")).reshape(-1, 3)
        label = scheme.seen_in(View(view)).labels[row["index"]]
        assert label.color in {tuple(color) for color in colors.tolist()}
        assert row["color"] == "#{:02x}{:02x}{:02x}".format(*label.color)


def test_the_table_says_who_and_where(tmp_path: Path) -> None:
    root = small_store(tmp_path / "store", TWO)
    export(root, tmp_path / "out", views=(View.AXIAL,), subjects=("b",))
    assert table_of(tmp_path / "out").part.unique().tolist() == [""]
    all_train(root)
    export(root, tmp_path / "out", views=(View.AXIAL,), subjects=("b",))
    table = table_of(tmp_path / "out")
    assert table.iloc[7].tolist()[:7] == [
        "b",
        "b",
        "train",
        "axial",
        7,
        "images/axial/b_007.png",
        "labels/axial/b_007.png",
    ]


def test_a_person_is_no_formula_to_a_spreadsheet(tmp_path: Path) -> None:
    export(marked_store(tmp_path / "store"), tmp_path / "out")
    assert table_of(tmp_path / "out").person.unique().tolist() == ["'=anna"]


def test_views_parts_subjects_and_slices_can_be_chosen(tmp_path: Path) -> None:
    root = small_store(tmp_path / "store", TWO)
    all_train(root)
    export(root, tmp_path / "out", part="train", views=(View.CORONAL,))
    assert len(table_of(tmp_path / "out")) == 2 * 16
    # The first and the last two of 16 coronal slices have no structure.
    export(root, tmp_path / "out", views=(View.CORONAL,), labelled=True)
    assert sorted(set(table_of(tmp_path / "out").slice)) == list(range(2, 14))
    for settings, message in (
        ({"subjects": ("x",)}, "has no subject 'x' in the store"),
        ({"views": (View.SAGITTAL,)}, "holds no sagittal slices"),
        ({"part": "test"}, "the part 'test' is empty"),
        ({"split": tmp_path / "none.json"}, "no such split file"),
    ):
        with pytest.raises(DatasetError, match=message):
            export(root, tmp_path / "other", **settings)
        assert not (tmp_path / "other").exists()


def test_a_second_export_leaves_only_its_own_pictures(tmp_path: Path) -> None:
    root = small_store(tmp_path / "store", TWO)
    export(root, tmp_path / "out")
    export(root, tmp_path / "out", views=(View.AXIAL,), subjects=("a",))
    found = {path.parent.name for path in (tmp_path / "out").rglob("*.png")}
    assert found == {"axial"}
    names = {path.name for path in (tmp_path / "out").rglob("*.png")}
    assert names == {f"a_{number:03}.png" for number in range(18)}


@pytest.mark.parametrize("name", ["report.html", "images"])
def test_a_folder_of_something_else_is_refused_and_left_as_it_was(
    tmp_path: Path, name: str
) -> None:
    root = small_store(tmp_path / "store", {"a": (14, 16, 18)})
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(OutputError, match=r"give another --out"):
        export(root, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
    with pytest.raises(OutputError, match="holds other files"):
        export(root, root)


def test_what_a_subject_lacks_is_an_empty_cell(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "subjects").mkdir(parents=True)
    scheme = load_scheme("tissue4")
    write_subject(
        subject_path(root, "a"),
        image=None,
        labels=np.ones((3, 3, 3), np.uint8),
        affine=np.eye(4),
        scheme=scheme,
        views=VIEWS,
        fingerprint="f",
    )
    write_participants(root, [Subject("a", "a", None, None)])
    StoreInfo(
        source="labelmaps",
        scheme=scheme_table(scheme),
        views=VIEWS,
        subjects={"a": stored_subject(root, "a", has_image=False)},
    ).write(root)
    export(root, tmp_path / "out")
    first = table_of(tmp_path / "out").iloc[0]
    assert (first.image, first.image_scale, first.image_zero) == ("", "", "")
    assert first.labels == "labels/coronal/a_000.png"
    assert not list((tmp_path / "out").glob("images/*/*"))


def test_a_damaged_subject_is_one_line_and_the_others_are_written(
    tmp_path: Path,
) -> None:
    root = small_store(tmp_path / "store", TWO)
    damage(subject_path(root, "a"), View.AXIAL, "image", 9)
    words = ["data", "export", str(root), "--out", str(tmp_path / "out"), "--quiet"]
    done = CliRunner().invoke(app, words, standalone_mode=False)
    assert done.return_value == Exit.SOME_FAILED
    (failure,) = done.stderr.splitlines()
    assert failure.startswith("a: failed: ")
    assert f"{tmp_path}/out/slices.csv: 34 slices of 1 subjects, 1 failed" in (
        done.stdout.replace("\n", "")
    )
    assert set(table_of(tmp_path / "out").subject) == {"b"}
    assert not list((tmp_path / "out").rglob("a_*.png"))


def test_options_are_taken_as_they_are_typed(tmp_path: Path) -> None:
    root = small_store(tmp_path / "store", TWO)
    all_train(root)
    words = ["data", "export", root, "--out", tmp_path / "out", "--format", "png"]
    words += ["--views", "coronal", "axial", "--part", "train", "--subjects", "a", "b"]
    words += ["--labelled", "--split", root / "split.json"]
    done = CliRunner().invoke(app, [str(word) for word in words], standalone_mode=False)
    assert done.return_value == Exit.OK, done.output
    # Two slices at either end of 16 coronal and 18 axial ones have no structure.
    assert len(table_of(tmp_path / "out")) == 2 * (12 + 14)
