"""A site holds the page, the modules, and graphs that compute what `Predictor` computes."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.overfitted import overfitted_model
from helpers.refusals import refusal
from helpers.small_model import network, save_small

from trinat.pipelines.cli.models import export
from trinat.pipelines.common import extras
from trinat.pipelines.models.other_formats import export_model
from trinat.pipelines.site import export as site
from trinat.pipelines.view.guard import SITE_POLICY
from trinat.segmentation.errors import ConfigError, ModelError, OutputError
from trinat.segmentation.inference.fusion import ViewAggregator, multiply_csf_odds
from trinat.segmentation.inference.graphs import FusionGraph, ViewGraph, fusion_of
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.models.checkpoint import (
    Model,
    load_model,
    save_model,
    update_info,
)
from trinat.segmentation.models.model_info import Description, Fusion
from trinat.segmentation.space.views import View, to_slices


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write sites with settings but without graphs, whose export takes a minute."""

    def write_settings(model: Model, folder: Path) -> None:
        folder.mkdir()
        settings = site.settings_of(model, fusion_of(model))
        (folder / "settings.json").write_text(json.dumps(settings))

    monkeypatch.setattr(site, "write_graphs", write_settings)


@pytest.mark.usefixtures("quick")
def test_the_command_prints_the_folder_and_how_to_open_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_folder = tmp_path / "my site"
    export([str(save_small(tmp_path / "own"))], site_folder, "web")
    printed = capsys.readouterr()
    assert printed.out == f"{site_folder}\n"
    assert f"trinat web '{site_folder}'" in printed.err


@pytest.mark.usefixtures("quick")
def test_a_site_has_the_page_the_modules_and_the_settings(tmp_path: Path) -> None:
    written = export_model(
        [str(save_small(tmp_path / "own"))], tmp_path / "site", format_="web"
    )
    names = {str(path.relative_to(tmp_path / "site")) for path in written}
    assert {
        "index.html",
        "view/page/view.js",
        "view/page/niivue/niivue.umd.js",
        "view/page/niivue/LICENSE.txt",
        "site/browser/main.js",
        "site/browser/onnxruntime/ort-wasm-simd-threaded.wasm",
        "site/browser/onnxruntime/LICENSE.txt",
        "models.json",
    } <= names
    assert "view/page/index.html" not in names
    page = (tmp_path / "site" / "index.html").read_text()
    assert f'content="{SITE_POLICY}"' in page
    for line in page.splitlines():
        for attribute in ("src=", "href="):
            address = line.partition(f'{attribute}"')[2].partition('"')[0]
            if address and not address.startswith("data:"):
                assert address in names


@pytest.mark.usefixtures("quick")
def test_a_model_without_a_sagittal_view_has_a_site(tmp_path: Path) -> None:
    networks = {View.CORONAL: network(), View.AXIAL: network()}
    save_model(tmp_path / "own", Description(name="own"), networks)
    export_model([str(tmp_path / "own")], tmp_path / "site", format_="web")
    text = (tmp_path / "site" / "models" / "own" / "settings.json").read_text()
    assert [view["name"] for view in json.loads(text)["views"]] == ["coronal", "axial"]


@pytest.mark.usefixtures("quick")
def test_settings_say_how_slices_are_cut_and_fused(tmp_path: Path) -> None:
    export_model([str(save_small(tmp_path / "own"))], tmp_path / "site", format_="web")
    text = (tmp_path / "site" / "models" / "small" / "settings.json").read_text()
    settings = json.loads(text)
    assert settings["classes"][1] == {
        "name": "Left-Cerebral-White-Matter",
        "abbreviation": "L-CWM",
        "number": 2,
        "color": "#f5f5f5",
        "group": "white-matter",
        "partner": 19,
        "side": "left",
        "predicted": True,
        "merged": 1,
    }
    axial = settings["views"][1]
    assert (axial["along"], axial["rows"], axial["columns"]) == (2, 1, 0)
    assert (axial["name"], axial["channels"], axial["merged"]) == ("axial", 3, False)
    assert settings["views"][2]["merged"]
    # The background weights of the views, those of the paper.
    weights = [view["background"] for view in settings["views"]]
    assert weights == pytest.approx([0.4, 0.4, 0.2])
    # A limit that is never reached.
    assert settings["limits"]["jump"] == [1.6, None]


@pytest.mark.usefixtures("quick")
def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mine.txt").write_text("mine")
    with refusal(OutputError, tmp_path / "site"):
        export_model(
            [str(save_small(tmp_path / "own"))], tmp_path / "site", format_="web"
        )
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["mine.txt"]


def test_a_model_with_other_steps_is_refused(tmp_path: Path) -> None:
    shutil.copytree(load_model("any").folder, tmp_path / "own")
    update_info(tmp_path / "own", fusion=Fusion(class_odds={"Left-Thalamus": 2.5}))
    with refusal(ModelError, tmp_path / "own"):
        export_model([str(tmp_path / "own")], tmp_path / "site", format_="web")


def test_a_model_whose_scans_another_one_strips_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="needs another model that strips whole heads"):
        export_model(["manual"], tmp_path / "site", format_="web")


