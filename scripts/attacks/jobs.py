"""Commands with known results: the files of an undisturbed run, which any other run must match."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.injection import Calls
from attacks.verdicts import Bad, Refused, wrong
from attacks.workshop import Done, Running, Try, checked, copy, digests, unchanged

# Points of the curves are means over about ten seconds, so a run that was resumed has other
# ones.
_CURVES = ("metrics.csv", "run.html")

# A page shows the dates of its results, and a run may last beyond midnight.
_DAYS = re.compile(rb"\d{4}-\d\d-\d\d(?: to \d{4}-\d\d-\d\d)?")


@dataclass(frozen=True)
class Job:
    """A command, with {in} and {out} in place of the folders that it reads and writes."""

    name: str
    reads: str  # folders of the sound inputs, by their names
    arguments: str
    again: str = ""  # added where the output already exists
    built_on: str = ""  # a job whose output this one continues

    def line(self, sound: Path, inputs: Path, out: Path) -> list[str]:
        text = self.arguments.format(sound=sound, inputs=inputs, out=out)
        return text.split()


_PREDICT = (
    "predict {inputs}/scans --out {out} --model {sound}/model --threads 1 --quiet --stats "
    "--callosum"
)
JOBS = {
    job.name: job
    for job in (
        Job("predict", "scans", _PREDICT),
        Job("merge", "scans", "merge {out}", built_on="shards"),
        Job(
            "prepare",
            "pairs",
            "prepare --config {inputs}/prepare.yaml --out {out} --quiet",
        ),
        Job(
            "evaluate",
            "truth pred",
            "evaluate --truth {inputs}/truth --pred {inputs}/pred --out {out} --tables-only "
            "--jobs 1 --quiet",
        ),
        Job(
            "train", "", "train {sound}/tiny.yaml --out {out} --quiet", again="--resume"
        ),
        Job("bundle", "", "bundle {sound}/model --out {out}", again="--overwrite"),
    )
}


class Bench:
    """One job in the folder of a try: copies of its inputs, and its output folder."""

    def __init__(self, attempt: Try, job: Job, disk: Path | None = None) -> None:
        self.attempt, self.job = attempt, job
        self.inputs, self.out = attempt.folder / "in", (disk or attempt.folder) / "out"
        self.inputs.mkdir()
        for name in job.reads.split():
            copy(attempt.sound / name, self.inputs / name)
        if job.name == "prepare":
            text = (attempt.sound / "prepare.yaml").read_text()
            (self.inputs / "prepare.yaml").write_text(
                text.replace(f"{attempt.sound}/pairs", f"{self.inputs}/pairs")
            )
        if job.built_on:
            copy(attempt.sound / job.built_on, self.out)
        self.given = digests(self.inputs)
        known = attempt.sound / f"known-{job.name}.json"
        self.known: dict[str, Any] = (
            json.loads(known.read_text()) if known.exists() else {}
        )

    @classmethod
    def in_turn(cls, attempt: Try, disk: Path | None = None) -> Bench:
        """Return the job whose turn it is, by the number of the try."""
        return cls(attempt, list(JOBS.values())[attempt.number % len(JOBS)], disk)

    @property
    def seconds(self) -> float:
        """Duration of an undisturbed run in a forked process."""
        return float(self.known["seconds"])

    def line(self) -> list[str]:
        line = self.job.line(self.attempt.sound, self.inputs, self.out)
        return [*line, *(self.job.again.split() if self.out.exists() else [])]

    def start(self, **how: Any) -> Running:
        return self.attempt.start(*self.line(), home=self.inputs, **how)

    def run(self, **how: Any) -> Done:
        return self.start(**how).wait()

    def check(self, what: str) -> None:
        """Raise `Bad` unless the output has the files and bytes of an undisturbed run."""
        unchanged(self.given, self.inputs, what)
        now = results(self.out)
        expected = self.known["files"]
        if missing := expected.keys() - now.keys():
            raise wrong(f"{what}: {min(missing)} is missing")
        if strange := now.keys() - expected.keys():
            raise wrong(f"{what}: {min(strange)} is left over")
        for name, digest in expected.items():
            if digest and now[name] != digest:
                raise wrong(f"{what}: {name} has other bytes")

    def recover(self, what: str) -> None:
        """Raise `Bad` unless the same command, run again undisturbed, makes everything right."""
        checked_zero(self.run(), f"again after {what}")
        self.check(f"again after {what}")

    def right_or_refused(self, done: Done, what: str) -> None:
        """Check that a command that reports success left the right results.

        If it refused, check that the same command makes everything right, and raise `Refused`.
        """
        try:
            checked(done)
        except Refused:
            unchanged(self.given, self.inputs, what)
            self.recover(what)
            raise
        self.check(f"said to be done, with {what}")


def results(folder: Path) -> dict[str, str]:
    """Return the digest of each result, without training states, which interrupted runs leave too.

    The dates in pages are ignored.
    """
    results = {
        name: digest
        for name, digest in digests(folder).items()
        if not name.endswith(".state")
    }
    for page in folder.rglob("*.html"):
        without_days = _DAYS.sub(b"", page.read_bytes())
        results[page.relative_to(folder).as_posix()] = hashlib.sha256(
            without_days
        ).hexdigest()
    return results


def checked_zero(done: Done, what: str) -> Done:
    """Return a command that succeeded; raise `Bad` if it refused, since it had no reason to."""
    try:
        return checked(done)
    except Refused as refusal:
        raise wrong(f"{what}: refused, {str(refusal).strip()[-300:]}") from None
    except Bad as bad:
        raise Bad(bad.verdict, f"{what}: {bad}") from None


def learn(attempt: Callable[[str], Try], sound: Path) -> None:
    """Run each job twice undisturbed, and record its files, duration and calls.

    Files that differ between both runs are not compared later.
    """
    shards = attempt("shards")
    for part in ("1/2", "2/2"):
        line = JOBS["predict"].line(sound, sound, sound / "shards")
        checked_zero(shards.run(*line, "--shard", part), "a shard")
    for job in JOBS.values():
        seen = []
        for turn in ("first", "second"):
            bench = Bench(attempt(f"{job.name}-{turn}"), job)
            counts = bench.attempt.folder / "counts.json"
            begun = time.monotonic()
            done = bench.run(before=Calls(bench.out, report=counts).install)
            seconds = time.monotonic() - begun
            checked_zero(done, f"{job.name}, undisturbed")
            unchanged(bench.given, bench.inputs, job.name)
            seen.append(results(bench.out))
            time.sleep(1.1)  # lets timestamps in whole seconds differ too
        first, second = seen
        files = {
            name: first[name] if first[name] == second[name] else "" for name in first
        }
        # These files must exist, whatever they say of times.
        files |= {name: "" for name in first if name.endswith((".jsonl", *_CURVES))}
        known = {
            "files": files,
            "seconds": seconds,
            "calls": json.loads(counts.read_text()),
        }
        (sound / f"known-{job.name}.json").write_text(json.dumps(known, indent=1))
