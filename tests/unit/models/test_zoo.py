"""Shipped models are found by name, others by folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.refusals import refusal

from trinat.segmentation.errors import ModelError
from trinat.segmentation.models import zoo
from trinat.segmentation.models.checkpoint import load_model


def test_every_shipped_model_loads() -> None:
    for name, folder in zoo.shipped_models().items():
        assert load_model(folder).name == name
        assert zoo.find_model(name) == folder


@pytest.mark.parametrize(
    "folder", zoo.shipped_models().values(), ids=zoo.shipped_models()
)
def test_a_shipped_model_is_small_and_its_card_tells_its_score(folder: Path) -> None:
    most = {"fast": 7e6, "manual": 7e6, "any": 7e6, "quicknat": 24e6}[folder.name]
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) < most
    score = load_model(folder).info.metrics["mean_dice_31_structures_fused"]
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"mean Dice over 31 structures, fused, **{score:.3f}**" in card


@pytest.mark.parametrize(
    ("name", "scheme", "count", "licence"),
    [
        ("fast", "desikan34", 68, zoo.OWN_LICENCE),
        ("manual", "neuromorphometrics49", 98, "CC BY-NC 3.0"),
    ],
)
def test_a_cortex_is_divided_and_the_card_tells_how_well(
    name: str, scheme: str, count: int, licence: str
) -> None:
    folder = zoo.find_parcels_folder(zoo.find_model(name))
    parcels = load_model(folder)
    assert parcels.scheme.name == scheme
    assert len(parcels.networks) == 3
    assert parcels.info.training.licence == licence
    score = parcels.info.metrics[f"mean_dice_{count}_parcels_fused"]
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"mean Dice over {count} parcels **{score:.3f}**" in card


def test_finding_a_model_waits_for_no_heavy_library() -> None:
    probe = (
        "import sys\n"
        "from trinat.segmentation.models import zoo\n"
        "zoo.find_model('fast')\n"
        "print(sorted({'torch', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_folder_of_ones_own_is_found(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").touch()
    assert zoo.find_model(tmp_path) == tmp_path


def test_a_shipped_name_wins_over_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, shipped = tmp_path / "fast", tmp_path / "zoo" / "fast"
    for folder in (own, shipped):
        folder.mkdir(parents=True)
        (folder / "model.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(zoo, "__file__", str(tmp_path / "zoo" / "__init__.py"))
    assert zoo.find_model("fast") == shipped


@pytest.mark.parametrize(
    ("there", "devices", "chosen"),
    [
        (["fast"], ["cuda"], "fast"),
        (["fast", "quicknat"], ["cuda"], "quicknat"),
        (["fast", "quicknat"], ["cuda:0", "cuda:1"], "quicknat"),
        (["fast", "quicknat"], ["cuda", "cpu"], "fast"),
        (["fast", "quicknat"], ["cpu"], "fast"),
    ],
)
def test_the_full_model_is_the_default_on_gpus_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch, there: list[str], devices: list[str], chosen: str
) -> None:
    monkeypatch.setattr(zoo, "shipped_models", lambda: dict.fromkeys(there, Path()))
    assert zoo.default_model(devices) == chosen


@pytest.mark.parametrize(("gpu", "chosen"), [(True, "quicknat"), (False, "fast")])
def test_a_device_that_nobody_named_is_the_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, chosen: str
) -> None:
    monkeypatch.setattr(zoo, "shipped_models", lambda: {"quicknat": Path()})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert zoo.default_model() == chosen


def test_an_unknown_model_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with refusal(ModelError, tmp_path / "nothing"):
        zoo.find_model(tmp_path / "nothing")


def test_what_is_neither_a_name_nor_a_folder_is_told_what_to_give() -> None:
    with pytest.raises(
        TypeError, match="cannot use NoneType as a model: give a model's name or"
    ):
        zoo.find_model(None)  # type: ignore[arg-type]


def test_a_model_that_is_still_to_come_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zoo, "shipped_models", dict)
    with pytest.raises(ModelError, match="quicknat has no weights here"):
        zoo.find_model("quicknat")


@pytest.mark.parametrize(
    ("content", "licence"),
    [
        ("training: {licence: CC BY-NC 3.0}", "CC BY-NC 3.0"),
        ("training: {data: scans}", ""),
        ("training: none", ""),
        ("- no mapping", ""),
        ("training: {licence: [", ""),
        ("training: {licence: 3}", ""),
    ],
)
def test_the_licence_of_a_model_is_read_without_its_weights(
    tmp_path: Path, content: str, licence: str
) -> None:
    (tmp_path / "model.yaml").write_text(content)
    assert zoo.licence_of(tmp_path) == licence


@pytest.mark.parametrize(
    ("licence", "notice"),
    [
        ("Apache-2.0", ""),
        ("", ""),
        ("CC BY-NC 3.0", "the weights of own are licensed under CC BY-NC 3.0"),
    ],
)
def test_a_licence_other_than_that_of_trinat_has_a_notice(
    tmp_path: Path, licence: str, notice: str
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "model.yaml").write_text(f"training: {{licence: '{licence}'}}")
    assert zoo.licence_notice(own) == notice


def test_python_warns_once_of_a_licence_other_than_that_of_trinat(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.yaml").write_text("training: {licence: CC BY-NC 3.0}")
    with pytest.warns(UserWarning, match="are licensed under CC BY-NC 3.0"):
        zoo.warn_of_licence(tmp_path)
    # A second warning would be an error.
    zoo.warn_of_licence(tmp_path)


@pytest.mark.parametrize(
    ("content", "is_any"),
    [("contrast: any", True), ("contrast: T1", False), ("name: own", False)],
)
def test_a_model_says_for_which_contrast_it_is(
    tmp_path: Path, content: str, is_any: bool
) -> None:
    (tmp_path / "model.yaml").write_text(content)
    assert zoo.is_for_any_contrast(tmp_path) == is_any


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("labels: [", "is not readable YAML, line 2"),
        ("[]", "is not a model's description"),
        ("labels: 3", "labels is 3, not the name of a scheme"),
    ],
)
def test_a_scheme_of_a_damaged_model_is_refused_with_its_file(
    tmp_path: Path, content: str, problem: str
) -> None:
    (tmp_path / "model.yaml").write_text(f"{content}\n")
    with pytest.raises(ModelError, match=problem) as refused:
        zoo.read_scheme(tmp_path)
    assert str(tmp_path / "model.yaml") in str(refused.value)


def test_a_model_that_names_no_scheme_has_the_usual_one(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("name: own\n")
    assert zoo.read_scheme(tmp_path).name == "quicknat33"
