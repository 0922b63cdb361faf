"""trinat export --format web: a site that segments in the browser, with models as ONNX graphs.

The site is a folder of static files, for any web server. Files that a visitor opens there are not
uploaded.
"""

from __future__ import annotations

import gzip
import json
import logging
import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from importlib.metadata import version
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trinat.pipelines.common.extras import require_extra
from trinat.pipelines.view.guard import SITE_POLICY
from trinat.segmentation.errors import ModelError
from trinat.segmentation.inference.fusion import ViewAggregator
from trinat.segmentation.inference.graphs import (
    FusionGraph,
    PriorGraph,
    ViewGraph,
    fusion_of,
)
from trinat.segmentation.inference.network import suitable_batch
from trinat.segmentation.inference.quality import limits_of
from trinat.segmentation.io.files import new_folder
from trinat.segmentation.labels.measures import parts_of_sums
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.models.model_info import Prior, Template
from trinat.segmentation.space.views import View

# Tolerance between the values of an exported graph and of torch; also the largest share of values
# beyond it.
_SAME = 1e-3
_OPSET = 20
# Packages for writing and checking a graph.
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_SIDE = 64  # size of the slices for tracing and checking the graph
_PIPELINES = resources.files("trinat.pipelines")
# Changes to the viewer's page in a site: its first script, and the paths of its files.
_PAGE_CHANGES = {
    '<meta charset="utf-8">': (
        '<meta charset="utf-8">\n    '
        f'<meta http-equiv="Content-Security-Policy" content="{SITE_POLICY}">'
    ),
    'href="view.css"': 'href="view/page/view.css"',
    'src="niivue.js"': 'src="view/page/niivue/niivue.umd.js"',
    'src="view.js"': 'src="site/browser/main.js"',
}


def export_site(models: Sequence[Model], out: Path) -> list[Path]:
    """Write a static site that segments scans in the browser; return the paths of its files.

    If an error occurs, nothing is written. The page starts with the first model and offers a choice
    among several. Raises OutputError if `out` is not empty, and ModelError for models with
    different structures or with steps that the site does not support.
    """
    first, *others = models
    for model in models:
        _require_supported(model)
    names = [model.name for model in models]
    for model in others:
        if model.scheme.names != first.scheme.names:
            raise ModelError(
                f"has other structures than {first.name}, and a site has those of one",
                where=model.folder,
                remedy="write a site for each",
            )
        if names.count(model.name) > 1:
            raise ModelError(
                f"is one of two models that are named {model.name}",
                where=model.folder,
                remedy="give each once",
            )
    with new_folder(out) as new:
        _write_site(models, new)
    return sorted(path for path in out.rglob("*") if path.is_file())


def _require_supported(model: Model) -> None:
    """Raise ModelError for a model whose inference the site does not support, such as stripping."""
    info = model.info
    missing = {
        "odds of structures beside a prior": bool(
            info.prior and info.fusion.class_odds
        ),
        "axes other than RAS": info.preprocessing.axes != "RAS",
        "intensities scaled otherwise": info.preprocessing.scaling != "trinat",
        "another model that strips whole heads": info.stripped_by is not None,
        "sagittal slices alone": tuple(model.networks) == (View.SAGITTAL,),
    }
    for what, is_needed in missing.items():
        if is_needed:
            raise ModelError(
                f"needs {what}, which sites do not support",
                where=model.folder,
                remedy="use a model like `fast`",
            )


def _write_site(models: Sequence[Model], folder: Path) -> None:
    """Write all files of a site into an empty folder."""
    # Same folders as in the source, so that scripts find each other by the same relative paths.
    for name in ("view/page", "site/browser"):
        _copy_tree(_PIPELINES / name, folder / name)
    page = (folder / "view" / "page" / "index.html").read_text(encoding="utf-8")
    for before, after in _PAGE_CHANGES.items():
        assert page.count(before) == 1, before
        page = page.replace(before, after)
    (folder / "index.html").write_text(page, encoding="utf-8")
    (folder / "view" / "page" / "index.html").unlink()
    names = json.dumps([model.name for model in models])
    (folder / "models.json").write_text(names + "\n", encoding="utf-8")
    (folder / "models").mkdir()
    for model in models:
        own = folder / "models" / model.name
        write_graphs(model, own)
        for name in ("MODEL_CARD.md", "LICENSE.txt"):
            if (model.folder / name).is_file():
                shutil.copyfile(model.folder / name, own / name)


