"""Files broken at random: none is read as good, crashes, hangs or fills the memory."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.refusals import refusal
from oracle import fuzz
from oracle.fuzz import fuzz_cuts, fuzz_flips, fuzz_headers, odd_scan

from trinat.segmentation.errors import IntegrityError
from trinat.segmentation.io.volume import Volume


def test_flipped_bits_are_never_read_as_good(tmp_path: Path) -> None:
    tally = fuzz_flips(150, 2, tmp_path)
    assert (tally.refused, tally.right, tally.missed) == (150, 0, [])


def test_truncated_files_are_never_read_as_good(tmp_path: Path) -> None:
    tally = fuzz_cuts(80, 2, tmp_path)
    assert (tally.refused, tally.right, tally.missed) == (80, 0, [])


def test_changed_headers_are_refused_or_read_for_what_they_say(tmp_path: Path) -> None:
    tally = fuzz_headers(1000, 2, tmp_path)
    assert tally.missed == []
    # A reader that refuses everything, or nothing, must not pass.
    assert tally.refused > 500
    assert tally.right > 200


def test_every_kind_of_scan_that_is_broken_was_sound_before(tmp_path: Path) -> None:
    for scan in fuzz.scans():
        path = tmp_path / f"scan{scan.suffix}"
        packed = scan.suffix.endswith("gz")
        path.write_bytes(gzip.compress(scan.content) if packed else scan.content)
        path.with_suffix(".img").write_bytes(scan.pair)
        volume = Volume.read(path, axes=scan.axes)
        careful = scan.careful(scan.content)
        np.testing.assert_allclose(volume.affine, careful.affine, atol=1e-5)
        np.testing.assert_allclose(volume.data, careful.values, atol=1e-5)


def test_a_bit_flipped_in_the_gzip_header_is_refused_or_changes_nothing(
    tmp_path: Path,
) -> None:
    # Time, level and system in the gzip header have no checksum, and no effect on the content.
    content = gzip.compress(odd_scan().to_bytes(), mtime=0)
    read = 0
    for byte in range(10):
        for bit in range(8):
            broken = bytearray(content)
            broken[byte] ^= 1 << bit
            (tmp_path / "scan.nii.gz").write_bytes(broken)
            try:
                volume = Volume.read(tmp_path / "scan.nii.gz")
            except IntegrityError:
                continue
            np.testing.assert_array_equal(volume.data, np.asarray(odd_scan().dataobj))
            assert 3 <= byte <= 9
            read += 1
    # The bit "probably text" of byte 3, and the six bytes after it.
    assert read == 49


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory hold on Linux")
def test_a_bomb_of_one_megabyte_allocates_next_to_nothing(tmp_path: Path) -> None:
    # Zeros behind a header that announces them correctly: 1000³ bytes in 1 MB.
    header = odd_scan(dtype="u1").to_bytes()[:352]
    for axis in (1, 2, 3):
        header = fuzz.NIFTI1.put(header, "dim", axis, 1000)
    zeros = gzip.compress(bytes(10**8))
    (tmp_path / "bomb.nii.gz").write_bytes(gzip.compress(header) + 10 * zeros)
    assert (tmp_path / "bomb.nii.gz").stat().st_size < 1.2e6
    probe = (
        "import resource, sys\n"
        "from trinat.segmentation.errors import InputError\n"
        "from trinat.segmentation.io.volume import Volume\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: Volume.read(sys.argv[1], labels=True)\n"
        "except InputError as error: print(error.what)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(tmp_path / "bomb.nii.gz")],
        capture_output=True,
        text=True,
        check=True,
    )
    problem, grown_mib = done.stdout.splitlines()
    assert "times its size, which no scan does" in problem
    assert int(grown_mib) < 32


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in KiB on Linux")
def test_a_bomb_behind_the_voxels_is_not_unpacked(tmp_path: Path) -> None:
    content = gzip.compress(odd_scan().to_bytes()) + gzip.compress(bytes(2**26))
    (tmp_path / "scan.nii.gz").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refusal(IntegrityError, tmp_path / "scan.nii.gz"):
        Volume.read(tmp_path / "scan.nii.gz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


class TestTheFuzzerItself:
    """The fuzzer must be able to find a fault, or its success proves nothing."""

    def test_a_damaged_file_that_is_read_is_a_miss(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A reader that stops at the last voxel never reads the checksum.
        monkeypatch.setattr(
            "trinat.segmentation.io.streams.ScanStream.drain", lambda *_, **__: None
        )
        assert fuzz_flips(50, 2, tmp_path).missed
        assert fuzz_cuts(16, 2, tmp_path).missed

    @pytest.mark.parametrize("what", ["shape", "affine", "voxels"])
    def test_another_geometry_or_other_voxels_are_misses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        sound = Volume.read

        def wrong(*args: object, **kwargs: object) -> Volume:
            volume = sound(*args, **kwargs)  # type: ignore[arg-type]
            affine = volume.affine.copy()
            affine[0, 3] += 1e-3 if what == "affine" else 0
            data = volume.data[:, ::-1] if what == "voxels" else volume.data
            return Volume(data[1:] if what == "shape" else data, affine)

        monkeypatch.setattr(Volume, "read", wrong)
        missed = fuzz_headers(20, 2, tmp_path).missed
        assert missed
        assert all(what in miss for miss in missed)
