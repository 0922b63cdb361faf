"""Changes our own code, one place at a time, and sees whether the module's own tests notice.

`scripts/torture mutate --count 600 --seed 1`: the places are drawn by seed from readers, views,
conform, fusion, metrics, ledger. Each mutant is tried in a copy of the tree; survivors are printed
as a line of code before and after.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_VOLUME_TESTS = (
    "tests/unit/io/test_headers.py tests/unit/io/test_volume.py tests/unit/io/test_volume_pairs.py "
    "tests/unit/io/test_volume_writing.py tests/unit/io/test_volume_of_images.py"
)
# Code, and the tests that must notice when it changes.
MODULES = {
    "segmentation/io/volume.py": _VOLUME_TESTS,
    "segmentation/io/voxels.py": _VOLUME_TESTS,
    "segmentation/io/headers.py": f"{_VOLUME_TESTS} tests/unit/io/test_memory.py "
    "tests/faults/test_broken_files.py",
    "segmentation/io/limits.py": f"{_VOLUME_TESTS} tests/unit/io/test_memory.py "
    "tests/faults/test_broken_files.py",
    "segmentation/io/orientation.py": "tests/unit/io/test_orientation.py",
    "segmentation/io/streams.py": "tests/unit/io/test_streams.py tests/faults/test_broken_files.py",
    "segmentation/io/files.py": "tests/unit/io/test_files.py tests/unit/data/test_people.py",
    "segmentation/space/views.py": "tests/unit/space/test_views.py",
    "segmentation/space/conform.py": "tests/unit/space/test_conform.py "
    "tests/unit/space/test_conform_grid.py tests/unit/space/test_conform_intensities.py",
    "segmentation/inference/fusion.py": "tests/unit/inference/test_fusion.py",
    "segmentation/metrics/definitions.py": "tests/unit/metrics/test_definitions.py "
    "tests/unit/metrics/test_pair.py",
    "pipelines/study/entry.py": "tests/pipelines/study/test_ledger.py "
    "tests/pipelines/predict/test_run.py tests/pipelines/predict/test_written.py",
    "pipelines/study/ledger.py": "tests/pipelines/study/test_ledger.py "
    "tests/faults/test_users_files.py tests/pipelines/predict/test_run.py",
}
_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A node of a module, by its number in a walk, and which of its changes."""

    module: str
    node: int
    change: int


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Each change of one node."""
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare):
        for place, operator in enumerate(changed.ops):
            if type(operator) in _COMPARISONS:
                other = copy.deepcopy(changed)
                other.ops[place] = _COMPARISONS[type(operator)]()
                yield other
    elif (
        isinstance(changed, ast.BinOp | ast.AugAssign)
        and type(changed.op) in _OPERATORS
    ):
        changed.op = _OPERATORS[type(changed.op)]()
        yield changed
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.And() if isinstance(changed.op, ast.Or) else ast.Or()
        yield changed
    elif isinstance(changed, ast.UnaryOp) and isinstance(
        changed.op, ast.Not | ast.USub
    ):
        yield changed.operand
    elif isinstance(changed, ast.If | ast.While | ast.IfExp):
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        yield changed
    elif isinstance(changed, ast.Constant) and not isinstance(
        changed.value, str | bytes
    ):
        if isinstance(changed.value, bool):
            changed.value = not changed.value
            yield changed
        elif isinstance(changed.value, int | float):
            changed.value += 1
            yield changed
    elif isinstance(changed, ast.Return) and changed.value is not None:
        changed.value = ast.Constant(None)
        if ast.unparse(changed) != ast.unparse(node):
            yield changed
    elif isinstance(changed, ast.Raise | ast.Continue | ast.Break):
        yield ast.Pass()


def _is_typing(tree: ast.Module) -> set[int]:
    """Nodes of annotations, docstrings and imports: changing them changes nothing."""
    found: set[int] = set()
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if part is not None:
                found |= {id(inner) for inner in ast.walk(part)}
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found |= {id(inner) for inner in ast.walk(node)}
    return found


def mutants() -> list[Mutant]:
    found = []
    for module in MODULES:
        tree = ast.parse(Path(module).read_text())
        typing = _is_typing(tree)
        for number, node in enumerate(ast.walk(tree)):
            if id(node) not in typing:
                count = sum(1 for _ in _changes(node))
                found += [Mutant(module, number, change) for change in range(count)]
    return found


def mutated(mutant: Mutant) -> tuple[str, str]:
    """The module's changed source, and what was changed in one line."""
    tree = ast.parse(Path(mutant.module).read_text())
    target = list(ast.walk(tree))[mutant.node]
    new = list(_changes(target))[mutant.change]

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is target else self.generic_visit(node)

    shown = [" ".join(ast.unparse(node).split())[:100] for node in (target, new)]
    place = f"{mutant.module}:{getattr(target, 'lineno', 0)}"
    source = ast.unparse(ast.fix_missing_locations(Put().visit(tree)))
    return source, f"{place}: {shown[0]}  ->  {shown[1]}"


def copy_tree(tree: Path, folder: Path) -> None:
    """Copy our code with its tests: `trinat.segmentation` there is `segmentation` there."""
    ignored = shutil.ignore_patterns(
        ".venv", ".git", ".torture", "__pycache__", ".*_cache"
    )
    shutil.copytree(tree, folder, symlinks=True, ignore=ignored)


def _tried(folder: Path, mutant: Mutant, limit_s: float) -> bool:
    """Whether the tests notice."""
    source, _ = mutated(mutant)
    path = folder / mutant.module
    before = path.read_text()
    path.write_text(source)
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        _test(folder, MODULES[mutant.module].split())
    end = time.monotonic() + limit_s
    status = None
    while status is None and time.monotonic() < end:
        time.sleep(0.05)
        ended, code = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if ended else None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    path.write_text(before)
    return status != 0


def _test(folder: Path, tests: list[str]) -> NoReturn:
    """Run tests of a tree in this process, which has imported libraries, and nothing of ours."""
    status: int = 1
    try:
        here = str(Path(__file__).parents[2])
        kept = [
            path for path in sys.path if not path.startswith(here) or ".venv" in path
        ]
        sys.path = [str(folder), str(folder / "tests"), str(folder / "scripts"), *kept]
        for name in [
            name for name in sys.modules if name.partition(".")[0] == "attacks"
        ]:
            del sys.modules[name]
        os.chdir(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:3])
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        sys.dont_write_bytecode = True
        import pytest

        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])
    finally:
        os._exit(int(status))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/torture mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="go on with this one")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one")
    chosen = parser.parse_args(arguments)
    survivors = []
    for library in (
        "pytest",
        "torch",
        "nibabel",
        "scipy.ndimage",
        "pandas",
        "pydantic",
        "yaml",
    ):
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(prefix="trinat-mutants-") as name:
        folder = Path(name) / "tree"
        copy_tree(Path(), folder)
        # From here on the copy counts: the tree itself may be worked on.
        os.chdir(folder)
        drawn = mutants()
        random.Random(chosen.seed).shuffle(drawn)
        tried = drawn[chosen.first : chosen.count]
        for number, mutant in enumerate(tried, start=chosen.first):
            killed = _tried(folder, mutant, chosen.limit)
            if not killed:
                survivors.append(mutant)
            verdict = "killed" if killed else "SURVIVED"
            print(f"{number} {verdict} {mutated(mutant)[1]}", flush=True)
        os.chdir("/")
    rate = 1 - len(survivors) / max(1, len(tried))
    print(
        f"{len(tried)} of {len(drawn)} mutants, {rate:.0%} killed, seed {chosen.seed}"
    )
    return int(rate < 0.9)
