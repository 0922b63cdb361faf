"""Markdown generated from the code: commands, Python names, keys of recipes, label tables.

A page includes a part by a comment such as `<!-- generated: commands -->`.
"""

import ast
import csv
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel

import trinat
from trinat.pipelines.cli import app
from trinat.pipelines.cli.bids import command as bids_command
from trinat.pipelines.cli.options import HELP, ListOptions
from trinat.pipelines.common.option import Option
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.segmentation.data.transforms import NamedTransform
from trinat.segmentation.data.transforms.base import SliceTransform
from trinat.segmentation.metrics.definitions import METRICS
from trinat.segmentation.models.base import NetworkConfig
from trinat.segmentation.models.model_info import ModelInfo
from trinat.segmentation.models.quicknat import QuickNatConfig
from trinat.segmentation.training.config import Recipe

DOCS = Path(__file__).parent
LABELS = DOCS.parent / "configs/labels"


def fill_in(page: str) -> str:
    """Replace each comment `<!-- generated: NAME -->` of a page by that part."""

    def part(found: re.Match[str]) -> str:
        return _PARTS[found[1]]()

    return re.sub(r"<!-- generated: (\w+) -->", part, page)


# Commands ------------------------------------------------------------------------------------


def commands() -> str:
    """Return the `--help` text of each command, one section each."""
    bids = typer.Typer(add_completion=False)
    bids.command(cls=ListOptions, context_settings=HELP)(bids_command)
    found = [
        *_walk(typer.main.get_command(app), "trinat"),
        *_walk(typer.main.get_command(bids), "trinat-bids"),
    ]
    return "\n".join(_command(name, command) for name, command in found)


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and its subcommands, each with its full name."""
    yield name, command
    for word, below in sorted(getattr(command, "commands", {}).items()):
        yield from _walk(below, f"{name} {word}")


def _command(name: str, command: Any) -> str:
    """Return the section of one command: its help, its example, its usage, its parameters."""
    context = command.make_context(name, [], resilient_parsing=True)
    help_text = inspect.cleandoc(command.help or "")
    text, _, example = help_text.partition("Example: ")
    lines = [f"## {name}", "", plain(text)]
    if example:
        lines += [f"    {line}" for line in example.strip().splitlines()]
    usage = " ".join(command.collect_usage_pieces(context))
    lines += ["", f"Usage: `{name} {usage}`", ""]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record:
            names, meaning = record
            lines += [f"`{names}`", f": {plain(meaning)}", ""]
    return "\n".join(lines)


def plain(text: str) -> str:
    """Escape the markup in a help text."""
    return re.sub(r"([*_\[\]<>`])", r"\\\1", text)


# Python --------------------------------------------------------------------------------------

# Members of a class that are for users; of other classes, all with a docstring.
_MEMBERS = {"Segmenter": "load, segment", "View": "", "TrinatError": ""}


def api() -> str:
    """Return the public names of `trinat` as directives for autodoc."""
    functions = sorted(name for name in trinat.__all__ if not name[0].isupper())
    classes = sorted(name for name in trinat.__all__ if name[0].isupper())
    blocks = []
    for name in [*functions, *classes]:
        kind = "autofunction"
        if inspect.isclass(getattr(trinat, name)):
            kind = "autoclass"
        blocks.append(f"## {name}\n\n```{{eval-rst}}\n.. {kind}:: trinat.{name}")
        if kind == "autoclass" and _MEMBERS.get(name, "all"):
            blocks.append(f"   :members: {_MEMBERS.get(name, '')}")
            if name == "Segmenter":
                blocks.append("   :inherited-members:")
        blocks.append("```\n")
    return "\n".join(blocks)


# Recipes -------------------------------------------------------------------------------------


def recipes() -> str:
    """Return the keys of recipes."""
    return _tables_of_keys(Recipe, level=2)


def transforms() -> str:
    """Return the transforms of TorchIO and MONAI that a recipe may name, with their keys."""
    shared = set(SliceTransform.model_fields) | {"name"}
    rows = ["| name | library | | keys, with defaults |", "|---|---|---|---|"]
    for model in _models_in(NamedTransform):
        about = inspect.cleandoc(model.__doc__ or "")
        if model.moves:
            about = f"{about} Labels move along."
        keys = [
            f"`{name}`: {_default(model, name)}"
            for name in model.model_fields
            if name not in shared
        ]
        name = _constant(model, "name")
        rows.append(f"| `{name}` | {model.library} | {about} | {'; '.join(keys)} |")
    return "\n".join(rows) + "\n"


def prepare() -> str:
    """Return the keys of a configuration of `trinat prepare`."""
    return _rows_of_keys(PrepareConfig)


def model() -> str:
    """Return the keys of a model.yaml."""
    return _tables_of_keys(ModelInfo, level=3)


def _tables_of_keys(model: type[BaseModel], level: int) -> str:
    """Return a table for a model and each nested model, under headings of this level."""
    parts = dict(_settings(model, ""))
    return "\n".join(_table_of_keys(key, part, level) for key, part in parts.items())


def _settings(
    model: type[BaseModel], key: str
) -> Iterator[tuple[str, type[BaseModel]]]:
    """Return the model's own keys, then those of nested models, each by its dotted key."""
    yield key, model
    for name, field in model.model_fields.items():
        found = _models_in(field.annotation)
        for below in found:
            if issubclass(below, SliceTransform):
                # Listed in a separate table.
                continue
            path = f"{key}.{name}".lstrip(".")
            if len(found) > 1:
                told_by = "kind" if "kind" in below.model_fields else "architecture"
                path = f"{path}, {told_by} {_constant(below, told_by)}"
            yield from _settings(below, path)


