"""trinat learn --lesions: masks of lesions become a network if held-out participants gain."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.lesions import save_lesion_network
from helpers.miniatures import head_image, head_labels, write_nifti
from helpers.overfitted import overfitted_model
from helpers.studies import add_lesions, correct_voxel, write_study
from scipy import ndimage
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.learn import lesions
from trinat.pipelines.learn.corrected import find_corrected
from trinat.pipelines.learn.lesions import learn_lesions
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.inference.lesion_network import load_lesion_network
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.models.zoo import LESIONS_FILE

pytestmark = pytest.mark.usefixtures("one_thread")


def write_patients(folder: Path, *names: str) -> LearnSettings:
    """Write a scan with a dark ball in the white matter for each name, results, and masks."""
    results = folder / "results"
    results.mkdir()
    with Ledger(results / "run.jsonl") as ledger:
        for seed, name in enumerate(names):
            labels = head_labels()
            depth = ndimage.distance_transform_edt(np.isin(labels, (2, 41)))
            deepest = np.unravel_index(depth.argmax(), labels.shape)
            offsets = np.indices(labels.shape) - np.reshape(deepest, (3, 1, 1, 1))
            # Of 123 voxels.
            ball = (offsets**2).sum(0) <= 9
            image = head_image(labels, seed)
            image[ball] = image[ball] // 2
            scan = folder / f"scans/{name}.nii.gz"
            write_nifti(scan, image, "LIA")
            write_nifti(folder / f"masks/{name}.nii.gz", ball.astype(np.uint8), "RAS")
            path = results / f"{name}_dseg.nii.gz"
            write_nifti(path, labels, "LIA")
            entry = Entry(
                name,
                "done",
                scan.name,
                input_sha256=sha256_of(scan),
                scan=os.path.relpath(scan, results.resolve()),
                outputs={path.name: sha256_of(path)},
            )
            ledger.add(entry)
    model = folder / "model"
    shutil.copytree(overfitted_model(), model)
    # A network that finds nothing.
    save_lesion_network(model, brighter=2, thinnest_mm=6)
    return LearnSettings(
        results=results,
        out=folder / "own",
        lesions=True,
        labels=folder / "masks",
        model=str(model),
        device="cpu",
    )


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesions, "_STEPS", {"trained further": 2, "new": 200})


@pytest.mark.slow
def test_masks_of_lesions_become_a_network(tmp_path: Path) -> None:
    settings = write_patients(tmp_path, "p1", "p2")
    learnt = learn_lesions(settings)
    assert learnt.exit == Exit.OK
    figures = read_info(settings.out).metrics["lesions"]
    assert figures["kind"] == "new"
    assert (figures["scans"], figures["mean_dice_before"]) == (2, 0)
    assert figures["mean_dice_after"] > 0.6
    network = load_lesion_network(settings.out / LESIONS_FILE)
    # Slices of 1 mm were learnt from, of which the old network was unreliable.
    assert float(network.thinnest_mm) == pytest.approx(0.9)
    before = load_lesion_network(Path(str(settings.model)) / LESIONS_FILE)
    assert network.prior.equal(before.prior)

    # A network that knows these masks gains nothing.
    again = replace(settings, model=str(settings.out), out=tmp_path / "again")
    with pytest.raises(EvaluationError):
        learn_lesions(again)
    assert not again.out.exists()


def test_one_participant_does_not_suffice(tmp_path: Path) -> None:
    settings = write_patients(tmp_path, "p1")
    words = ["learn", settings.results, "--lesions", "--labels", settings.labels]
    words += ["--model", settings.model, "--out", settings.out]
    done = CliRunner().invoke(app, [str(word) for word in words], standalone_mode=False)
    assert isinstance(done.exception, ConfigError)
    assert done.exception.where == str(settings.results)
    assert not settings.out.exists()


@pytest.mark.parametrize(
    ("option", "value"), [("method", "training"), ("seconds", 9.0)]
)
def test_options_for_structures_are_refused(tmp_path: Path, option, value) -> None:
    settings = LearnSettings(tmp_path, tmp_path / "own", lesions=True)
    with pytest.raises(ConfigError, match=f"--{option}"):
        learn_lesions(replace(settings, **{option: value}))


@pytest.mark.slow
def test_a_mask_on_another_grid_is_named_and_the_others_are_used(
    tmp_path: Path,
) -> None:
    settings = write_patients(tmp_path, "p1", "p2", "p3")
    small = np.ones((9, 9, 9), np.uint8)
    write_nifti(tmp_path / "masks/p3.nii.gz", small, "RAS")
    assert learn_lesions(settings).exit == Exit.SOME_FAILED


def test_painted_lesions_are_found_and_structures_are_not(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a", "b"])
    add_lesions(out, "a")
    correct_voxel(out / "b_dseg.nii.gz", (15, 8, 6), 49, "Right-Thalamus")
    mask = out / "a_lesions.nii.gz"
    painted = correct_voxel(mask, (6, 9, 12), 1, "White-matter-lesions")
    found, failures = find_corrected(Study(out, kind="lesions"))
    assert [each.labels for each in found] == [painted.path]
    assert failures == []
    found, _ = find_corrected(Study(out))
    assert [each.scan.case for each in found] == ["b"]


@pytest.mark.parametrize("name", ["a", "a_lesions", "below/a_lesions"])
def test_masks_from_elsewhere_may_be_called_as_trinat_calls_them(
    tmp_path: Path, name: str
) -> None:
    out = write_study(tmp_path / "out", ["a", "b"])
    add_lesions(out, "a")
    mask = tmp_path / f"masks/{name}.nii.gz"
    mask.parent.mkdir(parents=True)
    shutil.copy(out / "a_lesions.nii.gz", mask)
    study = Study(out, against=tmp_path / "masks", kind="lesions")
    found, failures = find_corrected(study)
    assert [each.labels for each in found] == [mask]
    assert failures == []


@pytest.mark.parametrize(
    ("dice", "expected"),
    [
        # Slices of 1 mm have a mean of 0.4 or 0.6, slices of 6.5 mm have 0.7.
        ([0.2, 0.6, 0.7], 5.85),
        ([0.4, 0.8, 0.7], 0.9),
        ([0.2, 0.6, 0.4], np.inf),
    ],
)
def test_a_network_is_for_slices_in_which_it_was_reliable(
    dice: list[float], expected: float
) -> None:
    scans = [SimpleNamespace(thick_mm=thick) for thick in (1.0, 1.01, 6.5)]
    assert lesions._thinnest_mm(scans, dice) == pytest.approx(expected)
