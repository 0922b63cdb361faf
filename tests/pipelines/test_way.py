"""From a dataset's archives to a report, by following the commands that each command prints.

Only `quicknat` is replaced, by the recipe `miniature`, which takes a minute instead of hours.
"""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from helpers.miniatures import (
    freesurfer_subject,
    ixi_scan,
    malc_scan,
    oasis_session,
    pack,
)
from helpers.overfitted import overfitted_model
from helpers.tiny_training import NETWORK
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.space.views import View

pytestmark = pytest.mark.usefixtures("without_figures")

GRID = "grid: [48, 48, 48]\n"
# As large as slices of the recipe `miniature`. The challenge has the usual grid.
MIDDLE = "grid: [96, 96, 96]\n"


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run a command and then each command that it proposes, to the end; return all output."""
    monkeypatch.chdir(tmp_path)

    def type_(
        line: str, replaced: tuple[str, str] = ("quicknat", "miniature")
    ) -> list[str]:
        said: list[str] = []
        while line:
            # The command proposed without a GPU is replaced like the one proposed with a GPU.
            proposed = line.replace("train finetune", "train quicknat")
            words = shlex.split(proposed.replace(*replaced))
            assert words[0] == "trinat"
            done = CliRunner().invoke(app, words[1:], standalone_mode=False)
            assert done.exception is None, f"{line}: {done.exception!r}"
            assert done.return_value in (None, Exit.OK), f"{line}: {done.output}"
            said += done.output.splitlines()
            last = (done.stdout.splitlines() or [""])[-1]
            line = last.removeprefix("next: ") if last.startswith("next: ") else ""
        return said

    return type_


def mean_dice(views: int) -> float:
    """Return the mean Dice over structures and test participants.

    `views` is the model's number of views.
    """
    assert len(read_info(next(Path("runs").glob("*/model"))).architectures) == views
    rows = json.loads(Path("report/summary.json").read_text())["statistics"]
    mean = next(
        row["mean"]
        for row in rows
        if (row["metric"], row["structure"]) == ("dice", "group:all")
    )
    assert f">{mean:.3f}<" in Path("report/report.html").read_text()
    return float(mean)


@pytest.mark.slow
@pytest.mark.important
def test_from_oasis_freesurfer_discs_to_a_report(
    follow: Callable[..., list[str]],
) -> None:
    for number in range(1, 6):
        freesurfer_subject(
            Path("made/disc1"), f"OAS1_000{number}_MR1", shift=number % 3
        )
    Path("oasis").mkdir()
    pack(Path("made"), Path("oasis/oasis_cs_freesurfer_disc1.tar.gz"))
    shutil.rmtree("made")
    Path("grid.yaml").write_text(MIDDLE)
    said = follow(
        "trinat prepare --source oasis1 --root oasis --out store --config grid.yaml"
    )
    assert sum(line.startswith("next: ") for line in said) == 4
    assert mean_dice(views=3) > 0


@pytest.mark.slow
@pytest.mark.important
def test_from_ixi_and_a_subjects_dir_to_a_report(
    follow: Callable[..., list[str]],
) -> None:
    for number in (2, 12, 13, 14):
        name = f"IXI{number:03}-Guys-{number:04}"
        ixi_scan(Path("made"), name)
        freesurfer_subject(Path("fs"), name, shift=number % 3)
    Path("ixi").mkdir()
    pack(Path("made"), Path("ixi/IXI-T1.tar"))
    shutil.rmtree("made")
    Path("grid.yaml").write_text(MIDDLE)
    follow(
        "trinat prepare --source ixi --root ixi --subjects-dir fs --out store "
        "--config grid.yaml"
    )
    assert mean_dice(views=3) > 0


@pytest.mark.slow
@pytest.mark.important
def test_from_the_labelling_challenge_to_a_report(
    follow: Callable[..., list[str]],
) -> None:
    """By the published split: 1000 to 1002 train or validate, 1003 and 1004 test."""
    for number, scan in enumerate(("1000", "1001", "1002")):
        malc_scan(Path("malc"), scan, part="training", shift=number)
    for scan in ("1003", "1004"):
        malc_scan(Path("malc"), scan, part="testing")
    said = follow(
        "trinat prepare --source malc --root malc --out store",
        ("train manual", "train miniature"),
    )
    assert sum(line.startswith("next: ") for line in said) == 4
    assert mean_dice(views=3) > 0
    lines = Path("report/metrics.csv").read_text().splitlines()
    assert {row["subject"] for row in csv.DictReader(lines)} == {"1003", "1004"}


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("manual", ["batch=2"]),
        ("quicknat-paper", ["data.rows=64", "data.columns=64", "validation=null"]),
    ],
)
def test_the_recipes_of_the_paper_and_of_manual_learn_from_the_challenge(
    recipe: str, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of the real networks."""
    monkeypatch.chdir(tmp_path)
    for number, scan in enumerate(("1000", "1001", "1002")):
        malc_scan(Path("malc"), scan, part="training", shift=number)
    options = [
        word
        for setting in (*settings, "schedule={kind: constant, steps: 2}")
        for word in ("--set", setting)
    ]
    for line in (
        ["prepare", "--source", "malc", "--root", "malc", "--out", "store"],
        ["split", "store", "--published"],
        ["train", recipe, "--view", "axial", "--store", "store", *options],
    ):
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output
    info = read_info(Path(f"runs/{recipe}/model"))
    assert list(info.architectures) == [View.AXIAL]
    assert info.training.slices_seen == 2 * (2 if recipe == "manual" else 4)
    assert "CC BY-NC 3.0" in info.training.data


