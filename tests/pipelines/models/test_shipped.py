"""trinat models: installed models, and models that can be downloaded."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from trinat.pipelines.cli.models import models
from trinat.pipelines.common.exits import Exit
from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.model_info import Template
from trinat.segmentation.models.zoo import MODEL_FILE, NOT_YET, shipped_models


def test_every_shipped_model_and_every_promise_is_listed(capsys) -> None:
    assert models(json_=True) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in told["available"]] == list(shipped_models())
    assert set(told["not_yet"]) == set(NOT_YET) - set(shipped_models())


def hostile(folder: Path, **changes: object) -> Path:
    """Copy the shipped model and falsify its description."""
    shutil.copytree(shipped_models()["fast"], folder)
    path = folder / MODEL_FILE
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
    return folder


def test_what_a_model_says_of_itself_is_neither_markup_nor_obeyed(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    folder = hostile(tmp_path / "own", metrics={"[/b]": "[red]x\x1b[2J"})
    monkeypatch.setattr(
        "trinat.segmentation.models.zoo.shipped_models", lambda: {"own": folder}
    )
    assert models(json_=False) == Exit.OK
    # Independent of the width of the terminal.
    told = "".join(capsys.readouterr().out.split())
    assert "[/b][red]x\\x1b[2J" in told


def test_a_broken_model_does_not_hide_the_others(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    good = shipped_models()["fast"]
    broken = hostile(tmp_path / "broken", format=7)
    monkeypatch.setattr(
        "trinat.segmentation.models.zoo.shipped_models",
        lambda: {"broken": broken, "fast": good},
    )
    assert models(json_=True) == Exit.SOME_FAILED
    out, err = capsys.readouterr()
    assert [model["name"] for model in json.loads(out)["available"]] == ["fast"]
    assert err.startswith(f"trinat: {broken / MODEL_FILE}: has model format 7")


@pytest.mark.parametrize("kind", ["huge", "zip bomb"])
def test_a_prior_that_is_a_bomb_is_refused(tmp_path: Path, kind: str) -> None:
    """A terabyte according to its header; 300 MiB of zeros in some 300 KB."""
    shape = (10**4, 10**4, 10**4, 33) if kind == "huge" else (300, 1024, 1024, 1)
    buffer = io.BytesIO()
    head = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("shares.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(member, head)
        for _ in range(1 if kind == "huge" else 300):
            member.write(bytes(1 << 20))
    said = "is no prior" if kind == "huge" else "is too large for a prior"
    with pytest.raises(ModelError, match=said):
        Template.from_bytes(buffer.getvalue(), 33, tmp_path / "prior.npz")
