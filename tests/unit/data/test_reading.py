"""Slices read by threads: the same as HDF5 itself reads, and damage is reported."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.small_store import damage, small_store

from trinat.segmentation.data.dataset import SlabLocation, SubjectFiles
from trinat.segmentation.data.slices import SubjectFile
from trinat.segmentation.errors import IntegrityError
from trinat.segmentation.space.views import View

SHAPES = {"a": (16, 18, 20), "b": (17, 15, 13)}
PLACES = [
    SlabLocation(file, view, middle, 3)
    for file, view, middle in (
        (0, View.AXIAL, 0),
        (1, View.CORONAL, 7),
        (1, View.AXIAL, 12),
        (0, View.CORONAL, 17),
        (0, View.AXIAL, 9),
    )
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("reading") / "store", SHAPES)


def files_of(store: Path) -> SubjectFiles:
    return SubjectFiles([SubjectFile(store / f"subjects/{name}.h5") for name in SHAPES])


def test_many_threads_share_few_open_files(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinat.segmentation.data.dataset._OPEN_FILES", 1)
    with ThreadPoolExecutor(8) as readers:
        found = list(readers.map(files_of(store).read, 40 * PLACES))
    expected = [files_of(store).read(place) for place in PLACES]
    for n, one in enumerate(found):
        assert np.array_equal(one.image.codes, expected[n % len(PLACES)].image.codes)
        assert np.array_equal(one.labels, expected[n % len(PLACES)].labels)


@pytest.mark.parametrize("name", ["image", "labels"])
def test_slices_are_what_hdf5_itself_reads(store: Path, name: str) -> None:
    mine = SubjectFile(store / "subjects/a.h5")
    with h5py.File(mine.path, "r") as file:
        expected = file[f"axial/{name}"][3:7]
    found = (
        mine.codes(View.AXIAL, 3, 7).codes
        if name == "image"
        else mine.labels(View.AXIAL, 3, 7)
    )
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("left_out", [1, 2, 3])  # bits: shuffling, packing
def test_filters_that_hdf5_left_out_are_not_undone(
    store: Path, tmp_path: Path, left_out: int
) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes((store / "subjects/a.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        image = file["axial/image"]
        content = np.arange(np.prod(image.shape[1:]), dtype=np.uint16).tobytes()
        content = content if left_out & 2 else zlib.compress(content)
        image.id.write_direct_chunk((0, 0, 0), content, left_out)
    with h5py.File(path, "r") as file:
        expected = file["axial/image"][0]
    assert np.array_equal(SubjectFile(path).codes(View.AXIAL, 0, 1).codes[0], expected)


def test_a_damaged_slice_is_named_and_the_others_still_read(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", SHAPES)
    damage(store / "subjects/b.h5", View.AXIAL, "image", 4)
    files = files_of(store)
    with pytest.raises(
        IntegrityError, match=r"b\.h5: damaged: axial image of slices 4 to 4"
    ):
        files.read(SlabLocation(1, View.AXIAL, 4, 1))
    assert files.read(SlabLocation(1, View.AXIAL, 5, 1)).labels.shape == (15, 17)
