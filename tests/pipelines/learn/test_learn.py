"""trinat learn: corrections become a model if held-out participants gain."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.lesions import save_lesion_network
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import overfitted_model, shy_model
from helpers.refusals import refusal
from helpers.small_model import save_parcels
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit, exit_code
from trinat.pipelines.learn import training
from trinat.pipelines.learn.corrected import find_corrected
from trinat.pipelines.learn.forecast import (
    Agreement,
    compare_with_results,
)
from trinat.pipelines.learn.learning import learn, structures_corrected
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.learn.training import recipe_changes, save_learnt_classes
from trinat.pipelines.models.held_out import BEFORE, Scores
from trinat.pipelines.study.corrections import Saving, save_correction
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.record import ScanResult
from trinat.pipelines.study.study import Study
from trinat.pipelines.train.from_python import as_overrides
from trinat.pipelines.train.run import read_recipe
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.files import files_of_scan, sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import (
    Model,
    load_model,
    read_info,
)
from trinat.segmentation.models.model_info import Fusion
from trinat.segmentation.models.zoo import MODEL_FILE, read_scheme
from trinat.segmentation.space.views import View, reoriented

pytestmark = pytest.mark.usefixtures("one_thread")

CORTEX = 3
WHITE_MATTER = 2


def results_of(
    folder: Path,
    names: tuple[str, ...],
    model: str = "m",
    *,
    is_moved: bool = True,
) -> Path:
    """Write a results folder with correct label maps; scans differ in their noise.

    Each head lies a voxel higher than the one before with `is_moved`. `model` is the hash of
    the model that is recorded as their source.
    """
    results = folder / "results"
    results.mkdir()
    with Ledger(results / "run.jsonl") as ledger:
        for seed, name in enumerate(names):
            labels = head_labels(seed if is_moved else 0)
            scan = folder / f"scans/{name}_T1w.nii.gz"
            write_nifti(scan, head_image(labels, seed), "LIA")
            path = results / f"{name}_T1w_dseg.nii.gz"
            write_nifti(path, labels, "LIA")
            entry = Entry(
                f"{name}_T1w",
                "done",
                scan.name,
                input_sha256=sha256_of(scan),
                scan=os.path.relpath(scan, results.resolve()),
                model=model,
                outputs={path.name: sha256_of(path)},
                result=ScanResult(model="known"),
            )
            ledger.add(entry)
    return results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return results_of(tmp_path, ("sub-01", "sub-02", "sub-03"))


def correct(results: Path, name: str, was: int, becomes: int) -> Path:
    """Change one voxel of a structure in a result to another structure, as the viewer does."""
    path = results / f"{name}_T1w_dseg.nii.gz"
    volume = Volume.read(path, labels=True)
    data = volume.data.copy()
    data[tuple(np.argwhere(data == was)[0])] = becomes
    saved = save_correction(
        path,
        replace(volume, data=data),
        Saving(by="anna", at="2026-11-27T00:00:00+00:00", minutes=5),
        builds_on=sha256_of(path),
        names={2: "Left-Cerebral-White-Matter", 3: "Left-Cerebral-Cortex"},
        lock=results / "lock",
    )
    return saved.path


def test_what_was_corrected_is_found_with_its_scan_and_its_structures(
    results: Path,
) -> None:
    path = correct(results, "sub-02", CORTEX, WHITE_MATTER)
    found, failures = find_corrected(Study(results))
    assert failures == []
    (corrected,) = found
    assert (corrected.scan.participant, corrected.labels) == ("sub-02", path)
    assert corrected.image.resolve().name == "sub-02_T1w.nii.gz"
    assert corrected.structures == {
        "Left-Cerebral-White-Matter",
        "Left-Cerebral-Cortex",
    }


def test_a_scan_that_was_corrected_in_two_output_folders_is_one_participant(
    results: Path, tmp_path: Path
) -> None:
    correct(results, "sub-02", CORTEX, WHITE_MATTER)
    shutil.copytree(results, tmp_path / "both/one/results")
    shutil.copytree(results, tmp_path / "both/two/results")
    shutil.copytree(tmp_path / "scans", tmp_path / "both/one/scans")
    shutil.copytree(tmp_path / "scans", tmp_path / "both/two/scans")
    found, failures = find_corrected(Study(tmp_path / "both"))
    assert [each.scan.case for each in found] == ["one/results/sub-02_T1w"]
    (failure,) = failures
    assert failure.startswith("two/results/sub-02_T1w: is the same scan as one/")


def test_label_maps_from_elsewhere_count_as_a_whole(
    results: Path, tmp_path: Path
) -> None:
    write_nifti(tmp_path / "manual/sub-03_T1w_dseg.nii.gz", head_labels(2), "PSR")
    write_nifti(tmp_path / "manual/sub-09_T1w_dseg.nii.gz", head_labels(2), "PSR")
    study = Study(results, against=tmp_path / "manual")
    found, failures = find_corrected(study)
    assert [each.scan.participant for each in found] == ["sub-03"]
    assert found[0].structures is None
    assert failures == ["sub-09_T1w_dseg: no result belongs to its scan"]


def test_scans_that_are_gone_are_named_and_nothing_corrected_is_refused(
    results: Path, tmp_path: Path
) -> None:
    with refusal(EvaluationError, results, remedy="--labels"):
        find_corrected(Study(results))
    correct(results, "sub-01", CORTEX, WHITE_MATTER)
    scan = tmp_path / "scans/sub-01_T1w.nii.gz"
    write_nifti(scan, head_image(head_labels(5)), "LIA")
    found, failures = find_corrected(Study(results))
    assert found == []
    assert failures == ["sub-01_T1w: its scan was changed since it was segmented"]
    scan.unlink()
    found, failures = find_corrected(Study(results))
    assert found == []
    assert failures == [
        "sub-01_T1w: its scan has been moved: give its folder with --images"
    ]
    with refusal(EvaluationError, results):
        learn(LearnSettings(results, tmp_path / "own"))


def test_a_scan_in_two_files_is_not_taken_for_changed(
    results: Path, tmp_path: Path
) -> None:
    scan = tmp_path / "scans/sub-01_T1w.nii.gz"
    pair = scan.with_name("sub-01_T1w.hdr")
    nib.save(nib.Nifti1Pair.from_image(nib.load(scan)), pair)
    ledger = results / "run.jsonl"
    said = ledger.read_text().replace(sha256_of(scan), sha256_of(*files_of_scan(pair)))
    ledger.write_text(said.replace(scan.name, pair.name))
    correct(results, "sub-01", CORTEX, WHITE_MATTER)
    found, failures = find_corrected(Study(results))
    assert failures == []
    assert found[0].image.resolve() == pair


def test_a_dicom_series_teaches_nothing_and_is_named(
    results: Path, tmp_path: Path
) -> None:
    correct(results, "sub-01", CORTEX, WHITE_MATTER)
    scan = tmp_path / "scans/sub-01_T1w.nii.gz"
    scan.unlink()
    scan.mkdir()
    found, failures = find_corrected(Study(results))
    assert found == []
    assert "DICOM" in failures[0]


def test_a_series_in_a_zip_teaches_nothing_and_is_named(results: Path) -> None:
    correct(results, "sub-01", CORTEX, WHITE_MATTER)
    scan = "scans/sub-01_T1w.nii.gz"
    ledger = results / "run.jsonl"
    ledger.write_text(ledger.read_text().replace(scan, "scans/sub-01.zip"))
    found, failures = find_corrected(Study(results))
    assert found == []
    assert "DICOM" in failures[0]


def test_a_correction_that_was_taken_back_teaches_nothing(
    results: Path, tmp_path: Path
) -> None:
    path = correct(results, "sub-01", CORTEX, WHITE_MATTER)
    result = results / "sub-01_T1w_dseg.nii.gz"
    save_correction(
        result,
        Volume.read(result, labels=True),
        Saving(by="anna", at="2026-11-28T00:00:00+00:00", minutes=1),
        builds_on=sha256_of(path),
        names={},
        lock=results / "lock",
    )
    own = tmp_path / "own"
    with refusal(EvaluationError, results):
        learn(LearnSettings(results, own, model=str(overfitted_model()), device="cpu"))
    assert not own.exists()


class _AskedError(Exception):
    """Carries the folder of the run that a training was asked for."""


def test_a_run_is_resumed_only_with_the_same_time_and_recipe(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(recipe: str, run: Path, **_: object) -> None:
        raise _AskedError(run)

    monkeypatch.setattr(training, "train", asked)
    for name in ("sub-01", "sub-02", "sub-03"):
        correct(results, name, CORTEX, WHITE_MATTER)
    found, _ = find_corrected(Study(results))
    model = load_model(overfitted_model())
    small = model.info.preprocessing.model_copy(update={"shape": (64, 64, 64)})
    info = model.info.model_copy(update={"preprocessing": small})
    model = replace(model, info=info)
    recipe = tmp_path / "own.yaml"
    shipped = Path(training.__file__).parents[2] / "configs/train/learn.yaml"

    def run_of(rate: str, seconds: float) -> Path:
        text = shipped.read_text()
        recipe.write_text(text.replace("rate: 2.0e-3", f"rate: {rate}"))
        settings = LearnSettings(
            results, tmp_path / "own", recipe=str(recipe), seconds=seconds
        )
        with pytest.raises(_AskedError) as caught:
            training.train_on(found, model, [1, 2], settings, progress=False)
        return caught.value.args[0]

    first = run_of("2.0e-3", 20)
    assert run_of("2.0e-3", 20) == first
    assert len({first, run_of("2.0e-3", 120), run_of("1.0e-3", 20)}) == 3


def test_corrected_structures_have_both_sides_and_a_whole_map_has_all(
    results: Path,
) -> None:
    scheme = load_scheme("quicknat33")
    correct(results, "sub-01", CORTEX, WHITE_MATTER)
    found, _ = find_corrected(Study(results))
    classes = structures_corrected(found, scheme)
    assert [scheme.names[index] for index in classes] == [
        "Left-Cerebral-White-Matter",
        "Left-Cerebral-Cortex",
        "Right-Cerebral-White-Matter",
        "Right-Cerebral-Cortex",
    ]
    whole = replace(found[0], structures=None)
    assert structures_corrected([*found, whole], scheme) == list(range(33))


def test_the_interval_is_over_participants_not_over_scans() -> None:
    # Gains of 0.01 and 0.03 for a, and of 0.06 for b: 0.02 and 0.06 by participant. Their mean is
    # 0.04 and its standard error 0.02, so the t interval (12.71 with one degree of freedom) is
    # 0.04 +- 0.254.
    dice = {BEFORE: (0.8, 0.8, 0.8), "new": (0.81, 0.83, 0.86)}
    line = Scores(("a", "a", "b"), ("1", "2", "3"), dice).describe("new")
    assert "participants that it has not seen 0.800 before, 0.833 after" in line
    assert "gain +0.040, 95 % interval -0.214 to +0.294, 2 participants" in line
    dice = {BEFORE: (0.8, 0.8), "new": (0.81, 0.83)}
    line = Scores(("a", "a"), ("1", "2"), dice, held_out=False).describe("new")
    assert (
        "the very participant that it was fitted to 0.800 before, 0.820 after" in line
    )
    assert "no interval" in line


def test_painted_corrections_train_the_last_layer_alone(
    results: Path, tmp_path: Path
) -> None:
    correct(results, "sub-01", CORTEX, WHITE_MATTER)
    painted, _ = find_corrected(Study(results))
    imported = [replace(painted[0], structures=None)]
    model = load_model(overfitted_model())
    settings = LearnSettings(results, tmp_path / "own")
    frozen = []
    for corrected in (painted, [*painted, *imported]):
        changes = recipe_changes(corrected, model, settings)
        (stage,) = read_recipe(settings.recipe, as_overrides(changes)).stages
        frozen.append(
            {part for part, multiple in stage.optimiser.parts.items() if not multiple}
        )
    assert frozen == [{"encoders", "bottleneck", "decoders"}, set()]


def test_classes_that_were_not_corrected_keep_their_weights_and_factors(
    tmp_path: Path,
) -> None:
    trained = load_model(overfitted_model())
    odds = {"Left-Cerebral-Cortex": 4.0, "Right-Hippocampus": 0.5}
    fusion = Fusion(class_odds=odds)
    info = trained.info.model_copy(update={"fusion": fusion})
    start = replace(load_model(overfitted_model()), info=info)
    for network in trained.networks.values():
        network.classifier.weight.data += 1
        network.classifier.bias.data += 1
    # In the sagittal view, which does not tell sides, this class has another index.
    hippocampus = start.scheme.names.index("Right-Hippocampus")
    save_learnt_classes(trained, start, [hippocampus], tmp_path / "own")
    found = load_model(tmp_path / "own")
    assert found.info.fusion.class_odds == {"Left-Cerebral-Cortex": 4}
    for view, network in found.networks.items():
        names = found.classes_of(view).names
        old = start.networks[view].classifier.by_class()
        for parameter, values in network.classifier.by_class().items():
            changed = (values != old[parameter]).flatten(1).any(1).tolist()
            learnt = [
                name for name, is_new in zip(names, changed, strict=True) if is_new
            ]
            side = "" if view is View.SAGITTAL else "Right-"
            assert learnt == [f"{side}Hippocampus"]


def test_the_model_must_be_known(results: Path, tmp_path: Path) -> None:
    correct(results, "sub-01", CORTEX, WHITE_MATTER)
    with refusal(ConfigError, results, remedy="--model"):
        learn(LearnSettings(results, tmp_path / "own"))


def paint(results: Path, name: str, change: Callable[[np.ndarray], None]) -> None:
    """Change the labels of a result, and save them as the viewer does."""
    path = results / f"{name}_T1w_dseg.nii.gz"
    volume = Volume.read(path, labels=True)
    data = reoriented(volume, "RAS").data.copy()
    change(data)
    painted = Volume(data, reoriented(volume, "RAS").affine)
    scheme = load_scheme("quicknat33")
    save_correction(
        path,
        reoriented(painted, "".join(volume.axcodes)),
        Saving(by="anna", at="2026-11-28T00:00:00+00:00", minutes=5),
        builds_on=sha256_of(path),
        names={label.fs_id: label.name for label in scheme.labels[1:]},
        lock=results / "lock",
    )


def shorten_hippocampi(labels: np.ndarray) -> None:
    """Make the rear rows of both hippocampi white matter: 4 of 12 rows, and 3 of 8."""
    for hippocampus, white_matter, first, end in ((17, 2, 20, 24), (53, 41, 22, 25)):
        rear = labels[:, first:end]
        rear[rear == hippocampus] = white_matter


def swap_one_voxel(labels: np.ndarray) -> None:
    labels[tuple(np.argwhere(labels == CORTEX)[0])] = WHITE_MATTER


def add_csf(labels: np.ndarray) -> None:
    labels[0, :5] = 24


def agreement_of(results: Path, *, model: Model) -> Agreement:
    found, _ = find_corrected(Study(results))
    counted = structures_corrected(found, model.scheme)
    agreement = compare_with_results(found, model.scheme, counted, None)
    assert agreement is not None
    return agreement


def test_a_forecast_compares_the_structures_that_were_corrected_and_not_their_neighbours(
    results: Path,
) -> None:
    for name in ("sub-01", "sub-02"):
        paint(results, name, shorten_hippocampi)
    model = load_model(overfitted_model())
    found = agreement_of(results, model=model)
    names = {model.scheme.names[index] for index in found.changed}
    # White matter gains 96 voxels, of 5,000.
    assert names == {"Left-Hippocampus", "Right-Hippocampus"}
    # 12 rows against 8, and 8 against 5.
    assert found.dice == pytest.approx((16 / 20 + 10 / 13) / 2)
    assert found.size_gap == pytest.approx((4 / 20 + 3 / 13) / 2)
    assert found.scans == 2


def test_what_a_later_run_segments_differently_does_not_count_as_corrected(
    results: Path,
) -> None:
    def paint_a_voxel_of_cortex_too(labels: np.ndarray) -> None:
        shorten_hippocampi(labels)
        swap_one_voxel(labels)

    paint(results, "sub-01", paint_a_voxel_of_cortex_too)
    path = results / "sub-01_T1w_dseg.nii.gz"
    labels = Volume.read(path, labels=True)
    # The later run finds no cortex on this side.
    labels.data[labels.data == CORTEX] = 0
    labels.write(path, labels=True)
    model = load_model(overfitted_model())
    found = agreement_of(results, model=model)
    assert {model.scheme.names[index] for index in found.changed} == {
        "Left-Hippocampus",
        "Right-Hippocampus",
    }
    assert found.dice == pytest.approx((16 / 20 + 10 / 13) / 2)


def test_a_structure_that_was_painted_in_a_few_of_many_scans_is_found(
    tmp_path: Path,
) -> None:
    names = tuple(f"sub-{number:02}" for number in range(1, 13))
    results = results_of(tmp_path, names)
    for name in names:
        paint(results, name, shorten_hippocampi if name == "sub-04" else swap_one_voxel)
    model = load_model(overfitted_model())
    found = agreement_of(results, model=model)
    assert {model.scheme.names[index] for index in found.changed} == {
        "Left-Hippocampus",
        "Right-Hippocampus",
    }


def test_a_correction_of_csf_alone_is_refused(tmp_path: Path) -> None:
    known = overfitted_model()
    results = results_of(tmp_path, ("sub-01",), sha256_of(known / MODEL_FILE))
    paint(results, "sub-01", add_csf)
    settings = LearnSettings(results, tmp_path / "own", model=str(known), device="cpu")
    with refusal(EvaluationError, results):
        learn(settings)


def test_a_correction_whose_scan_has_failed_since_is_named(results: Path) -> None:
    for name in ("sub-01", "sub-02"):
        correct(results, name, CORTEX, WHITE_MATTER)
    with Ledger.resume(results / "run.jsonl", []) as ledger:
        ledger.add(Entry("sub-01_T1w", "failed", reason="took too long"))
    found, failures = find_corrected(Study(results))
    assert [each.scan.participant for each in found] == ["sub-02"]
    (failure,) = failures
    assert failure.startswith("sub-01_T1w")


def test_results_that_the_corrections_hardly_change_are_refused_at_once(
    tmp_path: Path,
) -> None:
    known = overfitted_model()
    results = results_of(tmp_path, ("sub-01",), sha256_of(known / MODEL_FILE))
    correct(results, "sub-01", CORTEX, WHITE_MATTER)
    settings = LearnSettings(results, tmp_path / "own", model=str(known), device="cpu")
    with refusal(EvaluationError, results) as caught:
        learn(settings)
    assert caught.value.remedy
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
@pytest.mark.important
def test_from_two_participants_the_cortex_gets_its_size(tmp_path: Path) -> None:
    results = results_of(tmp_path, ("sub-01", "sub-02"))
    shy = shy_model(tmp_path / "shy")
    save_parcels(shy / "parcels", "desikan34")
    lesions = save_lesion_network(shy)
    out = tmp_path / "own"
    words = ["learn", results, "--labels", results, "--model", shy, "--out", out]
    command = [str(word) for word in (*words, "--device", "cpu")]
    done = CliRunner().invoke(app, command, standalone_mode=False)
    assert done.exception is None, done.exception
    assert done.return_value == Exit.OK
    assert "2 corrected scans of 2 participants: factors of structures" in done.output
    assert "mean Dice of participants that it has not seen" in done.output
    assert "are licensed under CC BY-NC 3.0" in done.stderr
    info = read_info(out)
    odds = info.fusion.class_odds
    assert odds["Left-Cerebral-Cortex"] > 2 * odds["Left-Cerebral-White-Matter"]
    assert (info.name, info.training.licence) == ("own", "CC BY-NC 3.0")
    assert read_scheme(out / "parcels").name == "desikan34"
    assert (out / lesions.name).read_bytes() == lesions.read_bytes()

    # A model that already has its factors does not gain any more.
    command[command.index(str(out))] = str(tmp_path / "worse")
    command[command.index(str(shy))] = str(out)
    done = CliRunner().invoke(app, command, standalone_mode=False)
    assert isinstance(done.exception, EvaluationError)
    assert "no model is written, as it would be no better" in str(done.exception)
    assert exit_code(done.exception) == Exit.ALL_FAILED
    assert not (tmp_path / "worse").exists()


@pytest.mark.slow
def test_from_three_participants_networks_are_trained_and_judged_by_one_left_out(
    tmp_path: Path,
) -> None:
    # Two scans whose names have the same first 64 letters.
    long = f"sub-01_ses-{'baseline' * 7}_run-0"
    results = results_of(tmp_path, (f"{long}1", f"{long}2", "sub-02", "sub-03"))
    recipe = tmp_path / "few.yaml"
    recipe.write_text(
        "name: few\nstart: fast\nscheme: quicknat33\n"
        "data: {store: {path: s, split: s}, rows: 64, columns: 64, epoch_slices: 32}\n"
        "optimiser: {kind: adamw, rate: 2.0e-3}\nloss: {balance: 0, boundary: 0.2}\n"
        "batch: 8\nema: 0.5\nschedule: {kind: constant, steps: 6}\n"
    )
    shy = shy_model(tmp_path / "shy", 64)
    save_parcels(shy / "parcels", "desikan34")
    out = tmp_path / "own"
    words = ["learn", results, "--labels", results, "--model", shy, "--out", out]
    words += ["--recipe", recipe, "--device", "cpu"]
    command = [str(word) for word in words]
    done = CliRunner().invoke(app, command, standalone_mode=False)
    assert done.exception is None, done.exception
    assert "4 corrected scans of 3 participants, 1 participant left out" in done.output
    for column in ("before", "factors", "averaged", "trained"):
        assert column in done.output
    pairs = (tmp_path / "own-training/pairs.tsv").read_text().splitlines()
    assert len(pairs) == 1 + 4
    info = read_info(out)
    assert (info.name, info.training.licence) == ("own", "CC BY-NC 3.0")
    assert read_scheme(out / "parcels").name == "desikan34"
    (run,) = (tmp_path / "own-training").glob("run-*")
    # Every weight lies between the start and the trained model.
    trained, start = load_model(run / "model"), load_model(shy)
    averaged = load_model(run / "averaged")
    for view, network in averaged.networks.items():
        middle = trained.networks[view].state_dict()
        first = start.networks[view].state_dict()
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                expected = (middle[name] + first[name]) / 2
                torch.testing.assert_close(value, expected, rtol=1e-2, atol=1e-3)

    # The same command resumes: nothing is trained again.
    states = {path: path.stat().st_mtime_ns for path in run.rglob("*.state")}
    assert states
    done = CliRunner().invoke(app, [*command, "--overwrite"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.state")} == states
