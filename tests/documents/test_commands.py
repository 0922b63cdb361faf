"""Runs every command and every piece of Python in the pages exactly as it is shown.

The blocks of a page run one after the other in one folder, in a shell, on small data in the
layout that the page describes. trinat and Python start at once there (helpers/warm.py).
REPLACED is the only place where a command that takes hours or needs another machine is
replaced. A block that cannot run, or is no command, has a comment before it with the reason:
`<!-- not run: why -->`. All other blocks run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.dicom import write_classic
from helpers.miniatures import (
    freesurfer_subject,
    head_image,
    head_labels,
    ixi_scan,
    malc_scan,
    neurite_session,
    oasis_session,
    pack,
    turned,
    write_mgz,
    write_nifti,
)
from helpers.overfitted import overfitted_model, shy_model, with_parcels
from helpers.sessions import head_of, pose_of, session_of
from helpers.small_store import all_train, small_store
from helpers.warm import Warm

from trinat.pipelines.study.ratings import Rating, save_rating
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import phantom_heads

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]

REPLACED = (
    # Takes hours; trains a tiny network instead.
    (r"^trinat train (fast|quicknat-paper|quicknat)\b", "trinat train miniature"),
    # A few steps only; test_way.py tests how good a network is after more.
    (
        r"^trinat train miniature --",
        "trinat train miniature --set stages.0.schedule.steps=8 "
        "--set stages.1.schedule.steps=8 --",
    ),
    # The command at the top of the same page trains all views.
    (r"(--out runs/(gpus|cores))\b", r"\1 --view coronal"),
    # A grid of a 30th of the usual voxels, because every slice is validated.
    (r"^trinat prepare\b", "trinat prepare --config grid.yaml"),
    # Takes minutes per scan.
    (r"--label-with fast", "--label-with runs/oasis/model"),
    # One slice of each view instead of 50.
    (
        r"^trinat suspects store --model fast",
        "trinat suspects store --model fast --every 250",
    ),
    # Four participants and the shipped network; two steps of it.
    (
        r"^trinat train finetune\b",
        "trinat train finetune --set 'schedule={steps: 2}' --set batch=2",
    ),
    # Takes hours with the shipped network; two steps of one view instead.
    (
        r"^trinat train real\b",
        "trinat train real --view coronal --set 'schedule={steps: 2}' --set batch=2",
    ),
    # Stands in for what a person does in the browser.
    (
        r"^trinat view results$",
        "for name in scan scan1; do cp drawn/$name.nii.gz "
        "results/${name}_desc-corrected_dseg.nii.gz; done",
    ),
    # The same for networks of parcels.
    (
        r"^trinat train parcels\b",
        "trinat train parcels --view coronal --set 'schedule={steps: 2}' --set batch=2",
    ),
    # Uses a small model with parcels.
    (r"^trinat predict (.*) --parcels", r"trinat predict \1 --parcels --model divided"),
    # Labels that a model does not find at all are refused, so use a model that knows the head.
    (
        r"^trinat learn results\b",
        "trinat learn results --method factors --model models/shy",
    ),
    (r"^trinat fit models/own\b", "trinat fit models/known"),
    # All results of the tiny network are rejected.
    (r"^trinat report results\b", "trinat report --include-rejected results"),
    # The page refers to the head that its first lines segmented; here that is a small one.
    (r"torchio\.ScalarImage\(\"head.nii.gz\"\)", 'torchio.ScalarImage("scan.nii.gz")'),
    (
        r"torchio\.LabelMap\(\"head_truth.nii.gz\"\)",
        'torchio.LabelMap("drawn/scan.nii.gz")',
    ),
    # Segments whole heads; tests/pipelines/test_demo.py runs scripts/demo, which segments
    # three.
    (
        r"^trinat phantom heads\b.*",
        "mkdir heads; cp scan.nii.gz heads/sub-01_T1w.nii.gz",
    ),
    # Takes half a minute of processor time per network.
    (r"^trinat export fast\b", "trinat export runs/coronal/model"),
    (r"--device cuda(:[\d,]+)?", "--device cpu"),
    (r"--seconds 420", "--seconds 6"),
    # Gigabytes; tests/pipelines/prepare/test_data_clis.py downloads from a local server.
    (r"^trinat data get ", "test -d oasis && true "),
)


class Block(str):
    """Lines of one block; `why` is the reason not to run it."""

    why = ""
    language = ""


def blocks(text: str) -> list[Block]:
    """Return the indented and fenced blocks of a page, with language and reason not to run them."""
    found = []
    pattern = (
        r"(?:<!-- not run: (?P<why>[^>]*?) -->\n+)?"
        r"(?:```(?P<language>\w*)\n(?P<fenced>.*?)```|(?P<indented>(?:^ {4}[^\n]*\n)+))"
    )
    for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE):
        indented = re.sub(r"^ {4}", "", match["indented"] or "", flags=re.M)
        block = Block(match["fenced"] or indented)
        block.why, block.language = match["why"] or "", match["language"] or ""
        found.append(block)
    return found


def as_run(block: Block) -> str:
    lines = []
    for line in block.replace("\\\n", " ").splitlines():
        for pattern, replacement in REPLACED:
            line = re.sub(pattern, replacement, line)
        lines.append(line)
    return "\n".join(lines)


def test_blocks_are_found_and_only_what_is_declared_is_replaced() -> None:
    page = (
        "Text\n\n    trinat train fast --out a \\\n        --seconds 420\n    trinat runs a\n\n"
        "<!-- not run: a synopsis -->\n\n    trinat predict INPUT\n\n    trinatt runs a\n\n"
        "```python\nimport trinat\n```\n"
    )
    first, second, misspelt, python = blocks(page)
    assert " ".join(as_run(first).split()) == (
        "trinat train miniature --set stages.0.schedule.steps=8 "
        "--set stages.1.schedule.steps=8 --out a --seconds 6 trinat runs a"
    )
    assert (second.why, python.language) == ("a synopsis", "python")
    assert not any(block.why for block in (first, misspelt, python))


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs_as_it_is_written(
    page: str, warm: Warm, tmp_path: Path
) -> None:
    commands = "\n".join(as_run(block) for block in blocks((ROOT / page).read_text()))
    for name, make in DATA.items():
        # Files that the page's own commands create must not exist before.
        named = rf"(?<![\w/.-]){re.escape(name)}(?![\w-])"
        if re.search(named, commands) and not re.search(rf"--out {named}", commands):
            make(tmp_path / name)
    environment = {
        **os.environ,
        "PATH": f"{warm.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "OMP_NUM_THREADS": "1",
    }
    if "/.local/state" in commands:
        # Protects the home folder of the person who runs the tests.
        environment |= {"HOME": str(tmp_path), "XDG_STATE_HOME": ""}
    for block in blocks((ROOT / page).read_text()):
        if block.why:
            continue
        if block.language == "python":
            command = [str(warm.bin / "python"), "-c", as_run(block)]
        else:
            command = ["bash", "-euc", as_run(block)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"


AXES = ("RAS", "PSR")


def _scans(folder: Path, ending: str = ".nii.gz", *, truth: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, axes in enumerate(AXES):
        labels = head_labels(number)
        array = labels if truth else head_image(labels, number)
        write_nifti(folder / f"scan{number or ''}{ending}", array, axes)


def _subjects(folder: Path) -> None:
    """Write five subjects whose cortex has three parcels on each side, one behind the other."""
    for number in range(1, 6):
        shift = number % 3
        subject = freesurfer_subject(
            folder, f"sub-0{number}", image="T1.mgz", shift=shift
        )
        labels = head_labels(shift)
        place = np.indices(labels.shape)[1] * 3 // labels.shape[1]
        for cortex, first in ((3, 1001), (42, 2001)):
            labels = np.where(labels == cortex, first + place, labels)
        write_mgz(subject / "mri/aparc+aseg.mgz", labels.astype(np.int32))


def _label_maps(folder: Path) -> None:
    """Write two heads in LIA order with their tables, as github.com/BBillot/SynthSeg has them."""
    folder.mkdir(parents=True)
    heads = phantom_heads(3)
    for shift in (0, 2):
        numbers = np.roll(heads.numbers[heads.labels[0]], shift, 2)
        data, affine = turned(numbers.astype(np.int16), "LIA")
        Volume(data, affine).write(
            folder / f"training_seg_0{shift + 1}.nii.gz", labels=True
        )
    np.save(folder / "generation_labels.npy", heads.numbers)
    np.save(folder / "generation_classes_contrast_specific.npy", heads.classes)
    np.save(folder / "prior_means_t1.npy", heads.means)
    np.save(folder / "prior_stds_t1.npy", heads.spreads)


def _bids(folder: Path) -> None:
    for number in ("01", "02"):
        anat = folder / f"sub-{number}/anat/sub-{number}_T1w.nii.gz"
        write_nifti(anat, head_image(head_labels()), "LPS")
    write_nifti(folder / "sub-01/anat/sub-01_T2w.nii.gz", head_image(head_labels()))
    description = '{"Name": "small", "BIDSVersion": "1.10.0"}\n'
    (folder / "dataset_description.json").write_text(description)


def _oasis(folder: Path) -> None:
    """Write a packed disc of each part, as the server provides them."""
    for number in range(1, 6):
        oasis_session(folder / "made/disc1", f"OAS1_000{number}_MR1", age=60 + number)
    pack(folder / "made", folder / "oasis_cross-sectional_disc1.tar.gz")
    shutil.rmtree(folder / "made")
    for number in range(1, 6):
        freesurfer_subject(
            folder / "made/disc1", f"OAS1_000{number}_MR1", shift=number % 3
        )
    pack(folder / "made", folder / "oasis_cs_freesurfer_disc1.tar.gz")
    shutil.rmtree(folder / "made")


def _ixi(folder: Path) -> None:
    for number in (2, 12, 13, 14):
        ixi_scan(folder / "made", f"IXI{number:03}-Guys-{number:04}")
    pack(folder / "made", folder / "IXI-T1.tar")
    shutil.rmtree(folder / "made")


def _ixi_freesurfer(folder: Path) -> None:
    for number in (2, 12, 13, 14):
        freesurfer_subject(folder, f"IXI{number:03}", shift=number % 3)


def _neurite(folder: Path) -> None:
    for number in range(1, 4):
        neurite_session(folder, f"OAS1_000{number}_MR1")


def _malc(folder: Path) -> None:
    for scan in ("1000", "1001", "1002", "1006"):
        malc_scan(folder, scan, part="training")
    for scan in ("1003", "1023"):
        malc_scan(folder, scan, part="testing")


def _grid(path: Path) -> None:
    path.write_text("grid: [96, 96, 96]\n")


def _store(folder: Path) -> None:
    """Write a store of two training subjects, for pages that do not prepare one."""
    shape = (48, 48, 48)
    small_store(folder, {"sub-01": shape, "sub-02": shape})
    all_train(folder)


def _run_of(view: View) -> Callable[[Path], None]:
    """Return a function that writes the output of training one view."""

    def make(folder: Path) -> None:
        model = load_model(overfitted_model(), [view])
        description = Description(name="small", not_predicted=model.info.not_predicted)
        folder.mkdir(parents=True)
        save_model(folder / "model", description, model.networks)

    return make


def _dicom(folder: Path) -> None:
    image, affine = turned(head_image(head_labels()), "LPS")
    volume = Volume(image, affine)
    write_classic(folder / "t1", volume)
    write_classic(folder / "scout", volume, "scout", SeriesDescription="scout")


def _ratings(path: Path) -> None:
    """Write one rating, of a label map that no longer exists."""
    rating = Rating(
        "scan", "", "look", "", "anna", "2026-01-01T00:00:00+00:00", "0" * 64
    )
    path.parent.mkdir(parents=True)
    save_rating(path, rating, lock=path.with_name("lock"))


def _sessions(folder: Path) -> None:
    """Write two scans of one participant."""
    folder.mkdir(parents=True)
    session_of(head_of(), np.eye(4)).write(folder / "anna-1.nii.gz")
    session_of(head_of(), pose_of(4, 1), seed=1).write(folder / "anna-2.nii.gz")


def _table_of_sessions(path: Path) -> None:
    path.write_text(
        "scan\tparticipant\tdate\nanna-1.nii.gz\tanna\t2021-03-01\n"
        "anna-2.nii.gz\tanna\t2023-03-09\n"
    )


def _labels_of_sessions(folder: Path) -> None:
    """Write hand-drawn labels of both scans of that participant."""
    folder.mkdir(parents=True)
    affine = head_of().affine
    poses = (np.eye(4), pose_of(4, 1))
    for number, pose in enumerate(poses, start=1):
        labels = Volume(head_labels(), pose @ affine)
        labels.write(folder / f"anna-{number}.nii.gz", labels=True)


def _drawn(folder: Path) -> None:
    """Write hand-drawn labels of the scans of the page."""
    if (folder.parent / "sessions").exists():
        _labels_of_sessions(folder)
    else:
        _scans(folder, truth=True)


def _known_model(folder: Path) -> None:
    """Write a model that finds the structures of these heads."""
    shutil.copytree(overfitted_model(), folder)


DATA: dict[str, Callable[[Path], None]] = {
    "dicom-study": _dicom,
    "scan.nii.gz": lambda path: _scans(path.parent),
    "study": _scans,
    "scans": _scans,
    "results/ratings.tsv": _ratings,
    "bids": _bids,
    "BIDS_DIR": _bids,
    "SUBJECTS_DIR": _subjects,
    "own": _known_model,
    "divided": with_parcels,
    "LABELMAPS": _label_maps,
    "grid.yaml": _grid,
    "store": _store,
    "oasis": _oasis,
    "ixi": _ixi,
    "ixi-freesurfer": _ixi_freesurfer,
    "neurite": _neurite,
    "malc": _malc,
    "sessions": _sessions,
    "sessions.tsv": _table_of_sessions,
    "drawn": _drawn,
    "t1": _scans,
    "validation/t1": _scans,
    "labels": lambda path: _scans(path, truth=True),
    "validation/labels": lambda path: _scans(path, truth=True),
    "models/known": _known_model,
    "models/shy": shy_model,
    **{f"runs/{view.value}": _run_of(view) for view in View},
}
