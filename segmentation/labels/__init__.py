"""Label schemes, and how FreeSurfer numbers fold into them.

Here is what the help of the commands tells of them, without numpy.
"""

from __future__ import annotations

from importlib import resources
from typing import Literal

# What a label map calls CSF, with the number 24: a small region outside the ventricles, as
# FreeSurfer's aseg and manual labels have it, or all fluid inside the skull around the brain, as
# label maps for synthesis have it. The two are never compared with each other.
Csf = Literal["region", "intracranial"]

# What applies where no scheme is named.
DEFAULT_SCHEME = "quicknat33"


def _shipped_schemes() -> tuple[str, ...]:
    """The tables of configs/labels that have a row for each class: the default, then the others."""
    names = []
    for table in (resources.files("trinat.configs") / "labels").iterdir():
        if not table.name.endswith(".tsv"):
            continue
        with table.open(encoding="utf-8") as file:
            # Foldings and codes have other tables.
            if file.readline().startswith("index\t"):
                names.append(table.name.removesuffix(".tsv"))
    names.sort(reverse=True)
    names.remove(DEFAULT_SCHEME)
    return DEFAULT_SCHEME, *names


SHIPPED_SCHEMES = _shipped_schemes()
