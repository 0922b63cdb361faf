"""Write phantoms: scans of known anatomy, each with its exact truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from segmentation.errors import ConfigError
from segmentation.synthetic.phantom import phantom


def write_phantoms(
    out: Path,
    *,
    subjects: int,
    seed: int,
    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0),
    orientation: str = "RAS",
    oblique_deg: float = 0.0,
    force: bool = False,
) -> Iterator[tuple[Path, Path]]:
    """Write sub-01_T1w.nii.gz, sub-01_dseg.nii.gz and so on; yield each pair once it is there."""
    width = max(2, len(str(subjects)))
    pairs = [
        (out / f"sub-{number:0{width}}_T1w.nii.gz", out / f"sub-{number:0{width}}_dseg.nii.gz")
        for number in range(1, subjects + 1)
    ]
    present = [path for pair in pairs for path in pair if path.exists()]
    if present and not force:
        raise ConfigError(
            "is there already", where=present[0], remedy="name another folder, or pass --force"
        )
    for number, (image_path, labels_path) in enumerate(pairs, start=1):
        # A subject's own stream: sub-03 is the same head whether 3 or 300 are made.
        image, labels = phantom(
            np.random.default_rng((seed, number)),
            spacing_mm=spacing_mm,
            orientation=orientation,
            oblique_deg=oblique_deg,
        )
        out.mkdir(parents=True, exist_ok=True)
        image.write(image_path)
        labels.write(labels_path, labels=True)
        yield image_path, labels_path
