"""What the code says of itself, as Markdown: commands, Python names, recipes' keys, label tables.

A page asks for it in a comment, as `<!-- generated: commands -->`.
"""

import csv
import inspect
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel

import trinat
from trinat.pipelines.cli import app
from trinat.pipelines.cli.bids import command as bids_command
from trinat.pipelines.cli.options import HELP, ListOptions
from trinat.pipelines.data.prepare import PrepareConfig
from trinat.segmentation.models.base import NetworkConfig
from trinat.segmentation.models.model_info import ModelInfo
from trinat.segmentation.models.quicknat import QuickNatConfig
from trinat.segmentation.training.config import Recipe

DOCS = Path(__file__).parent
LABELS = DOCS.parent / "configs/labels"


def fill_in(page: str) -> str:
    return re.sub(r"<!-- generated: (\w+) -->", lambda found: _PARTS[found[1]](), page)


# Commands ------------------------------------------------------------------------------------


def commands() -> str:
    bids = typer.Typer(add_completion=False)
    bids.command(cls=ListOptions, context_settings=HELP)(bids_command)
    found = [
        *_walk(typer.main.get_command(app), "trinat"),
        *_walk(typer.main.get_command(bids), "trinat-bids"),
    ]
    return "\n".join(_command(name, command) for name, command in found)


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """A command and those below it, each with its whole name."""
    yield name, command
    for word, below in sorted(getattr(command, "commands", {}).items()):
        yield from _walk(below, f"{name} {word}")


def _command(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
    lines = [f"## {name}", "", plain(text)]
    if example:
        lines += [f"    {line}" for line in example.strip().splitlines()]
    usage = " ".join(command.collect_usage_pieces(context))
    lines += ["", f"Usage: `{name} {usage}`", ""]
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            names, meaning = record
            lines += [f"`{names}`", f": {plain(meaning)}", ""]
    return "\n".join(lines)


def plain(text: str) -> str:
    """Text of a help in which no sign is markup."""
    return re.sub(r"([*_\[\]<>`])", r"\\\1", text)


# Python --------------------------------------------------------------------------------------

# What of a class is for users; of the others, all that has a docstring.
_MEMBERS = {"Segmenter": "load, segment", "View": "", "TrinatError": ""}


def api() -> str:
    blocks = []
    for name in sorted(trinat.__all__, key=lambda name: (name[0].isupper(), name)):
        kind = "autoclass" if inspect.isclass(getattr(trinat, name)) else "autofunction"
        blocks.append(f"## {name}\n\n```{{eval-rst}}\n.. {kind}:: trinat.{name}")
        if kind == "autoclass" and _MEMBERS.get(name, "all"):
            blocks.append(f"   :members: {_MEMBERS.get(name, '')}")
            if name == "Segmenter":
                blocks.append("   :inherited-members:")
        blocks.append("```\n")
    return "\n".join(blocks)


# Recipes -------------------------------------------------------------------------------------


def recipes() -> str:
    parts = dict(_settings(Recipe, ""))
    return "\n".join(_table_of_keys(key, model) for key, model in parts.items())


def prepare() -> str:
    return _rows_of_keys(PrepareConfig)


def model() -> str:
    parts = dict(_settings(ModelInfo, ""))
    return "\n".join(_table_of_keys(key, part, level=3) for key, part in parts.items())


def _settings(
    model: type[BaseModel], key: str
) -> Iterator[tuple[str, type[BaseModel]]]:
    """The model's own keys, then those of the models within it, each by its dotted key."""
    yield key, model
    for name, field in model.model_fields.items():
        for below in _models_in(field.annotation):
            yield from _settings(below, f"{key}.{name}".lstrip("."))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [QuickNatConfig if annotation is NetworkConfig else annotation]
    found = list(chain.from_iterable(map(_models_in, get_args(annotation))))
    return list(dict.fromkeys(found))


def _table_of_keys(key: str, model: type[BaseModel], level: int = 2) -> str:
    about = inspect.cleandoc(model.__doc__ or "").replace("\n", " ")
    title = f"`{key}`" if key else f"`{model.__name__}`"
    return f"{'#' * level} {title}\n\n{about}\n\n{_rows_of_keys(model)}"


def _rows_of_keys(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    comments = _comments(model)
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    for name in model.model_fields:
        kind = _kind(schema["properties"].get(name, {}), schema.get("$defs", {}))
        rows.append(
            f"| `{name}` | {kind} | {_default(model, name)} | {comments.get(name, '')} |"
        )
    return "\n".join(rows) + "\n"


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return ""
    if isinstance(default, tuple | list):
        default = ", ".join(str(getattr(value, "value", value)) for value in default)
    return "none" if default in (None, "", {}) else f"`{default}`"


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """The comment before a field, or behind it."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner in (BaseModel, object):
            continue
        before: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            if above := re.fullmatch(r"    # (.*)", line):
                before.append(above[1])
            elif field := re.match(r"    (\w+): [^#]*(?:  # (.*))?$", line):
                found[field[1]] = " ".join([*before, field[2] or ""]).strip()
                before = []
            else:
                before = []
    return {name: text.replace("|", "\\|") for name, text in found.items()}


_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
}
_WORDS = {
    "string": "text",
    "boolean": "true or false",
    "null": "none",
    "object": "keys of its own",
}


def _kind(schema: dict[str, Any], known: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _kind(known[schema["$ref"].rpartition("/")[2]], known)
    if "anyOf" in schema:
        kinds = dict.fromkeys(_kind(option, known) for option in schema["anyOf"])
        return " or ".join(kind for kind in kinds if kind != "none")
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return ", ".join(_kind(item, known) for item in schema["prefixItems"])
        return f"list of {_kind(schema.get('items', {}), known)}"
    if schema.get("type") == "object" and isinstance(
        schema.get("additionalProperties"), dict
    ):
        names = _kind(schema.get("propertyNames", {}), known)
        return f"{names}: {_kind(schema['additionalProperties'], known)}"
    if schema.get("format") == "path":
        return "path"
    word = _WORDS.get(schema.get("type", "object"), schema.get("type", "object"))
    bounds = [
        f"{sign} {schema[bound]:g}"
        for bound, sign in _BOUNDS.items()
        if bound in schema
    ]
    return " ".join([word, ", ".join(bounds)]).strip()


# Pages ---------------------------------------------------------------------------------------


def others() -> str:
    """Pages that no table of contents names: none is out of reach for want of a line."""
    named = {"index", "first-scan", "questions"}
    for contents in ("index", "guides", "reference", "background"):
        named.update((DOCS / f"{contents}.md").read_text().splitlines())
    return "\n".join(sorted({page.stem for page in DOCS.glob("*.md")} - named))


# Labels --------------------------------------------------------------------------------------


def labels() -> str:
    return "\n".join(
        _scheme(path) for path in sorted(LABELS.glob("*.tsv"), reverse=True)
    )


def _scheme(path: Path) -> str:
    with path.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    shown = [key for key in rows[0] if key not in ("partner", "members", "rim_of")]
    lines = [
        f"## {path.stem}",
        "",
        f"| {' | '.join(shown)} |",
        "|---" * len(shown) + "|",
    ]
    for row in rows:
        cells = [_swatch(row[key]) if key == "color" else row[key] for key in shown]
        lines.append(f"| {' | '.join(cell.replace('n/a', '') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _swatch(color: str) -> str:
    return f'<span class="swatch" style="background: {color}"></span> `{color}`'


_PARTS = {
    "commands": commands,
    "api": api,
    "recipes": recipes,
    "model": model,
    "prepare": prepare,
    "labels": labels,
    "others": others,
}
