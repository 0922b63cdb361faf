"""YAML of plain values, in which every key of a mapping stands once."""

from __future__ import annotations

from typing import Any

import yaml

_INT = "tag:yaml.org,2002:int"
_LONGEST_INT = 100
# Many times what a recipe has; aliases of aliases make more.
_MAX_VALUES = 100_000


def parse_yaml(text: str | bytes, *, aliases: bool = True) -> Any:
    """What a YAML text says; a ValueError says in a few words why it cannot be read.

    Without `aliases`, for texts from elsewhere: they can blow a small text up to gigabytes.
    """
    loader = _Loader if aliases else _LoaderWithoutAliases
    try:
        content = yaml.load(text, loader)
    # Beside YAMLError, PyYAML lets through what it stumbles over in `!!int ""` or `!!bool x`.
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        place = "" if line is None else f", line {line + 1}"
        refused = (
            error.problem
            if isinstance(error, _RefusedError)
            else "is not readable YAML"
        )
        raise ValueError(f"{refused}{place}") from error
    values = [content]
    for value in values:
        if isinstance(value, dict | list | tuple):
            values += value.values() if isinstance(value, dict) else value
        if len(values) > _MAX_VALUES:
            raise ValueError("holds too many values")
    return content


class _RefusedError(yaml.MarkedYAMLError):
    """It is YAML, but not what we take."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
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
        # Numbers in base 60, such as 1:00:00, take minutes if they are long.
        if len(node.value) > _LONGEST_INT:
            raise _RefusedError(
                problem="holds an endless number", problem_mark=node.start_mark
            )
        return self.construct_yaml_int(node)


class _LoaderWithoutAliases(_Loader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


_Loader.add_constructor(_INT, _Loader.construct_short_int)
