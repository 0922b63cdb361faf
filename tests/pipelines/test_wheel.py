"""The wheel holds what a user without a clone needs."""

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
def test_the_wheel_holds_the_shipped_weights_their_card_and_the_notices(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("segmentation", "pipelines", "configs"):
        shutil.copytree(ROOT / folder, source / folder)
    for name in ("trinat.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    build += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=200)
    (wheel,) = tmp_path.glob("trinat-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    shipped = ROOT / "segmentation" / "models" / "zoo"
    wanted = {str(path.relative_to(ROOT)) for path in shipped.rglob("*.*") if path.suffix != ".pyc"}
    assert len(wanted) > 5
    page = ROOT / "pipelines" / "view" / "page"
    wanted |= {str(path.relative_to(ROOT)) for path in page.rglob("*.*")}
    assert "pipelines/view/page/niivue/LICENSE.txt" in wanted
    assert not wanted - held
    assert {"trinat.py", "segmentation/synthetic/anatomy.npz"} <= held
    assert "configs/train/fast.yaml" in held
    assert {Path(name).name for name in held if ".dist-info/" in name} >= {"LICENSE", "NOTICE"}
