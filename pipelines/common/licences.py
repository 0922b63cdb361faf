"""Commands say whose weights are not as free as trinat."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from trinat.segmentation.errors import one_line
from trinat.segmentation.models.zoo import find_model, licence_notice


def say_licences(models: Iterable[str]) -> None:
    """Print the licence of each model where it is not that of trinat: once, also if quiet."""
    notices = [licence_notice(find_model(model)) for model in models]
    for notice in dict.fromkeys(notices):
        if notice:
            sys.stderr.write(f"trinat: {one_line(notice)}\n")
