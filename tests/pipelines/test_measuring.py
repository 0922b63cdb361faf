"""A worker that dies is a failure with a reason, not a traceback."""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.measuring import Mappings, Task, measure_all
from pipelines.pairing import Pair, ScanFile


class Deadly(str):
    """A scheme's name that ends the process that unpacks it, as the kernel would."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (9,)


def test_a_killed_process_fails_its_pairs_and_says_why(tmp_path: Path) -> None:
    file = ScanFile("x", tmp_path / "x.nii.gz", "x")
    tasks = [Task("m", Pair(file, file, ""), Deadly("quicknat33"), Mappings()) for _ in range(3)]
    results = list(measure_all(tasks, 2))
    assert len(results) == 3
    assert all("killed" in result.failure and "--jobs" in result.failure for result in results)
    assert {id(result.task) for result in results} == {id(task) for task in tasks}
