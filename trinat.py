"""Segment the human brain in T1-weighted MRI.

    import trinat

    found = trinat.segment("scan.nii.gz")
    found.labels.write("labels.nii.gz", labels=True)

Load a model once to segment many scans: `trinat.Segmenter.load("fast")`.
`python -m trinat` is the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from nibabel.spatialimages import SpatialImage
    from numpy.typing import ArrayLike

    from segmentation.inference.segmentation import Segmentation
    from segmentation.inference.segmenter import Segmenter
    from segmentation.io.volume import Volume
    from segmentation.models.checkpoint import load_model
    from segmentation.space.views import View

    Scan: TypeAlias = str | Path | SpatialImage | tuple[ArrayLike, ArrayLike] | Volume

__all__ = ["Segmenter", "View", "Volume", "load_model", "segment"]

# Imported when they are first used: torch takes seconds.
_MODULES = {
    "Segmenter": "segmentation.inference.segmenter",
    "Volume": "segmentation.io.volume",
    "View": "segmentation.space.views",
    "load_model": "segmentation.models.checkpoint",
}

if not TYPE_CHECKING:  # or type checkers would take every name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def segment(
    scan: Scan,
    *,
    model: str | Path = "fast",
    device: str = "auto",
    views: Iterable[View | str] | None = None,
) -> Segmentation:
    """Segment one scan: a path, a nibabel image, a tuple (array, affine) or a Volume.

    `model` is a shipped model's name or a model folder; `views` are some of coronal, axial and
    sagittal. The result's labels are in the scan's own space.
    """
    from segmentation.inference.segmenter import Segmenter

    volume = _read(scan)
    return Segmenter.load(model, device=device, views=_chosen(views)).segment(volume)


def _read(scan: Any) -> Volume:
    from segmentation.io.volume import Volume

    if isinstance(scan, Volume):
        return scan
    if isinstance(scan, str | Path):
        return Volume.read(scan)
    if isinstance(scan, tuple) and len(scan) == 2:
        return Volume.of_array(*scan)
    if hasattr(scan, "dataobj") and hasattr(scan, "affine"):
        return Volume.of_image(scan)
    raise TypeError(
        f"cannot segment a {type(scan).__name__}: "
        "give a path, a nibabel image, a tuple (array, affine) or a Volume"
    )


def _chosen(views: Iterable[View | str] | None) -> list[View] | None:
    from segmentation.errors import ConfigError
    from segmentation.space.views import View

    try:
        return None if views is None else [View(view) for view in views]
    except ValueError as error:
        remedy = f"choose from {', '.join(view.value for view in View)}"
        raise ConfigError(str(error), remedy=remedy) from None


if __name__ == "__main__":
    from pipelines.cli import main

    main()
