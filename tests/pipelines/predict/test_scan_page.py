"""`trinat predict --page`: a page beside each label map; which normal ranges it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.overfitted import random_model
from helpers.serial import run_serially, write_scans
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.predict.ledger import read_entries
from trinat.pipelines.predict.settings import OutputSettings
from trinat.segmentation.errors import ConfigError


def test_a_page_is_written_beside_each_label_map(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    output = OutputSettings(
        page=True, picture=False, reference=(("Left-Hippocampus", 3000.0, 4000.0),)
    )
    run_serially(scans, tmp_path / "out", output=output)
    entry = read_entries([tmp_path / "out/run.jsonl"])["a"]
    assert "a_page.html" in entry.outputs
    page = (tmp_path / "out/a_page.html").read_text()
    volume_mm3 = entry.result["volumes_mm3"]["Left-Hippocampus"]
    assert f"{volume_mm3:,.0f}" in page
    assert "3,000–4,000" in page
    assert entry.input_sha256 in page
    assert f"<dt>date</dt><dd>{entry.finished[:10]}</dd>" in page


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("structure\tlow_mm3\thigh_mm3\n17\t1\t2\n", [], "give --page too"),
        (
            "structure\tlow_mm3\thigh_mm3\tsex\n17\t1\t2\tF\n",
            ["--page"],
            "ref.tsv: every range is for one sex or some ages",
        ),
        (
            "structure\tlow_mm3\thigh_mm3\nHippo\t1\t2\n",
            ["--page"],
            "ref.tsv: line 2: quicknat33 has no 'Hippo'",
        ),
    ],
)
def test_a_reference_that_no_page_can_show_is_refused_before_any_scan_is_read(
    tmp_path: Path, table: str, options: list[str], said: str
) -> None:
    (tmp_path / "ref.tsv").write_text(table)
    arguments = ["predict", "no-scan.nii.gz", "--out", str(tmp_path / "out"), *options]
    arguments += ["--model", str(random_model())]
    arguments += ["--reference", str(tmp_path / "ref.tsv")]
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert not (tmp_path / "out").exists()
