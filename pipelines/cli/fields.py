"""Command-line options made from the fields of settings classes, so that each is declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from trinat.pipelines.common.option import Option

_T = TypeVar("_T")


class Only:
    """Annotation of a command's parameter: only some fields of a settings class become options.

    `Only(PredictRequest, "suffix", threads=("--n_cpus",))` selects two fields, of which `threads`
    gets another option name. `Only(PredictRequest)` selects all fields that are options. The
    command receives a function that takes the remaining fields and returns the settings.
    """

    def __init__(self, kind: type, *fields: str, **renamed: tuple[str, ...]) -> None:
        self.kind = kind
        self.names: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(fields, ()),
            **renamed,
        }


class Typed:
    """Annotation of a command's parameter: the options that the user typed, of a settings model.

    The command receives a mapping from the names of all options of the model `kind` to their
    values; options that were not typed are None.
    """

    def __init__(self, kind: type) -> None:
        self.options: dict[str, tuple[Any, Option]] = {}
        for name, hint in get_type_hints(kind, include_extras=True).items():
            option = _metadata_of(hint, Option)
            if option is not None:
                self.options[name] = (get_args(hint)[0] | None, option)

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield the options for typer."""
        for name, (typed, option) in self.options.items():
            yield _parameter(name, typed, None, option)

    def take(self, typed: dict[str, Any]) -> dict[str, Any]:
        """Remove the options from `typed`, and return them; both map names to values."""
        return {name: typed.pop(name) for name in self.options}


def with_fields(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command: replace parameters that are settings classes by options for their fields.

    The returned function has one parameter for each option, for typer. It calls the command with
    settings made from the options. A field without an `Option` is no option: it keeps its default
    unless the command replaces it. A parameter may also be an `Option` itself.
    """
    hints = get_type_hints(command, include_extras=True)
    makers: dict[str, Callable[[dict[str, Any]], Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        only = _metadata_of(hint, Only)
        kind = hint if only is None else only.kind
        option = _metadata_of(hint, Option)
        of_model = _metadata_of(hint, Typed)
        if of_model is not None:
            makers[parameter.name] = of_model.take
            parameters += of_model.parameters()
        elif option is not None:
            default = parameter.default
            own = _parameter(parameter.name, get_args(hint)[0], default, option)
            parameters.append(own)
        elif is_dataclass(kind):
            makers[parameter.name] = functools.partial(_build_settings, kind, only)
            parameters += _parameters_of(kind, only)
        else:
            plain = parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY)
            parameters.append(plain)

    @functools.wraps(command)
    def flat(**typed: Any) -> Any:
        made = {name: make(typed) for name, make in makers.items()}
        return command(**typed, **made)

    # Required parameters come first.
    parameters.sort(key=lambda parameter: parameter.default is not parameter.empty)
    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


def _metadata_of(hint: Any, kind: type[_T]) -> _T | None:
    """Return the object of the class `kind` in an Annotated type hint; None if there is none."""
    if get_origin(hint) is not Annotated:
        return None
    return next((each for each in get_args(hint) if isinstance(each, kind)), None)


def _declared_fields(
    kind: Any, only: Only | None
) -> Iterator[tuple[Field[Any], Any, Option | None]]:
    """Yield the fields of the settings class `kind` that a command has as options.

    Each comes with its type and its `Option`. `only` selects fields; None for all. For a field that
    is a nested settings class, the option is None. The class's own fields come before those of its
    base classes.
    """
    hints = get_type_hints(kind, include_extras=True)
    own = kind.__annotations__
    for field in sorted(fields(kind), key=lambda field: field.name not in own):
        hint = hints[field.name]
        option = _metadata_of(hint, Option)
        if is_dataclass(hint):
            yield field, hint, None
            continue
        is_asked = only is None or not only.names or field.name in only.names
        if option is not None and is_asked:
            yield field, get_args(hint)[0], option


def _parameters_of(kind: Any, only: Only | None) -> Iterator[inspect.Parameter]:
    """Yield a parameter for typer for each option of a settings class, nested classes included."""
    for field, typed, option in _declared_fields(kind, only):
        if option is None:
            yield from _parameters_of(typed, only)
            continue
        names = () if only is None else only.names.get(field.name, ())
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield _parameter(field.name, typed, default, option, names)


def _parameter(
    name: str,
    typed: Any,
    default: Any,
    option: Option,
    names: tuple[str, ...] = (),
) -> inspect.Parameter:
    """Return a parameter for typer, which declares one option or argument.

    `name` is the name of the settings field, `typed` its type and `default` its default. `names`
    are the names on the command line; they take precedence over `option.names`.
    """
    if option.typed is not None:
        typed = option.typed
        default = option.default
    names = names or option.names
    if not names and typed in (bool, bool | None) and not default:
        # A switch that is off by default has no opposite.
        names = (f"--{name.replace('_', '-')}",)
    facts: dict[str, Any] = {
        "help": option.help,
        "min": option.min,
        "max": option.max,
        "dir_okay": not option.is_file,
        "metavar": option.metavar,
        "envvar": option.envvar,
        "rich_help_panel": option.panel,
    }
    shown = typer.Option(*names, **facts)
    if option.is_argument:
        shown = typer.Argument(**facts)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[typed, shown],
    )


def _build_settings(kind: Any, only: Only | None, typed: dict[str, Any]) -> Any:
    """Return an instance of the settings class `kind`, made from the options that were typed.

    `typed` maps names of options to values; the options of this class are removed from it. With
    `only`, a function is returned that takes the remaining fields and returns the instance.
    """
    values: dict[str, Any] = {}
    for field, hint, option in _declared_fields(kind, only):
        if option is None:
            values[field.name] = _build_settings(hint, only, typed)
            continue
        values[field.name] = typed.pop(field.name)
        if option.parse is not None:
            values[field.name] = option.parse(values[field.name])
    if only is not None and only.kind is kind:
        return functools.partial(kind, **values)
    return kind(**values)