@pytest.mark.usefixtures("quick")
def test_a_site_for_any_contrast_has_its_reversal_and_its_prior(tmp_path: Path) -> None:
    export_model(["fast", "any"], tmp_path / "site", format_="web")
    assert json.loads((tmp_path / "site" / "models.json").read_text()) == [
        "fast",
        "any",
    ]
    text = (tmp_path / "site" / "models" / "any" / "settings.json").read_text()
    settings = json.loads(text)
    assert settings["reverse_contrast"]
    assert settings["prior"]["certain"] == 0.97
    assert settings["prior"]["shape"] == [102, 138, 148]
    # Background has no centroid.
    assert settings["prior"]["centroids"][0] is None
    # White matter may be darker than cortex.
    assert settings["limits"]["contrast"] == [0, 0]
    assert settings["measures"]["CerebralWhiteMatterVol"] == [
        "Left-Cerebral-White-Matter",
        "Right-Cerebral-White-Matter",
    ]


def test_models_of_one_name_and_several_of_another_format_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelError, match="is one of two models that are named any"):
        export_model(["any", "any"], tmp_path / "site", format_="web")
    with refusal(ConfigError, remedy="--format"):
        export_model(["fast", "any"], tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.slow
def test_the_prior_is_exported_with_its_template(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = load_model("any")
    prior, template = model.info.prior, model.template
    assert prior is not None
    assert template is not None
    # The function compares its output, and raises if it differs.
    site.write_prior(model, prior, template, tmp_path)
    shares = gzip.decompress((tmp_path / "template.gz").read_bytes())
    # Classes are innermost.
    assert shares[:33] == template.shares[0, 0, 0].tobytes()
    assert len(shares) == template.shares.size


@pytest.mark.parametrize(
    "settings",
    [
        Fusion(mean="arithmetic"),
        Fusion(mean="geometric"),
        Fusion(mean="geometric", csf_odds=0.4, class_odds={"Left-Thalamus": 2.5}),
    ],
)
def test_graphs_fuse_as_the_predictor_does(settings: Fusion, tmp_path: Path) -> None:
    folder = save_small(tmp_path / "own")
    update_info(folder, fusion=settings)
    model = load_model(folder)
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(16, 16, 16, generator=generator)
    predictor = Predictor(model, device="cpu", precision="float32")
    expected = ViewAggregator(
        (16, 16, 16),
        model.scheme,
        predictor.views,
        model.fusion_weights(predictor.views),
        mean=model.info.fusion.mean,
    )
    fusion = fusion_of(model)
    added = torch.zeros(16, 16, 16, 33)
    for view, part in predictor.each_view(image):
        expected.add(
            view, part.slices.start, part.probabilities, part.rows, part.columns
        )
        axes = model.info.preprocessing.slice_axes(view)
        slices = to_slices(image, axes)
        channels = model.networks[view].config.channels
        reach = channels // 2
        padded = torch.nn.functional.pad(slices, (0, 0, 0, 0, reach, reach))
        thick = padded.unfold(0, channels, 1).permute(0, 3, 1, 2)[part.slices]
        before = to_slices(added, axes, trailing=1)[part.slices]
        with torch.inference_mode():
            graph = ViewGraph(model, view, fusion)
            after, classes, background, likelihood = graph(thick, before.clone())
        before.copy_(after)
        torch.testing.assert_close(classes, part.probabilities.argmax(-1).byte())
        torch.testing.assert_close(background, part.probabilities[..., 0])
        torch.testing.assert_close(likelihood, part.probabilities.amax(-1))
    fused = expected.finish()
    multiply_csf_odds(fused, model.scheme, settings.csf_odds)
    predictor.multiply_odds(fused)
    found = FusionGraph(model, fusion)(added.view(-1, 33)).view(16, 16, 16, 33)
    torch.testing.assert_close(found, fused.float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("format_", ["onnx", "web"])
def test_packages_that_are_missing_are_named(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", {"onnx": True}.get)
    own = str(save_small(tmp_path / "own"))
    with pytest.raises(ConfigError, match="onnxscript") as caught:
        export_model([own], tmp_path / "out", format_=format_)
    assert caught.value.remedy == "scripts/install export"
    assert not list(tmp_path.glob("out/[!.]*"))


@pytest.mark.slow
def test_exported_graphs_give_the_values_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = load_model(overfitted_model())
    # The function compares its output, and raises if it differs.
    site.write_graphs(model, tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {
        "coronal.onnx",
        "axial.onnx",
        "sagittal.onnx",
        "fusion.onnx",
        "settings.json",
    }
    # The weights of another view must fail the comparison.
    graph = ViewGraph(model, fusion_of(model).views[1], fusion_of(model))
    slices = torch.rand(1, 1, 64, 64)
    before = torch.zeros(1, 64, 64, 33)
    with pytest.raises(ModelError, match=r"at only .* of places: use other versions"):
        site._check(
            graph,
            (slices, before),
            tmp_path / "model" / "coronal.onnx",
            ("slices", "before"),
        )
