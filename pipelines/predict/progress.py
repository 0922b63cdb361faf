"""Messages of a run: progress for a person, lines for a log file, or JSON lines for a program."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trinat.pipelines.common.models import print_licences
from trinat.pipelines.common.text import count
from trinat.pipelines.jobs.process import GRACE_S
from trinat.pipelines.jobs.progress import STAGE_S, Progress, log_lines, progress
from trinat.pipelines.predict.recorder import Outcome, sum_of
from trinat.pipelines.predict.run import Listener, predict
from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.study.entry import Entry
from trinat.segmentation.errors import one_line

# Names of a case's stages in messages; waiting is not shown.
_STAGES = {"reading": "reading", "networks": "segmenting", "writing": "writing"}
# Grades in the order of the last line.
_GRADES = ("pass", "look", "reject")


def run_with_progress(
    requests: Sequence[PredictRequest], *, quiet: bool, as_json: bool = False
) -> Outcome:
    """Run requests one after another with messages; return their counts of scans, added up.

    No further request is run once one was interrupted. With `quiet`, only failures and the last
    line of each request are shown. With `as_json`, stdout gets one line of JSON for each scan and
    one for the end of each request, and nothing else.
    """
    outcomes = []
    interactive = sys.stderr.isatty()
    print_licences(request.model for request in requests)
    for request in requests:
        with (
            log_lines(quiet),
            listener(
                quiet=quiet, as_json=as_json, interactive=interactive
            ) as callbacks,
        ):
            outcomes.append(predict(request, callbacks))
        if outcomes[-1].interrupted:
            break
    return sum_of(outcomes)


@contextmanager
def listener(*, quiet: bool, as_json: bool, interactive: bool) -> Iterator[Listener]:
    """Provide the callbacks of a run: messages and progress go to stderr, JSON lines to stdout.

    With `as_json` there are only JSON lines. `interactive` shows a progress bar instead of lines
    for a log file. With `quiet` only failures and the last line are shown.
    """
    if as_json:
        yield Listener(
            on_entry=_say_entry_as_json,
            on_end=say_outcome_as_json,
        )
        return
    began = time.monotonic()
    with progress(quiet, terminal=interactive) as shown:
        reporter = _Reporter(shown, quiet=quiet, began=began)
        yield Listener(
            on_start=reporter.start,
            on_entry=reporter.hear,
            on_end=reporter.end,
            on_stage=reporter.enter,
            on_stop=reporter.stop,
        )


class _Reporter:
    """Counter of the inputs that have ended, which reports the progress of a run.

    `shown` prints lines or a bar. With `quiet` only failures and the last line are printed. `began`
    is the start of the run by `time.monotonic`.
    """

    def __init__(self, shown: Progress, *, quiet: bool, began: float) -> None:
        self._shown = shown
        self._quiet = quiet
        self._began = began
        self._total = 0
        self._counts: Counter[str] = Counter()
        self._is_ready = False
        # Current stage of each case in hand.
        self._stages: dict[str, str] = {}

    def start(self, count: int) -> None:
        """Note the number of inputs of the run."""
        self._total = count

    def enter(self, case: str, stage: str) -> None:
        """Show that a case enters a stage, such as "networks".

        `case` is "" for the stages of the run itself: "starting" (the model is being loaded) and
        "ready".
        """
        if stage == "starting":
            self._show_at_work("loading the model")
        elif stage == "ready":
            self._is_ready = True
        else:
            self._stages[case] = stage
        self._show_stage(case, stage)

    def _show_stage(self, case: str, stage: str) -> None:
        """Show in which stage a case is.

        Nothing is shown while the case waits for its turn, or before the model is loaded.
        """
        words = _STAGES.get(stage)
        if words and self._is_ready:
            self._show_at_work(f"{case}: {words}")

    def _show_at_work(self, words: str) -> None:
        """Show what the run is doing (`words`), with the number of inputs that have ended.

        Until the first input has ended, a log file gets every line; after that only one from time
        to time.
        """
        seen = self._counts.total()
        line = f"{seen}/{self._total} {words}"
        failed = self._counts["failed"]
        every_s = STAGE_S if seen else 0
        self._shown.enter(line, seen, self._total, failed=failed, every_s=every_s)

    def stop(self) -> None:
        """Print that the run is stopping, and how many scans it still finishes."""
        if self._quiet:
            return
        begun = count(len(self._stages), "scan")
        self._shown.say(
            f"stopping: finishing {begun}, within {GRACE_S:.0f} s; "
            "press Ctrl-C again to stop at once"
        )

    def hear(self, entry: Entry) -> None:
        """Count the outcome of an input and show the progress of the run.

        The reason is shown if the input has failed or was left out.
        """
        self._stages.pop(entry.case, None)
        self._counts[entry.status] += 1
        seen = self._counts.total()
        is_news = entry.is_left_out and not self._quiet
        if entry.status == "failed" or is_news:
            # Format as all messages of trinat: file, problem, remedy.
            where = entry.input or entry.case
            message = f"trinat: {one_line(f'{where}: {entry.reason}')}"
            if self._quiet:
                sys.stderr.write(message + "\n")
            else:
                self._shown.say(message)
        if entry.status == "skipped":
            # Restart the estimate of the remaining time: skipped scans take none.
            self._shown.begin(seen)
        seconds = time.monotonic() - self._began
        per_minute = 60 * self._counts["done"] / seconds
        line = f"{seen}/{self._total} {entry.case}"
        if per_minute:
            line += f", {per_minute:.1f} scans/min"
        self._shown.show(line, seen, self._total, failed=self._counts["failed"])
        for case, stage in self._stages.items():
            self._show_stage(case, stage)

    def end(self, outcome: Outcome, out: Path) -> None:
        """Print the counts of the run on one line of stderr, with the path of its page."""
        line = f"{outcome.done} done"
        graded = []
        for name in _GRADES:
            count = outcome.grades.get(name)
            if count:
                graded.append(f"{count} {name}")
        if graded:
            line += f": {', '.join(graded)}"
        if outcome.skipped:
            line += f"; {outcome.skipped} skipped"
        line += f"; {outcome.failed} failed"
        if outcome.done:
            per_minute = 60 * outcome.done / (time.monotonic() - self._began)
            line += f", {per_minute:.1f} scans/min"
        # A part of the work has no page of its own: trinat merge makes the page of all parts.
        where = out if outcome.is_part else out / "report.html"
        sys.stderr.write(f"{line}: {where}\n")
        if outcome.interrupted:
            sys.stderr.write("stopped early: run the same command to resume\n")


def _say_entry_as_json(entry: Entry) -> None:
    _say_json(
        case=entry.case,
        status=entry.status,
        reason=entry.reason,
        grade=entry.result.grade or None,
    )


def say_outcome_as_json(outcome: Outcome, out: Path) -> None:
    """Print the counts of a run as a line of JSON on stdout."""
    _say_json(
        done=outcome.done,
        skipped=outcome.skipped,
        failed=outcome.failed,
        interrupted=outcome.interrupted,
    )


def _say_json(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
