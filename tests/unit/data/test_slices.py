"""One subject's slices: what is read equals what was stored, in the same view."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.refusals import refusal
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trinat.segmentation.data.slices import SubjectFile, quantise, write_subject
from trinat.segmentation.errors import DatasetError, IntegrityError
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.views import View, from_slices

QUICKNAT = load_scheme("quicknat33")
SHAPE = (10, 12, 14)
LEFT_HIPPOCAMPUS = QUICKNAT.names.index("Left-Hippocampus")
RIGHT_HIPPOCAMPUS = QUICKNAT.names.index("Right-Hippocampus")


def labels() -> np.ndarray:
    """Return random classes with one voxel of the left hippocampus at i = 2, in the left half."""
    found = np.random.default_rng(0).integers(1, 33, SHAPE).astype(np.uint8)
    found[np.isin(found, (LEFT_HIPPOCAMPUS, RIGHT_HIPPOCAMPUS))] = 0
    found[2, 5, 7] = LEFT_HIPPOCAMPUS
    return found


def image() -> np.ndarray:
    return np.random.default_rng(1).random(SHAPE).astype(np.float32) * 1.7


def write(
    path: Path, *, views: tuple[View, ...] = tuple(View), **changes: object
) -> SubjectFile:
    arguments: dict = {
        "image": quantise(image()),
        "labels": labels(),
        "affine": np.diag([1.0, 1, 1, 1]),
        "scheme": QUICKNAT,
        "views": views,
        "fingerprint": "f",
    }
    write_subject(path, **(arguments | changes))
    return SubjectFile(path)


@pytest.mark.parametrize("view", list(View))
def test_slices_put_together_again_are_the_volume(tmp_path: Path, view: View) -> None:
    file = write(tmp_path / "s.h5")
    n = file.slice_count(view)
    expected = labels()
    if view is View.SAGITTAL:
        expected = QUICKNAT.merged.to_merged[expected]
    np.testing.assert_array_equal(from_slices(file.labels(view, 0, n), view), expected)
    stored = from_slices(file.image(view, 0, n), view)
    assert np.abs(stored - image()).max() <= 1.7 / 4095 / 2 * 1.001


def test_the_left_lies_on_the_left_in_every_view(tmp_path: Path) -> None:
    file = write(tmp_path / "s.h5")
    # Columns increase to the right: the marker at i = 2 is in column 2; rows increase upwards.
    assert file.labels(View.CORONAL, 5, 6)[0, 7, 2] == LEFT_HIPPOCAMPUS
    assert file.labels(View.AXIAL, 7, 8)[0, 5, 2] == LEFT_HIPPOCAMPUS
    merged = QUICKNAT.merged.scheme.names.index("Hippocampus")
    assert file.labels(View.SAGITTAL, 2, 3)[0, 7, 5] == merged


@pytest.mark.parametrize("view", list(View))
def test_voxels_are_counted_per_slice_and_class(tmp_path: Path, view: View) -> None:
    file = write(tmp_path / "s.h5")
    counts = file.class_counts(view)
    for number in (0, 3, file.slice_count(view) - 1):
        stored = file.labels(view, number, number + 1)
        expected = np.bincount(stored.ravel(), minlength=counts.shape[1])
        np.testing.assert_array_equal(counts[number], expected)


def test_a_map_of_background_alone_is_counted_too(tmp_path: Path) -> None:
    file = write(tmp_path / "s.h5", labels=np.zeros(SHAPE, np.uint8))
    counts = file.class_counts(View.CORONAL)
    assert counts[:, 0].tolist() == [140] * 12
    assert counts[:, 1:].sum() == 0


@given(arrays(np.float32, (3, 4, 5), elements=st.floats(-2, 50, width=32)))
def test_codes_keep_values_to_half_a_step_and_zero_exactly(values: np.ndarray) -> None:
    codes = quantise(values)
    step = (max(float(values.max()), 0) - min(float(values.min()), 0)) / 4095
    back = codes.values()
    # A value that is not 0 may be off by half a step; 0 itself never changes.
    assert (back[values == 0] == 0).all()
    np.testing.assert_allclose(back, values, atol=1.001 * step + 1e-6)


def test_an_image_of_all_but_zero_values_is_flat() -> None:
    assert not quantise(np.full((2, 3, 4), 1e-45, np.float32)).codes.any()


def test_codes_survive_being_read_and_stored_again() -> None:
    codes = quantise(image())
    again = quantise(codes.values())
    np.testing.assert_array_equal(again.codes, codes.codes)


def test_the_same_subject_gives_the_same_bytes_at_any_time(tmp_path: Path) -> None:
    write(tmp_path / "a.h5")
    time.sleep(1.1)  # HDF5 stores times in whole seconds
    write(tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_slices_are_stored_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "s.h5")
    with h5py.File(tmp_path / "s.h5") as file:
        for view, chunk in (
            ("coronal", (1, 14, 10)),
            ("axial", (1, 12, 10)),
            ("sagittal", (1, 14, 12)),
        ):
            assert file[view]["image"].chunks == chunk
            assert file[view]["image"].compression == "gzip"
            assert file[view]["labels"].compression == "gzip"


def test_views_that_were_not_asked_for_are_not_there(tmp_path: Path) -> None:
    file = write(tmp_path / "s.h5", views=(View.AXIAL,))
    assert [view for view in View if file.has(view, "image")] == [View.AXIAL]
    with refusal(DatasetError, tmp_path / "s.h5"):
        file.image(View.CORONAL, 0, 1)


def test_images_alone_and_labels_alone_can_be_stored(tmp_path: Path) -> None:
    file = write(tmp_path / "i.h5", labels=None)
    assert file.has(View.AXIAL, "image")
    assert not file.has(View.AXIAL, "labels")
    file = write(tmp_path / "l.h5", image=None)
    assert not file.has(View.AXIAL, "image")
    assert file.class_counts(View.AXIAL).sum() == 1680


def test_a_class_beyond_the_scheme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="class 33 in a map of 33 classes"):
        write(tmp_path / "s.h5", labels=np.full(SHAPE, 33, np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_sagittal_slices_of_a_one_sided_scheme_are_refused(tmp_path: Path) -> None:
    left4: LabelScheme = load_scheme("left4")
    with pytest.raises(Exception, match="one side only"):
        write(tmp_path / "s.h5", scheme=left4, labels=np.zeros(SHAPE, np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_slice_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "s.h5").write_bytes(b"nonsense")
    with refusal(IntegrityError, tmp_path / "s.h5"):
        SubjectFile(tmp_path / "s.h5").fingerprint  # noqa: B018
    with h5py.File(tmp_path / "o.h5", "w") as file:
        file.attrs["format"] = 0
    other = SubjectFile(tmp_path / "o.h5")
    # At every use, not only at the first one.
    for _ in range(2):
        with pytest.raises(DatasetError, match="slice format 0"):
            other.fingerprint  # noqa: B018


def test_an_open_file_travels_closed_and_opens_again(tmp_path: Path) -> None:
    file = write(tmp_path / "s.h5")
    expected = file.image(View.AXIAL, 3, 4)
    copy = pickle.loads(pickle.dumps(file))
    np.testing.assert_array_equal(copy.image(View.AXIAL, 3, 4), expected)


def test_a_forked_process_opens_the_file_for_itself(tmp_path: Path) -> None:
    file = write(tmp_path / "s.h5")
    file.image(View.AXIAL, 0, 1)
    inherited = file._file
    file._pid = os.getppid()  # as it would look after a fork
    file.image(View.AXIAL, 0, 1)
    assert file._file is not inherited


def test_labels_that_do_not_count_are_kept_and_stand_in_no_count(
    tmp_path: Path,
) -> None:
    counted = np.zeros(SHAPE, bool)
    counted[2, 5, 6:8] = True
    whole = labels()
    whole[2, 5, 6] = 0
    file = write(tmp_path / "s.h5", labels=whole, counted=counted)
    np.testing.assert_array_equal(
        from_slices(file.labels(View.AXIAL, 0, SHAPE[2]), View.AXIAL), whole
    )
    # Axial slice 7 has the counted voxel of the hippocampus, and slice 6 one of background.
    counts = file.class_counts(View.AXIAL)
    assert counts.sum() == 2
    assert counts[7, LEFT_HIPPOCAMPUS] == counts[6, 0] == 1
    found = file.counted(View.AXIAL, 6, 8)
    assert found is not None
    assert np.argwhere(found).tolist() == [[0, 5, 2], [1, 5, 2]]
    assert write(tmp_path / "all.h5").counted(View.AXIAL, 7, 8) is None
