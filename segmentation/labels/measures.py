"""Volumes of the whole brain, with FreeSurfer's names and definitions.

The definitions are those of aseg.stats since FreeSurfer 5.2
(https://surfer.nmr.mgh.harvard.edu/fswiki/MorphometryStats), with two differences, which
docs/volumes.md lists. All volumes are counts of voxels, whereas FreeSurfer measures cortex and
white matter with surfaces. BrainSegVol has no CSF, vessels and optic chiasm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinat.segmentation.labels.scheme import LabelScheme

# FreeSurfer numbers of the structures that the measures sum.
_CORTEX = frozenset({3, 42})
_WHITE_MATTER = frozenset({2, 41})
# Thalamus, caudate, putamen, pallidum, hippocampus, amygdala, accumbens and ventral DC.
_SUBCORTICAL = frozenset(
    {10, 49, 11, 50, 12, 51, 13, 52, 17, 53, 18, 54, 26, 58, 28, 60}
)
_CEREBELLUM_CORTEX = frozenset({8, 47})
_CEREBELLUM = frozenset({7, 46}) | _CEREBELLUM_CORTEX
_LATERAL_VENTRICLES = frozenset({4, 5, 43, 44})
_MIDLINE_VENTRICLES = frozenset({14, 15})
_ABOVE_TENTORIUM = _CORTEX | _WHITE_MATTER | _SUBCORTICAL


@dataclass(frozen=True)
class Measure:
    """Volume of aseg.stats: the names in its line, and the structures whose volumes are added.

    `key`, `name` and `words` are the first, second and third field of the line. `numbers` are the
    FreeSurfer numbers of the structures; empty for the intracranial volume, which is no sum.
    """

    key: str
    name: str
    words: str
    numbers: frozenset[int]

    @property
    def column(self) -> str:
        """Name of the column in FreeSurfer's own tables of volumes."""
        return self.key if not self.numbers else self.name


INTRACRANIAL = Measure(
    "EstimatedTotalIntraCranialVol",
    "eTIV",
    "Intracranial Volume by segmentation: brain and ventricles and all fluid inside the skull",
    frozenset(),
)
MEASURES = (
    INTRACRANIAL,
    Measure(
        "BrainSeg",
        "BrainSegVol",
        "Brain Segmentation Volume without brain stem and CSF",
        _ABOVE_TENTORIUM | _CEREBELLUM | _LATERAL_VENTRICLES | _MIDLINE_VENTRICLES,
    ),
    Measure(
        "BrainSegNotVent",
        "BrainSegVolNotVent",
        "Brain Segmentation Volume Without Ventricles",
        _ABOVE_TENTORIUM | _CEREBELLUM,
    ),
    Measure(
        "SupraTentorial",
        "SupraTentorialVol",
        "Supratentorial volume voxel count",
        _ABOVE_TENTORIUM | _LATERAL_VENTRICLES,
    ),
    Measure(
        "Cortex",
        "CortexVol",
        "Total cortical gray matter volume voxel count",
        _CORTEX,
    ),
    Measure(
        "SubCortGray",
        "SubCortGrayVol",
        "Subcortical gray matter volume",
        _SUBCORTICAL,
    ),
    Measure(
        "TotalGray",
        "TotalGrayVol",
        "Total gray matter volume voxel count",
        _CORTEX | _SUBCORTICAL | _CEREBELLUM_CORTEX,
    ),
    Measure(
        "CerebralWhiteMatter",
        "CerebralWhiteMatterVol",
        "Total cerebral white matter volume voxel count",
        _WHITE_MATTER,
    ),
)


def parts_of_sums(
    scheme: LabelScheme, known: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the structures whose volumes each measure adds: column -> names in the scheme.

    `known` has the names of the structures that the model predicts. A measure is left out if it
    needs a structure that is not known, or a part of a class that also has other structures.
    """
    labels = [label for label in scheme.labels[1:] if label.name in known]
    found = {}
    for measure in MEASURES:
        if not measure.numbers:
            continue
        parts = [label for label in labels if measure.numbers.issuperset(label.numbers)]
        covered: set[int] = set()
        for label in parts:
            covered.update(label.numbers)
        if covered == measure.numbers:
            found[measure.column] = tuple(label.name for label in parts)
    return found


def sums_mm3(scheme: LabelScheme, volumes_mm3: Mapping[str, float]) -> dict[str, float]:
    """Return the measures that are sums of structures, in mm³: column -> volume.

    `volumes_mm3` has the volume of each structure that the model predicts, by its name in the
    scheme.
    """
    return {
        column: sum(volumes_mm3[name] for name in names)
        for column, names in parts_of_sums(scheme, volumes_mm3).items()
    }


@dataclass(frozen=True)
class BrainVolumes:
    """Measures of one segmentation: the volume in mm³ for each column.

    The intracranial volume is None if it is unknown; `note` then has the reason.
    """

    mm3: dict[str, float | None]
    note: str = ""
