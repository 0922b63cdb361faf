"""Who uses weights that are not as free as trinat is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from trinat.pipelines.predict.progress import say_licences


def test_each_licence_is_printed_once_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, licence in (("free", "Apache-2.0"), ("bound", "CC BY-NC 3.0")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.yaml").write_text(f"training: {{licence: {licence}}}")
    bound = str(tmp_path / "bound")
    say_licences([bound, str(tmp_path / "free"), bound])
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "trinat: the weights of bound are licensed under CC BY-NC 3.0\n"
