"""Label schemes, and how FreeSurfer numbers fold into them.

Which schemes come with trinat is known here without numpy, for the help of the commands.
"""

from __future__ import annotations

from importlib import resources

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
