"""Label schemes, the folding of FreeSurfer numbers into them, and lesions in masks.

This file defines what the help texts of the commands need, and does not import numpy.
"""

from __future__ import annotations

from importlib import resources
from typing import Literal, get_args

# Extent of CSF (number 24) in a label map: a small region outside of the ventricles, as in
# FreeSurfer's aseg and manual labels, or all fluid inside the skull around the brain, as in label
# maps for synthesis. The two are never compared with each other.
Csf = Literal["region", "intracranial"]
Side = Literal["left", "right"]

# FreeSurfer's abbreviation of each side.
HEMISPHERES: dict[Side, str] = {"left": "lh", "right": "rh"}

# Scheme that is used if none is named.
DEFAULT_SCHEME = "quicknat33"

# Regions of lesions, and the limits between the classes of size in which lesions are counted: below
# 10 mm³, from 10 to 100, from 100 to 1,000, and from 1,000 mm³.
LesionRegion = Literal["periventricular", "juxtacortical", "infratentorial", "deep"]
LESION_REGIONS: tuple[LesionRegion, ...] = get_args(LesionRegion)
LESION_SIZES_MM3 = (10, 100, 1000)


def _shipped_schemes() -> tuple[str, ...]:
    """Return the names of the schemes in configs/labels, the default first."""
    names = []
    for table in (resources.files("trinat.configs") / "labels").iterdir():
        if not table.name.endswith(".tsv"):
            continue
        with table.open(encoding="utf-8") as file:
            # Tables of foldings and DICOM codes begin with another column.
            if file.readline().startswith("index\t"):
                names.append(table.name.removesuffix(".tsv"))
    names.sort(reverse=True)
    names.remove(DEFAULT_SCHEME)
    return DEFAULT_SCHEME, *names


SHIPPED_SCHEMES = _shipped_schemes()
