"""YAML of plain values, in which a mapping has every key once."""

from __future__ import annotations

from typing import Any

import yaml

_INT = "tag:yaml.org,2002:int"
_LONGEST_INT = 100
# Many times what a recipe has; aliases of aliases make more.
_MAX_VALUES = 100_000
# Beside YAMLError, PyYAML lets through what it stumbles over in `!!int ""` or `!!bool x`.
_STUMBLES = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    AttributeError,
    RecursionError,
)


def parse_yaml(text: str | bytes, *, aliases: bool = True) -> Any:
    """What a YAML text says; a ValueError says in a few words why it cannot be read.

    Without `aliases`, for texts from elsewhere: they can blow a small text up to gigabytes.
    """
    loader = _Loader if aliases else _LoaderWithoutAliases
    try:
        content = yaml.load(text, loader)
    except _STUMBLES as error:
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
    """Count the values as they would be without aliases, up to the limit."""
    values = [content]
    # The list grows while it is walked.
    for value in values:
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
        if len(values) > _MAX_VALUES:
            raise ValueError("holds too many values")


class _RefusedError(yaml.MarkedYAMLError):
    """It is YAML, but not what we take."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without keys that stand twice and without endless numbers."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping; refused if a key is there twice, of which PyYAML would take the last."""
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
        """A whole number; refused if it is longer than any that is meant."""
        # Numbers in base 60, such as 1:00:00, take minutes if they are long.
        if len(node.value) > _LONGEST_INT:
            raise _RefusedError(
                problem="holds an endless number", problem_mark=node.start_mark
            )
        return self.construct_yaml_int(node)


class _LoaderWithoutAliases(_Loader):
    """One that refuses aliases, too."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Any node; refused if it is an alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


_Loader.add_constructor(_INT, _Loader.construct_short_int)
