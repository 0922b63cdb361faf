"""How the code is divided: modules, functions that are called once, imports, density of lines."""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("segmentation", "pipelines", "trinat")
LONG_LINE = 90  # characters
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
}


def run(*arguments: str) -> None:
    """Print the figures of the product's code, and with --list the functions called once."""
    parser = argparse.ArgumentParser(prog="scripts/bench house", description=__doc__)
    parser.add_argument(
        "--list", metavar="FOLDER", help="what is private and called once there"
    )
    parser.add_argument(
        "--modules", action="store_true", help="what each module says it is"
    )
    chosen = parser.parse_args(arguments)
    sources = {path: path.read_text() for path in product_files()}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    functions = {path: functions_of(tree) for path, tree in trees.items()}
    once = {path: called_once(trees[path], names) for path, names in functions.items()}
    if chosen.list:
        print_called_once(chosen.list, once)
        return

    if chosen.modules:
        for path, tree in trees.items():
            first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
            print(f"{path.relative_to(ROOT)}: {first_line}")
        return

    total = sum(len(names) for names in functions.values())
    once_total = sum(len(names) for names in once.values())
    lines = [line for source in sources.values() for line in code_lines(source)]
    tokens = sum(tokens_of(source) for source in sources.values())
    imports = sum(import_lines(tree) for tree in trees.values())
    long_lines = sum(len(line) > LONG_LINE for line in lines)
    importers = Counter(
        name for tree in trees.values() for name in set(imported_modules(tree))
    )
    alone = sum(importers[module_name(path)] == 1 for path in trees)

    print(f"modules                        {len(sources)}")
    for folder in FOLDERS:
        print(
            f"  {folder:<28} {sum(path.parts[len(ROOT.parts)] == folder for path in sources)}"
        )
    print(f"code lines                     {len(lines)}")
    print(f"functions                      {total}")
    print(f"private and called once        {once_total} ({once_total / total:.1%})")
    print(f"modules with one importer      {alone}")
    print(f"imports, of code lines         {imports / len(lines):.1%}")
    print(f"tokens a code line             {tokens / len(lines):.2f}")
    print(f"lines over {LONG_LINE} characters       {long_lines / len(lines):.1%}")


def product_files() -> list[Path]:
    """Modules of the product; links to folders are not followed."""
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
    ]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def functions_of(tree: ast.Module) -> list[str]:
    """Names of all functions and methods of a module."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def called_once(tree: ast.Module, functions: list[str]) -> list[str]:
    """The private ones that their own module reads in one place, as a name or an attribute."""
    used: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
    return [name for name in functions if is_private(name) and used[name] == 1]


def code_lines(source: str) -> list[str]:
    """Lines that are neither empty nor comments nor within docstrings."""
    documented = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return [
        line
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip()
        and not line.strip().startswith("#")
        and number not in documented
    ]


def tokens_of(source: str) -> int:
    """Tokens of the code, without comments and docstrings."""
    code = "\n".join(code_lines(source))
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, IndentationError):
        return 0  # a class or function of a docstring alone
    return sum(token.type not in NO_CODE for token in tokens)


def import_lines(tree: ast.Module) -> int:
    """Lines that import statements take."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def imported_modules(tree: ast.Module) -> list[str]:
    """Modules that one imports, by their full names."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def module_name(path: Path) -> str:
    """A file's module as it is imported: `trinat.pipelines.demo`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    inside = parts[1:] if parts[0] == "trinat" else parts
    return ".".join(("trinat", *inside)).removesuffix(".__init__")


def print_called_once(folder: str, once: dict[Path, list[str]]) -> None:
    for path, names in once.items():
        place = path.relative_to(ROOT)
        if names and place.is_relative_to(folder):
            print(f"{place}: {', '.join(names)}")