def _constant(model: type[BaseModel], field: str) -> str:
    """Return the only value of a field of literal type."""
    return str(get_args(model.model_fields[field].annotation)[0])


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a type, as in `list[Stage] | None`, each once."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        if annotation is NetworkConfig:
            return [QuickNatConfig]
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in get_args(annotation):
        found += _models_in(argument)
    return list(dict.fromkeys(found))


def _table_of_keys(key: str, model: type[BaseModel], level: int) -> str:
    about = inspect.cleandoc(model.__doc__ or "").replace("\n", " ")
    title = key or model.__name__
    heading = f"{'#' * level} `{title}`"
    return f"{heading}\n\n{about}\n\n{_rows_of_keys(model)}"


def _rows_of_keys(model: type[BaseModel]) -> str:
    """Return the table of a model's own keys: name, kind of value, default, help or comment."""
    schema = model.model_json_schema()
    known = schema.get("$defs", {})
    comments = _comments(model)
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    for name in model.model_fields:
        kind = _kind(schema["properties"].get(name, {}), known)
        default = _default(model, name)
        about = comments.get(name, "")
        for remark in model.model_fields[name].metadata:
            if isinstance(remark, Option):
                about = remark.help.replace("|", "\\|")
        rows.append(f"| `{name}` | {kind} | {default} | {about} |")
    return "\n".join(rows) + "\n"


def _default(model: type[BaseModel], name: str) -> str:
    """Return a field's default as Markdown; "" for a model, whose keys have their own defaults."""
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return ""
    if isinstance(default, tuple | list):
        # The value of an enumeration, as it is written in YAML.
        values = [getattr(value, "value", value) for value in default]
        default = ", ".join(map(str, values))
    if default in (None, "", {}):
        return "none"
    return f"`{default}`"


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """Return the comment before or after each field, by the field's name; "" without one."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner not in (BaseModel, object):
            found.update(_comments_in(inspect.getsource(owner)))
    return {name: text.replace("|", "\\|") for name, text in found.items()}


def _comments_in(source: str) -> dict[str, str]:
    """Return the comments of the fields in the code of one class, without its bases."""
    found: dict[str, str] = {}
    before: list[str] = []
    for line in source.splitlines():
        comment = re.fullmatch(r"    # (.*)", line)
        if comment:
            before.append(comment[1])
            continue
        field = re.match(r"    (\w+): [^#]*(?:  # (.*))?$", line)
        if field:
            name, behind = field.groups(default="")
            found[name] = " ".join([*before, behind]).strip()
        before = []
    return found


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
    """Return the allowed values of a JSON schema; `known` has the schemas that it refers to."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _kind(known[name], known)
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
    of_values = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(of_values, dict):
        names = _kind(schema.get("propertyNames", {}), known)
        return f"{names}: {_kind(of_values, known)}"
    if schema.get("format") == "path":
        return "path"
    return _plain_kind(schema)


