"""What a person, a log file or a machine hears of a run."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinat.pipelines.common.progress import progress
from trinat.pipelines.predict.entry import Entry
from trinat.segmentation.errors import one_line

if TYPE_CHECKING:
    from trinat.pipelines.predict.run import Outcome

_GRADES = ("pass", "look", "reject")

Parts = tuple[
    Callable[[int], None], Callable[[Entry], None], "Callable[[Outcome, Path], None]"
]


@contextmanager
def listener(*, quiet: bool, as_json: bool, interactive: bool) -> Iterator[Parts]:
    """(on start, on entry, on end) of a run; messages go to stderr, JSON to stdout."""
    if as_json:
        yield (
            lambda _: None,
            lambda e: _say_json(
                case=e.case,
                status=e.status,
                reason=e.reason,
                grade=e.result.get("grade"),
            ),
            lambda run, _: _say_json(
                done=run.done,
                skipped=run.skipped,
                failed=run.failed,
                interrupted=run.interrupted,
            ),
        )
        return
    began, total = time.monotonic(), 0
    counts: Counter[str] = Counter()
    with progress(quiet, terminal=interactive) as shown:
        complain = partial(print, file=sys.stderr) if quiet else shown.say

        def on_start(count: int) -> None:
            nonlocal total
            total = count

        def on_entry(entry: Entry) -> None:
            counts[entry.status] += 1
            if (
                entry.status == "failed"
                or entry.is_kept
                or (entry.is_left_out and not quiet)
            ):
                # As every message of trinat: who speaks, where, what is wrong and what to do.
                complain(
                    f"trinat: {one_line(f'{entry.input or entry.case}: {entry.reason}')}"
                )
            if entry.status == "skipped":
                # What was done before says nothing of the time that is left.
                shown.begin(counts.total())
            rate = 60 * counts["done"] / (time.monotonic() - began)
            said = f", {rate:.1f} scans/min" if rate else ""
            head = f"{counts.total()}/{total} {entry.case}{said}"
            shown.show(head, counts.total(), total, failed=counts["failed"])

        yield (
            on_start,
            on_entry,
            lambda run, out: _sum_up(run, out, time.monotonic() - began),
        )


def _say_json(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _sum_up(outcome: Outcome, out: Path, seconds: float) -> None:
    rate = f", {60 * outcome.done / seconds:.1f} scans/min" if outcome.done else ""
    graded = [f"{n} {name}" for name in _GRADES if (n := outcome.grades.get(name))]
    grades = f": {', '.join(graded)}" if graded else ""
    kept = f" ({outcome.kept} with changed results)" if outcome.kept else ""
    skipped = f"; {outcome.skipped} skipped{kept}" if outcome.skipped else ""
    # A part of the work has no page of its own: trinat merge makes that of all parts.
    where = out if outcome.is_part else out / "report.html"
    sys.stderr.write(
        f"{outcome.done} done{grades}{skipped}; {outcome.failed} failed{rate}: {where}\n"
    )
    if outcome.interrupted:
        sys.stderr.write("stopped before the end: the same command goes on\n")
