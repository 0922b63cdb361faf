"""Second scans with faults: what is done to them, and how verdicts are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benches.second_scans import CHANGES, ONE_AXIS, run

from trinat.segmentation.io.volume import Volume


def test_faults_are_of_the_header_or_of_the_sides() -> None:
    data = np.arange(24).reshape(2, 3, 4)
    scan = Volume(data, np.diag([1.0, 1.0, 2.0, 1.0]))
    assert CHANGES["true"](scan) is scan
    np.testing.assert_array_equal(CHANGES["mirrored"](scan).data[0], data[1])
    sizes = {
        name: changed(scan).spacing_mm
        for name, changed in {**CHANGES, **ONE_AXIS}.items()
    }
    assert sizes["2 % larger"] == pytest.approx((1.02, 1.02, 2.04))
    assert sizes["5 % wider"] == pytest.approx((1.05, 1, 2))
    assert sizes["5 % higher"] == pytest.approx((1, 1, 2.1))


def test_verdicts_are_counted_by_change(tmp_path: Path, capsys) -> None:
    rows = ["scan\tchange\tverdict\tlarger_percent"]
    rows += ["a\ttrue\taccepted\t0.0", "b\ttrue\taccepted\t0.0"]
    rows += ["a\t2 % larger\tanother size\t1.94", "b\t2 % larger\taccepted\t0.0"]
    figures = tmp_path / "figures.tsv"
    figures.write_text("\n".join(rows) + "\n")
    run("table", str(figures))
    assert capsys.readouterr().out.splitlines() == [
        "true: 2 accepted",
        "2 % larger: 1 another size, 1 accepted",
        "    1.94 to 1.94 % larger",
    ]
