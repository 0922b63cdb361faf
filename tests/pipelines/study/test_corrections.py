"""Corrections of results: their names and metadata, and that none is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.refusals import refusal

from trinat.pipelines.study.corrections import (
    OvertakenError,
    Saving,
    corrected_path,
    correction_of,
    is_correction,
    mask_path,
    possible_results,
    save_correction,
    sidecar_path,
)
from trinat.pipelines.study.discovery import is_result
from trinat.segmentation.errors import GeometryError, IntegrityError, OutputError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.views import reoriented

# Oblique, anisotropic, axes in no usual order.
COS, SIN = np.cos(0.1), np.sin(0.1)
AFFINE = np.array(
    [
        [0, -1.2, 0, 5],
        [-0.9 * SIN, 0, 1.5 * COS, -3],
        [-0.9 * COS, 0, -1.5 * SIN, 7],
        [0, 0, 0, 1],
    ]
)
NAMES = {10: "Left-Thalamus", 49: "Right-Thalamus"}
ANNA = Saving(by="anna", at="2026-01-01T00:00:00+00:00", minutes=2)
BERTA = Saving(by="berta", at="2026-01-02T00:00:00+00:00", minutes=1.5)


def write_result(path: Path) -> Path:
    """Write a label map with two thalami of eight voxels each."""
    labels = np.zeros((16, 17, 18), np.uint8)
    labels[1:3, 1:3, 1:3] = 10
    labels[3:5, 1:3, 1:3] = 49
    Volume(labels, AFFINE).write(path, labels=True)
    return path


def painted(path: Path, *places: tuple[int, int, int], number: int = 49) -> Volume:
    """Return the label map of a file with some voxels changed to another number."""
    volume = Volume.read(path, labels=True)
    data = volume.data.copy()
    for place in places:
        data[place] = number
    return Volume(data, volume.affine)


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return write_result(tmp_path / "a_dseg.nii.gz")


def save(result: Path, corrected: Volume, saving: Saving, builds_on: Path) -> None:
    save_correction(
        result,
        corrected,
        saving,
        builds_on=sha256_of(builds_on),
        names=NAMES,
        lock=result.parent / "lock",
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a_dseg.nii.gz", "a_desc-corrected_dseg.nii.gz"),
        ("a_dseg.mgz", "a_desc-corrected_dseg.mgz"),
        ("a.nii", "a_desc-corrected_dseg.nii"),
        ("a.hdr", "a_desc-corrected_dseg.nii.gz"),
        (
            "sub-1_space-orig_desc-trinat_dseg.nii.gz",
            "sub-1_space-orig_desc-corrected_dseg.nii.gz",
        ),
    ],
)
def test_a_correction_is_called_after_its_result_and_finds_it(
    tmp_path: Path, name: str, expected: str
) -> None:
    result = tmp_path / name
    result.touch()
    assert corrected_path(result) == tmp_path / expected
    assert is_correction(tmp_path / expected)
    assert not is_correction(result)
    assert result in possible_results(tmp_path / expected)


@pytest.mark.parametrize(
    ("name", "corrected", "changed"),
    [
        ("a_lesions", "a_desc-corrected_lesions", "a_desc-changed_lesions"),
        (
            "sub-1_space-orig_label-lesion_mask",
            "sub-1_space-orig_label-lesion_desc-corrected_mask",
            "sub-1_space-orig_label-lesion_desc-changed_mask",
        ),
    ],
)
def test_a_correction_of_lesions_has_names_of_its_own(
    tmp_path: Path, name: str, corrected: str, changed: str
) -> None:
    mask = tmp_path / f"{name}.nii.gz"
    assert corrected_path(mask) == tmp_path / f"{corrected}.nii.gz"
    assert mask_path(mask) == tmp_path / f"{changed}.nii.gz"
    assert sidecar_path(mask) == tmp_path / f"{corrected}.json"
    # It is no label map, and no scan to segment.
    assert not is_correction(corrected_path(mask))
    assert mask in possible_results(corrected_path(mask))
    assert is_result(corrected_path(mask))
    assert is_result(mask_path(mask))


def test_lesions_may_all_be_erased_and_structures_may_not(tmp_path: Path) -> None:
    for name, why in (
        ("a_lesions.nii.gz", ""),
        ("a_dseg.nii.gz", "without any label"),
    ):
        result = write_result(tmp_path / name)
        empty = Volume(np.zeros((16, 17, 18), np.uint8), AFFINE)
        save(result, empty, ANNA, result)
        found = correction_of(result)
        assert found
        assert why in found.why_unfit("")
        assert bool(found.why_unfit("")) is bool(why)


def test_a_correction_is_saved_beside_its_result_with_what_was_changed(
    result: Path,
) -> None:
    before = sha256_of(result)
    # One voxel of the left thalamus and one of background become right thalamus.
    corrected = painted(result, (2, 1, 1), (5, 1, 1))
    save(result, corrected, ANNA, result)

    assert sha256_of(result) == before
    found = correction_of(result)
    assert found
    assert found.path == corrected_path(result)
    np.testing.assert_array_equal(found.read().data, corrected.data)
    np.testing.assert_array_equal(found.read().affine, Volume.read(result).affine)
    assert [tuple(voxel) for voxel in np.argwhere(found.changed())] == [
        (2, 1, 1),
        (5, 1, 1),
    ]
    assert json.loads(sidecar_path(result).read_text()) == {
        "SHA256": sha256_of(found.path),
        "MaskSHA256": sha256_of(mask_path(result)),
        "ResultSHA256": before,
        "ScanSHA256": "",
        "ChangedVoxels": 2,
        "Structures": {"Left-Thalamus": 1, "Right-Thalamus": 2},
        "Sessions": [{"By": "anna", "At": ANNA.at, "Minutes": 2.0}],
    }
    assert not list(result.parent.glob(".trinat-*"))


def test_the_second_who_builds_on_the_same_map_is_refused(result: Path) -> None:
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    there = {path: path.read_bytes() for path in result.parent.iterdir()}
    with pytest.raises(OvertakenError, match=r"by anna at 2026-01-01") as refused:
        save(result, painted(result, (0, 0, 1)), BERTA, result)
    assert "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in result.parent.iterdir()} == there


def test_a_correction_that_builds_on_the_last_adds_its_saving(result: Path) -> None:
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    path = corrected_path(result)
    save(result, painted(path, (0, 0, 1)), BERTA, path)
    found = correction_of(result)
    assert found
    assert found.sidecar
    assert found.sidecar.savings == (ANNA, BERTA)
    assert found.sidecar.minutes == 3.5
    assert found.sidecar.changed_voxels == 2


def test_a_voxel_that_is_put_back_is_not_changed(result: Path) -> None:
    save(result, painted(result, (0, 0, 0), (0, 0, 1)), ANNA, result)
    path = corrected_path(result)
    save(result, painted(path, (0, 0, 0), number=0), ANNA, path)
    found = correction_of(result)
    assert found
    assert [tuple(voxel) for voxel in np.argwhere(found.changed())] == [(0, 0, 1)]


def test_what_was_changed_stays_known_when_the_result_is_replaced(result: Path) -> None:
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    first = sha256_of(result)
    # Another model finds other voxels.
    painted(result, (5, 6, 7), (5, 6, 6)).write(result, labels=True)
    path = corrected_path(result)
    save(result, painted(path, (0, 0, 1)), BERTA, path)
    found = correction_of(result)
    assert found
    assert found.sidecar
    assert found.sidecar.result_sha256 == first
    changed = [tuple(voxel) for voxel in np.argwhere(found.changed())]
    assert changed == [(0, 0, 0), (0, 0, 1)]


def test_what_another_program_changed_is_known_when_the_result_is_replaced(
    result: Path,
) -> None:
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    path = corrected_path(result)
    painted(path, (0, 0, 1)).write(path, labels=True)
    again = Volume.read(result, labels=True)
    again.data[7, 7, 7] = 49
    again.write(result, labels=True)
    save(result, painted(path, (0, 0, 2)), BERTA, path)
    found = correction_of(result)
    assert found
    changed = {tuple(voxel) for voxel in np.argwhere(found.changed())}
    assert changed >= {(0, 0, 0), (0, 0, 1), (0, 0, 2)}


def test_a_saving_that_was_cut_short_comes_again(result: Path) -> None:
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    path = corrected_path(result)
    builds_on = sha256_of(path)
    second = painted(path, (0, 0, 1))
    # As if killed after the map was in place, before its JSON.
    second.write(path, labels=True)
    found = correction_of(result)
    assert found
    assert found.sidecar is None
    save_correction(
        result,
        second,
        BERTA,
        builds_on=builds_on,
        names=NAMES,
        lock=result.parent / "lock",
    )
    found = correction_of(result)
    assert found
    assert found.sidecar
    assert found.sidecar.savings == (ANNA, BERTA)


def test_a_saving_that_was_killed_between_mask_and_map_trains_nothing_wrong(
    result: Path,
) -> None:
    """The new mask is in its place, with the old map and JSON."""
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    path, mask, sidecar = (
        kind(result) for kind in (corrected_path, mask_path, sidecar_path)
    )
    old = {file: file.read_bytes() for file in (path, sidecar)}
    save(result, painted(path, (0, 0, 1)), BERTA, path)
    new_mask = mask.read_bytes()
    for file, content in old.items():
        file.write_bytes(content)
    found = correction_of(result)
    assert found
    # The mask also has (0, 0, 1), whose label is still that of the result.
    assert not found.is_whole
    assert np.argwhere(found.changed()).tolist() == [[0, 0, 0]]
    mask.write_bytes(b"")
    assert np.argwhere(found.changed()).tolist() == [[0, 0, 0]]
    mask.write_bytes(new_mask)
    # The same correction is saved again, and the temporary file of the killed process is gone.
    left = result.parent / ".trinat-correction-0.tmp"
    left.mkdir()
    save(result, painted(path, (0, 0, 1)), BERTA, path)
    found = correction_of(result)
    assert found
    assert found.sidecar
    assert found.sidecar.savings == (ANNA, BERTA)
    assert np.argwhere(found.changed()).tolist() == [[0, 0, 0], [0, 0, 1]]
    assert not left.exists()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_a_saving_that_was_killed_counts_whole_or_not_at_all(
    result: Path, monkeypatch: pytest.MonkeyPatch, moved: int, is_first: bool
) -> None:
    """Mask, map and JSON are moved one after the other; `moved` of them before the end."""
    shown = result
    if not is_first:
        save(result, painted(result, (0, 0, 0)), ANNA, result)
        shown = corrected_path(result)
    before = Volume.read(shown, labels=True).data
    corrected = painted(shown, (0, 0, 1))
    moves = 0
    replace = Path.replace

    def killed(path: Path, target: Path) -> Path:
        nonlocal moves
        if not path.parent.name.startswith(".trinat-correction-"):
            return replace(path, target)
        if "_desc-corrected_" in target.name and target.parent == result.parent:
            if moves == moved:
                raise KeyboardInterrupt
            moves += 1
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        if moved < 3:
            with pytest.raises(KeyboardInterrupt):
                save(result, corrected, BERTA, shown)
        else:
            save(result, corrected, BERTA, shown)
    found = correction_of(result)
    if found is None:
        assert is_first
        assert moved < 2
        return
    if moved in (1, 2):
        assert mask_path(result).name in found.why_unfit("")
    else:
        assert not found.why_unfit("")
        assert found.sidecar
        expected = before if moved == 0 else corrected.data
        np.testing.assert_array_equal(found.read().data, expected)
        original = Volume.read(result, labels=True).data
        np.testing.assert_array_equal(found.changed(), expected != original)


def test_a_label_map_from_elsewhere_is_a_correction_by_its_name(result: Path) -> None:
    corrected = painted(result, (0, 0, 0))
    turned = reoriented(corrected, "RAS")
    turned.write(corrected_path(result), labels=True)
    found = correction_of(result)
    assert found
    assert found.sidecar is None
    np.testing.assert_array_equal(found.read().data, corrected.data)
    assert [tuple(voxel) for voxel in np.argwhere(found.changed())] == [(0, 0, 0)]


def test_another_grid_is_refused(result: Path) -> None:
    other = Volume(np.zeros((16, 17, 19), np.uint8), AFFINE)
    with pytest.raises(GeometryError, match="another grid"):
        save(result, other, ANNA, result)
    assert correction_of(result) is None


@pytest.mark.parametrize(
    "content", [b"{}", b"", b'{"a": "J\xfcrgen"}'], ids=["keys", "empty", "not UTF-8"]
)
def test_a_correction_with_an_unreadable_sidecar_is_unfit_and_not_replaced(
    result: Path, content: bytes
) -> None:
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    sidecar = sidecar_path(result)
    sidecar.write_bytes(content)
    found = correction_of(result)
    assert found is not None
    assert sidecar.name in found.why_unfit("")
    with refusal(IntegrityError, sidecar):
        save(result, painted(result, (1, 1, 1)), BERTA, found.path)


def test_a_sidecar_without_a_saving_is_unreadable(result: Path) -> None:
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    sidecar = sidecar_path(result)
    said = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**said, "Sessions": []}))
    found = correction_of(result)
    assert found is not None
    assert found.fault


def test_a_full_disk_leaves_the_correction_before(
    result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    path = corrected_path(result)
    there = {path: path.read_bytes() for path in result.parent.iterdir()}

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device", None)

    monkeypatch.setattr("trinat.pipelines.study.corrections.write_whole", no_room)
    with refusal(OutputError, path) as refused:
        save(result, painted(path, (0, 0, 1)), BERTA, path)
    assert refused.value.where == str(path)
    assert {path: path.read_bytes() for path in result.parent.iterdir()} == there


def test_in_bids_it_says_what_the_result_says_of_its_origin(tmp_path: Path) -> None:
    result = write_result(tmp_path / "sub-1_space-orig_desc-trinat_dseg.nii.gz")
    origin = {"SpatialReference": "bids:raw:a", "Sources": ["bids:raw:a"]}
    beside = tmp_path / "sub-1_space-orig_desc-trinat_dseg.json"
    beside.write_text(json.dumps({**origin, "Model": "fast"}))
    save(result, painted(result, (0, 0, 0)), ANNA, result)
    said = json.loads(sidecar_path(result).read_text())
    assert {key: said[key] for key in origin} == origin
    assert mask_path(result).name == "sub-1_space-orig_desc-corrected_mask.nii.gz"
