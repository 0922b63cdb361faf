"""The wheel contains everything that a user without a clone needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.important
def test_the_wheel_holds_the_shipped_weights_their_card_and_the_notices(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    for folder in ("segmentation", "pipelines", "configs", "trinat"):
        shutil.copytree(ROOT / folder, source / folder, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    build += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=200)
    (wheel,) = tmp_path.glob("trinat-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    # One top-level name is installed, besides pip's metadata.
    tops = {name.split("/")[0] for name in held}
    assert tops == {"trinat", next(top for top in tops if top.endswith(".dist-info"))}
    shipped = ROOT / "segmentation" / "models" / "zoo"
    wanted = {in_wheel(path) for path in shipped.rglob("*.*") if path.suffix != ".pyc"}
    assert len(wanted) > 5
    for part in ("view/page", "site/browser"):
        files = (ROOT / "pipelines" / part).rglob("*.*")
        # The TypeScript types are needed only to change the page's JavaScript.
        wanted |= {in_wheel(path) for path in files if path.suffix != ".ts"}
    assert "trinat/pipelines/view/page/niivue/LICENSE.txt" in wanted
    assert not wanted - held
    assert {"trinat/__init__.py", "trinat/py.typed"} <= held
    assert "trinat/segmentation/synthetic/anatomy.npz" in held
    assert "trinat/configs/train/fast.yaml" in held
    assert {Path(name).name for name in held if ".dist-info/" in name} >= {
        "LICENSE",
        "NOTICE",
    }


def in_wheel(path: Path) -> str:
    return f"trinat/{path.relative_to(ROOT)}"