def _copy_tree(source: Traversable, target: Path) -> None:
    """Copy a folder of the installed package, without Python files; it may be in an archive."""
    target.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.is_dir():
            _copy_tree(entry, target / entry.name)
        elif not entry.name.endswith((".py", ".pyc")):
            (target / entry.name).write_bytes(entry.read_bytes())


def write_graphs(model: Model, folder: Path) -> None:
    """Write a model for the site: settings, and an ONNX graph of each view and of their fusion.

    The files settings.json, <view>.onnx and fusion.onnx are written to a new folder. For a model
    with an anatomical prior, template.gz and prior.onnx are written, too. Raises ModelError if ONNX
    Runtime gives other values than torch.
    """
    folder.mkdir()
    fusion = fusion_of(model)
    settings = settings_of(model, fusion)
    for view, of_view in zip(fusion.views, settings["views"], strict=True):
        path = folder / f"{view.value}.onnx"
        _export_view(model, view, fusion, path)
        of_view["processor_nodes"] = _half_precision_nodes(path)
    end_of_fusion = FusionGraph(model, fusion)
    _export_of_voxels(model, end_of_fusion, folder / "fusion.onnx", ("added",))
    prior, template = model.info.prior, model.template
    if prior is not None and template is not None:
        write_prior(model, prior, template, folder)
    text = json.dumps(settings, indent=1)
    (folder / "settings.json").write_text(text + "\n", encoding="utf-8")


def settings_of(model: Model, fusion: ViewAggregator) -> dict[str, Any]:
    """Return the settings of a model that the site needs besides its graphs, as JSON values.

    `fusion` is the model's aggregator of views. `classes` begin with background. `views` are in the
    order in which they are added to the fusion. `limits` are those of the quality checks; limits
    that are never reached are null. `measures` maps each column of tables that is a sum of
    structures to its parts.
    """
    merged = model.scheme.merged
    classes = [
        {
            "name": label.name,
            "abbreviation": label.abbreviation,
            "number": label.fs_id,
            "color": label.hex_color,
            "group": label.group,
            "partner": label.partner,
            "side": label.side,
            "predicted": label.name not in model.info.not_predicted,
            "merged": int(merged.to_merged[label.index]),
        }
        for label in model.scheme.labels
    ]
    limits = {}
    for name, value in asdict(limits_of(model.info)).items():
        if isinstance(value, tuple):
            value = [None if math.isinf(limit) else limit for limit in value]
        limits[name] = value
    known = set(model.scheme.names[1:]) - set(model.info.not_predicted)
    return {
        "model": model.name,
        "trinat": version("trinat"),
        "licence": model.info.training.licence,
        "contrast": model.info.contrast,
        "csf": model.info.csf,
        "classes": classes,
        "views": [_settings_of_view(model, view, fusion) for view in fusion.views],
        "limits": limits,
        "reverse_contrast": model.info.reverse_contrast,
        "prior": _settings_of_prior(model),
        "measures": parts_of_sums(model.scheme, known),
    }


def _settings_of_prior(model: Model) -> dict[str, Any] | None:
    """Return grid and class centres of a model's anatomical template; None without one.

    `certain` is the probability from which on a voxel is not changed by the template. `centroids`
    are None for classes without a centre.
    """
    prior, template = model.info.prior, model.template
    if prior is None or template is None:
        return None
    centroids = [
        point.tolist() if np.isfinite(point).all() else None
        for point in template.centroids
    ]
    return {
        "certain": prior.certain,
        "shape": list(template.shares.shape[:3]),
        "affine": template.affine.ravel().tolist(),
        "centroids": centroids,
    }


def _settings_of_view(
    model: Model, view: View, fusion: ViewAggregator
) -> dict[str, Any]:
    """Return the settings of a view: how its slices are cut and processed, and its weight."""
    network = model.networks[view]
    axes = model.info.preprocessing.slice_axes(view)
    return {
        "name": view.value,
        "along": axes.along,
        "rows": axes.rows,
        "columns": axes.columns,
        "channels": network.config.channels,
        "multiple": network.config.multiple,
        "batch": suitable_batch(network.config, torch.device("cpu")),
        "merged": model.is_merged(view),
        "background": fusion.background_weight(view),
    }


