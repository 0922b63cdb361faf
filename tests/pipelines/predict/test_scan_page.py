"""`trinat predict --page`: a page next to each label map, with the right percentiles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.norms import norms
from helpers.overfitted import random_model
from helpers.refusals import refusal
from helpers.serial import run_serially, write_scans
from typer.testing import CliRunner

from trinat.pipelines.cli import app, bids
from trinat.pipelines.predict.settings import OutputSettings
from trinat.pipelines.study.ledger import read_entries
from trinat.segmentation.errors import ConfigError, DatasetError


def test_a_page_is_written_beside_each_label_map(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    output = OutputSettings(page=True, picture=False)
    run_serially(scans, tmp_path / "out", output=output)
    entry = read_entries([tmp_path / "out/run.jsonl"])["a"]
    assert "a_page.html" in entry.outputs
    page = (tmp_path / "out/a_page.html").read_text()
    volume_mm3 = entry.result.volumes_mm3["Left-Hippocampus"]
    assert f"{volume_mm3:,.0f}" in page
    assert entry.input_sha256 in page
    assert f"<dt>date</dt><dd>{entry.finished[:10]}</dd>" in page


def test_a_page_is_titled_with_folder_and_name_as_the_user_gave_them(
    tmp_path: Path,
) -> None:
    write_scans(tmp_path / "in/P01 é", "a.nii.gz")
    output = OutputSettings(page=True, picture=False)
    run_serially(tmp_path / "in", tmp_path / "out", output=output)
    (page,) = (tmp_path / "out").rglob("a_page.html")
    assert "<h1>P01 é/a</h1>" in page.read_text()


def test_a_table_that_is_not_of_norms_is_refused_before_any_scan_is_read(
    tmp_path: Path,
) -> None:
    table = tmp_path / "ref.tsv"
    table.write_text("structure\tlow_mm3\thigh_mm3\n17\t1\t2\n")
    arguments = ["predict", "no-scan.nii.gz", "--out", str(tmp_path / "out"), "--page"]
    arguments += ["--model", str(random_model()), "--reference", str(table)]
    with refusal(DatasetError, table):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert not (tmp_path / "out").exists()


def run_with_norms(tmp_path: Path, people: str) -> dict[str, Any]:
    """Return the entries of two scans whose pages use norms and this participants table."""
    (tmp_path / "people.tsv").write_text(people)
    run_serially(
        tmp_path / "in",
        tmp_path / "out",
        output=OutputSettings(page=True, picture=False, reference=norms()),
        participants_table=tmp_path / "people.tsv",
    )
    return dict(read_entries([tmp_path / "out/run.jsonl"]))


def test_norms_go_by_the_age_and_sex_of_each_participant(tmp_path: Path) -> None:
    write_scans(tmp_path / "in", "a.nii.gz", "b.nii.gz")
    before = run_with_norms(tmp_path, "participant_id\tage\tsex\na\t30\tF\nb\t60\tF\n")
    volume_mm3 = max(before["a"].result.volumes_mm3.values())
    z = (volume_mm3 / 3000 - 1) / 0.1
    page = (tmp_path / "out/a_page.html").read_text()
    assert f"(z {z:+.1f})".replace("-", "−") in page
    assert "of 120 participants" in page
    page = (tmp_path / "out/b_page.html").read_text()
    assert "No percentiles: norms are for ages from 30 to 31." in page

    # A scan is done again if the age was corrected; others are not.
    after = run_with_norms(tmp_path, "participant_id\tage\tsex\na\t30\tF\nb\t31\tF\n")
    assert after["a"].finished == before["a"].finished
    assert after["b"].finished != before["b"].finished
    assert "of 120 participants" in (tmp_path / "out/b_page.html").read_text()


def test_norms_need_a_table_of_participants(tmp_path: Path) -> None:
    write_scans(tmp_path / "in", "a.nii.gz")
    output = OutputSettings(page=True, picture=False, reference=norms())
    with refusal(ConfigError, remedy="--participants"):
        run_serially(tmp_path / "in", tmp_path / "out", output=output)
    missing = tmp_path / "no.tsv"
    with refusal(ConfigError, missing, remedy="--participants"):
        run_serially(
            tmp_path / "in", tmp_path / "out", output=output, participants_table=missing
        )


def test_norms_of_another_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "norms.tsv").write_text(norms("another").table)
    arguments = ["predict", "no-scan.nii.gz", "--out", str(tmp_path / "out"), "--page"]
    arguments += ["--model", str(random_model())]
    arguments += ["--reference", str(tmp_path / "norms.tsv")]
    with refusal(ConfigError, tmp_path / "norms.tsv"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.usefixtures("without_workers")
def test_a_bids_dataset_is_compared_with_norms_by_its_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write_scans(raw, "sub-01/anat/sub-01_T1w.nii.gz")
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    (raw / "participants.tsv").write_text("participant_id\tage\tsex\nsub-01\t30\tF\n")
    (tmp_path / "norms.tsv").write_text(norms().table)
    arguments = ["trinat-bids", raw, out, "participant", "--n_cpus", 1]
    arguments += ["--model", random_model(), "--trust-affine", "header"]
    arguments += ["--page", "--reference", tmp_path / "norms.tsv"]
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    with pytest.raises(SystemExit) as ended:
        bids.main()
    assert not ended.value.code
    page = out / "sub-01/anat/sub-01_space-orig_desc-trinat_page.html"
    assert "of 120 participants" in page.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--reference", "norms.tsv"], "give --page too"),
        (
            ["--participants", "norms.tsv"],
            "--participants has no effect without --reference",
        ),
    ],
)
def test_options_that_need_one_another(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("norms.tsv").write_text(norms().table)
    arguments = ["predict", "no-scan.nii.gz", "--out", "out", *options]
    arguments += ["--model", str(random_model())]
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
