"""Settings from YAML and from the command line, checked into typed models."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from trinat.segmentation.errors import ConfigError, first_mistake
from trinat.segmentation.io.files import read_bytes
from trinat.segmentation.io.plain_yaml import parse_yaml

Checked = TypeVar("Checked", bound=BaseModel)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping; raise ConfigError for anything else.

    YAML tags that would create objects other than strings, numbers, lists and mappings are refused.
    """
    try:
        content = parse_yaml(read_bytes(path))
    except FileNotFoundError:
        raise ConfigError("no such file", where=path) from None
    except ValueError as error:
        raise ConfigError(str(error), where=path) from error
    if not isinstance(content, dict):
        raise ConfigError(
            "holds no settings", where=path, remedy="write `key: value` lines"
        )
    return content


def find_recipe(name_or_path: str) -> Path:
    """Return the path of a training recipe, given by its path or, if it is shipped, by its name.

    The name `fast` is configs/train/fast.yaml. An existing file takes precedence over a name.
    Raises ConfigError, with the names that exist, if there is neither.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    recipes = Path(str(resources.files("trinat.configs") / "train"))
    shipped = recipes / f"{name_or_path}.yaml"
    if path.name == name_or_path and shipped.is_file():
        return shipped
    known = sorted(recipe.stem for recipe in recipes.glob("*.yaml"))
    remedy = f"give a file, or one of {', '.join(known)}"
    raise ConfigError("no such recipe", where=path, remedy=remedy)


def with_settings(
    content: Mapping[str, Any], settings: Sequence[str]
) -> dict[str, Any]:
    """Return a copy of nested settings with values from `--set`.

    Each of `settings` is a text `key.in.it=value`, with the value in YAML syntax; `key.0` is the
    first item of a list. Raises ConfigError for a malformed text, or a key that cannot be set.
    """
    result = copy.deepcopy(dict(content))
    for setting in settings:
        key, equals, text = setting.partition("=")
        keys = key.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set {setting!r} is not key=value")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise ConfigError(f"--set {key}: {text!r} is no value") from error
        _set_value(result, keys, value, setting)
    return result


def check(
    model: type[Checked],
    content: Mapping[str, Any],
    where: str | Path,
    *,
    typed: Collection[str] = (),
) -> Checked:
    """Validate settings as a pydantic model; raise ConfigError for the first invalid key.

    `content` are the settings, and `model` is the class of the model that is returned. The error
    names their source: the file `where`, or the command line if the key is in `typed`.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        location = error.errors()[0]["loc"]
        if location and location[0] in typed:
            where = "command line"
        raise ConfigError(first_mistake(error), where=where) from error


def _set_value(content: Any, keys: list[str], value: Any, setting: str) -> None:
    """Set the value of a nested key in `content`, mappings and lists inside each other.

    `keys` are the parts of the key; missing mappings are created. `setting` is the text that the
    user typed, for the ConfigError if the key does not exist.
    """
    *path, last = keys
    for key in path:
        if _is_list_index(content, key):
            content = content[int(key)]
        elif isinstance(content, dict):
            # A bare `key:` means an empty mapping.
            if content.get(key) is None:
                content[key] = {}
            content = content[key]
        else:
            raise ConfigError(f"--set {setting}: there is no {key} to set something in")
    if _is_list_index(content, last):
        content[int(last)] = value
    elif isinstance(content, dict):
        content[last] = value
    else:
        raise ConfigError(f"--set {setting}: there is no {last}")


def _is_list_index(content: Any, key: str) -> bool:
    """Return True if `content` is a list and `key` the number of one of its items."""
    if not isinstance(content, list) or not key.isdecimal():
        return False
    return int(key) < len(content)
