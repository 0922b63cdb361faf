"""Phantoms: synthetic scans of known anatomy; the demo segments some in unusual geometries.

`trinat demo` shows the whole workflow without any data; `trinat phantom` writes scans and their
exact label maps for experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.jobs.process import cpu_count
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.synthetic.phantom import phantom


@dataclass(frozen=True)
class Geometry:
    """Voxel size, axes and rotation of a synthetic scan.

    `subject` is the name of the scan's participant. `orientation` has the directions of the array's
    axes, such as LIA; `oblique_deg` is the rotation of the head in the scanner.
    """

    subject: str
    spacing_mm: tuple[float, float, float]
    orientation: str
    oblique_deg: float

    def __str__(self) -> str:
        spacing = " x ".join(f"{mm:g}" for mm in self.spacing_mm)
        text = f"{self.subject}: {spacing} mm, axes {self.orientation}"
        if self.oblique_deg:
            text += f", oblique by {self.oblique_deg:g} degrees"
        return text


GEOMETRIES = (
    Geometry("sub-conformed", (1.0, 1.0, 1.0), "LIA", 0),
    Geometry("sub-oblique", (0.9, 0.9, 1.2), "LPS", 12),
    Geometry("sub-anisotropic", (1.5, 1.0, 1.0), "PSR", 5),
)


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    model: str = "fast",
    geometries: Sequence[Geometry] = GEOMETRIES,
    on_step: Callable[[str], None] = lambda line: None,
) -> Exit:
    """Make a phantom of each geometry, segment all with the model and evaluate the result.

    Below `out`, `scans` and `truth` have the phantoms (scans and exact label maps), `labels` the
    predictions and `report` the evaluation. `on_step` is called with a line for each step. Returns
    the exit status of the first step that failed, or of the last one.
    """
    from trinat.pipelines.evaluate.evaluation import (
        EvaluationSettings,
        evaluate_predictions,
    )
    from trinat.pipelines.predict.engine import SerialEngine
    from trinat.pipelines.predict.run import Listener, predict
    from trinat.pipelines.predict.settings import PredictRequest
    from trinat.pipelines.study.entry import Entry

    scans = out / "scans"
    truth = out / "truth"
    labels = out / "labels"
    for geometry in geometries:
        on_step(f"making {geometry}")

    def make(number: int, geometry: Geometry) -> None:
        shape = asdict(geometry)
        name = shape.pop("subject")
        image = scans / f"{name}_T1w.nii.gz"
        classes = truth / f"{name}_dseg.nii.gz"
        _write(image, classes, seed=(seed, number), **shape)

    # Torch, numpy and zlib release the GIL, so threads run in parallel.
    with ThreadPoolExecutor(cpu_count()) as pool:
        list(pool.map(make, range(len(geometries)), geometries))
    on_step(f"segmenting {len(geometries)} scans with {model}")

    def say_entry(entry: Entry) -> None:
        on_step(f"{entry.case}: {entry.status}, {entry.result.grade or entry.reason}")

    engine = partial(SerialEngine, device="auto")
    request = PredictRequest([str(scans)], labels, model, engine=engine)
    outcome = predict(request, Listener(on_entry=say_entry))
    if outcome.exit != Exit.OK:
        return outcome.exit
    on_step("comparing with the truth")
    settings = EvaluationSettings(
        truth,
        {model: labels},
        out / "report",
        images=scans,
        jobs=1,
        command="trinat demo",
    )
    return evaluate_predictions(settings)


def write_phantoms(
    out: Path,
    *,
    subjects: int,
    seed: int,
    force: bool = False,
    **geometry: Any,
) -> Iterator[tuple[Path, Path]]:
    """Write phantoms: sub-01_T1w.nii.gz with its exact label map sub-01_dseg.nii.gz, and so on.

    Yields the paths of scan and label map once both are written. `geometry` has keyword arguments
    of `phantom`. Raises ConfigError if a file exists already, unless `force`.
    """
    width = max(2, len(str(subjects)))
    pairs: list[tuple[Path, Path]] = []
    for number in range(1, subjects + 1):
        name = f"sub-{number:0{width}}"
        pairs.append((out / f"{name}_T1w.nii.gz", out / f"{name}_dseg.nii.gz"))
    if not force:
        for path in chain.from_iterable(pairs):
            if path.exists():
                remedy = "choose another folder, or add --force"
                raise ConfigError("exists already", where=path, remedy=remedy)
    for number, (image_path, labels_path) in enumerate(pairs, start=1):
        # The random stream depends on the number: sub-03 is the same head whether 3 or 300 are
        # made.
        _write(image_path, labels_path, seed=(seed, number), **geometry)
        yield image_path, labels_path


def _write(
    image: Path,
    labels: Path,
    *,
    seed: tuple[int, int],
    **geometry: Any,
) -> None:
    """Make a phantom, and write its scan to `image` and its exact label map to `labels`.

    Random numbers come from `seed`. `geometry` has keyword arguments of `phantom`.
    """
    scan, classes = phantom(np.random.default_rng(seed), **geometry)
    for path in (image, labels):
        path.parent.mkdir(parents=True, exist_ok=True)
    scan.write(image)
    classes.write(labels, labels=True)
