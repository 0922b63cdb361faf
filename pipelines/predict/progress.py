"""What a person, a log file or a machine hears of a run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.predict.ledger import Entry
from segmentation.errors import one_line

if TYPE_CHECKING:
    from pipelines.predict.run import Outcome

__all__ = ["listener"]

Parts = tuple[Callable[[int], None], Callable[[Entry], None], "Callable[[Outcome, Path], None]"]


@contextmanager
def listener(*, quiet: bool, as_json: bool, interactive: bool) -> Iterator[Parts]:
    """(on start, on entry, on end) of a run; messages go to stderr, JSON to stdout."""
    if as_json:
        yield lambda _: None, _say_json, _end_json
    elif interactive and not quiet:
        with _bar() as parts:
            yield parts
    else:
        start = time.monotonic()
        yield (
            lambda _: None,
            (lambda entry: _complain(entry) if _is_told(entry) else None),
            lambda outcome, out: _sum_up(outcome, out, time.monotonic() - start),
        )


def _say_json(entry: Entry) -> None:
    fields = {
        "case": entry.case,
        "status": entry.status,
        "reason": entry.reason,
        "grade": entry.result.get("grade"),
    }
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _end_json(outcome: Outcome, out: Path) -> None:
    counts = {"done": outcome.done, "skipped": outcome.skipped, "failed": outcome.failed}
    sys.stdout.write(json.dumps({**counts, "interrupted": outcome.interrupted}) + "\n")


def _is_told(entry: Entry) -> bool:
    return entry.status == "failed" or entry.is_kept


def _complain(entry: Entry) -> None:
    sys.stderr.write(f"{_complaint(entry)}\n")


def _sum_up(outcome: Outcome, out: Path, seconds: float) -> None:
    rate = f", {60 * outcome.done / seconds:.1f} scans/min" if outcome.done else ""
    kept = f" ({outcome.kept} with changed results)" if outcome.kept else ""
    # A part of the work has no page of its own: trinat merge makes that of all parts.
    where = out if outcome.is_part else out / "report.html"
    sys.stderr.write(
        f"{outcome.done} done, {outcome.skipped} skipped{kept}, {outcome.failed} failed{rate}: "
        f"{where}\n"
    )
    if outcome.interrupted:
        sys.stderr.write("stopped before the end: the same command goes on\n")


def _complaint(entry: Entry) -> str:
    """As every message of trinat: who speaks, where, what is wrong and what to do."""
    return f"trinat: {one_line(f'{entry.input or entry.case}: {entry.reason}')}"


@contextmanager
def _bar() -> Iterator[Parts]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        *(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")),
        *(TimeRemainingColumn(), TextColumn("{task.fields[failed]}")),
    )
    began = time.monotonic()
    done = failed = 0
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None, rate="", failed="")

        def on_entry(entry: Entry) -> None:
            nonlocal done, failed
            done += entry.status == "done"
            failed += entry.status == "failed"
            if _is_told(entry):
                console.print(_complaint(entry), markup=False, highlight=False, soft_wrap=True)
            rate = 60 * done / (time.monotonic() - began)
            progress.update(
                task,
                advance=1,
                rate=f"{rate:.1f} scans/min",
                failed=f"{failed} failed" if failed else "",
            )

        yield (
            lambda total: progress.update(task, total=total),
            on_entry,
            lambda outcome, out: _sum_up(outcome, out, time.monotonic() - began),
        )
