"""Hashes of everything that the commands write, to prove that a change leaves outputs unchanged.

    scripts/bench bytes --out before.tsv
    scripts/bench bytes --against before.tsv

Small inputs are made from a seed in a scratch folder. The commands of trinat that write
something run there one after the other, on one thread. The table has the SHA-256 of each file,
of the output and exit status of each command, and of the help of each command. `--against`
prints the differences, and fails if there are any. Values that differ between any two runs are
masked first: see MASKS.

`--keep FOLDER` keeps the masked files, so that `diff -r` of two such folders shows a change.
Processors round differently: compare tables of one machine only.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from fnmatch import fnmatch
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import torch
import typer
from attacks.workshop import fork_command
from helpers.dicom import write_classic
from helpers.forked import import_libraries
from helpers.miniatures import (
    freesurfer_subject,
    head_image,
    head_labels,
    ixi_scan,
    oasis_session,
    turned,
    write_nifti,
)
from helpers.overfitted import overfitted_model, random_model
from helpers.sessions import head_of, pose_of, session_of

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit
from trinat.segmentation.io.volume import Volume

# The name of a step, then its command line.
STEPS = """
predict         trinat predict scans broken.nii.gz --model known --out predicted --fill-nonfinite
again           trinat predict scans --model known --out predicted
outputs         trinat predict scans --model known --out outputs --mirror --uncertainty 2 --clean \
                --stats --entropy --probabilities --page --mgz --json
views           trinat predict scans --model random --out views --views coronal,axial \
                --format index --no-pictures --no-brain-mask --workers 2
fast            trinat predict scans/scan1.nii.gz --model fast --out fast --quiet
dicom           trinat predict dicom --model known --out from-dicom --dicom-seg
sessions          trinat predict sessions --model known --out visited --longitudinal \
                --sessions sessions.tsv --include-rejected
shard-1         trinat predict scans --model known --out shards --shard 1/2
shard-2         trinat predict scans --model known --out shards --shard 2/2
merge           trinat merge shards --include-rejected
bids            trinat-bids bids derivatives participant --model known --stats
bids-group      trinat-bids bids derivatives group
evaluate        trinat evaluate --truth truth --pred predicted --pred shards --model-name known \
                --model-name again --images scans --out evaluated --jobs 1
report          trinat report predicted --participants participants.tsv --include-rejected \
                --images scans --adjust proportion --out reported --jobs 1
participants    trinat participants participants.tsv predicted
prepare         trinat prepare --source freesurfer --root subjects --out store \
                --participants participants.tsv
prepare-oasis   trinat prepare --source oasis1 --root oasis --labels tissue4 --out tissues
prepare-scans   trinat prepare --source ixi --root ixi --label-with known --out labelled
split           trinat split store --ratios 2 1 1 --seed 3
folds           trinat split tissues --kfold 3
show            trinat data show store sub-01 --out shown.png
train           trinat train miniature --store store --out runs/store --set stages=[] \
                --set schedule.steps=4
first           trinat train smoke --out runs/smoke --set schedule.steps=4 \
                --set checkpoint_every_steps=2
