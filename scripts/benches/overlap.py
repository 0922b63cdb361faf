"""Time per scan in a folder whose networks leave the processor free, as on a GPU.

`scripts/bench overlap SCAN OUT [SCANS [SECONDS]]` segments SCANS (8) copies of a scan with
`fast`, in one worker process. The networks compute the first copy; for each other copy they
sleep for SECONDS (2) and return the same output. It prints the time of each step by itself, and
the time from one scan to the next: that of the slowest step where steps overlap, and the sum of
all where they do not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median

from trinat.pipelines.predict.case import CaseWorker
from trinat.pipelines.predict.case_in_progress import CaseInProgress
from trinat.pipelines.predict.engine import Engine, do_cases, local_engine
from trinat.pipelines.predict.run import Listener, predict
from trinat.pipelines.predict.settings import PredictRequest, RunSettings
from trinat.pipelines.study.entry import Entry
from trinat.segmentation.inference.prediction import Prediction

_READING = ("read", "checksum", "conform")
_WRITING = ("restore", "grade", "write", "picture")


def run(scan: str, out: str, scans: str = "8", seconds: str = "2") -> None:
    """Segment the copies; print the time of each step and the time from one scan to the next."""
    folder = Path(out) / "scans"
    folder.mkdir(parents=True)
    source = Path(scan)
    for number in range(int(scans)):
        shutil.copy(source, folder / f"copy{number}{''.join(source.suffixes)}")

    entries: list[Entry] = []
    ends: list[float] = []

    def note(entry: Entry) -> None:
        entries.append(entry)
        ends.append(time.perf_counter())

    engine: Callable[[RunSettings], Engine] = partial(
        local_engine, devices=["cpu"], target=partial(_do_cases, float(seconds))
    )
    request = PredictRequest(
        inputs=(str(folder),), out=Path(out) / "results", engine=engine
    )
    predict(request, Listener(on_entry=note))

    # The first scan includes loading the model and computing.
    later = entries[1:]
    reading_s = mean(_seconds(entry, _READING) for entry in later)
    writing_s = mean(_seconds(entry, _WRITING) for entry in later)
    between = [end - before for before, end in pairwise(ends[1:])]
    print(f"reading {reading_s:.2f} s, networks {seconds} s, writing {writing_s:.2f} s")
    print(f"together {reading_s + float(seconds) + writing_s:.2f} s")
    print(
        f"from one scan to the next, median of {len(between)}: {median(between):.2f} s"
    )


def _seconds(entry: Entry, stages: tuple[str, ...]) -> float:
    return sum(entry.timings_s.get(name, 0.0) for name in stages)


def _do_cases(
    seconds: float, connection: Connection, settings: RunSettings, device: str
) -> None:
    """Run `do_cases` in the worker process, with networks that sleep from the second scan on."""
    compute = CaseWorker.infer
    found: list[Prediction] = []

    def infer(worker: CaseWorker, scan: CaseInProgress) -> CaseInProgress:
        if not found:
            compute(worker, scan)
            found.append(scan.found)
        else:
            time.sleep(seconds)
            scan.conformed = None
        # Results that were derived from it for the previous scan are dropped.
        scan.found = replace(found[0])
        return scan

    CaseWorker.infer = infer
    do_cases(connection, settings, device)
