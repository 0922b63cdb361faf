"""A worker that dies is a failure with a reason, not a traceback."""

from __future__ import annotations

import os
from pathlib import Path

from trinat.pipelines.evaluate.measuring import Task, measure_all
from trinat.pipelines.study.files import ParsedName, ScanFile
from trinat.pipelines.study.pairing import Pair


class Deadly(str):
    """A scheme name that kills the process that unpickles it, as the kernel would."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (9,)


def test_a_killed_process_fails_its_pair_alone_and_says_why(tmp_path: Path) -> None:
    file = ScanFile(tmp_path / "x.nii.gz", ParsedName("x", "x"), "x")
    pair = Pair(file, file, "")
    schemes = ("quicknat33", Deadly("quicknat33"), "quicknat33", "quicknat33")
    tasks = [Task("m", pair, scheme) for scheme in schemes]
    failures = {id(result.task): result.failure for result in measure_all(tasks, 2)}
    first, killed, *others = [failures[id(task)] for task in tasks]
    assert "process was killed" in killed
    assert "--jobs" in killed
    assert all("no such file" in failure for failure in (first, *others))