@pytest.mark.slow
@pytest.mark.important
def test_cross_validation_pools_the_participants_of_all_folds(
    follow: Callable[..., list[str]],
) -> None:
    for number in range(1, 4):
        freesurfer_subject(Path("fs"), f"p{number}", shift=number)
    Path("grid.yaml").write_text(GRID)
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    prepare = "prepare --source freesurfer --root fs --out store --config grid.yaml"
    assert CliRunner().invoke(app, shlex.split(prepare)).exit_code == 0
    said = follow("trinat split store --kfold 3", ("quicknat", "tiny.yaml"))
    assert sum(line.startswith("next: ") for line in said) == 3
    lines = Path("report/metrics.csv").read_text().splitlines()
    tested = {row["subject"] for row in csv.DictReader(lines)}
    assert tested == {"p1", "p2", "p3"}
    # Each participant was segmented by the network that had not seen that participant.
    for fold in range(3):
        (participant,) = json.loads(Path(f"store/split-{fold}.json").read_text())[
            "test"
        ]
        (entry,) = Path(f"found/fold-{fold}").glob("*_dseg.nii.gz")
        assert entry.name == f"{participant}_dseg.nii.gz"
        digest = sha256_of(Path(f"runs/freesurfer/fold-{fold}/model/model.yaml"))
        assert digest in Path(f"found/fold-{fold}/run.jsonl").read_text()
    # Nothing is left to do.
    again = CliRunner().invoke(
        app,
        shlex.split(
            "train tiny.yaml --store store --folds --out runs/freesurfer --resume"
        ),
    )
    assert again.exit_code == 0


TINY = {
    "name": "tiny",
    "network": NETWORK,
    "data": {
        "synthetic": {"heads": "phantom"},
        "rows": 48,
        "columns": 48,
        "epoch_slices": 64,
    },
    "schedule": {"steps": 8},
    "batch": 8,
}


@pytest.mark.slow
def test_labels_that_a_model_made_are_called_so_everywhere(
    follow: Callable[..., list[str]],
) -> None:
    for number in (2, 12, 13):
        ixi_scan(Path("ixi"), f"IXI{number:03}-Guys-{number:04}")
    Path("grid.yaml").write_text(GRID)
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    model = overfitted_model()
    command = f"trinat prepare --source ixi --root ixi --label-with {model} --out store"
    said = follow(f"{command} --config grid.yaml", ("quicknat", "tiny.yaml"))
    assert "store: 3 in, 3 made, 0 up to date, 0 failed, 0 skipped" in said
    store = json.loads(Path("store/store.json").read_text())
    assert {s["pseudo"]["model"] for s in store["subjects"].values()} == {"overfitted"}
    info = read_info(Path("runs/ixi/model"))
    assert info.training.pseudo_labels.startswith("pseudo-labels of overfitted (")
    # A student cannot learn structures that its teacher does not predict, or did not find.
    assert set(info.not_predicted) >= set(read_info(model).not_predicted)
    run = Path("runs/ixi/train/coronal/run.html").read_text()
    assert "train/coronal, pseudo-labels of overfitted" in run
    for page in ("found/report.html", "report/report.html"):
        assert "was trained with pseudo-labels of overfitted" in Path(page).read_text()
    assert (
        "The truth is no truth: it is pseudo-labels"
        in Path("report/report.html").read_text()
    )
    follow("trinat report found --out group --jobs 1 --include-rejected")
    assert "pseudo-labels of overfitted" in Path("group/report.html").read_text()
    # A model that starts from it has seen the same subjects.
    Path("more.yaml").write_text(yaml.safe_dump(TINY | {"start": "runs/ixi/model"}))
    follow("trinat train more.yaml --out runs/more --view axial")
    more = read_info(Path("runs/more/model")).training
    assert more.pseudo_labels == info.training.pseudo_labels


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "views"), [("tissue4", 3), ("left4", 2)])
def test_a_scheme_without_a_sagittal_view_trains_the_others_and_says_so(
    follow: Callable[..., list[str]], labels: str, views: int
) -> None:
    for number in range(1, 4):
        if labels == "tissue4":
            oasis_session(Path("oasis/disc1"), f"OAS1_000{number}_MR1")
        else:
            freesurfer_subject(Path("oasis/disc1"), f"OAS1_000{number}_MR1")
    Path("grid.yaml").write_text(GRID)
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    said = follow(
        f"trinat prepare --source oasis1 --root oasis --labels {labels} --out store "
        "--config grid.yaml",
        ("quicknat", "tiny.yaml"),
    )
    told = "store has no sagittal slices: coronal and axial are trained"
    assert (told in said) == (views == 2)
    mean_dice(views)
    with Path("report/metrics.csv").open() as file:
        structures = {row["structure"] for row in csv.DictReader(file)}
    assert (
        len([name for name in structures - {"background"} if "group:" not in name]) == 3
    )
    assert {v.value for v in View} >= {
        p.name for p in Path("runs/oasis1/train").iterdir()
    }
