"""Pictures and the page of a store: everything visible is shown, and nothing else."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import freesurfer_subject, head_labels, ixi_scan, write_nifti
from helpers.refusals import refusal
from PIL import Image

from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.pipelines.prepare.report import find_outliers, write_report
from trinat.pipelines.prepare.store_pictures import (
    read_augmentation,
    show_augmented,
    show_subject,
)
from trinat.segmentation.data.slices import Statistics
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError, DatasetError

GRID = (64, 64, 64)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store of three subjects, one left out."""
    folder = tmp_path_factory.mktemp("data")
    for number, name in enumerate(("sub-01", "sub-02", "sub-<b>3")):
        freesurfer_subject(folder / "in", name, shift=number)
    freesurfer_subject(folder / "in", "fsaverage")
    prepare_store(
        PrepareConfig(source="freesurfer", root=folder / "in", grid=GRID),
        folder / "out",
    )
    return folder / "out"


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def test_a_mosaic_shows_the_colours_of_the_labels(root: Path, tmp_path: Path) -> None:
    show_subject(root, "sub-01", tmp_path / "a.png")
    drawn = {tuple(color) for color in pixels(tmp_path / "a.png").reshape(-1, 3)[::3]}
    scheme = Store(root).scheme
    for name in ("Left-Cerebral-Cortex", "Right-Lateral-Ventricle", "Brain-Stem"):
        assert scheme.labels[scheme.names.index(name)].color in drawn
    show_subject(root, "sub-01", tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_head_without_labels_is_not_shown_unasked(tmp_path: Path) -> None:
    ixi_scan(tmp_path / "in", "IXI002-Guys-0828")
    prepare_store(
        PrepareConfig(source="ixi", root=tmp_path / "in", grid=GRID), tmp_path / "out"
    )
    with refusal(DatasetError, tmp_path / "out", remedy="--whole-head"):
        show_subject(tmp_path / "out", "IXI002-Guys-0828", tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
    show_subject(
        tmp_path / "out", "IXI002-Guys-0828", tmp_path / "a.png", whole_head=True
    )
    assert pixels(tmp_path / "a.png").std() > 5


def test_label_maps_alone_can_be_shown(tmp_path: Path) -> None:
    write_nifti(tmp_path / "in/seg.nii.gz", head_labels())
    prepare_store(
        PrepareConfig(source="labelmaps", root=tmp_path / "in", grid=GRID),
        tmp_path / "out",
    )
    show_subject(tmp_path / "out", "seg", tmp_path / "a.png", whole_head=True)
    write_report(tmp_path / "out", tmp_path / "r.html")
    assert 'id="volumes"' in (tmp_path / "r.html").read_text()


def test_a_missing_subject_is_told(root: Path, tmp_path: Path) -> None:
    with refusal(DatasetError, root):
        show_subject(root, "x", tmp_path / "a.png")


def test_augmented_slices_are_drawn_and_the_seed_decides(
    root: Path, tmp_path: Path
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        show_augmented(root, "sub-01", tmp_path / f"{name}.png", count=12, seed=seed)
    first, again, other = ((tmp_path / f"{name}.png").read_bytes() for name in "abc")
    assert first == again
    assert first != other
    # Six pictures per row, so twelve of a view make two rows.
    assert pixels(tmp_path / "a.png").shape[0] > pixels(tmp_path / "a.png").shape[1] / 2


def test_augmentation_can_be_set(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "flip: 0\ntransforms: [{name: RandomMotion, share: 0.2}]\n"
    )
    config = read_augmentation(tmp_path / "a.yaml")
    assert config.flip == 0
    assert [(kind.name, kind.share) for kind in config.transforms] == [
        ("RandomMotion", 0.2)
    ]
    (tmp_path / "a.yaml").write_text("flip: 2\n")
    with refusal(ConfigError, tmp_path / "a.yaml"):
        read_augmentation(tmp_path / "a.yaml")
    with refusal(ConfigError, tmp_path / "b.yaml"):
        read_augmentation(tmp_path / "b.yaml")


def test_the_page_names_everything_and_runs_nothing(root: Path, tmp_path: Path) -> None:
    write_report(root, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "sub-01" in page
    assert "a template, not a person" in page
    assert "sub-_b_3" in page
    assert "<b>3" not in page
    assert "default-src 'none'" in html.unescape(page)
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    # Every structure with voxels is a row of the plot, and every subject a dot in it.
    assert page.count("sub-01: ") >= 9
    assert "Left Cerebral Cortex" in page or "L Cerebral Cortex" in page


def statistics(volume: int, level: float = 0.5) -> Statistics:
    return Statistics((10**6, volume), (0, level), {"p50": 0.02}, (1,) * 64)


def test_an_outlier_is_far_from_the_median_of_the_others() -> None:
    # The median is 1005; deviations 25 15 5 5 15 195, whose median is 15.
    volumes = {"a": 980, "b": 990, "c": 1000, "d": 1010, "e": 1020, "f": 1200}
    found = find_outliers(
        ("background", "X"), {s: statistics(v) for s, v in volumes.items()}
    )
    assert [(o.subject, o.value, o.median) for o in found] == [("f", 1.2, 1.005)]
    assert found[0].what == "volume of X (ml)"
    assert found[0].distance == pytest.approx(195 / (1.4826 * 15))


def test_a_missing_structure_and_a_strange_brightness_are_outliers() -> None:
    subjects = {f"s{n}": statistics(1000 + n) for n in range(6)}
    subjects["lost"] = statistics(0)
    subjects["dark"] = statistics(1003, level=0.1)
    found = find_outliers(("background", "X"), subjects)
    assert {o.subject: o.what for o in found} == {
        "lost": "volume of X (ml)",
        "dark": "brightness",
    }


def test_a_few_subjects_have_no_outliers() -> None:
    subjects = {f"s{n}": statistics(1000) for n in range(3)} | {"x": statistics(5)}
    assert find_outliers(("background", "X"), subjects) == []
