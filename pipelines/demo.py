"""The demo: heads in odd geometries, segmented, and held against their truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.common.exits import Exit
from pipelines.common.process import cpu_count
from pipelines.evaluate.run import Model, Settings, evaluate
from pipelines.predict.engine import SerialEngine
from pipelines.predict.run import Plan, predict
from segmentation.synthetic.phantom import phantom


@dataclass(frozen=True)
class Geometry:
    """A way in which a scanner may lay out a head."""

    subject: str
    spacing_mm: tuple[float, float, float]
    orientation: str
    oblique_deg: float

    def __str__(self) -> str:
        spacing = " x ".join(f"{mm:g}" for mm in self.spacing_mm)
        turned = f", oblique by {self.oblique_deg:g} degrees" if self.oblique_deg else ""
        return f"{self.subject}: {spacing} mm, axes {self.orientation}{turned}"


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
    say: Callable[[str], None] = lambda _: None,
) -> Exit:
    """Make a phantom of each geometry, segment all with the model, evaluate; `say` hears of it."""
    scans, truth, labels, report = (out / n for n in ("scans", "truth", "labels", "report"))
    for folder in (scans, truth):
        folder.mkdir(parents=True, exist_ok=True)
    for geometry in geometries:
        say(f"making {geometry}")

    def make(number: int, geometry: Geometry) -> None:
        scan, classes = phantom(
            np.random.default_rng((seed, number)),
            spacing_mm=geometry.spacing_mm,
            orientation=geometry.orientation,
            oblique_deg=geometry.oblique_deg,
        )
        scan.write(scans / f"{geometry.subject}_T1w.nii.gz")
        classes.write(truth / f"{geometry.subject}_dseg.nii.gz", labels=True)

    # Torch, numpy and zlib compute beside one another in threads.
    with ThreadPoolExecutor(cpu_count()) as pool:
        list(pool.map(make, range(len(geometries)), geometries))
    say(f"segmenting {len(geometries)} scans with {model}")
    outcome = predict(
        Plan(
            inputs=[str(scans)],
            out=labels,
            model=model,
            engine=partial(SerialEngine, device="auto"),
        )
    )
    if outcome.exit != Exit.OK:
        return outcome.exit
    say("comparing with the truth")
    return evaluate(
        Settings(
            truth=truth,
            models=(Model(model, labels),),
            out=report,
            images=scans,
            jobs=1,
            command="trinat demo",
        )
    )
