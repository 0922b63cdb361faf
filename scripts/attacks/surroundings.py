"""Attacks by the environment of commands: file names, variables, clocks."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from attacks.jobs import JOBS, Bench, checked_zero
from attacks.verdicts import Bad, Refused, Verdict, executed, lost, raw, raw_in, wrong
from attacks.workshop import (
    Try,
    checked,
    digests,
    happens,
    python,
    skewed,
    tiny_scan,
    unchanged,
)
from trinat.pipelines.study.naming import RESULT_ENDINGS
from trinat.segmentation.io.volume import Volume

_PARTS = (
    "a", "é", "e\u0301", "日本", "\u202egnp", "\x1b[31m", "\n", "\t", "\r", " ", "=1+1",
    "+x", "-rf", "@x", "<script>alert(1)</script>", "'", '"', "&amp;", "{{7*7}}", "{0}", "%s",
    "$(touch ran)", "`touch ran`", ";", "|", "*", "?", "[a]", "\\", "~", ":", "..", ".",
    "\udcff", "\udc80", "\x7f", "CON", "x" * 90, "_dseg", "_mask", ".trinat-0.tmp", "\u200b",
    "\x85", "\u2028", ",",
)  # fmt: skip


def names(attempt: Try) -> None:
    """Segment scans with hostile names: each is done or reported, tables and page stay sound."""
    chance = attempt.chance
    inputs, out = attempt.folder / "in", attempt.folder / "out"
    inputs.mkdir()
    sound = (attempt.sound / "scans/a.nii.gz").read_bytes()
    made: set[Path] = set()  # a set, because the same name may be drawn twice
    for _ in range(chance.randint(1, 4)):
        stem = "".join(chance.choice(_PARTS) for _ in range(chance.randint(1, 3)))
        folder = inputs / chance.choice(
            ("", "", chance.choice(_PARTS).replace("/", ""))
        )
        with contextlib.suppress(OSError, ValueError):
            folder.mkdir(exist_ok=True)
            path = folder / f"{stem.replace('/', '')}.nii.gz"
            if (
                path.parent.resolve() in (inputs.resolve(), folder.resolve())
                and ".." not in path.parts
            ):
                if happens(chance, 0.15):
                    path.symlink_to("nowhere")
                else:
                    path.write_bytes(sound)
                made.add(path)
    before = digests(inputs)
    line = [
        "predict",
        inputs,
        "--out",
        out,
        "--model",
        attempt.sound / "model",
        "--threads",
        "1",
    ]
    done = attempt.run(*line, "--no-pictures", "--stats")
    unchanged(before, inputs, "names")
    if (inputs / "ran").exists() or (attempt.folder / "ran").exists():
        raise executed("a name was run")
    _no_control(done.said)
    try:
        checked(done)
    finally:
        if out.exists():
            _sound_tables(out)
    labels = list(out.rglob("*_dseg.nii.gz"))
    # Hidden files, and files named like results, are not taken as scans of a folder.
    expected = [
        path
        for path in made
        if not path.is_symlink()
        and path.exists()
        and not any(part.startswith(".") for part in path.relative_to(inputs).parts)
        and not path.name.removesuffix(".nii.gz").endswith(RESULT_ENDINGS)
    ]
    entries = (out / "run.jsonl").read_text().splitlines()
    told = {line.split('"')[3] for line in entries if '"status":"done"' in line}
    if len(labels) != len(told):
        raise lost(f"{len(labels)} label maps, {len(told)} done in the ledger")
    if len(expected) > len(told) + sum(
        '"failed"' in e or '"skipped"' in e for e in entries
    ):
        raise lost(
            f"{len(expected)} scans, {len(told)} done, and the others are not told"
        )


def _no_control(text: str) -> None:
    if bad := [ch for ch in text if not ch.isprintable() and ch not in "\n\t"]:
        raise wrong(f"control character {bad[0]!r} on the terminal")


def _sound_tables(out: Path) -> None:
    for table in out.glob("*.tsv"):
        rows = table.read_text().split("\n")
        if len({row.count("\t") for row in rows if row}) > 1:
            raise wrong(f"{table.name}: rows of different lengths")
        for row in rows:
            for cell in row.split("\t"):
                if cell[:1] in ("=", "+", "@") or not all(map(str.isprintable, cell)):
                    raise wrong(f"{table.name}: cell {cell!r}")
    for page in out.glob("*.html"):
        if "<script>alert" in page.read_text():
            raise executed(f"{page.name}: a name is markup")


def environment(attempt: Try) -> None:
    """Run without home or temporary folder, with odd terminals, umasks and closed descriptors."""
    chance = attempt.chance
    bench = Bench.in_turn(attempt)
    name, change = chance.choice(list(_ENVIRONMENTS.items()))
    fresh = attempt.number % 12 == 11
    if fresh and name.startswith("$"):
        # A complete run, from a fresh interpreter.
        variables = {**os.environ, "PYTHONWARNINGS": "default", **_VARIABLES[name]}
        run = subprocess.run(
            python(*bench.line()),
            cwd=bench.inputs,
            env=variables,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=240,
            check=False,
        )
        if text := raw_in(run.stdout + run.stderr):
            raise raw(f"{name}: {text}")
        if run.returncode:
            raise wrong(f"{name}: refused, {run.stderr[-200:]}")
        bench.check(name)
        return
    done = bench.run(before=lambda: change(attempt.folder))
    try:
        checked(done)
        # Root reads the bytes even where the umask forbids it.
        bench.check(name)
    except Refused:
        bench.out.exists() and _open_up(bench.out)
        bench.recover(name)
        raise
    except Bad as bad:
        if (
            bad.verdict is Verdict.WRONG
            and "without a word" in str(bad)
            and "closed" in name
        ):
            bench.recover(name)
            raise Refused from None
        raise Bad(bad.verdict, f"{name}, {bench.job.name}: {bad}") from None


def _open_up(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


_VARIABLES: dict[str, dict[str, str]] = {
    "$HOME is not there": {"HOME": "/nowhere/at/all"},
    "$HOME is empty": {"HOME": ""},
    "$LC_ALL is C": {
        "LC_ALL": "C",
        "LANG": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    },
    "$LC_ALL is unknown": {"LC_ALL": "xx_YY.nothing", "LANG": ""},
    "$COLUMNS is 0": {"COLUMNS": "0", "LINES": "0"},
    "$COLUMNS is negative": {"COLUMNS": "-5"},
    "$COLUMNS is no number": {"COLUMNS": "wide"},
    "$TERM is dumb": {"TERM": "dumb", "NO_COLOR": "1"},
    "$MPLBACKEND is unknown": {"MPLBACKEND": "Agg", "MPLCONFIGDIR": "/nowhere"},
    "$SLURM half set": {"SLURM_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "x"},
    "$PATH is empty": {"PATH": ""},
}


def _setting(values: dict[str, str]) -> Callable[[Path], None]:
    return lambda folder: os.environ.update(values)


def _closing(*descriptors: int) -> Callable[[Path], None]:
    def close(folder: Path) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    return close


def _full(*descriptors: int) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        for descriptor in descriptors:
            os.dup2(full, descriptor)

    return fill


def _masked(mask: int) -> Callable[[Path], None]:
    return lambda folder: os.umask(mask) and None


def _no_tmp(folder: Path) -> None:
    os.environ["TMPDIR"] = str(folder / "no-such-folder")


def _few_files(folder: Path) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )


def _no_cwd(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


_ENVIRONMENTS: dict[str, Callable[[Path], None]] = {
    **{name: _setting(values) for name, values in _VARIABLES.items()},
    "stdin closed": _closing(0),
    "stdout closed": _closing(1),
    "stderr closed": _closing(2),
    "all closed": _closing(0, 1, 2),
    "stdout full": _full(1),
    "stdout and stderr full, closed to words": _full(1, 2),
    "umask 077": _masked(0o077),
    "umask 0": _masked(0),
    "umask 0277": _masked(0o277),
    "TMPDIR is not there": _no_tmp,
    "few open files": _few_files,
    "the working folder is gone": _no_cwd,
}


def clocks(attempt: Try) -> None:
    """Run under clocks days apart with scans exchanged between.

    No stale result, no lasting lock.
    """
    chance = attempt.chance
    bench = Bench(attempt, JOBS["predict"])
    scan = bench.inputs / "scans/a.nii.gz"

    states = [scan.read_bytes()]
    image, _, affine = tiny_scan(1)
    Volume(image[::-1].copy(), affine).write(scan)
    states.append(scan.read_bytes())
    stamp = scan.stat().st_mtime_ns
    state = 0
    for _ in range(chance.randint(1, 3)):
        state = chance.randrange(2)
        scan.write_bytes(states[state])
        if happens(chance, 0.5):
            offset = chance.choice((0, 10**15, -(10**15)))
            os.utime(scan, ns=(stamp + offset, stamp + offset))
        if happens(chance, 0.3):
            _dead_lock(bench.out, chance)
        try:
            checked_zero(bench.run(before=skewed(chance, 400)), "under a skewed clock")
        except Bad as bad:
            # A lock of another machine may be alive: it is reported in one line, and for a
            # minute only.
            if "is already working in this folder" not in str(bad):
                raise
            shutil.rmtree(bench.out / ".trinat-work")
            checked_zero(bench.run(before=skewed(chance, 400)), "under a skewed clock")
    fresh = attempt.folder / "fresh"
    line = JOBS["predict"].line(attempt.sound, bench.inputs, fresh)
    checked_zero(attempt.run(*line, home=bench.inputs), "fresh")
    for name, digest in digests(fresh).items():
        kept = name.endswith((".nii.gz", "volumes.tsv", "qc.tsv", ".stats"))
        if kept and digests(bench.out).get(name) != digest:
            raise wrong(f"{name} is stale")


def _dead_lock(out: Path, chance: random.Random) -> None:
    work = out / ".trinat-work"
    work.mkdir(parents=True, exist_ok=True)
    lock = work / "lock"
    lock.write_text('{"host": "elsewhere", "pid": 1, "namespace": "x"}')
    when = time.time() + chance.choice((-86400, 86400, 10**8, -10))
    os.utime(lock, (when, when))


ATTACKS = {"names": names, "environment": environment, "clock skew": clocks}
