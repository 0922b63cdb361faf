"""View weights: a bad view loses its weight, and weights without gain are discarded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import miniature, overfitted_model, random_model
from helpers.refusals import refusal
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.models import fit_limits
from trinat.pipelines.models import fit_weights as fit_weights_module
from trinat.pipelines.models.fit import Fitted, fit
from trinat.pipelines.models.fit_limits import GradedPhantom, cut, noise
from trinat.pipelines.models.settings import FitSettings, Step
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.fusion_fit import AmbiguousVoxels
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import load_model, read_info, save_model
from trinat.segmentation.models.model_info import Description, Fusion
from trinat.segmentation.space.conform import ConformPlan
from trinat.segmentation.space.views import View

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write scans of two participants, one of them scanned twice, and their truths."""
    folder = tmp_path_factory.mktemp("data")
    names = ("sub-01_ses-1", "sub-01_ses-2", "sub-02")
    for seed, name in enumerate(names):
        labels = head_labels(seed)
        write_nifti(
            folder / f"scans/{name}_T1w.nii.gz", head_image(labels, seed), "LIA"
        )
        write_nifti(folder / f"truth/{name}_dseg.nii.gz", labels, "PSR")
    return folder


@pytest.fixture
def lame(tmp_path: Path) -> Path:
    """Save a model whose sagittal view sees cortex everywhere, and has most of the weight.

    Its coronal and axial views know the head.
    """
    good, bad = load_model(overfitted_model()), load_model(random_model())
    blind = bad.networks[View.SAGITTAL]
    assert blind.classifier.bias is not None
    blind.classifier.bias[good.scheme.merged.scheme.names.index("Cerebral-Cortex")] = 8
    networks = {**good.networks, View.SAGITTAL: blind}
    weights = {View.CORONAL: 0.1, View.AXIAL: 0.1, View.SAGITTAL: 0.8}
    description = Description(
        name="lame",
        not_predicted=good.info.not_predicted,
        fusion=Fusion(weights=weights, csf_odds=0.5),
        metrics={"kept": 1, "class_odds": {"mean_dice_after": 0.9}},
    )
    save_model(tmp_path / "lame", description, networks)
    return tmp_path / "lame"


@pytest.mark.slow
@pytest.mark.important
def test_a_blind_view_loses_its_weight_and_the_model_gains(
    lame: Path, data: Path
) -> None:
    before = {path.name: path.read_bytes() for path in lame.glob("*.safetensors")}
    words = ["fit", str(lame), "--scans", str(data / "scans"), "--only", "weights"]
    done = CliRunner().invoke(
        app,
        [*words, "--truth", str(data / "truth"), "--device", "cpu"],
        standalone_mode=False,
    )
    assert done.exception is None, done.exception
    assert done.return_value == Exit.OK
    assert "fitted without its participant" in done.output
    assert "updated" in done.output
    info = load_model(lame).info
    # The smallest weight that is tried.
    assert info.fusion.weights[View.SAGITTAL] == 0.1
    assert info.fusion.csf_odds == 0.5
    figures = info.metrics["fusion_weights"]
    assert figures["scans"] == 3
    assert figures["mean_dice_after"] > figures["mean_dice_before"] + 0.1
    # The other scores were measured with the previous weights.
    assert set(info.metrics) == {"fusion_weights"}
    assert {
        path.name: path.read_bytes() for path in lame.glob("*.safetensors")
    } == before


