"""Words from the command line to checked settings, for commands that share them."""

from __future__ import annotations

from typing import Any

from pipelines.batch.settings import OutputSettings
from segmentation.errors import ConfigError

__all__ = ["output_settings", "split_devices"]

_CHOICES = {
    "--format": ("aseg", "index"),
    "--precision": ("auto", "float32", "bfloat16"),
    "--trust-affine": (None, "sform", "qform", "header"),
}
_VIEWS = ("coronal", "axial", "sagittal")


def output_settings(
    *, views: str, precision: str, format_: str, trust_affine: str | None, **others: Any
) -> OutputSettings:
    given = {"--format": format_, "--precision": precision, "--trust-affine": trust_affine}
    for option, value in given.items():
        _require(option, value, _CHOICES[option])
    chosen = tuple(word.strip() for word in views.split(",") if word.strip())
    for view in chosen:
        _require("--views", view, _VIEWS)
    return OutputSettings(
        views=tuple(view for view in _VIEWS if view in chosen),
        precision=precision,  # type: ignore[arg-type]
        format=format_,  # type: ignore[arg-type]
        trust_affine=trust_affine,  # type: ignore[arg-type]
        **others,
    )


def split_devices(text: str) -> tuple[str, ...]:
    """ "cuda:0,1" is cuda:0 and cuda:1."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError("--device is empty", remedy="give auto, cpu or cuda:0")
    kind = words[0].partition(":")[0]
    return tuple(f"{kind}:{word}" if word.isdecimal() else word for word in words)


def _require(option: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        words = ", ".join(word for word in allowed if word)
        raise ConfigError(f"{option} {value} is not known", remedy=f"give one of {words}")
