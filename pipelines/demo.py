"""The demo: heads in odd geometries through the whole path, and a picture of what came out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.phantom import write_phantoms
from segmentation.conform import conform, restore
from segmentation.files import atomic_write
from segmentation.labels import load_scheme
from segmentation.metrics.overlap import dice, joint_histogram, side_swap
from segmentation.report.mosaic import draw_mosaic
from segmentation.volume import Volume

__all__ = ["GEOMETRIES", "Geometry", "Outcome", "run_demo"]


@dataclass(frozen=True)
class Geometry:
    """A way in which a scanner may lay out a head."""

    name: str
    spacing_mm: tuple[float, float, float]
    orientation: str
    oblique_deg: float


GEOMETRIES = (
    Geometry("conformed", (1.0, 1.0, 1.0), "LIA", 0),
    Geometry("oblique", (0.9, 0.9, 1.2), "LPS", 12),
    Geometry("anisotropic", (1.5, 1.0, 1.0), "PSR", 5),
)


@dataclass(frozen=True)
class Outcome:
    """One head there and back: its picture, and how well its labels came back."""

    geometry: Geometry
    scan: Path
    picture: Path
    mean_dice: float
    swapped: float  # largest share of a structure that came back with the other side's label
    seconds: float


def run_demo(
    out: Path, *, seed: int = 0, geometries: Sequence[Geometry] = GEOMETRIES
) -> Iterator[Outcome]:
    """Make one phantom a geometry, bring it to the working grid and back, draw it."""
    for number, geometry in enumerate(geometries):
        start = time.perf_counter()
        folder = out / geometry.name
        ((scan, truth),) = write_phantoms(
            folder,
            subjects=1,
            seed=seed + number,
            spacing_mm=geometry.spacing_mm,
            orientation=geometry.orientation,
            oblique_deg=geometry.oblique_deg,
            force=True,
        )
        yield _there_and_back(geometry, scan, truth, folder / "mosaic.png", start)


def _there_and_back(
    geometry: Geometry, scan: Path, truth: Path, picture: Path, start: float
) -> Outcome:
    scheme = load_scheme("quicknat33")
    labels = Volume.read(truth, labels=True)
    classes = scheme.from_freesurfer(labels.data, where=truth)
    image = conform(Volume.read(scan))
    on_grid = conform(
        Volume(classes, labels.affine, labels.codes), labels=True, plan=image.plan
    ).volume
    back = restore(on_grid, image.plan, labels=True)

    joint = joint_histogram(classes, back.data, len(scheme))
    with atomic_write(picture) as file:
        draw_mosaic(image.volume, on_grid, scheme, title=f"{geometry.name}: {scan.name}").savefig(
            file, format="png", dpi=110
        )
    return Outcome(
        geometry=geometry,
        scan=scan,
        picture=picture,
        mean_dice=float(np.nanmean(dice(joint)[1:])),
        swapped=float(np.nanmax(side_swap(joint, scheme.partner_permutation))),
        seconds=time.perf_counter() - start,
    )