@pytest.fixture
def few_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try weights of a coarser grid: 6 candidates instead of 72."""
    monkeypatch.setattr("trinat.segmentation.inference.fusion_fit._STEPS", 4)


def fit_weights(
    model: Path, scans: Path, truth: Path, out: Path | None = None
) -> Fitted:
    settings = FitSettings(str(model), scans, truth, out, only="weights", device="cpu")
    return fit(settings)


@pytest.mark.slow
@pytest.mark.important
def test_weights_then_odds_then_limits(
    lame: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phantoms = (
        GradedPhantom("noise", 1, noise, 0.05),
        GradedPhantom("cropped", 1, cut, 0.6),
    )
    monkeypatch.setattr(fit_limits, "PHANTOMS", phantoms)
    monkeypatch.setattr(fit_limits, "_THALAMUS", (2, 41))  # the miniature has none
    monkeypatch.setattr(
        fit_limits, "middle", lambda seed: fit_limits._cut_out(*miniature(seed=seed))
    )
    before = (lame / "model.yaml").read_bytes()
    out = tmp_path / "fitted"
    scan, truth = data / "scans/sub-02_T1w.nii.gz", data / "truth/sub-02_dseg.nii.gz"
    settings = FitSettings(str(lame), scan, truth, out, device="cpu")
    found = fit(settings)
    assert found.exit is Exit.OK
    assert (lame / "model.yaml").read_bytes() == before
    info = read_info(out)
    # The smallest weight that is tried.
    assert info.fusion.weights[View.SAGITTAL] == 0.1
    # The model had no limits.
    assert info.quality is not None
    steps = [line.partition(":")[0] for line in found.lines if ": " in line]
    order = list(dict.fromkeys(step for step in steps if step in get_args(Step)))
    assert order == ["weights", "odds", "limits"]
    # Weights are not fitted to a model that has odds, so the limits are unchanged.
    again = fit(replace(settings, model=str(out), out=tmp_path / "again"))
    assert any(line.startswith("weights: skipped") for line in again.lines)
    assert again.lines[-1].startswith("limits: skipped")


@pytest.mark.usefixtures("few_weights")
def test_a_new_model_is_written_and_the_old_one_stays(
    lame: Path, data: Path, tmp_path: Path
) -> None:
    before = (lame / "model.yaml").read_bytes()
    out = tmp_path / "fitted"
    found = fit_weights(
        lame,
        data / "scans/sub-02_T1w.nii.gz",
        data / "truth/sub-02_dseg.nii.gz",
        out,
    )
    assert "fitted to this very participant" in "\n".join(found.lines)
    assert (lame / "model.yaml").read_bytes() == before
    info = read_info(out)
    assert info.name == "fitted"
    # The smallest weight that is tried.
    assert info.fusion.weights[View.SAGITTAL] == 0.25


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.usefixtures("few_weights")
def test_limits_for_other_weights_are_dropped_if_none_are_found(
    lame: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (lame / "model.yaml").read_text()
    limits = "quality: {agreement: [0.9, 0.8]}"
    (lame / "model.yaml").write_text(text.replace("quality: null", limits))
    assert read_info(lame).quality is not None
    # Nothing is found in phantoms if there are none.
    monkeypatch.setattr(fit_limits, "PHANTOMS", ())
    scan, truth = data / "scans/sub-02_T1w.nii.gz", data / "truth/sub-02_dseg.nii.gz"
    found = fit(FitSettings(str(lame), scan, truth, tmp_path / "out", device="cpu"))
    assert any(line.startswith("limits: not found") for line in found.lines)
    assert read_info(tmp_path / "out").quality is None


@pytest.mark.usefixtures("few_weights")
def test_weights_that_gain_too_little_are_not_kept(
    lame: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinat.pipelines.models.held_out.WORTHWHILE", 2.0)
    before = (lame / "model.yaml").read_bytes()
    scan = data / "scans/sub-02_T1w.nii.gz"
    found = fit_weights(lame, scan, data / "truth/sub-02_dseg.nii.gz")
    assert not found.changed
    assert any(line.startswith("weights: unchanged") for line in found.lines)
    assert (lame / "model.yaml").read_bytes() == before


@pytest.mark.usefixtures("few_weights")
def test_a_geometric_mean_that_is_chosen_is_written_into_the_model(
    lame: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Makes the last candidate acceptable, whatever its score.
    monkeypatch.setattr("trinat.pipelines.models.held_out.WORTHWHILE", -1.0)
    scan = data / "scans/sub-02_T1w.nii.gz"
    fit_weights(lame, scan, data / "truth/sub-02_dseg.nii.gz")
    assert read_info(lame).fusion.mean == "geometric"


def test_truths_with_exchanged_sides_fit_no_weights(data: Path, tmp_path: Path) -> None:
    for name in ("sub-01_ses-1", "sub-02"):
        exchanged = Volume.read(data / f"truth/{name}_dseg.nii.gz", labels=True)
        scheme = load_scheme("quicknat33")
        classes = scheme.from_freesurfer(exchanged.data)
        other = scheme.to_freesurfer(scheme.partner_permutation[classes])
        replace(exchanged, data=other).write(tmp_path / f"{name}.nii.gz", labels=True)
    out = tmp_path / "out"
    with pytest.raises(EvaluationError, match="with left and right exchanged it is 0"):
        fit_weights(overfitted_model(), data / "scans", tmp_path, out)
    assert not out.exists()


def test_what_cannot_work_is_refused_before_the_work(
    data: Path, tmp_path: Path
) -> None:
    network = load_model(random_model()).networks[View.AXIAL]
    save_model(tmp_path / "one", Description(name="one"), {View.AXIAL: network})
    with refusal(ConfigError, tmp_path / "one"):
        fit_weights(tmp_path / "one", data / "scans", data / "truth")
    odds = Fusion(class_odds={"Left-Putamen": 2.0})
    networks = load_model(random_model()).networks
    save_model(tmp_path / "odd", Description(name="odd", fusion=odds), networks)
    with refusal(ConfigError, tmp_path / "odd"):
        fit_weights(tmp_path / "odd", data / "scans", data / "truth")
    with pytest.raises(ConfigError) as caught:
        fit(FitSettings(str(random_model()), data / "scans"))
    assert caught.value.remedy == "give both"


def test_a_truth_without_structures_is_no_truth(tmp_path: Path) -> None:
    labels = head_labels()
    write_nifti(tmp_path / "scans/a.nii.gz", head_image(labels))
    write_nifti(tmp_path / "truth/a.nii.gz", np.zeros_like(labels))
    with pytest.raises(
        EvaluationError, match=r"no scan can be used.*has nothing of quicknat33"
    ):
        fit_weights(random_model(), tmp_path / "scans", tmp_path / "truth")
    assert read_info(random_model()).fusion == Fusion()


def scan_of(decided: np.ndarray) -> AmbiguousVoxels:
    """Return a scan whose views agree in all voxels, with its counts of classes."""
    classes = len(decided)
    none = np.zeros((0, classes), np.float16)
    return AmbiguousVoxels(
        np.zeros(0, np.uint8), {View.CORONAL: none, View.AXIAL: none}, decided
    )


def plan_of(spacing_mm: tuple[float, float, float]) -> ConformPlan:
    scan = Grid((40, 40, 40), np.diag([*spacing_mm, 1]))
    return ConformPlan(scan, (1, 1), Grid((40, 40, 40), np.eye(4)))


def test_structures_that_are_not_in_the_truth_do_not_count() -> None:
    segmenter = Predictor(random_model(), device="cpu", views=["coronal", "axial"])
    counts = np.zeros((33, 33), np.int64)
    counts[1, 1], counts[1, 0], counts[0, 1] = 90, 10, 10
    counts[0, 2] = 50  # found by the model, but not labelled
    fusion = Fusion()
    score = fit_weights_module._score(
        segmenter, scan_of(counts), plan_of((1, 1, 1)), fusion
    )
    assert score == pytest.approx(0.9)


def test_weights_are_scored_as_they_apply_to_thick_slices() -> None:
    segmenter = Predictor(random_model(), device="cpu", views=["coronal", "axial"])
    # The coronal view sees class 1, the axial view class 2, which is right.
    views = {}
    for view, index in ((View.CORONAL, 1), (View.AXIAL, 2)):
        views[view] = np.zeros((4, 33), np.float16)
        views[view][:, index] = 1
    empty = np.zeros((33, 33), np.int64)
    scan = AmbiguousVoxels(np.full(4, 2, np.uint8), views, empty)
    weights = {View.CORONAL: 0.6, View.AXIAL: 0.4}
    fusion = Fusion(weights=weights, blur_exponent=1)
    scores = [
        fit_weights_module._score(segmenter, scan, plan_of(spacing_mm), fusion)
        for spacing_mm in ((1.0, 1.0, 1.0), (1.0, 1.0, 6.0))
    ]
    # In axial slices of 6 mm the coronal view has a third of its weight.
    assert scores == [0, 1]
