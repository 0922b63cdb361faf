"""The site's reference lists every command, option, recipe key, file and error; examples run.

`scripts/docs` builds the site, with warnings as errors; these are tests of the generated pages.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers.warm import Warm
from typer.testing import CliRunner

import trinat
from trinat.pipelines.cli import app
from trinat.pipelines.predict.tables import write_tables
from trinat.pipelines.report.measurements import METRICS_COLUMNS
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.record import ScanResult
from trinat.segmentation.training.config import Recipe

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("plot_*.py"))


@pytest.fixture(scope="module")
def generated() -> Any:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for word, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*words, word))


def test_every_option_of_every_command_is_on_the_site(generated: Any) -> None:
    sections = re.split(r"^## ", generated.commands(), flags=re.M)
    by_name = {section.partition("\n")[0]: section for section in sections}
    for words in _commands(typer.main.get_command(app)):
        section = by_name[" ".join(("trinat", *words))]
        shown = (
            CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "300"}).output
        )
        options = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", shown))
        assert options
        assert not options - set(re.findall(r"--[a-z][\w-]+", section)), words
    assert "--participant_label" in by_name["trinat-bids"]


def test_every_name_of_trinat_is_on_the_site(generated: Any) -> None:
    named = re.findall(r"\.\. auto(?:class|function):: trinat\.(\w+)", generated.api())
    assert sorted(named) == sorted(trinat.__all__)


def test_every_key_of_a_recipe_is_on_the_site(generated: Any) -> None:
    schema = Recipe.model_json_schema()
    models = [schema, *schema["$defs"].values()]
    keys = {key for model in models for key in model.get("properties", {})}
    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \| (.+?) \|", generated.recipes(), flags=re.M
    )
    # The network's keys are those of the architecture, which the schema of the recipe leaves
    # open. The keys of TorchIO's and MONAI's transforms are in a table of their own.
    of_transforms = set(re.findall(r"`(\w+)`:", generated.transforms()))
    named = {row[0] for row in rows} | of_transforms | {"name", "share"}
    assert keys | {"kernel", "unshuffle"} <= named
    found = {key: (kind, default) for key, kind, default in rows}
    assert found["ema"] == ("number ≥ 0, < 1", "`0.998`")
    assert found["rate"] == ("number > 0", "`0.004`")


def test_every_module_is_on_the_site_with_what_it_says_of_itself(
    generated: Any,
) -> None:
    page = generated.modules()
    files = [
        path
        for folder in ("segmentation", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert page.count("\n| `") == len(files)
    documented = (ROOT / "pipelines/cli/fields.py").read_text()
    sentence = documented.removeprefix('"""').partition(".")[0]
    assert f"| `fields.py` | {sentence}" in page.partition("## pipelines/cli")[2]
    assert "| `grid.py` |  |" not in page


def test_every_column_of_the_tables_is_described(tmp_path: Path) -> None:
    stem = {"Brain-Stem": 0.5}
    result = {
        "grade": "pass",
        "structure_grades": {"Brain-Stem": "pass"},
        "volumes_mm3": stem,
    }
    result |= dict.fromkeys(("agreement", "iou", "pairwise_dice", "volume_cv"), stem)
    case = "sub-01/anat/sub-01"
    write_tables(tmp_path, [Entry(case, "done", result=ScanResult(**result))])
    page = (DOCS / "files.md").read_text()
    described = set(re.findall(r"`(\w+)`", page))
    columns = set(METRICS_COLUMNS)
    for table in ("summary", "volumes", "qc"):
        columns.update(
            (tmp_path / f"{table}.tsv").read_text().splitlines()[0].split("\t")
        )
    assert {
        name.replace("Brain-Stem", "STRUCTURE") for name in columns
    } - described == set()


def test_the_words_of_each_refusal_are_those_of_the_code() -> None:
    page = (DOCS / "questions.md").read_text()
    refusals = re.findall(r"^\*\*`(.*)`\*\*$", page, flags=re.M)
    assert len(refusals) >= 25
    folders = ("segmentation", "pipelines")
    code = "\n".join(
        path.read_text() for name in folders for path in (ROOT / name).rglob("*.py")
    )
    parts = [part.strip() for words in refusals for part in words.split("…")]
    assert [part for part in parts if part and part not in code] == []


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path, warm: Warm, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{warm.bin}:{os.environ['PATH']}",
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [warm.bin / "python", example],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
