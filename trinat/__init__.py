"""Segment the human brain in T1-weighted MRI.

    import trinat

    result = trinat.segment("scan.nii.gz")
    result.save("labels.nii.gz")

See docs/python.md. `python -m trinat` is the command line.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinat.pipelines.predict.many import segment_many
    from trinat.pipelines.train.from_python import TrainedRun, train
    from trinat.segmentation.data.open_store import OpenedStore, open_store
    from trinat.segmentation.errors import TrinatError
    from trinat.segmentation.io.volume import Volume
    from trinat.segmentation.metrics.pair import evaluate
    from trinat.segmentation.models.checkpoint import load_model
    from trinat.segmentation.rendering.mesh import Surface
    from trinat.segmentation.result import Result
    from trinat.segmentation.segmenter import Segmenter, segment
    from trinat.segmentation.space.views import View
    from trinat.segmentation.synthetic.phantom import phantom

__all__ = [
    "OpenedStore",
    "Result",
    "Segmenter",
    "Surface",
    "TrainedRun",
    "TrinatError",
    "View",
    "Volume",
    "evaluate",
    "load_model",
    "open_store",
    "phantom",
    "segment",
    "segment_many",
    "train",
]


def _compute_in_one_thread() -> None:
    """Use a single thread in a forked process, where torch would wait forever.

    The threads of its parent do not exist there.
    """
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_in_one_thread)

# Imported on first use: torch takes seconds.
_MODULES = {
    "OpenedStore": "trinat.segmentation.data.open_store",
    "Result": "trinat.segmentation.result",
    "Segmenter": "trinat.segmentation.segmenter",
    "Surface": "trinat.segmentation.rendering.mesh",
    "TrainedRun": "trinat.pipelines.train.from_python",
    "TrinatError": "trinat.segmentation.errors",
    "View": "trinat.segmentation.space.views",
    "Volume": "trinat.segmentation.io.volume",
    "evaluate": "trinat.segmentation.metrics.pair",
    "load_model": "trinat.segmentation.models.checkpoint",
    "open_store": "trinat.segmentation.data.open_store",
    "phantom": "trinat.segmentation.synthetic.phantom",
    "segment": "trinat.segmentation.segmenter",
    "segment_many": "trinat.pipelines.predict.many",
    "train": "trinat.pipelines.train.from_python",
}

if not TYPE_CHECKING:  # or type checkers would accept every name

    def __getattr__(name: str) -> Any:
        """Import a name of `_MODULES` on first use."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # As on the command line: on a busy machine, threads that spin while they wait slow down
        # all others many times. libgomp reads the variable when torch is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return all names, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
