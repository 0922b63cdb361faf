"""A notice is printed if the licence of the weights is more restrictive than trinat's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.overfitted import random_model
from helpers.small_model import save_small

from trinat.pipelines.cli import main
from trinat.pipelines.common.models import print_licences, save_copy
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description, Training


def test_each_licence_is_printed_once_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, licence in (("free", "Apache-2.0"), ("bound", "CC BY-NC 3.0")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.yaml").write_text(f"training: {{licence: {licence}}}")
    bound = str(tmp_path / "bound")
    print_licences([bound, str(tmp_path / "free"), bound])
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "trinat: the weights of bound are licensed under CC BY-NC 3.0\n"


@pytest.mark.parametrize(
    "words",
    [
        "bundle MODEL --out joined",
        # Refused because files are missing, but only after the notice about the licence.
        "fit MODEL --scans none --truth none",
        "suspects none --model MODEL",
    ],
)
def test_commands_that_use_models_tell_it_too(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    training = Training(licence="CC BY-NC 3.0")
    networks = load_model(random_model()).networks
    save_model(Path("bound"), Description(name="bound", training=training), networks)
    arguments = words.replace("MODEL", "bound").split()
    monkeypatch.setattr(sys, "argv", ["trinat", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert "are licensed under CC BY-NC 3.0\n" in capsys.readouterr().err


def test_a_copy_keeps_the_provenance_of_its_weights(tmp_path: Path) -> None:
    source = save_small(tmp_path / "source")
    (source / "provenance.json").write_text("{}")
    model = load_model(source)
    save_copy(model, tmp_path / "copy")
    # In the folder of the model itself, too.
    save_copy(model, source, overwrite=True)
    for folder in (source, tmp_path / "copy"):
        assert (folder / "provenance.json").read_text() == "{}"
