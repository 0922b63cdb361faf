"""Attacks that mix up scans: files paired by name, results of scans that have been replaced."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from attacks.jobs import JOBS, Bench
from attacks.verdicts import Refused, wrong
from attacks.workshop import (
    Done,
    Try,
    checked,
    digests,
    happens,
    skewed,
    tiny_scan,
    unchanged,
)
from trinat.pipelines.study.files import find_files
from trinat.pipelines.study.pairing import pair_files
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.io.volume import Volume

# Pairing ------------------------------------------------------------------------------------

# Names that are prefixes of each other, or become equal when joined, which careless pairing
# confuses.
_STEMS = (
    ("OAS1_0001", "OAS1_0001_MR2", "OAS1_0001_MR2_b", "OAS1_0002", "OAS1_00010"),
    ("a", "a_b", "a_b_c", "b", "b_c", "ab", "A"),
    ("1", "2", "10", "1_2", "02", "12"),
    ("case-1", "case-1.5", "case-10", "case-1-b", "case 1"),
    ("p1/T1", "p2/T1", "p1_T1", "p1/x/T1", "p1/x_T1", "p1_x/T1", "T1"),
    (
        "sub-01",
        "sub-01_ses-1",
        "sub-01_ses-2",
        "sub-01_ses-1_run-1",
        "sub-01_ses-1_run-2",
    ),
    ("sub-1", "sub-01", "sub-1_acq-x", "sub-1_acq-y", "sub-2"),
)
_ENDINGS = ("", "_seg", "_pred", "_T1w", "_GT", "_x2", "-manual", ".auto", "_desc-x")
_BEGINNINGS = ("", "", "", "true_", "p", "t")
_SUFFIXES = (".nii.gz", ".nii", ".NII.GZ", ".mgz")


def pairing(attempt: Try) -> None:
    """Pair files with similar names, some missing: no file goes to another participant."""
    chance = attempt.chance
    stems = list(chance.choice(_STEMS))
    chance.shuffle(stems)
    people = stems[: chance.randint(1, len(stems))]
    owners: dict[Path, str] = {}
    sides = []
    style = chance.choice(_BEGINNINGS), chance.choice(_ENDINGS)
    for side in ("truth", "pred"):
        folder = attempt.folder / side
        if happens(chance, 0.5):
            style = chance.choice(_BEGINNINGS), chance.choice(_ENDINGS)
        _write_side(folder, people, style, chance, owners)
        sides.append(folder)
    if not all(any(path.is_relative_to(folder) for path in owners) for folder in sides):
        return
    guess = happens(chance, 0.7)
    found = pair_files(*map(find_files, sides), guess=guess)
    for pair in found.pairs:
        whose = owners[pair.truth.path], owners[pair.prediction.path]
        if not _same_participant(*whose) and not pair.is_guess:
            raise wrong(
                f"{' is paired with '.join(whose)} by {pair.how}, without a word"
            )
    seen = [pair.truth.path for pair in found.pairs] + [
        f.path for f in found.truths_alone
    ]
    seen += [pair.prediction.path for pair in found.pairs]
    seen += [file.path for file in found.predictions_alone]
    if sorted(seen) != sorted(owners):
        raise wrong(
            "a file is neither paired nor named as one without a partner, or is both"
        )


def _same_participant(one: str, other: str) -> bool:
    """Return True for equal names.

    P1/T1 may be called p1_T1 elsewhere, but p1/x_T1 is not p1_x/T1.
    """
    is_flat = "/" not in one or "/" not in other
    return one == other or (
        is_flat and one.replace("/", "_") == other.replace("/", "_")
    )


def _write_side(
    folder: Path,
    people: Sequence[str],
    style: tuple[str, str],
    chance: random.Random,
    owners: dict[Path, str],
) -> None:
    """Write empty files of some of the participants, all in one style of naming."""
    beginning, ending = style
    share_missing = chance.choice((0.1, 0.3, 0.6))
    marked = (
        "_dseg" if happens(chance, 0.5) or any("/" in name for name in people) else ""
    )
    for participant in people:
        if happens(chance, share_missing):
            continue
        place, _, stem = participant.rpartition("/")
        name = f"{beginning}{stem}{ending}{marked}{chance.choice(_SUFFIXES)}"
        path = folder / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        owners[path] = participant


# Attempts -----------------------------------------------------------------------------------

_DIVISIONS = ((), ("1/2", "2/2"), ("2/2", "1/2"), ("2/3", "1/3", "3/3"))
# Outputs that describe the present scans, compared with those of a run in a fresh folder.
_TOLD = ("_dseg.nii.gz", ".stats", "volumes.tsv", "qc.tsv", "callosum.tsv")


def attempts(attempt: Try) -> None:
    """Exchange and damage scans between runs, whole and in shards, under clocks years apart.

    The final results must equal those of a fresh run.
    """
    chance = attempt.chance
    bench = Bench(attempt, JOBS["predict"])
    scans = sorted((bench.inputs / "scans").iterdir())
    contents = {scan: [scan.read_bytes(), b"damaged", _other(scan)] for scan in scans}
    # Lets the file be mistaken for a new one later.
    _run_all(bench, chance)
    for _ in range(chance.randint(1, 2)):
        scan = chance.choice(scans)
        scan.write_bytes(chance.choice(contents[scan][1:] + contents[scan]))
        _run_all(bench, chance)
    before = digests(bench.inputs)
    fresh = attempt.folder / "fresh"
    line = JOBS["predict"].line(attempt.sound, bench.inputs, fresh)
    _some_done(attempt.run(*line, home=bench.inputs))
    _same(bench.out, fresh)
    if happens(chance, 0.3):
        _same_report(attempt, bench.out, fresh)
    unchanged(before, bench.inputs, "attempts")


def _other(scan: Path) -> bytes:
    """Return the bytes of another head in a file of this name; the file itself stays."""
    before = scan.read_bytes()
    image, _, affine = tiny_scan(1)
    Volume(image[::-1].copy(), affine).write(scan)
    other = scan.read_bytes()
    scan.write_bytes(before)
    return other


def _run_all(bench: Bench, chance: random.Random) -> None:
    parts = chance.choice(_DIVISIONS)
    more = ["--entropy"] if happens(chance, 0.2) else []
    if happens(chance, 0.2):
        # Two runs at once: the second is refused in one line, or does no harm.
        line = bench.line()
        beside = [*line, "--shard", "1/2"] if happens(chance, 0.5) else line
        for running in [
            bench.attempt.start(*which, home=bench.inputs, before=skewed(chance, 5000))
            for which in (line, beside)
        ]:
            _done_or_locked(running.wait())
        parts, more = (), []
    for part in parts:
        line = [*bench.line(), *more, "--shard", part]
        _some_done(
            bench.attempt.run(*line, home=bench.inputs, before=skewed(chance, 5000))
        )
    if parts:
        _some_done(bench.attempt.run("merge", bench.out, home=bench.inputs))
    if not parts or more or happens(chance, 0.3):
        line = bench.line()
        _some_done(
            bench.attempt.run(*line, home=bench.inputs, before=skewed(chance, 5000))
        )


def _some_done(done: Done) -> None:
    """Raise `Bad` unless the command ended properly; scans may have failed."""
    if done.status not in (3, 4):
        try:
            checked(done)
        except Refused as refusal:
            raise wrong(f"refused: {str(refusal).strip()[-300:]}") from None


def _done_or_locked(done: Done) -> None:
    if "is already working in this folder" in done.err:
        if len(done.err.strip().splitlines()) > 1:
            raise wrong(f"refused in more than a line: {done.err[-300:]!r}")
        return
    _some_done(done)


def _same(out: Path, fresh: Path) -> None:
    told, expected = (
        {
            name: digest
            for name, digest in digests(folder).items()
            if name.endswith(_TOLD) and not name.startswith(".")
        }
        for folder in (out, fresh)
    )
    for name in sorted(told.keys() | expected.keys()):
        if told.get(name) != expected.get(name):
            what = "is of an older scan" if name in told else "is missing"
            raise wrong(f"{name} {what}")
    ours, theirs = _statuses(out), _statuses(fresh)
    if ours != theirs:
        raise wrong(f"summary.tsv says {ours}, and a fresh run {theirs}")


def _statuses(folder: Path) -> dict[str, str]:
    rows = read_rows(folder / "summary.tsv", required=("case", "status"))
    return {row["case"]: row["status"] for row in rows}


def _same_report(attempt: Try, out: Path, fresh: Path) -> None:
    """Raise `Bad` unless `trinat report` gives the same volumes from old and fresh results."""
    labels = sorted(path.name for path in fresh.glob("*_dseg.nii.gz"))
    if not labels:
        return
    tables = []
    for number, folder in enumerate((out, fresh)):
        group = attempt.folder / f"group-{number}"
        _some_done(
            attempt.run(
                *("report", folder, "--out", group, "--include-rejected"),
                *("--jobs", "1", "--quiet"),
            )
        )
        tables.append((group / "volumes.csv").read_bytes())
    if tables[0] != tables[1]:
        raise wrong("report has other volumes than of a fresh run")


ATTACKS = {"pairing by name": pairing, "attempts and old results": attempts}
