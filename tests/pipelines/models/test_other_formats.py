"""Exported networks give the same labels, and the comparison can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from helpers.overfitted import random_model
from helpers.refusals import refusal

from trinat.pipelines.jobs.lock import claimed
from trinat.pipelines.models.other_formats import export_model, share_of_equal_labels
from trinat.segmentation.errors import ConfigError, ModelError, OutputError
from trinat.segmentation.models import zoo
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.quicknat import QuickNat
from trinat.segmentation.space.views import View

pytest.importorskip("onnxruntime")


@pytest.mark.slow
def test_every_view_is_exported_with_the_same_labels(tmp_path: Path) -> None:
    paths = export_model([str(random_model())], tmp_path / "onnx")
    assert [path.name for path in paths] == [
        "coronal.onnx",
        "axial.onnx",
        "sagittal.onnx",
    ]
    # Paths of the machine would be published with the model.
    assert b".py" not in paths[0].read_bytes()
    facts = {entry.key: entry.value for entry in onnx.load(paths[0]).metadata_props}
    assert json.loads(facts["classes"])[:2] == [
        "background",
        "Left-Cerebral-White-Matter",
    ]
    assert json.loads(facts["freesurfer"])[:2] == [0, 2]
    assert facts["view"] == "coronal"
    sagittal = onnx.load(paths[2]).metadata_props
    of_both = next(entry.value for entry in sagittal if entry.key == "freesurfer")
    assert json.loads(of_both)[:2] == [[0], [2, 41]]
    assert json.loads(facts["preprocessing"])["spacing_mm"] == 1
    networks = load_model(random_model()).networks
    assert share_of_equal_labels(networks[View.CORONAL], paths[0]) >= 0.9999
    # The weights of another view must fail the comparison.
    assert share_of_equal_labels(networks[View.AXIAL], paths[0]) < 0.9


@pytest.mark.slow
@pytest.mark.important
def test_an_export_reports_nothing_to_the_makers_of_onnx_runtime(
    tmp_path: Path,
) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")
    }
    environment["HOME"] = str(tmp_path / "home")
    subprocess.run(
        [
            *(sys.executable, "-c", "from trinat.pipelines.cli import main; main()"),
            *("export", random_model(), "--out", tmp_path / "onnx"),
        ],
        env=environment,
        check=True,
    )
    # What it would report waits there.
    assert not list(tmp_path.glob("home/.cache/Microsoft/**/*"))


def test_a_network_that_gives_other_labels_is_not_written(
    tmp_path: Path, monkeypatch
) -> None:
    def export_nothing(network: QuickNat, path: Path, facts: object) -> None:
        """Export a graph that predicts background alone."""
        from onnx import TensorProto, helper, save

        shape = ("n", "channels", "rows", "columns")
        slices, logits = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name in ("slices", "logits")
        )
        node = helper.make_node("Identity", ["slices"], ["logits"])
        graph = helper.make_graph([node], "nothing", [slices], [logits])
        opset = helper.make_opsetid("", 20)
        save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)

    monkeypatch.setattr(
        "trinat.pipelines.models.other_formats.export_network", export_nothing
    )
    before = tmp_path / "coronal.onnx"
    with claimed(tmp_path, [before.name]):
        before.write_bytes(b"of an earlier export")
    with refusal(ModelError, before):
        export_model([str(random_model())], tmp_path)
    assert list(tmp_path.glob("[!.]*")) == [before]
    assert before.read_bytes() == b"of an earlier export"


def test_a_file_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "axial.onnx").write_text("mine")
    with refusal(OutputError, tmp_path / "axial.onnx", remedy="--out"):
        export_model([str(random_model())], tmp_path)
    assert (tmp_path / "axial.onnx").read_text() == "mine"


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--format"):
        export_model([str(random_model())], tmp_path, format_="tflite")


def test_graphs_that_come_with_trinat_name_no_files_of_a_machine() -> None:
    graphs = list(Path(zoo.__file__).parent.rglob("*.onnx"))
    assert graphs
    assert not [path for path in graphs if b".py" in path.read_bytes()]
