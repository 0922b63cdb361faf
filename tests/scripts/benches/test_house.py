"""What the figures of the code's division count, on a few lines."""

from __future__ import annotations

import ast

from benches import house

SOURCE = '''
"""A module."""

import os
from pathlib import (
    Path,
)


def shown(path: Path) -> str:
    """Twice by `_name`, once by `_place`."""
    # a comment
    return _name(path) + _name(path) + _place(path)


def _name(path: Path) -> str:
    return path.name


def _place(path: Path) -> str:
    return os.fspath(path)
'''


def test_a_private_function_that_one_line_calls_is_counted() -> None:
    tree = ast.parse(SOURCE)
    assert house.called_once(tree, house.functions_of(tree)) == ["_place"]


def test_code_lines_are_without_docstrings_comments_and_empty_lines() -> None:
    assert len(house.code_lines(SOURCE)) == 10


def test_an_import_counts_with_all_its_lines() -> None:
    assert house.import_lines(ast.parse(SOURCE)) == 4
