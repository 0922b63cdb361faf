"""Free memory is the rest below the tightest limit, and scans that need more are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import psutil
import pytest

from trinat.segmentation.errors import FormatError
from trinat.segmentation.io import limits
from trinat.segmentation.io.limits import free_memory
from trinat.segmentation.io.volume import Volume

MACHINE = psutil.virtual_memory().total


def group(
    folder: Path, names: tuple[str, str, str], most: str, used: int, cache: int
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit, use, given_back = names
    (folder / limit).write_text(f"{most}\n")
    (folder / use).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{given_back} {cache}\n")


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/job/step\n")
    group(tmp_path / "fs/job/step", V2, "max", 700, 0)
    group(tmp_path / "fs/job", V2, "1000", 700, 100)
    assert free_memory(own, tmp_path / "fs") == 400
    group(tmp_path / "fs/job/step", V2, "900", 700, 50)
    assert free_memory(own, tmp_path / "fs") == 250
    group(tmp_path / "fs/job", V2, "600", 700, 0)
    assert free_memory(own, tmp_path / "fs") == 0


def test_groups_of_the_first_version_count_and_in_a_container_the_visible_one(
    tmp_path: Path,
) -> None:
    own = tmp_path / "cgroup"
    own.write_text("3:cpuset:/\n2:memory:/docker/abc\n0::/\n")
    group(tmp_path / "fs/memory", V1, "5000", 3000, 1000)
    assert free_memory(own, tmp_path / "fs") == 3000


def test_without_groups_the_machine_counts(tmp_path: Path) -> None:
    assert 0 < free_memory(tmp_path / "none", tmp_path) <= MACHINE
    assert 0 < free_memory() <= MACHINE


def test_a_scan_that_needs_more_than_there_is_is_refused_before_its_voxels_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.nii.gz"
    # Zeros would be taken for a bomb; the header alone announces them.
    image = nib.Nifti1Image(np.zeros((16, 16, 16), np.uint8), np.eye(4))
    image.header["dim"][1:4] = 1000
    image.header["vox_offset"] = 352
    image.header["magic"] = b"n+1"
    rest = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8).tobytes()
    path.write_bytes(gzip.compress(image.header.binaryblock + bytes(4) + rest, 1))
    monkeypatch.setattr(limits, "free_memory", lambda: 8 * 2**30)
    # 1000³ voxels of 1 byte, 14 bytes of work and 50/64 of a cell each: 15.78 GB.
    with pytest.raises(FormatError) as told:
        Volume.read(path)
    assert str(told.value) == (
        f"{path}: 1000 x 1000 x 1000 voxels take 14.7 GiB of memory to prepare, and 8.0 are free: "
        "resample it to a coarser grid, or use a larger machine"
    )


def test_a_usual_scan_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usual.nii.gz"
    data = np.zeros((32, 32, 32), np.int16)
    data[8:24, 8:24, 8:24] = 100
    nib.save(nib.Nifti1Image(data, np.eye(4)), path)
    monkeypatch.setattr(limits, "free_memory", lambda: pytest.fail("asked"))
    assert Volume.read(path).shape == (32, 32, 32)
