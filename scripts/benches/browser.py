"""A whole head in the browser: seconds, memory, bytes, and how far it is what predict finds.

    trinat export fast --format web --out site
    trinat predict scan.nii.gz --out results --precision float32
    scripts/bench browser site scan.nii.gz results/scan_dseg.nii.gz

Chromium runs without a window, with WebGL and WebAssembly on the processor. Memory is the sum of
all of its processes. The page is asked a question all the while: the longest answer is printed.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.browser import Browser, find_chromium
from helpers.viewer import answered

from trinat.pipelines.web.settings import SITE_POLICY
from trinat.pipelines.web.site import make_site_app
from trinat.segmentation.io.volume import Volume

__all__ = ["run"]

_LIMIT_S = 3600
_PAUSE_S = 0.2


def run(site: str, scan: str, labels: str) -> None:
    folder = Path(site)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{size / 1e6:.1f} MB in the site")
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium here")
    started = time.monotonic()
    browser = Browser(chromium, webgl=True)
    try:
        with (
            pytest.MonkeyPatch.context() as patched,
            answered(make_site_app(folder), patched, policy=SITE_POLICY) as address,
        ):
            browser.open(address)
            browser.wait("globalThis.trinatSite?.threads > 0", _LIMIT_S)
            threads = browser.evaluate("trinatSite.threads")
            loaded_s = time.monotonic() - started
            print(f"{loaded_s:.1f} s until the model is loaded; {threads} threads")
            found = _segment(browser, Path(scan))
    finally:
        browser.close()
    _compare(found, Volume.read(labels, labels=True))


def _segment(browser: Browser, scan: Path) -> Volume:
    """The label map that the page makes of a scan; prints what it takes."""
    browser.requests.clear()
    own = psutil.Process()
    started = time.monotonic()
    browser.choose("#file", scan)
    largest = 0
    # By process: some end before the others.
    _, spent_before = _use_of_children(own)
    spent_s = dict(spent_before)
    longest_s = 0.0
    stage = ""
    is_read = False
    while True:
        asked = time.monotonic()
        state = browser.evaluate(
            "(({state, stage, reason, scan}) => [state, stage, reason, !!scan])"
            "(trinatSite.jobs[0] ?? {})"
        )
        now = time.monotonic()
        longest_s = max(longest_s, now - asked)
        memory, spent = _use_of_children(own)
        largest = max(largest, memory)
        spent_s.update(spent)
        if state[3] and not is_read:
            is_read = True
            print(f"{now - started:7.1f} s  the scan is read")
        if state[1] != stage:
            stage = state[1]
            print(f"{now - started:7.1f} s  {stage}")
        if state[0] in ("done", "failed"):
            break
        if now - started > _LIMIT_S:
            raise SystemExit("it takes too long")
        time.sleep(_PAUSE_S)
    print(f"{now - started:7.1f} s  {state[0]} {state[2] or ''}")
    spent_in_all_s = sum(spent_s.values()) - sum(spent_before.values())
    print(f"{spent_in_all_s:.0f} s of the processor")
    print(f"{largest / 1e9:.2f} GB at most; the page answers within {longest_s:.2f} s")
    asked_for = [url for url in browser.requests if url.startswith("http")]
    print(f"{len(asked_for)} requests since the page was loaded")
    browser.wait("document.querySelectorAll('#files a').length > 0", _LIMIT_S)
    with tempfile.TemporaryDirectory() as folder:
        browser.save_to(Path(folder))
        browser.evaluate("document.querySelector('#files a').click()")
        path = Path(folder) / "labels.nii.gz"
        while not path.is_file():
            browser.evaluate("0")
            time.sleep(_PAUSE_S)
        return Volume.read(path, labels=True)


def _use_of_children(process: psutil.Process) -> tuple[int, dict[int, float]]:
    """Bytes of all processes that a process has started; processor seconds of each."""
    total = 0
    spent_s = {}
    for child in process.children(recursive=True):
        # One may end in the meantime.
        with suppress(psutil.NoSuchProcess):
            total += child.memory_info().rss
            times = child.cpu_times()
            spent_s[child.pid] = times.user + times.system
    return total, spent_s


def _compare(found: Volume, expected: Volume) -> None:
    """Print how many voxels of the brain are the same, and the largest change of a volume."""
    brain = (found.data > 0) | (expected.data > 0)
    same = (found.data == expected.data)[brain].mean()
    print(f"{same:.4%} of {brain.sum()} voxels of the brain are those of predict")
    largest = 0.0
    for number in np.unique(expected.data)[1:]:
        before = (expected.data == number).sum()
        after = (found.data == number).sum()
        largest = max(largest, abs(after / before - 1))
    print(f"volumes differ by up to {largest:.3%}")
