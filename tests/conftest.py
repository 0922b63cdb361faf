"""Fixtures of the whole suite."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.warm import Warm
from xdist.scheduler import LoadFileScheduling

# Tests that run in parallel share the cores, and so do the processes that they start.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers))
    )
# Makes idle threads of torch yield their core instead of spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def dev_data() -> Path:
    """Return the folder of development data; the tests also pass without it."""
    folder = os.environ.get("TRINAT_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("no development data: TRINAT_DATA is not set to a folder")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Provide commands of trinat that start at once."""
    global _warm
    _warm = Warm(tmp_path_factory.mktemp("warm"))
    yield _warm
    _warm.end()
    _warm = None


_warm: Warm | None = None


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Run torch on one thread, as in the processes that tests start, so that sums round alike."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def without_pages() -> Iterator[None]:
    """Skip the curves of trainings in the test process, which take four times the training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trinat.pipelines.train.job.write_page", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def without_figures() -> Iterator[None]:
    """Leave figures empty in pages of the test process, since drawing takes most of the time.

    All panels of a figure are one.
    """
    from trinat.pipelines.report.drawing import canvas

    @contextmanager
    def one_panel(
        width: float, height: float, rows: int, columns: int
    ) -> Iterator[Any]:
        with canvas(width, height) as (figure, axis):
            yield figure, rows * columns * [axis]

    drawing = "trinat.pipelines.report.drawing"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{drawing}.canvas", one_panel)
        patch.setattr(f"{drawing}._lay_out", lambda *_: None)
        patch.setattr(f"{drawing}.Drawing.svg", EMPTY_SVG)
        patch.setattr(f"{drawing}.Drawing.png", b"")
        patch.setattr(f"{drawing}.Drawing.pdf", b"")
        yield


EMPTY_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'


def pytest_collection() -> None:
    """Disable garbage collection, which took a quarter of the time.

    Everything collected is kept.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a GPU if there is none."""
    if not any("gpu" in item.keywords for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


class Scheduling(LoadFileScheduling):
    """Gives each process a file at a time, or for tests of the documents a page or an example.

    The pages together take as long as all other files; as one file they would end last.
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
    """Return the processor seconds of this process, its finished children and the warm commands."""
    return sum(os.times()[:4]) + (_warm.processor_s() if _warm else 0)


_spent = _processor_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[
    None, pytest.TestReport, pytest.TestReport
]:
    """Add the processor time to the report of a test's setup, call and teardown."""
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
