"""Segment the human brain in T1-weighted MRI.

    import trinat

    result = trinat.segment("scan.nii.gz")
    result.save("labels.nii.gz")

docs/python.md shows all of it. `python -m trinat` is the command line.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.predict.many import segment_many
    from segmentation.errors import TrinatError
    from segmentation.io.volume import Volume
    from segmentation.metrics.pair import evaluate
    from segmentation.models.checkpoint import load_model
    from segmentation.report.mesh import Surface
    from segmentation.report.result import Result, Segmenter, segment
    from segmentation.space.views import View
    from segmentation.synthetic.phantom import phantom

__all__ = [
    "Result",
    "Segmenter",
    "Surface",
    "TrinatError",
    "View",
    "Volume",
    "evaluate",
    "load_model",
    "phantom",
    "segment",
    "segment_many",
]

# As the command line does: on a busy machine, threads that spin while they wait make all others
# wait, many times longer than they work. libgomp reads it when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _compute_in_one_thread() -> None:
    """In a forked process torch waits for ever for the threads of its parent: do without them."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_in_one_thread)

# Imported when they are first used: torch takes seconds.
_MODULES = {
    "Result": "segmentation.report.result",
    "Segmenter": "segmentation.report.result",
    "Surface": "segmentation.report.mesh",
    "TrinatError": "segmentation.errors",
    "View": "segmentation.space.views",
    "Volume": "segmentation.io.volume",
    "evaluate": "segmentation.metrics.pair",
    "load_model": "segmentation.models.checkpoint",
    "phantom": "segmentation.synthetic.phantom",
    "segment": "segmentation.report.result",
    "segment_many": "pipelines.predict.many",
}

if not TYPE_CHECKING:  # or type checkers would take every name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if __name__ == "__main__":
    from pipelines.cli import main

    main()