def _export_view(model: Model, view: View, fusion: ViewAggregator, path: Path) -> None:
    """Write a view's network, with its part of the fusion, as an ONNX file to `path`."""
    graph = ViewGraph(model, view, fusion)
    config = model.networks[view].config
    # Sizes are in multiples of the network's downsampling, so that the graph accepts every allowed
    # size.
    number = torch.export.Dim("n")
    rows = config.multiple * torch.export.Dim("rows", min=1)
    columns = config.multiple * torch.export.Dim("columns", min=1)
    generator = torch.Generator().manual_seed(0)
    classes = len(model.scheme)

    def inputs(count: int, height: int, width: int) -> tuple[Tensor, ...]:
        slices = torch.rand(count, config.channels, height, width, generator=generator)
        before = torch.rand(count, height, width, classes, generator=generator)
        return slices, before

    write_onnx(
        graph,
        inputs(2, _SIDE, _SIDE),
        path,
        names=("slices", "before"),
        results=("after", "classes", "background", "likelihood"),
        sizes=({0: number, 2: rows, 3: columns}, {0: number, 1: rows, 2: columns}),
    )
    # Check with another number and size of slices than in tracing.
    _check(graph, inputs(3, 2 * _SIDE, _SIDE), path, ("slices", "before"))


def write_prior(model: Model, prior: Prior, template: Template, folder: Path) -> None:
    """Write a model's anatomical template, and the graph that applies it: template.gz, prior.onnx.

    template.gz has the shares of the template, (X, Y, Z, K), as bytes: 255 stands for 1. prior.onnx
    maps `shares` and `before` to `probabilities`, all of shape (V, K).
    """
    graph = PriorGraph(model, prior)
    _export_of_voxels(model, graph, folder / "prior.onnx", ("shares", "before"))
    shares = gzip.compress(template.shares.tobytes(), mtime=0)
    (folder / "template.gz").write_bytes(shares)


def _export_of_voxels(
    model: Model, graph: nn.Module, path: Path, names: tuple[str, ...]
) -> None:
    """Write a graph that works on single voxels as an ONNX file to `path`.

    It maps its inputs, (V, K) each, to `probabilities`, (V, K), for V voxels and K classes. `names`
    are the names of the inputs.
    """
    generator = torch.Generator().manual_seed(0)
    size = (2 * _SIDE, len(model.scheme))
    values = tuple(torch.rand(size, generator=generator) for _ in names)
    voxels = torch.export.Dim("voxels")
    write_onnx(
        graph,
        tuple(value[:_SIDE] for value in values),
        path,
        names=names,
        results=("probabilities",),
        sizes=tuple({0: voxels} for _ in names),
    )
    _check(graph, values, path, names)


def write_onnx(
    graph: nn.Module,
    inputs: tuple[Tensor, ...],
    path: Path,
    *,
    names: tuple[str, ...],
    results: tuple[str, ...],
    sizes: tuple[Mapping[int, Any], ...],
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write a module as an ONNX file that contains its weights.

    `inputs` are examples for tracing. `names` and `results` are the names of inputs and outputs,
    `sizes` the dynamic axes of each input. `facts` are keys and values for the file's metadata.
    Raises ConfigError if packages are missing.
    """
    require_extra("export", *_PACKAGES)
    # The exporter logs a lot; the result is checked afterwards.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            inputs,
            dynamo=True,
            input_names=list(names),
            output_names=list(results),
            dynamic_shapes=sizes,
            opset_version=_OPSET,
            verbose=False,
        )
    assert program is not None
    # The exporter notes for each node where it is in the code, with paths of this machine.
    for node in program.model.graph:
        node.metadata_props.clear()
    program.model.metadata_props.update(facts or {})
    program.save(path, external_data=False)


def _half_precision_nodes(path: Path) -> list[str]:
    """Return the names of the nodes of a graph with half-precision inputs or outputs."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    halves = set()
    for value in graph.value_info:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            halves.add(value.name)
    return [node.name for node in graph.node if halves & {*node.input, *node.output}]


def _check(
    graph: nn.Module, inputs: tuple[Tensor, ...], path: Path, names: tuple[str, ...]
) -> None:
    """Raise ModelError if an ONNX file gives other values than the module that it was made from.

    `inputs` are the values to compare with, and `names` the names of these inputs.
    """
    import onnxruntime

    with torch.inference_mode():
        expected = graph(*inputs)
    if isinstance(expected, Tensor):
        expected = (expected,)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    for one, other in zip(session.run(None, given), expected, strict=True):
        close = np.isclose(np.asarray(one, float), other.numpy(), atol=_SAME)
        # Equally probable classes may be swapped.
        if close.mean() < 1 - _SAME:
            raise ModelError(
                f"ONNX Runtime gives the same value as torch at only {close.mean():.2%} of places",
                where=path,
                remedy="use other versions of torch and onnxruntime",
            )
