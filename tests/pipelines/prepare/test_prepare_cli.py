"""The commands trinat prepare and trinat split: settings files, options, terms."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import freesurfer_subject, malc_scan, write_nifti
from helpers.prepared import prepare, voxels_by_class
from helpers.refusals import refusal
from helpers.small_store import small_store
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.prepare.making import read_config
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError, LabelError, TrinatError
from trinat.segmentation.models import hardware
from trinat.segmentation.space.views import View


def call(*words: str) -> str:
    """Run a command and return its output."""
    result = CliRunner().invoke(app, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_command_prepares_splits_and_tells_what_it_did(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        freesurfer_subject(tmp_path / "in", name)
    freesurfer_subject(tmp_path / "in", "fsaverage")
    (tmp_path / "c.yaml").write_text("grid: [64, 64, 64]\nignore: [16]\n")
    out = tmp_path / "out"
    runner = CliRunner()
    words = [
        "prepare",
        "--source",
        "freesurfer",
        "--root",
        str(tmp_path / "in"),
        "--out",
        str(out),
    ]
    words += ["--views", "coronal", "axial", "--config", str(tmp_path / "c.yaml")]
    result = runner.invoke(app, words, standalone_mode=False)
    assert result.exception is None, result.exception
    assert result.return_value == Exit.OK
    assert "4 in, 3 made, 0 up to date, 0 failed, 1 skipped" in result.output
    assert "fsaverage: skipped: a template" in result.output
    store = Store(out)
    assert store.views == (View.CORONAL, View.AXIAL)
    voxels = dict(zip(store.scheme.names, voxels_by_class(store, "a"), strict=True))
    assert voxels["Brain-Stem"] == 0
    result = runner.invoke(
        app, ["split", str(out), "--ratios", "1", "1", "1"], standalone_mode=False
    )
    assert result.exception is None, result.exception
    assert "1 train, 1 validation, 1 test" in result.output
    result = runner.invoke(app, ["data", "list"], standalone_mode=False)
    assert "oasis1: OASIS-1" in result.output


def test_the_challenge_is_prepared_and_split_as_published(tmp_path: Path) -> None:
    """Two participants train; one of the other two was scanned twice."""
    for scan in ("1000", "1001"):
        malc_scan(tmp_path / "in", scan, part="training")
    for scan in ("1003", "1023", "1101"):
        malc_scan(tmp_path / "in", scan, part="testing")
    (tmp_path / "c.yaml").write_text("grid: [64, 64, 64]\n")
    out = tmp_path / "out"
    words = [
        "prepare",
        "--source",
        "malc",
        "--root",
        str(tmp_path / "in"),
        "--out",
        str(out),
    ]
    prepared = call(*words, "--config", str(tmp_path / "c.yaml"))
    assert "5 in, 5 made, 0 up to date, 0 failed, 0 skipped" in prepared
    assert prepared.endswith(f"next: trinat split {out} --published\n")
    assert "2 train, 0 validation, 3 test" in call("split", str(out), "--published")
    said = call("split", str(out), "--published", "--validation", "1")
    assert "1 train, 1 validation, 3 test" in said


def test_of_the_published_training_part_alone_a_cross_validation_is_proposed(
    tmp_path: Path,
) -> None:
    for scan in ("1000", "1001", "1002"):
        malc_scan(tmp_path / "in", scan)
    (tmp_path / "c.yaml").write_text("grid: [64, 64, 64]\n")
    root, out = str(tmp_path / "in"), str(tmp_path / "out")
    words = ["prepare", "--source", "malc", "--root", root, "--out", out]
    said = call(*words, "--config", str(tmp_path / "c.yaml"))
    assert said.endswith(f"next: trinat split {out} --kfold 3 --validation 0\n")


def test_a_cross_validation_of_the_published_training_part_leaves_the_test_part_out(
    tmp_path: Path,
) -> None:
    for scan in ("1000", "1001", "1002", "1101"):
        malc_scan(tmp_path / "in", scan)
    _, store = prepare("malc", tmp_path / "in", tmp_path / "out")
    said = call("split", str(store.root), "--published", "--kfold", "3")
    assert said.count("1 train, 1 validation, 1 test") == 3
    assert set(store.tested()) == {"1000", "1001", "1002"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--published",), "pairs has no published split"),
        (("--validation", "1"), "--validation requires --published or --kfold"),
        (("--published", "--kfold", "3", "--validation", "1"), "--validation"),
        (("--kfold", "2"), "--kfold 2 leaves nobody to train"),
    ],
)
def test_a_published_split_is_asked_for_where_there_is_one(
    tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    store = small_store(tmp_path / "store", dict.fromkeys("abc", (16, 16, 16)))
    with pytest.raises(TrinatError, match=reason):
        call("split", str(store), *words)


def test_own_numbers_are_folded_by_a_table(tmp_path: Path) -> None:
    numbers = np.zeros((40, 40, 40), np.int16)
    numbers[10:15, 10:30, 10:30] = 7
    numbers[15:30, 10:30, 10:30] = 8
    write_nifti(tmp_path / "in/labels/a.nii.gz", numbers)
    write_nifti(tmp_path / "in/images/a.nii.gz", (numbers > 0).astype(np.uint8))
    (tmp_path / "own.tsv").write_text("first\tlast\ttarget\n7\t7\t2\n8\t8\t41\n")
    words = ["prepare", "--source", "pairs", "--root", str(tmp_path / "in")]
    words += ["--out", str(tmp_path / "out")]
    (tmp_path / "c.yaml").write_text("grid: [64, 64, 64]\n")
    words += ["--config", str(tmp_path / "c.yaml")]
    words += ["--numbering", str(tmp_path / "own.tsv")]
    call(*words)
    store = Store(tmp_path / "out")
    voxels = dict(zip(store.scheme.names, voxels_by_class(store, "a"), strict=True))
    assert voxels["Left-Cerebral-White-Matter"] == 5 * 20 * 20
    assert voxels["Right-Cerebral-White-Matter"] == 15 * 20 * 20
    assert voxels["Left-Cerebellum-White-Matter"] == 0, "7 is FreeSurfer's"
    (tmp_path / "own.tsv").write_text("first\tlast\ttarget\n7\t8\t2\n")
    assert "1 made" in call(*words), "another table is another result"
    own = f"grid: [64, 64, 64]\nnumbering: {tmp_path / 'own.tsv'}\n"
    (tmp_path / "c.yaml").write_text(own)
    assert "1 up to date" in call(*words[:-2]), "a file may name the table too"


def test_terms_must_be_accepted_before_anything_is_fetched(tmp_path: Path) -> None:
    words = ["data", "get", "oasis1", "--disc", "1", "--root", str(tmp_path / "x")]
    result = CliRunner().invoke(app, words, standalone_mode=False)
    assert isinstance(result.exception, ConfigError)
    assert "add --accept-terms" in str(result.exception)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("suorce: bids", "suorce: there is no such setting"),
        ("views: [oblique]", "views.0: Input should be"),
        ("grid: [60, 64, 64]", "grid.0: Input should be a multiple of 16"),
        ("- a list", "holds no settings"),
        ("a: [", "is not readable YAML, line 1"),
    ],
)
def test_a_wrong_setting_names_its_key_and_file(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    given = {"source": "bids", "root": tmp_path}
    with pytest.raises(ConfigError, match=reason) as caught:
        read_config(tmp_path / "c.yaml", given)
    assert "c.yaml" in str(caught.value)
    with refusal(ConfigError, "command line"):
        read_config(None, {"root": tmp_path})


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("source: bids\nroot: x\nlabels: tissue4\n")
    config = read_config(tmp_path / "c.yaml", {"source": "pairs", "labels": None})
    assert (config.source, config.labels) == ("pairs", "tissue4")


def test_a_one_sided_scheme_gets_the_views_that_it_can_have(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "s")
    _, store = prepare("freesurfer", tmp_path / "in", tmp_path / "out", labels="left4")
    assert store.views == (View.CORONAL, View.AXIAL)
    with pytest.raises(LabelError, match="one side only"):
        prepare(
            "freesurfer",
            tmp_path / "in",
            tmp_path / "o2",
            labels="left4",
            views=("sagittal",),
        )


@pytest.mark.parametrize(
    ("gpus", "validation", "proposed"),
    [
        (0, "1", ("finetune", "")),
        (0, "0", ("finetune", " --set validation=null")),
        (1, "0", ("quicknat", "")),
    ],
)
def test_split_proposes_what_the_machine_can_train(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    validation: str,
    proposed: tuple[str, str],
) -> None:
    monkeypatch.setattr(hardware, "count_gpus", lambda: gpus)
    store = small_store(tmp_path / "store", dict.fromkeys("abc", (16, 16, 16)))
    words = ["split", str(store), "--ratios", "1", validation, "1"]
    done = CliRunner().invoke(app, words)
    recipe, settings = proposed
    assert f"next: trinat train {recipe} --store {store}{settings} --out" in done.output


def test_a_pipe_for_a_store_is_named_as_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = CliRunner().invoke(app, ["split", str(pipe)])
    assert done.exit_code != 0
    said = str(done.exception)
    assert "not a slice store" in said
    assert "Not a directory" not in said