resume          trinat train runs/smoke/config.yaml --out runs/smoke --resume
runs            trinat runs runs/store runs/smoke
predict-store   trinat predict --store store --model known --out stored
evaluate-store  trinat evaluate --store store --pred stored --out evaluated-store --jobs 1
models          trinat models --json
labels          trinat labels --format itksnap --out labels.txt
bundle          trinat bundle known --out bundled --licence MIT
fit-weights     trinat fit bundled --scans scans --truth truth --only weights
fit-odds        trinat fit known --scans scans --truth truth --only odds --out fitted
onnx            trinat export runs/smoke/model --out onnx
phantom         trinat phantom phantoms --seed 7 --spacing 3 3 3.5 --orientation LIA --oblique 10
no-model        trinat predict scans --model nothing --out refused
no-option       trinat predict scans --out refused --nothing
no-truth        trinat evaluate --truth nothing --pred predicted --out refused
"""
# A pattern of file names, a pattern in their bytes, and its replacement.
MASKS = (
    ("*", r"20(2[6-9]|[3-9]\d)-\d\d-\d\d([T ][\d:.]+(\+00:00|Z)?)?", "DATE"),
    ("*", r'"timings_s": ?\{[^}]*\}', "DURATIONS"),
    ("*", r'"worker": ?"[^"]*"', "WORKER"),
    ("*", r'"mtime_ns": \d+', "TIME"),
    # The summary has seconds, and the ledger has the hashes of tables and pages.
    ("*summary.tsv", r"(?m)\t[\d.]+$", "\tSECONDS"),
    ("*.jsonl", r'(\.(html|tsv)"): ?"[^"]*"', r"\1: DIGEST"),
    # The creation time of a series, and its random number.
    ("*.dcm", r"20(2[6-9]|[3-9]\d)\d{4}", "DATE"),
    ("*.dcm", r"\d{6}\.\d{6}", "TIME"),
    ("*.dcm", r"1\.2\.826\.0\.1\.3680043\.10\.511\.3\.\d+", "NUMBER"),
    # Progress lines depend on the clock.
    ("printed/*", r"(?m)^\d+/\d+ .*\n", ""),
    ("printed/*", r"(?m)^\S+ epoch \d+ step .*\n", ""),
    ("printed/*", r"[\d.]+ (scans/min|slices/s|s\b|min\b)", "SPEED"),
    ("printed/runs.txt", r"(?m)^(runs/\S+ +\S+ +\d+ +)[\d.]+", r"\1HOURS"),
    # Seconds of training change the length and checksum of the record that holds them.
    ("runs/*", r'seconds(\\*"): [\d.e-]+', r"seconds\1: SECONDS"),
    ("runs/*.state", r"(?s)^trinat-state 1 [0-9a-f]{64}\n.{8}", "STATE"),
    ("runs/*.state", r"\}\} *", "}}"),
    # The commit differs by design: a change is compared with the code before it.
    ("*provenance.json", r'"commit": "[^"]*"', '"commit": "COMMIT"'),
    # Losses are logged by the clock: keep the first and last line of the table, and no curve.
    ("runs/*/metrics.csv", r"(?s)^([^\n]*\n).*\n([^\n]*),[^\n,]*\n$", r"\1\2\n"),
    ("runs/*/run.html", r"(?s).+", "CURVES"),
)
# Compressed files have no text to mask; their bytes are compared as they are.
COMPRESSED = (b"\x1f\x8b", b"\x89PNG", b"\x89HDF", b"PK")


def run(*arguments: str) -> None:
    """Run all steps, then write their table or compare it with another."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench bytes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="TABLE")
    parser.add_argument("--against", type=Path, metavar="TABLE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    # Commands are forks of this process, and threads of torch that have started do not survive
    # a fork.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trinat-bytes-") as scratch:
        # Inputs have a part of their path in their headers, so all runs use one name.
        folder = Path(scratch).resolve() / "bytes"
        folder.mkdir()
        make_inputs(folder)
        run_all(folder)
        mask_all(folder)
        table = hashes(folder)
        if chosen.keep:
            shutil.move(folder, chosen.keep)
    if chosen.out:
        lines = [f"{path}\t{digest}\n" for path, digest in table.items()]
        chosen.out.write_text("".join(lines))
    if chosen.against:
        lines = chosen.against.read_text().splitlines()
        found = differences(dict(line.split("\t") for line in lines), table)
        print("\n".join(found) or f"{len(table)} files, none differs")
        if found:
            sys.exit(Exit.SOME_FAILED)


def run_all(folder: Path) -> None:
    """Run the steps in a folder; their output goes to its subfolder `printed`."""
    import_libraries()
    printed = folder / "printed"
    printed.mkdir()
    steps = {}
    for line in STEPS.replace("\\\n", " ").strip().splitlines():
        name, *words = shlex.split(line)
        steps[name] = words
    for name, words in (steps | helps()).items():
        started = time.monotonic()
        running = fork_command(
            words,
            printed / name,
            partial(set_environment, folder),
            folder,
            serial="--workers" not in words,
        )
        done = running.wait(3600)
        said = f"exit status {done.status}\n{done.out}---\n{done.err}"
        (printed / f"{name}.txt").write_text(said)
        for ending in (".out", ".err"):
            (printed / name).with_suffix(ending).unlink()
        if sys.stderr.isatty():
            print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr)


def helps() -> dict[str, list[str]]:
    """Return steps that show the help of each command."""
    found = {"help": ["trinat", "--help"], "help-bids": ["trinat-bids", "--help"]}
    groups: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    while groups:
        words, group = groups.pop()
        for name, command in group.commands.items():
            line = (*words, name)
            found["-".join(("help", *line))] = ["trinat", *line, "--help"]
            if hasattr(command, "commands"):
                groups.append((line, command))
    return found