def _plain_kind(schema: dict[str, Any]) -> str:
    """Return type and bounds of a single value, as "number ≥ 0, < 1"."""
    name = schema.get("type", "object")
    word = _WORDS.get(name, name)
    bounds = []
    for bound, sign in _BOUNDS.items():
        if bound in schema:
            bounds.append(f"{sign} {schema[bound]:g}")
    return " ".join([word, ", ".join(bounds)]).strip()


# Metrics -------------------------------------------------------------------------------------


def metrics() -> str:
    """Return the table of metrics, with their values for absent structures."""
    rows = [
        "| metric | unit | definition | absent from both | missed | invented |",
        "|---|---|---|---|---|---|",
    ]
    for metric in METRICS.values():
        cells = (
            f"{metric.title} (`{metric.key}`)",
            metric.unit,
            metric.definition,
            metric.if_absent_from_both,
            metric.if_missed,
            metric.if_invented,
        )
        escaped = [cell.replace("|", "\\|") for cell in cells]
        rows.append(f"| {' | '.join(escaped)} |")
    return "\n".join(rows) + "\n"


# Pages ---------------------------------------------------------------------------------------


def others() -> str:
    """Return the pages that no table of contents names, so that every page is linked."""
    named = {"index"}
    for contents in ("index", "tutorials", "guides", "reference", "background"):
        page = (DOCS / f"{contents}.md").read_text()
        # An entry is "page", or "Title <page>".
        named.update(re.findall(r"^(?:.* <)?([\w-]+)>?$", page, flags=re.M))
    pages = {page.stem for page in DOCS.glob("*.md")}
    return "\n".join(sorted(pages - named))


# Labels --------------------------------------------------------------------------------------


_NOT_SHOWN = ("partner", "members", "rim_of")


def labels() -> str:
    """Return the label tables that come with trinat."""
    tables = sorted(LABELS.glob("*.tsv"), reverse=True)
    return "\n".join(_scheme(path) for path in tables)


def _scheme(path: Path) -> str:
    """Return a heading and the table of one file, with a swatch of each colour."""
    with path.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    shown = [key for key in rows[0] if key not in _NOT_SHOWN]
    lines = [
        f"## {path.stem}",
        "",
        f"| {' | '.join(shown)} |",
        "|---" * len(shown) + "|",
    ]
    for row in rows:
        if "color" in row:
            row["color"] = _swatch(row["color"])
        cells = [row[key].replace("n/a", "") for key in shown]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _swatch(color: str) -> str:
    return f'<span class="swatch" style="background: {color}"></span> `{color}`'


# Modules -------------------------------------------------------------------------------------


def modules() -> str:
    """Return a table for each code folder: its modules, with the first line of each."""
    lines = []
    root = DOCS.parent
    for folder in ("segmentation", "pipelines"):
        for place in [root / folder, *sorted((root / folder).rglob("*/"))]:
            files = sorted(place.glob("*.py"))
            rows = [f"| `{file.name}` | {plain(_first_line(file))} |" for file in files]
            if rows:
                name = place.relative_to(root).as_posix()
                lines += [f"## {name}", "", "| module | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _first_line(file: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.partition("\n")[0]


_PARTS = {
    "commands": commands,
    "api": api,
    "recipes": recipes,
    "transforms": transforms,
    "model": model,
    "prepare": prepare,
    "labels": labels,
    "metrics": metrics,
    "others": others,
    "modules": modules,
}
