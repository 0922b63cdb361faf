"""Pictures of a store: everything visible is shown, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import (
    freesurfer_subject,
    head_image,
    head_labels,
    ixi_scan,
    write_nifti,
)
from helpers.refusals import refusal
from PIL import Image

from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.pipelines.prepare.store_pictures import (
    read_augmentation,
    show_augmented,
    show_subject,
)
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
    assert pixels(tmp_path / "a.png").std() > 5


def test_slices_with_a_mask_can_be_shown(tmp_path: Path) -> None:
    labels = head_labels()
    write_nifti(tmp_path / "in/image.nii.gz", head_image(labels))
    write_nifti(tmp_path / "in/labels.nii.gz", labels)
    write_nifti(tmp_path / "in/mask.nii.gz", (labels == labels.max()).astype(np.uint8))
    table = tmp_path / "in/pairs.csv"
    table.write_text("image,labels,mask\nimage.nii.gz,labels.nii.gz,mask.nii.gz\n")
    prepare_store(
        PrepareConfig(source="pairs", root=table, grid=GRID), tmp_path / "out"
    )
    show_subject(tmp_path / "out", "image", tmp_path / "a.png")
    show_augmented(tmp_path / "out", "image", tmp_path / "b.png", count=6)
    assert pixels(tmp_path / "a.png").std() > 5
    assert pixels(tmp_path / "b.png").std() > 5


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
