"""Odds of structures: an underestimated structure gets its true size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import overfitted_model, random_model, shy_model
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.models.fit import Fitted, fit
from trinat.pipelines.models.settings import FitSettings
from trinat.segmentation.errors import (
    ConfigError,
    EvaluationError,
    ModelError,
    TrinatError,
)
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.pair import evaluate
from trinat.segmentation.models.checkpoint import load_model, read_info, save_model
from trinat.segmentation.models.model_info import Description, Fusion
from trinat.segmentation.space.views import View

pytestmark = pytest.mark.usefixtures("one_thread")

# Added to FreeSurfer's numbers to make another numbering.
_FARTHER = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write scans of two participants and their truths, in FreeSurfer's and other numbers."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("sub-01", "sub-02")):
        labels = head_labels(seed)
        write_nifti(
            folder / f"scans/{name}_T1w.nii.gz", head_image(labels, seed), "LIA"
        )
        write_nifti(folder / f"truth/{name}_dseg.nii.gz", labels, "PSR")
        farther = np.where(labels > 0, labels + _FARTHER, 0).astype(np.int16)
        write_nifti(folder / f"farther/{name}_dseg.nii.gz", farther, "PSR")
    rows = ["first\tlast\tname\ttarget", "0\t0\tbackground\t0"]
    rows.extend(
        f"{number + _FARTHER}\t{number + _FARTHER}\tx\t{number}"
        for number in np.unique(head_labels())[1:]
    )
    (folder / "farther.tsv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def shy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shy_model(tmp_path_factory.mktemp("models") / "shy")


def dice_of_cortex(model: Path, data: Path) -> float:
    scan = Volume.read(data / "scans/sub-01_T1w.nii.gz")
    truth = Volume.read(data / "truth/sub-01_dseg.nii.gz", labels=True)
    found = Predictor(model, device="cpu").segment(scan)
    table = evaluate(truth, found.labels)["dice"]
    return float(table[["Left-Cerebral-Cortex", "Right-Cerebral-Cortex"]].mean())


@pytest.mark.slow
@pytest.mark.important
def test_the_cortex_gets_its_size(shy: Path, data: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in shy.iterdir()}
    out = tmp_path / "fitted"
    words = ["fit", str(shy), "--scans", str(data / "scans"), "--out", str(out)]
    words += ["--only", "odds", "--truth", str(data / "farther")]
    words += ["--numbering", str(data / "farther.tsv")]
    done = CliRunner().invoke(app, [*words, "--device", "cpu"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert done.return_value == Exit.OK
    assert "fitted without its participant" in done.output
    info = load_model(out).info
    odds = info.fusion.class_odds
    assert odds["Left-Cerebral-Cortex"] > 2 * odds["Left-Cerebral-White-Matter"]
    assert odds["Left-Cerebral-Cortex"] == odds["Right-Cerebral-Cortex"]
    assert (info.name, info.fusion.csf_odds) == ("fitted", 0.5)
    assert info.quality == read_info(shy).quality
    assert info.training.licence == "CC BY-NC 3.0"
    assert "licensed under CC BY-NC 3.0" in done.stderr
    assert set(info.metrics) == {"class_odds"}
    assert dice_of_cortex(out, data) > dice_of_cortex(shy, data) + 0.05
    assert {path.name: path.read_bytes() for path in shy.iterdir()} == before


@pytest.mark.slow
@pytest.mark.important
def test_odds_that_the_model_has_are_tried_like_others_and_replaced(
    shy: Path, data: Path, tmp_path: Path
) -> None:
    model = load_model(shy)
    own = {"Left-Cerebral-Cortex": 0.2, "Right-Cerebral-Cortex": 0.2}
    description = Description(
        name="shyer",
        not_predicted=model.info.not_predicted,
        fusion=Fusion(class_odds=own),
    )
    save_model(tmp_path / "models/shyer", description, model.networks)
    found = {}
    for name, folder in (("shy", shy), ("shyer", tmp_path / "models/shyer")):
        fit_odds(folder, data / "scans", data / "truth", tmp_path / name)
        found[name] = read_info(tmp_path / name)
    odds = {name: info.fusion.class_odds for name, info in found.items()}
    assert odds["shyer"] == odds["shy"]
    figures = {name: info.metrics["class_odds"] for name, info in found.items()}
    assert figures["shyer"]["mean_dice_after"] == figures["shy"]["mean_dice_after"]
    assert figures["shyer"]["mean_dice_before"] < figures["shy"]["mean_dice_before"]


def fit_odds(model: Path, scans: Path, truth: Path, out: Path) -> Fitted:
    settings = FitSettings(str(model), scans, truth, out, only="odds", device="cpu")
    return fit(settings)


def test_no_model_is_written_where_too_little_is_gained(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("trinat.pipelines.models.held_out.WORTHWHILE", 2.0)
    (tmp_path / "truth").mkdir()
    for name in ("sub-01", "sub-02"):
        path = data / f"truth/{name}_dseg.nii.gz"
        (tmp_path / "truth" / path.name).write_bytes(path.read_bytes())
    broken = tmp_path / "truth/sub-02_dseg.nii.gz"
    broken.write_bytes(broken.read_bytes()[:-50])
    settings = FitSettings(
        str(overfitted_model()),
        data / "scans",
        tmp_path / "truth",
        tmp_path / "fitted",
        only="odds",
        device="cpu",
    )
    found = fit(settings)
    assert found.exit is Exit.SOME_FAILED
    assert not found.changed
    assert not (tmp_path / "fitted").exists()
    assert "fitted to this very participant" in "\n".join(found.lines)
    assert any(line.startswith("not used: sub-02") for line in logged.messages)


def test_what_cannot_work_is_refused(data: Path, tmp_path: Path) -> None:
    def refused(model: Path, truth: Path, out: Path) -> TrinatError:
        with pytest.raises(TrinatError) as caught:
            fit_odds(model, data / "scans", truth, out)
        return caught.value

    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("mine")
    error = refused(random_model(), data / "truth", tmp_path / "notes")
    assert (type(error), error.where) == (ModelError, str(tmp_path / "notes"))

    network = load_model(random_model()).networks[View.SAGITTAL]
    save_model(tmp_path / "one", Description(name="one"), {View.SAGITTAL: network})
    error = refused(tmp_path / "one", data / "truth", tmp_path / "out")
    assert (type(error), error.where) == (ConfigError, str(tmp_path / "one"))
    assert "left from right" in error.what

    write_nifti(
        tmp_path / "empty/sub-01_dseg.nii.gz", np.zeros_like(head_labels()), "PSR"
    )
    error = refused(random_model(), tmp_path / "empty", tmp_path / "out")
    assert type(error) is EvaluationError
    assert "--numbering" in error.remedy

    error = refused(random_model(), data / "truth", tmp_path / "my model")
    assert type(error) is ConfigError
    assert not (tmp_path / "out").exists()
