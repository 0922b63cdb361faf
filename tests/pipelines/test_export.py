"""Exported networks give the same labels, and the check of it can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from overfitted import random_model

from pipelines.export import export_model, share_of_equal_labels
from segmentation.errors import ConfigError
from segmentation.models.checkpoint import load_model
from segmentation.views import View

pytest.importorskip("onnxruntime")


@pytest.mark.slow
def test_every_view_is_exported_with_the_same_labels(tmp_path: Path) -> None:
    paths = export_model(str(random_model()), tmp_path / "onnx")
    assert [path.name for path in paths] == ["coronal.onnx", "axial.onnx", "sagittal.onnx"]
    networks = load_model(random_model()).networks
    assert share_of_equal_labels(networks[View.CORONAL], paths[0]) >= 0.9999
    # Another view's weights: the check sees it.
    assert share_of_equal_labels(networks[View.AXIAL], paths[0]) < 0.9


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--format"):
        export_model(str(random_model()), tmp_path, format_="tflite")
