"""trinat fuse-weights: a bad view loses its weight, and weights that gain nothing are not kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import overfitted_model, random_model
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.models.bundle import bundle
from trinat.pipelines.models.fuse_weights import BEFORE, fuse_weights
from trinat.pipelines.models.settings import FuseSettings
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import load_model, read_info, save_model
from trinat.segmentation.models.model_info import Description, Fusion
from trinat.segmentation.space.views import View

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scans of two persons, one of them seen twice, and their truths."""
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
    """A model whose coronal and axial views know the head, and whose sagittal one sees cortex
    everywhere, and yet has most of the weight."""
    good, bad = load_model(overfitted_model()), load_model(random_model())
    blind = bad.networks[View.SAGITTAL]
    assert blind.classifier.bias is not None
    blind.classifier.bias[good.scheme.merged.scheme.names.index("Cerebral-Cortex")] = 8
    networks = {**good.networks, View.SAGITTAL: blind}
    weights = {View.CORONAL: 0.1, View.AXIAL: 0.1, View.SAGITTAL: 0.8}
    description = Description(
        name="lame",
        not_predicted=good.info.not_predicted,
        fusion=Fusion(weights=weights, csf_odds=0.5, class_odds={"CSF": 0.9}),
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
    words = ["fuse-weights", str(lame), "--scans", str(data / "scans")]
    done = CliRunner().invoke(
        app,
        [*words, "--truth", str(data / "truth"), "--device", "cpu"],
        standalone_mode=False,
    )
    assert done.exception is None, done.exception
    assert done.return_value == Exit.OK
    assert "fitted without its person" in done.output
    assert "updated" in done.output
    info = load_model(lame).info
    assert info.fusion.weights[View.SAGITTAL] < 0.1
    assert info.fusion.csf_odds == 0.5
    assert info.fusion.class_odds == {"CSF": 0.9}
    figures = info.metrics["fusion_weights"]
    assert figures["mean_dice_after"] > figures["mean_dice_before"] + 0.1
    assert (info.metrics["kept"], figures["scans"]) == (1, 3)
    # Odds are kept, but what they gained was measured with the weights before.
    assert figures["measured"] == "without the odds of structures"
    assert "class_odds" not in info.metrics
    assert {
        path.name: path.read_bytes() for path in lame.glob("*.safetensors")
    } == before


def test_a_file_of_weights_leaves_the_model_and_fits_into_a_bundle(
    lame: Path, data: Path, tmp_path: Path
) -> None:
    before = (lame / "model.yaml").read_bytes()
    said: list[str] = []
    (tmp_path / "truth").mkdir()
    for name in ("sub-01_ses-1", "sub-02"):
        path = data / f"truth/{name}_dseg.nii.gz"
        (tmp_path / "truth" / path.name).write_bytes(path.read_bytes())
    broken = tmp_path / "truth/sub-02_dseg.nii.gz"
    broken.write_bytes(broken.read_bytes()[:-50])
    settings = FuseSettings(
        str(lame), data / "scans", tmp_path / "truth", tmp_path / "w.yaml", device="cpu"
    )
    found = fuse_weights(settings, said.append)
    assert found.exit is Exit.SOME_FAILED
    assert not found.held_out
    assert any(line.startswith("not used: sub-01_ses-2") for line in said)
    assert any(line.startswith("not used: sub-02") for line in said)
    assert (lame / "model.yaml").read_bytes() == before
    assert (tmp_path / "w.yaml").read_text().startswith("# Of trinat fuse-weights")
    content = yaml.safe_load((tmp_path / "w.yaml").read_text())
    # From one person alone views are weighed, not structures.
    assert content["per_class"] == {}
    info = bundle([lame], tmp_path / "joined", weights=tmp_path / "w.yaml")
    assert info.fusion == found.fusion
    assert info.fusion.weights[View.SAGITTAL] < 0.2


def test_weights_that_gain_too_little_are_not_kept(
    lame: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinat.pipelines.models.fuse_weights._WORTHWHILE", 2.0)
    before = (lame / "model.yaml").read_bytes()
    scans = data / "scans/sub-02_T1w.nii.gz"
    settings = FuseSettings(
        str(lame), scans, data / "truth/sub-02_dseg.nii.gz", device="cpu"
    )
    found = fuse_weights(settings)
    assert found.chosen == BEFORE
    assert len(found.dice) == 5
    assert found.lines()[-1].startswith("best: as they were")
    assert (lame / "model.yaml").read_bytes() == before


def test_a_geometric_mean_that_is_chosen_is_written_into_the_model(
    lame: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever is less simple is good enough: of one person, the views' weights in that mean.
    monkeypatch.setattr("trinat.pipelines.models.fuse_weights._WORTHWHILE", -1.0)
    scans = data / "scans/sub-02_T1w.nii.gz"
    found = fuse_weights(
        FuseSettings(str(lame), scans, data / "truth/sub-02_dseg.nii.gz", device="cpu")
    )
    assert found.chosen == "by view, geometric"
    assert found.mean("by view, geometric") != found.mean("by view")
    assert "geometric mean" in found.lines()[-1]
    info = read_info(lame)
    assert info.fusion == found.fusion
    assert (info.fusion.mean, info.fusion.per_class) == ("geometric", {})


def test_truths_with_exchanged_sides_fit_no_weights(data: Path, tmp_path: Path) -> None:
    for name in ("sub-01_ses-1", "sub-02"):
        exchanged = Volume.read(data / f"truth/{name}_dseg.nii.gz", labels=True)
        scheme = load_scheme("quicknat33")
        classes = scheme.from_freesurfer(exchanged.data)
        other = scheme.to_freesurfer(scheme.partner_permutation[classes])
        replace(exchanged, data=other).write(tmp_path / f"{name}.nii.gz", labels=True)
    said: list[str] = []
    settings = FuseSettings(
        str(overfitted_model()),
        data / "scans",
        tmp_path,
        tmp_path / "w.yaml",
        device="cpu",
    )
    with pytest.raises(EvaluationError, match="with left and right exchanged it is 0"):
        fuse_weights(settings, said.append)
    named = [line.split(": ")[1] for line in said if "exchanged" in line]
    assert named == ["sub-01_ses-1", "sub-02"]
    assert not (tmp_path / "w.yaml").exists()


def test_what_cannot_work_is_refused_before_the_work(
    data: Path, tmp_path: Path
) -> None:
    places = (data / "scans", data / "truth")
    with pytest.raises(ConfigError, match="comes with the software"):
        fuse_weights(FuseSettings("fast", *places))
    with pytest.raises(ConfigError, match="its folder is not there"):
        fuse_weights(FuseSettings("fast", *places, tmp_path / "no/w.yaml"))
    network = load_model(random_model()).networks[View.AXIAL]
    save_model(tmp_path / "one", Description(name="one"), {View.AXIAL: network})
    with pytest.raises(ConfigError, match="axial view alone"):
        fuse_weights(FuseSettings(str(tmp_path / "one"), *places))


def test_a_truth_without_structures_is_no_truth(tmp_path: Path) -> None:
    labels = head_labels()
    write_nifti(tmp_path / "scans/a.nii.gz", head_image(labels))
    write_nifti(tmp_path / "truth/a.nii.gz", np.zeros_like(labels))
    settings = FuseSettings(
        str(random_model()),
        tmp_path / "scans",
        tmp_path / "truth",
        tmp_path / "w",
        device="cpu",
    )
    with pytest.raises(
        EvaluationError, match=r"no scan can be used.*has nothing of quicknat33"
    ):
        fuse_weights(settings)
    assert read_info(random_model()).fusion == Fusion()
