"""Segmentation of a whole head in the browser: time, memory, and agreement with predict.

    trinat export fast --format web --out site
    scripts/bench browser site scan.nii.gz [FORM ...]

The forms are those of `FORMS`: the scan as it is (`plain`, the default), or resampled to an
oblique grid or to thick slices. Each is segmented in Python, and then by the page in Chromium,
which runs headless, with WebGL and WebAssembly on the processor. Labels, volumes, the grade and
the intracranial volume are compared. Memory is the sum over all processes of Chromium. While
the page computes, the picture is clicked; the longest response time, as the browser measures
it, and the longest task that blocked the page are printed.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from helpers.browser import Browser, find_chromium
from helpers.viewer import answered
from scipy.spatial.transform import Rotation

from trinat.pipelines.view.guard import SITE_POLICY
from trinat.pipelines.view.start import make_site_app
from trinat.segmentation.grid import Grid, to_shape
from trinat.segmentation.inference.measuring import measure
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.quality import grade, limits_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.measures import INTRACRANIAL
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image

# Voxel sizes in mm, and angles in degrees about the world's axes; null leaves a scan as it is.
FORMS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]] | None]
FORMS = {
    "plain": None,
    "oblique": ((0.9, 1.0, 1.1), (12.0, -8.0, 15.0)),
    "thick": ((1.0, 1.0, 2.5), (0.0, 0.0, 0.0)),
}
_LIMIT_S = 3600
_PAUSE_S = 0.2
_CLICK_EVERY_S = 5.0
# Records kept in the page: when a file was chosen, long tasks, and responses to clicks.
_WATCH = """
globalThis.trinatBench = { chosen: 0, task: 0, click: 0, clicks: 0 };
document.getElementById("file").addEventListener("change", () => {
  trinatBench.chosen = performance.now();
}, { capture: true });
new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) {
    trinatBench.task = Math.max(trinatBench.task, duration);
  }
}).observe({ type: "longtask" });
new PerformanceObserver((list) => {
  for (const { name, duration } of list.getEntries()) {
    if (name !== "pointerdown" && name !== "click") continue;
    trinatBench.click = Math.max(trinatBench.click, duration);
    trinatBench.clicks += 1;
  }
}).observe({ type: "event", durationThreshold: 16 });
"""
# Reading a pixel waits until all earlier drawing is done.
_DRAWN_MS = """
(() => {
  const { gl } = trinatPicture.nv;
  gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(4));
  return performance.now() - trinatBench.chosen;
})()
"""
_MIDDLE_OF_PICTURE = """
(() => {
  const { left, top, width, height } = document.getElementById("planes")
    .getBoundingClientRect();
  return [left + width / 3, top + height / 3];
})()
"""


def run(site: str, scan: str, *forms: str) -> None:
    folder = Path(site)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{size / 1e6:.1f} MB in the site")
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium here")
    model = json.loads((folder / "models.json").read_text())[0]
    with tempfile.TemporaryDirectory() as kept:
        for form in forms or ("plain",):
            print(f"\n{form}")
            path = write_form(Path(scan), form, Path(kept))
            predictor = Predictor(model, device="cpu", precision="float32")
            expected = predictor.segment(Volume.read(path))
            found, result = _in_browser(chromium, folder, path)
            _compare(found, expected.labels)
            _compare_results(result, expected, predictor)


def write_form(scan: Path, form: str, folder: Path) -> Path:
    """Write a scan on another grid and return its path; return the scan itself for `plain`."""
    chosen = FORMS[form]
    if chosen is None:
        return scan
    spacing_mm, degrees = chosen
    volume = Volume.read(scan)
    turn = Rotation.from_euler("xyz", degrees, degrees=True).as_matrix()
    sides_mm = np.array(volume.shape) * volume.spacing_mm
    shape = to_shape(np.ceil(sides_mm / spacing_mm))
    affine = np.eye(4)
    directions = volume.affine[:3, :3] / np.array(volume.spacing_mm)
    affine[:3, :3] = turn @ directions @ np.diag(spacing_mm)
    # The centre of the field of view stays in place.
    middle = volume.grid.places((np.array(volume.shape) - 1) / 2)
    affine[:3, 3] = middle - affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    to = GridMap.between(volume.grid, Grid(shape, affine))
    data = resample_image(volume.data, to)
    path = folder / f"{form}.nii.gz"
    Volume(np.rint(data).astype(np.int16), affine).write(path)
    return path


def _in_browser(chromium: str, site: Path, scan: Path) -> tuple[Volume, dict[str, Any]]:
    """Return the label map that the page makes of a scan, and its result; print time and memory."""
    load = os.getloadavg()[0]
    print(f"load {load:.1f} on {os.cpu_count()} processors")
    started = time.monotonic()
    browser = Browser(chromium, webgl=True)
    try:
        with (
            pytest.MonkeyPatch.context() as patched,
            answered(make_site_app(site), patched, policy=SITE_POLICY) as address,
        ):
            browser.open(address)
            browser.wait("globalThis.trinatSite?.threads > 0", _LIMIT_S)
            threads = browser.evaluate("trinatSite.threads")
            loaded_s = time.monotonic() - started
            print(f"{loaded_s:.1f} s until the model is loaded; {threads} threads")
            browser.evaluate(_WATCH)
            return _segment(browser, scan)
    finally:
        browser.close()


def _segment(browser: Browser, scan: Path) -> tuple[Volume, dict[str, Any]]:
    browser.requests.clear()
    own = psutil.Process()
    started = time.monotonic()
    browser.choose("#file", scan)
    largest = 0
    # Record seconds by process, because some processes end before the others.
    _, spent_before = _use_of_children(own)
    spent_s = dict(spent_before)
    stage = ""
    is_seen = False
    clicked = started
    while True:
        state = browser.evaluate(
            "(({state, stage, reason}) => [state, stage, reason, "
            "globalThis.trinatShown?.time - trinatBench.chosen])"
            "(trinatSite.jobs[0] ?? {})"
        )
        now = time.monotonic()
        memory, spent = _use_of_children(own)
        largest = max(largest, memory)
        spent_s.update(spent)
        if state[3] and not is_seen:
            is_seen = True
            print(f"{state[3] / 1000:7.1f} s  the scan is handed to the graphics")
            print(f"{browser.evaluate(_DRAWN_MS) / 1000:7.1f} s  the scan is seen")
            # From here on the page only computes.
            browser.evaluate(
                "Object.assign(trinatBench, {task: 0, click: 0, clicks: 0})"
            )
        if state[1] != stage:
            stage = state[1]
            print(f"{now - started:7.1f} s  {stage}")
        if state[0] in ("done", "failed"):
            break
        if now - started > _LIMIT_S:
            raise SystemExit("it takes too long")
        # Each click redraws all planes, on the processor.
        if is_seen and now - clicked > _CLICK_EVERY_S:
            clicked = now
            browser.click(*browser.evaluate(_MIDDLE_OF_PICTURE))
        time.sleep(_PAUSE_S)
    print(f"{now - started:7.1f} s  {state[0]} {state[2] or ''}")
    spent_in_all_s = sum(spent_s.values()) - sum(spent_before.values())
    print(f"{spent_in_all_s:.0f} s of the processor; {largest / 1e9:.2f} GB at most")
    watched = browser.evaluate("trinatBench")
    print(
        f"while it computed {watched['clicks']} clicks took over 16 ms, the longest "
        f"{watched['click']:.0f} ms; the longest task took {watched['task']:.0f} ms"
    )
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
        labels = Volume.read(path, labels=True)
    return labels, browser.evaluate("trinatSite.jobs[0].result")


def _use_of_children(process: psutil.Process) -> tuple[int, dict[int, float]]:
    """Return the bytes of all descendants of a process, and the processor seconds of each."""
    total = 0
    spent_s = {}
    for child in process.children(recursive=True):
        # A child may end in the meantime.
        with suppress(psutil.NoSuchProcess):
            # PSS counts shared memory once.
            total += child.memory_full_info().pss
            times = child.cpu_times()
            spent_s[child.pid] = times.user + times.system
    return total, spent_s


def _not_passed(grades: Mapping[str, str]) -> dict[str, str]:
    """Return the grades of the structures that have another grade than "pass"."""
    return {name: grade for name, grade in grades.items() if grade != "pass"}


def _compare(found: Volume, expected: Volume) -> None:
    """Print the share of equal brain voxels, and the largest change of a volume."""
    brain = (found.data > 0) | (expected.data > 0)
    same = (found.data == expected.data)[brain].mean()
    print(f"{same:.4%} of {brain.sum()} voxels of the brain are those of predict")
    largest = 0.0
    for number in np.unique(expected.data)[1:]:
        before = (expected.data == number).sum()
        after = (found.data == number).sum()
        largest = max(largest, abs(after / before - 1))
    print(f"volumes differ by up to {largest:.3%}")


def _compare_results(
    result: dict[str, Any], expected: Prediction, predictor: Predictor
) -> None:
    """Print the page's grade and intracranial volume, and Python's where they differ."""
    limits = limits_of(predictor.model.info)
    graded = grade(expected.evidence, limits)
    measured = measure(expected, limits)
    pairs = {
        "grade": (result["grade"], graded.name),
        "reasons": (result["reasons"], list(graded.reasons)),
        "structures": (
            _not_passed(result["structure_grades"]),
            _not_passed(graded.structures),
        ),
        "notes": (result["notes"], [n for n in (*expected.notes, measured.note) if n]),
        "intracranial volume": (
            result["measures_mm3"][INTRACRANIAL.column],
            measured.mm3[INTRACRANIAL.column],
        ),
    }
    for what, (of_page, of_python) in pairs.items():
        text = f"{what}: {of_page}"
        if of_page != of_python:
            text += f", of predict {of_python}"
        print(text)