def set_environment(folder: Path) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
    os.environ.clear()
    os.environ |= kept | {
        "HOME": str(folder / "home"),
        "COLUMNS": "100",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "TRINAT_THREADS": "1",
    }
    import torch

    torch.set_num_threads(1)


def mask_all(folder: Path) -> None:
    """Mask in each file what differs between runs, and the hashes of other files."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    contents = {path: path.read_bytes() for path in paths}
    known = {
        sha256(content).hexdigest(): names[path] for path, content in contents.items()
    }
    for path, content in contents.items():
        if path.suffix == ".dcm":
            content = as_text(path)
        if not content.startswith(COMPRESSED):
            text = content.decode("latin-1").replace(str(folder), "FOLDER")
            text = re.sub(
                r"\b[0-9a-f]{64}\b", lambda found: known.get(found[0], found[0]), text
            )
            path.write_bytes(masked(names[path], text).encode("latin-1"))


def as_text(path: Path) -> bytes:
    """Return the elements of a DICOM file, one a line, without lengths: those of numbers differ."""
    image = pydicom.dcmread(path)
    pixels = sha256(image.PixelData).hexdigest()
    return f"{image.file_meta}\n{image}\npixels {pixels}\n".encode()


def masked(name: str, text: str) -> str:
    """Return the bytes of a file as text, with everything masked that differs between runs."""
    for files, pattern, replacement in MASKS:
        if fnmatch(name, files):
            text = re.sub(pattern, replacement, text)
    return text


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its path in a folder."""
    return {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return a line for each file that is changed, gone or new."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            found.append(f"gone     {path}")
        elif path not in before:
            found.append(f"new      {path}")
        elif before[path] != after[path]:
            found.append(f"changed  {path}")
    return found


def make_inputs(folder: Path) -> None:
    """Write small scans, labels, datasets and models, the same each time."""
    for number, axes in enumerate(("RAS", "LIA", "PSR")):
        labels = head_labels(number)
        write_nifti(
            folder / f"scans/scan{number}.nii.gz", head_image(labels, number), axes
        )
        write_nifti(folder / f"truth/scan{number}.nii.gz", labels, axes)
    (folder / "broken.nii.gz").write_bytes(b"no scan")
    participants = [f"{folder}scan{n}" for folder in ("", "scans_") for n in range(3)]
    write_participants(folder / "participants.tsv", participants)

    image, affine = turned(head_image(head_labels()), "LPS")
    write_classic(folder / "dicom", Volume(image, affine))
    for name in ("01", "02"):
        anat = folder / f"bids/sub-{name}/anat/sub-{name}_T1w.nii.gz"
        write_nifti(anat, head_image(head_labels()), "LPS")
    description = '{"Name": "small", "BIDSVersion": "1.10.0"}\n'
    (folder / "bids/dataset_description.json").write_text(description)

    (folder / "sessions").mkdir()
    for number, pose in enumerate((np.eye(4), pose_of(4, 1)), 1):
        scan = session_of(head_of(), pose, seed=number)
        scan.write(folder / f"sessions/anna-{number}.nii.gz")
    (folder / "sessions.tsv").write_text(
        "scan\tparticipant\tdate\nanna-1.nii.gz\tanna\t2021-03-01\n"
        "anna-2.nii.gz\tanna\t2023-03-09\n"
    )
    for number in range(1, 5):
        freesurfer_subject(folder / "subjects", f"sub-0{number}", shift=number % 3)
        oasis_session(folder / "oasis/disc1", f"OAS1_000{number}_MR1", age=60 + number)
    write_participants(folder / "participants.tsv", [f"sub-0{n}" for n in range(1, 5)])
    ixi_scan(folder / "ixi", "IXI002-Guys-0828")
    shutil.copytree(overfitted_model(), folder / "known")
    shutil.copytree(random_model(), folder / "random")


def write_participants(path: Path, participants: list[str]) -> None:
    rows = [
        f"{participant}\t{30 + n}\t{'FM'[n % 2]}\t{1500 + 10 * n}\n"
        for n, participant in enumerate(participants)
    ]
    path.write_text("participant_id\tage\tsex\teTIV\n" + "".join(rows))
