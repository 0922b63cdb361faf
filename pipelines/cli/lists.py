"""Options that take several values in a row: `--views coronal axial`, or `--views` twice."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class ListOptions(TyperCommand):
    """For commands whose list options are followed by no positional argument."""

    # `ctx` is of a class that typer keeps to itself.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {
            name
            for parameter in self.params
            if getattr(parameter, "multiple", False)
            for name in parameter.opts
        }
        spread: list[str] = []
        current = ""
        for word in args:
            if word.startswith("-") and not word.lstrip("-").isdigit():
                current = word if word in several else ""
                spread.append(word)
            elif current and spread[-1] != current:
                spread += [current, word]
            else:
                spread.append(word)
        return super().parse_args(ctx, spread)
