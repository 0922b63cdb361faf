"""Imports point one way: scripts -> pipelines -> segmentation, and no stage imports a later one."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import trinat

ROOT = Path(__file__).parents[2]

# Scan to result, in the order of ARCHITECTURE.md: a module may import from its own stage and
# from earlier ones. Training comes late, because it validates on whole volumes: it uses
# inference and metrics, which do not use training.
STAGES = (
    ("errors", "timing", "grid"),
    ("io",),
    ("space",),
    ("labels",),
    ("synthetic",),
    ("data",),
    ("models",),
    ("inference",),
    ("longitudinal",),
    ("metrics",),
    ("training",),
    ("rendering",),
    ("result", "segmenter"),
)
# The order of the folders of pipelines/ in ARCHITECTURE.md: a folder may import from those
# before it. Shared code comes first, the commands come last.
FOLDERS = (
    *("common", "jobs", "study", "report"),
    *("predict", "prepare", "train", "evaluate"),
    *("view", "site", "models", "learn", "serve"),
    *("demo", "doctor", "cli"),
)


@cache
def imported_modules(path: Path) -> set[str]:
    """Return the absolute names of all modules that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def stage_of(module: str) -> int:
    """Return the stage of trinat.segmentation.<name>[...]; the package itself is before all."""
    parts = module.removeprefix("trinat.").split(".")
    if parts[0] != "segmentation" or len(parts) < 2 or parts[1] == "__init__":
        return -1
    for position, members in enumerate(STAGES):
        if parts[1] in members:
            return position
    raise AssertionError(f"{module} belongs to no stage: add it to STAGES")


def python_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", python_files("segmentation"), ids=relative)
def test_the_library_imports_nothing_that_stands_above_or_after_it(path: Path) -> None:
    own = stage_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for module in sorted(imported_modules(path)):
        top = module.removeprefix("trinat.").split(".")[0]
        assert top not in {"pipelines", "scripts", "tests", "typer", "rich", "argparse"}
        assert stage_of(module) <= own, (
            f"{relative(path)} imports {module}, a later stage"
        )


def test_no_module_imports_itself_by_way_of_others() -> None:
    files = [*python_files("segmentation"), *python_files("pipelines")]
    modules = {module_name(path): imported_modules(path) for path in files}
    # `from package import module` names the module; `from module import name` its name too.
    known = {
        name: {x if x in modules else x.rpartition(".")[0] for x in found}
        & modules.keys()
        for name, found in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(known[name] - {name}):
                visit(other, (*path, name))
            done.add(name)

    for name in modules:
        visit(name, ())


def module_name(path: Path) -> str:
    parts = ("trinat", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("folder", ["segmentation", "pipelines", "tests", "docs"])
def test_folders_are_imported_by_the_one_name_that_is_installed(folder: str) -> None:
    for path in python_files(folder):
        tops = {module.split(".")[0] for module in imported_modules(path)}
        assert tops.isdisjoint({"segmentation", "pipelines", "configs"}), relative(path)


@pytest.mark.parametrize("path", python_files("pipelines"), ids=relative)
def test_pipelines_import_no_scripts_and_no_tests(path: Path) -> None:
    tops = {module.split(".")[0] for module in imported_modules(path)}
    assert tops.isdisjoint({"scripts", "tests"})


def test_one_module_knows_which_networks_there_are() -> None:
    knowing = {
        relative(path)
        for path in (*python_files("segmentation"), *python_files("pipelines"))
        if any(
            module.startswith("trinat.segmentation.models.quicknat")
            for module in imported_modules(path)
        )
    }
    # The importer of the authors' weights is specific to that network.
    assert knowing == {
        "segmentation/models/architectures.py",
        "segmentation/models/foreign.py",
    }


@pytest.mark.parametrize("path", python_files("pipelines"), ids=relative)
def test_a_folder_of_pipelines_imports_only_those_before_it(path: Path) -> None:
    own = folder_of(module_name(path))
    for module in sorted(imported_modules(path)):
        if module.startswith("trinat.pipelines.") and own:
            other = folder_of(module)
            assert FOLDERS.index(other) <= FOLDERS.index(own), (
                f"{relative(path)} imports {module}"
            )


def folder_of(module: str) -> str:
    """Return the folder of trinat.pipelines.<name>[...]; "" for the package itself."""
    return ".".join(module.split(".")[2:3])


def test_records_of_scans_and_results_are_typed_without_any() -> None:
    study = ROOT / "pipelines/study"
    modules = sorted(study.glob("*.py"))
    assert modules
    assert [
        path.name for path in modules if "typing.Any" in imported_modules(path)
    ] == []


def test_the_help_page_imports_nothing_heavy() -> None:
    probe = (
        "import sys; sys.argv = ['trinat', '--help']\n"
        "from trinat.pipelines.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'monai', 'torchio', 'matplotlib', 'scipy', 'pandas', 'nibabel',"
        " 'h5py', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)), len(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    heavy, count = done.stderr.rsplit(maxsplit=1)
    assert heavy == "[]"
    # 620 modules load in 0.14 s; the budget is half a second.
    assert int(count) < 900, "more modules than a quick start allows"


def test_the_process_that_hands_out_scans_does_not_wait_for_torch() -> None:
    probe = (
        "import sys; import trinat.pipelines.predict.run, trinat.pipelines.predict.progress\n"
        "print(sorted({'torch', 'scipy.stats', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_the_readme_imports_is_there() -> None:
    example = (ROOT / "README.md").read_text().split("```python")[1].split("```")[0]
    calls = [
        node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Call)
    ]
    used = [ast.unparse(node.func) for node in calls]
    assert "trinat.segment" in used
    assert all(hasattr(trinat, name[7:]) for name in used if name.startswith("trinat."))
