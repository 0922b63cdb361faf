"""Heads for synthesis: reading, caching, and the class that each number teaches."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from helpers.miniatures import turned
from helpers.refusals import refusal

from trinat.segmentation.errors import DatasetError, FormatError, IntegrityError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import (
    HeadMaps,
    load_heads,
    phantom_heads,
    read_label_maps,
    with_variants,
)
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.synthesis import synthesise
from trinat.segmentation.synthetic.targets import aim

SCHEME = load_scheme("quicknat33")


def heads_of(numbers: list[int]) -> HeadMaps:
    """Return one head with a voxel of each number, white matter first."""
    entries = np.arange(len(numbers), dtype=np.uint8).reshape(1, len(numbers), 1, 1)
    classes = np.zeros(len(numbers), np.int64)
    priors = np.ones((2, 1))
    return HeadMaps(entries, np.array(numbers), classes, priors, priors)


def folder_of_maps(folder: Path, data: np.ndarray, affine: np.ndarray) -> Path:
    Volume(data.astype(np.int16), affine).write(folder / "one.nii.gz", labels=True)
    np.save(folder / "generation_labels.npy", np.array([0, 41, 2, 507], np.int32))
    np.save(folder / "generation_classes_contrast_specific.npy", np.array([0, 1, 1, 2]))
    np.save(folder / "prior_means_t1.npy", np.ones((2, 3)))
    np.save(folder / "prior_stds_t1.npy", np.ones((2, 3)))
    return folder


@pytest.mark.parametrize(
    ("number", "structure"),
    [
        (24, "background"),  # all CSF around the brain, no target
        (136, "Left-Lateral-Ventricle"),
        (163, "Right-Lateral-Ventricle"),
        (137, "Left-Inf-Lat-Vent"),
        (164, "Right-Inf-Lat-Vent"),
        (25, "Left-Cerebral-White-Matter"),
        (57, "Right-Cerebral-White-Matter"),
        (17, "Left-Hippocampus"),
        (507, "background"),
        (30, "background"),
    ],
)
def test_what_is_learned_from_a_number(number: int, structure: str) -> None:
    full = aim(heads_of([0, 2, number]), SCHEME)
    assert SCHEME.names[int(full.targets[2])] == structure


@pytest.mark.parametrize("number", [24, 30, 62, 72, 85])
def test_what_lies_between_brain_and_skull_can_be_learned_as_csf(number: int) -> None:
    full = aim(heads_of([0, 2, number]), SCHEME, learn_fluid=True)
    assert SCHEME.names[int(full.targets[2])] == "CSF"
    assert full.is_fluid.tolist() == [False, False, True]
    assert not aim(heads_of([0, 2, number]), SCHEME).targets[2]


def test_fluid_below_the_cerebellum_lies_in_the_neck(tmp_path: Path) -> None:
    data = np.zeros((16, 16, 16))
    data[4, 4, 2:12] = 24
    data[8, 4, 6:9] = 8
    data[8, 8, 9:12] = 2
    folder = folder_of_maps(tmp_path, data, np.eye(4))
    np.save(folder / "generation_labels.npy", np.array([0, 2, 8, 24], np.int32))
    np.save(folder / "generation_classes_contrast_specific.npy", np.array([0, 1, 1, 2]))
    heads = read_label_maps(folder)
    full = aim(heads, SCHEME, learn_fluid=True)
    # Cropped to the labels: the third axis begins at 2, the cerebellum at 6.
    column = full.targets[full.labels[0, 0, 0].long()]
    assert [SCHEME.names[int(k)] for k in column] == ["background"] * 4 + ["CSF"] * 6
    assert (
        full.is_outside[full.labels[0, 0, 0].long()].tolist()
        == [True] * 4 + [False] * 6
    )


def test_a_mirrored_head_teaches_the_other_side() -> None:
    full = aim(heads_of([0, 2, 17, 14]), SCHEME)
    names = [SCHEME.names[int(k)] for k in full.mirrored_targets]
    assert names[1:] == [
        "Right-Cerebral-White-Matter",
        "Right-Hippocampus",
        "3rd-Ventricle",
    ]
    # Merged classes have no sides.
    merged = full.seen_in(View.SAGITTAL)
    assert merged.mirrored_targets.tolist() == merged.targets.tolist()
    names = [merged.scheme.names[int(k)] for k in merged.targets]
    assert names[1:] == ["Cerebral-White-Matter", "Hippocampus", "3rd-Ventricle"]


def test_brain_is_what_a_stripped_scan_keeps() -> None:
    full = aim(heads_of([0, 2, 24, 85, 507]), SCHEME)
    assert full.is_brain.tolist() == [False, True, False, True, False]


def test_both_sides_share_their_looks() -> None:
    full = aim(heads_of([0, 2, 41, 136, 163, 14]), SCHEME)
    assert full.sideless.tolist() == [0, 1, 1, 3, 3, 5]


def test_heads_come_back_from_their_file(tmp_path: Path) -> None:
    heads = heads_of([0, 2, 41])
    heads.save(tmp_path / "heads.npz")
    again = load_heads(tmp_path / "heads.npz")
    assert again.fingerprint == heads.fingerprint
    assert again.labels.tolist() == heads.labels.tolist()


def test_another_anatomy_has_another_fingerprint() -> None:
    one, other = heads_of([0, 2, 41]), heads_of([0, 2, 41])
    other.labels[0, 0, 0, 0] = 1
    assert one.fingerprint != other.fingerprint


def test_a_damaged_file_of_heads_is_refused(tmp_path: Path) -> None:
    heads_of([0, 2, 41]).save(tmp_path / "heads.npz")
    content = (tmp_path / "heads.npz").read_bytes()
    (tmp_path / "heads.npz").write_bytes(content[:-200])
    with pytest.raises(IntegrityError, match="damaged"):
        load_heads(tmp_path / "heads.npz")


def slices_of(folder: Path, numbers: np.ndarray, axes: str) -> tuple[torch.Tensor, ...]:
    """Return two synthetic slices of a head whose file has its axes in this order."""
    folder.mkdir()
    data, affine = turned(numbers, axes)
    full = aim(read_label_maps(folder_of_maps(folder, data, affine)), SCHEME)
    generator = torch.Generator().manual_seed(0)
    return synthesise(full, SynthesisConfig(), View.CORONAL, 2, (16, 16), generator)


def test_slices_are_synthesised_from_label_maps_of_any_orientation(
    tmp_path: Path,
) -> None:
    numbers = np.random.default_rng(0).choice([0, 2, 41], (20, 24, 28))
    images, classes = slices_of(tmp_path / "ras", numbers, "RAS")
    assert images.shape == (2, 3, 16, 16)
    assert classes.any()
    turned_images, turned_classes = slices_of(tmp_path / "lia", numbers, "LIA")
    torch.testing.assert_close(turned_images, images, rtol=0, atol=0)
    torch.testing.assert_close(turned_classes, classes, rtol=0, atol=0)


def test_label_maps_are_turned_to_ras_and_cropped(tmp_path: Path) -> None:
    data = np.zeros((16, 17, 18))
    # LIA axes: the first runs to the left, the second down, the third to the front.
    data[1, 1, 1], data[3, 2, 1] = 41, 2
    affine = np.array([[-1, 0, 0, 15], [0, 0, 1, 0], [0, -1, 0, 16], [0, 0, 0, 1.0]])
    heads = read_label_maps(folder_of_maps(tmp_path, data, affine))
    assert heads.labels.shape == (1, 3, 1, 2)
    # Left white matter at the low end of x and, being further down, of z.
    assert heads.numbers[heads.labels[0, 0, 0, 0]] == 2
    assert heads.numbers[heads.labels[0, 2, 0, 1]] == 41


def test_label_maps_of_another_spacing_are_refused(tmp_path: Path) -> None:
    data = np.zeros((16, 16, 16))
    data[1, 1, 1] = 2
    with pytest.raises(DatasetError, match="1 mm"):
        read_label_maps(folder_of_maps(tmp_path, data, np.diag([1, 1, 2, 1.0])))


def test_a_label_without_a_class_of_intensity_is_refused(tmp_path: Path) -> None:
    data = np.zeros((16, 16, 16))
    data[1, 1, 1] = 77
    with pytest.raises(DatasetError, match="label 77"):
        read_label_maps(folder_of_maps(tmp_path, data, np.eye(4)))


def test_missing_tables_are_named(tmp_path: Path) -> None:
    folder_of_maps(tmp_path, np.full((16, 16, 16), 2), np.eye(4))
    (tmp_path / "prior_means_t1.npy").unlink()
    with pytest.raises(DatasetError, match="prior_means_t1"):
        load_heads(tmp_path)


def test_the_phantom_gives_a_head_with_every_structure_but_csf() -> None:
    heads = phantom_heads(4)
    full = aim(heads, SCHEME)
    assert set(full.targets.tolist()) == set(range(33)) - {SCHEME.names.index("CSF")}


def test_heads_that_unpack_to_gigabytes_are_refused_before_they_do(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, labels=np.zeros(2**28 + 1, np.uint8))
    with refusal(FormatError, path):
        load_heads(path)


def test_a_zip_whose_directory_points_elsewhere_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "heads.npz"
    heads_of([0, 2, 41]).save(path)
    broken = bytearray(path.read_bytes())
    # The offset of the directory, in the record at the end: members are sought before the file.
    broken[-6:-2] = (int.from_bytes(broken[-6:-2], "little") + 2**20).to_bytes(
        4, "little"
    )
    path.write_bytes(broken)
    with refusal(IntegrityError, path):
        load_heads(path)


def test_an_array_whose_header_does_not_end_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "heads.npz"
    # Version 1 of the format: its header is Python's own notation.
    header = b"{'descr': ('|u1', 'shape': (1,)".ljust(117) + b"\n"
    with ZipFile(path, "w") as archive:
        archive.writestr("labels.npy", b"\x93NUMPY\x01\x00\x76\x00" + header)
    with refusal(IntegrityError, path):
        load_heads(path)


def test_each_copy_of_the_heads_shows_what_is_named_for_it() -> None:
    numbers = [0, 2, 3, 12, 13, 24, 507]
    line = [507, 24, 3, 3, 2, 13, 12, 12, 2, 3, 3, 0]
    labels = np.array([numbers.index(n) for n in line], np.uint8).reshape(1, -1, 1, 1)
    maps = HeadMaps(
        labels, np.array(numbers), np.zeros(7, np.int64), *[np.ones((2, 1))] * 2
    )
    copies = with_variants(maps, [["thin-cortex"], ["thin-cortex", "large-pallidum"]])
    same, thin, both = np.array(numbers)[copies.labels[..., 0, 0]]
    assert same.tolist() == line
    assert thin.tolist() == [507, 24, 24, 3, 2, 13, 12, 12, 2, 3, 24, 0]
    assert both.tolist() == [507, 24, 24, 3, 13, 13, 13, 12, 2, 3, 24, 0]


def test_white_matter_takes_a_millimetre_of_a_small_caudate() -> None:
    numbers = [2, 4, 11, 26]
    labels = np.array([0, 2, 2, 1, 2, 2, 3, 3, 0], np.uint8).reshape(1, -1, 1, 1)
    maps = HeadMaps(
        labels, np.array(numbers), np.zeros(4, np.int64), *[np.ones((2, 1))] * 2
    )
    copies = with_variants(
        maps, [["small-caudate"], ["small-caudate", "small-accumbens"]]
    )
    _, caudate, both = copies.labels[..., 0, 0]
    assert np.array(numbers)[caudate].tolist() == [2, 2, 11, 4, 11, 11, 26, 26, 2]
    assert np.array(numbers)[both].tolist() == [2, 2, 11, 4, 11, 11, 26, 2, 2]
