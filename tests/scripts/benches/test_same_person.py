"""Scans of one person in several contrasts: a whole measurement."""

from __future__ import annotations

from pathlib import Path

import pytest
from benches.same_person import run
from helpers.overfitted import miniature, overfitted_model


@pytest.mark.slow
def test_each_scan_is_compared_with_what_the_reference_finds_in_t1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = miniature("RAS")[0]
    (tmp_path / "somebody").mkdir()
    (tmp_path / "nobody").mkdir()
    for name in ("T1", "T2"):
        image.write(tmp_path / f"somebody/{name}.nii.gz")
    model = str(overfitted_model())
    run(model, str(tmp_path), model)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [
        ["somebody", "t1"],
        ["somebody", "t2"],
        ["somebody", "t2,"],
    ]
    # The same scan by the same model agrees with itself; of one person the means are its own.
    found = [line.split()[-2] for line in lines[:3]]
    assert found[:2] == ["1.000", "1.000"]
    assert float(found[2]) < 1
    assert [line.split()[-1] for line in lines[3:]] == found
