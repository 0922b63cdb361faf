"""YAML of plain values, with unique keys in each mapping."""

from __future__ import annotations

from typing import Any

import yaml

_INT = "tag:yaml.org,2002:int"
_LONGEST_INT = 100
# Limit on the number of values: many times that of a recipe, and exceeded by nested aliases.
_MAX_VALUES = 100_000
# All errors that PyYAML raises: not only YAMLError, but others for texts such as `!!int ""` or
# `!!bool x`.
_YAML_ERRORS = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    AttributeError,
    RecursionError,
)


def parse_yaml(text: str | bytes, *, aliases: bool = True) -> Any:
    """Parse a YAML text; raise a ValueError with a short reason if this fails.

    With `aliases` False, aliases are refused. Use this for untrusted texts: nested aliases can
    expand a small text to gigabytes.
    """
    loader = _Loader if aliases else _LoaderWithoutAliases
    try:
        content = yaml.load(text, loader)
    except _YAML_ERRORS as error:
        problem = "is not readable YAML"
        if isinstance(error, _RefusedError):
            problem = str(error.problem)
        mark = getattr(error, "problem_mark", None)
        line = getattr(mark, "line", None)
        if line is not None:
            problem += f", line {line + 1}"
        raise ValueError(problem) from error
    _refuse_many_values(content)
    return content


def _refuse_many_values(content: Any) -> None:
    """Raise a ValueError if the number of values, with aliases expanded, exceeds the limit."""
    values = [content]
    # The list grows during the iteration.
    for value in values:
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
        if len(values) > _MAX_VALUES:
            raise ValueError("holds too many values")


class _RefusedError(yaml.MarkedYAMLError):
    """Raised for valid YAML that is not supported."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses duplicate keys and very long numbers."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping; raise if a key occurs twice (PyYAML would use the last value)."""
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    problem = f"the key {key.value} occurs twice"
                    raise _RefusedError(problem=problem, problem_mark=key.start_mark)
                keys.add((key.tag, key.value))
        return node

    def construct_short_int(self, node: yaml.ScalarNode) -> Any:
        """Construct an integer; raise if its text is longer than `_LONGEST_INT` characters."""
        # Parsing long numbers in base 60, such as 1:00:00, takes minutes.
        if len(node.value) > _LONGEST_INT:
            raise _RefusedError(
                problem="holds an endless number", problem_mark=node.start_mark
            )
        return self.construct_yaml_int(node)


class _LoaderWithoutAliases(_Loader):
    """Loader that refuses aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node; raise if it is an alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


_Loader.add_constructor(_INT, _Loader.construct_short_int)
