"""Expected errors of trinat, told by their class and fields rather than by their words."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from trinat.segmentation.errors import TrinatError

Refusal = TypeVar("Refusal", bound=TrinatError)


def refusal(
    error: type[Refusal], where: str | Path | None = None, *, remedy: str = ""
) -> pytest.RaisesExc[Refusal]:
    """Expect an error about the file or option `where`, whose remedy names an option."""

    def is_expected(raised: Refusal) -> bool:
        if where is not None and raised.where != str(where):
            return False
        return remedy in raised.remedy

    return pytest.raises(error, check=is_expected)
