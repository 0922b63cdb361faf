"""Fixtures that the whole suite shares."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from helpers.warm import Warm
from xdist.scheduler import LoadFileScheduling

# Tests that run beside each other share the cores, as do the processes that they start.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers))
    )
# Threads of torch that wait for each other leave the cores to who has work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def dev_data() -> Path:
    """The folder of development data; the project's tests also pass without it."""
    folder = os.environ.get("TRINAT_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no development data: TRINAT_DATA is not set to a folder")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Commands of trinat that start at once."""
    global _warm
    _warm = Warm(tmp_path_factory.mktemp("warm"))
    yield _warm
    _warm.end()
    _warm = None


_warm: Warm | None = None


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch as in the processes that tests start: sums in another order have other last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def without_pages() -> Iterator[None]:
    """Trainings in the test's process draw no curves: that takes four times as long as they do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trinat.pipelines.train.job.write_page", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def without_figures() -> Iterator[None]:
    """Pages in the test's process have empty figures: most of their time is to draw them."""
    drawing = "trinat.pipelines.report.drawing"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{drawing}._lay_out", lambda *_: None)
        patch.setattr(f"{drawing}.plain_svg", lambda _: EMPTY_SVG)
        patch.setattr(f"{drawing}.Drawing.png", b"")
        yield


EMPTY_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'


def pytest_collection() -> None:
    """All that is collected stays: to look for garbage in it took a quarter of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests for a GPU are skipped, and say so, where there is none."""
    if not any("gpu" in item.keywords for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


class Scheduling(LoadFileScheduling):
    """Each process takes a file at a time; of what documents show, a page or an example.

    The pages together take as long as all other files: as one file they would end last.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return nodeid if file in BY_PAGE else file


BY_PAGE = ("tests/documents/test_commands.py", "tests/documents/test_site.py")


def pytest_xdist_make_scheduler(
    config: pytest.Config, log: object
) -> LoadFileScheduling | None:
    if config.getoption("dist") == "loadfile":
        return Scheduling(config, log)
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor-times",
        type=int,
        default=0,
        metavar="N",
        help="print the N tests and the N files that took most processor time, with the "
        "processes that they started: on a busy machine --durations says little",
    )


def _processor_s() -> float:
    """Of this process and of those it has waited for, and of commands that start at once."""
    return sum(os.times()[:4]) + (_warm.processor_s() if _warm else 0)


_spent = _processor_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[
    None, pytest.TestReport, pytest.TestReport
]:
    """Each report of a test's set-up, call and end says what it took."""
    global _spent
    report = yield
    before, _spent = _spent, _processor_s()
    report.processor_s = _spent - before
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count = terminalreporter.config.getoption("--processor-times")
    if not count:
        return
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tests[report.nodeid] += report.processor_s
                files[report.nodeid.partition("::")[0]] += report.processor_s
    terminalreporter.section(f"processor time: {tests.total():.0f} s")
    for kind in (files, tests):
        for name, seconds in kind.most_common(count):
            terminalreporter.line(f"{seconds:8.1f} s  {name}")
        terminalreporter.line("")
