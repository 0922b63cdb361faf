"""Numbers of one segmentation (grade, volumes, notes), for the ledger, tables and pages.

A new measure is a field of `ScanResult` (or of `ParcelResult`), set in
`pipelines/predict/case_files.py`. If it is a column of qc.tsv, add it to `quality_columns`, or to
`structure_measures` if there is a value for each structure. The ledger and the JSON for the pages
include every field automatically.

A further output with a table of its own, such as cortical thickness, is a subclass of
`FurtherResult`: `NAME.tsv`, `trinat report`, `trinat norms` and `NAME_changes.tsv` follow from its
columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FiniteFloat,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from trinat.segmentation.labels import (
    HEMISPHERES,
    LESION_REGIONS,
    LESION_SIZES_MM3,
    Csf,
    Side,
)
from trinat.segmentation.labels.measures import INTRACRANIAL

if TYPE_CHECKING:
    from trinat.segmentation.labels.scheme import LabelScheme

# Grades, the most urgent first. Results without a grade are reviewed before those that pass.
GRADES = ("failed", "reject", "look", "ungraded", "pass")
# Grades of structures that require a reason.
DOUBTFUL = ("reject", "look")
# Group statistics (means, tests, norms, adjustments, changes) leave out results of these grades.
EXCLUDED_GRADES = ("reject",)


# Structure that the parcels of a side divide.
CORTEX: dict[Side, str] = {
    "left": "Left-Cerebral-Cortex",
    "right": "Right-Cerebral-Cortex",
}


class _Record(BaseModel):
    """Base class of the parts of a ledger entry; refuses unknown keys and wrong types.

    Fields that were not set are not written.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    @model_serializer(mode="wrap")
    def _only_set(
        self, serialize: SerializerFunctionWrapHandler
    ) -> dict[str, JsonValue]:
        content: dict[str, JsonValue] = serialize(self)
        return {
            name: value
            for name, value in content.items()
            if name in self.model_fields_set
        }


class ParcelResult(_Record):
    """Measurements of one parcel of the cortex; its fields are the columns of parcels.tsv.

    `freesurfer` is its FreeSurfer number. `share` is its volume divided by that of all parcels of
    its side. `asymmetry` is the volume left minus right, divided by their mean. `agreement` is the
    mean Dice between the views. Unknown values are None.
    """

    freesurfer: int
    side: Side
    lobe: str
    mm3: FiniteFloat
    share: FiniteFloat | None
    asymmetry: FiniteFloat | None
    agreement: FiniteFloat | None
    grade: str | None


class FurtherResult(_Record):
    """Result of an output beside the segmentation: cortical thickness, corpus callosum or lesions.

    It has a grade of its own, with reasons. `title` is the heading of its section in reports.
    """

    title: ClassVar[str]

    grade: str
    reasons: list[str]

    @abstractmethod
    def columns(self, left_out: Collection[str] = ()) -> dict[str, float | None]:
        """Return the measures of this output by the names of their columns; None if not measured.

        Names end with the unit, or with "_thickness" (mm), as FreeSurfer names thickness. Measures
        of the structures or parcels named in `left_out` are omitted.
        """

    def profile(self) -> dict[str, float]:
        """Return measures for the run's table only, by column; group comparisons do not use them.

        Empty by default.
        """
        return {}

    def measures_mm3(self) -> dict[str, float]:
        """Return volumes that are also measures of the whole scan, by name; none by default."""
        return {}

    def row(self) -> dict[str, JsonValue]:
        """Return the scan's row in this output's table of a run, NAME.tsv: values by column."""
        return {
            "grade": self.grade,
            "reasons": "; ".join(self.reasons),
            **self.columns(),
            **self.profile(),
        }


def unit_of(column: str) -> str:
    """Return the unit (mm, mm2 or mm3) of a measure, from the name of its column.

    `column` is a column of thickness.tsv, callosum.tsv or lesions.tsv. "" if it has no unit.
    """
    if column.endswith("_thickness"):
        return "mm"
    unit = column.rpartition("_")[2]
    return unit if unit in ("mm", "mm2", "mm3") else ""


class SheetResult(_Record):
    """Cortical thickness of one parcel, or of the whole cortex of a hemisphere.

    `mm` is the mean thickness; None if it was not measured. `std_mm` is the standard deviation of
    thickness over the middle surface, `area_mm2` the area of that surface, and `mm3` the volume:
    the sum of the voxels' probabilities of cortex.
    """

    side: Side
    mm: FiniteFloat | None
    std_mm: FiniteFloat | None
    area_mm2: FiniteFloat
    mm3: FiniteFloat

    def column(self, name: str) -> str:
        """Return the name of its column in thickness.tsv, in the style of `aparcstats2table`.

        `name` is the name of a parcel, such as ctx-lh-insula, or of the cortex of a hemisphere.
        """
        hemisphere = HEMISPHERES[self.side]
        parcel = "MeanThickness"
        if name.startswith("ctx-"):
            parcel = name.removeprefix(f"ctx-{hemisphere}-")
        return f"{hemisphere}_{parcel}_thickness"


class ThicknessResult(FurtherResult):
    """Cortical thickness of all parcels and of both hemispheres.

    `sheets` maps the name of each parcel or cortex to its thickness. The parcels of a side come
    before the cortex of that side.
    """

    title = "Cortical thickness"

    sheets: dict[str, SheetResult]

    def columns(self, left_out: Collection[str] = ()) -> dict[str, float | None]:
        """Return the mean thickness in mm of parcels and hemispheres, by column of thickness.tsv.

        Parcels and hemispheres named in `left_out` are omitted, hemispheres with their parcels.
        """
        return {
            sheet.column(name): sheet.mm
            for name, sheet in self.sheets.items()
            if name not in left_out and CORTEX[sheet.side] not in left_out
        }


class CallosumResult(FurtherResult):
    """Measurements of the corpus callosum.

    `volumes_mm3` maps the name of each part to its volume; `total_mm3` is the volume of the whole.
    `thickness_mm` is the thickness along the midline, from behind to front. If no callosum was
    found, lengths and areas are None and `thickness_mm` is empty.
    """

    title = "Corpus callosum"

    volumes_mm3: dict[str, FiniteFloat]
    total_mm3: FiniteFloat
    area_mm2: FiniteFloat | None
    length_mm: FiniteFloat | None
    midline_mm: FiniteFloat | None
    mean_thickness_mm: FiniteFloat | None
    max_thickness_mm: FiniteFloat | None
    thickness_mm: list[FiniteFloat]

    def columns(self, left_out: Collection[str] = ()) -> dict[str, float | None]:
        """Return volumes, area, lengths and thickness by column of callosum.tsv.

        `left_out` is ignored: the callosum is graded as a whole.
        """
        columns: dict[str, float | None] = {"CorpusCallosum_mm3": self.total_mm3}
        for name, mm3 in self.volumes_mm3.items():
            columns[f"{name}_mm3"] = mm3
        columns["CC_area_mm2"] = self.area_mm2
        columns["CC_length_mm"] = self.length_mm
        columns["CC_midline_mm"] = self.midline_mm
        columns["CC_mean_thickness_mm"] = self.mean_thickness_mm
        columns["CC_max_thickness_mm"] = self.max_thickness_mm
        return columns

    def measures_mm3(self) -> dict[str, float]:
        """Return the volumes of the parts and of the whole corpus callosum in mm³."""
        return {**self.volumes_mm3, "CorpusCallosum": self.total_mm3}

    def profile(self) -> dict[str, float]:
        """Return the thickness in mm of the corpus callosum at points of its midline, by column."""
        return {
            f"CC_thickness_{place:02}_mm": mm
            for place, mm in enumerate(self.thickness_mm, start=1)
        }


class LesionResult(_Record):
    """Measurements of one lesion; its fields are the columns of the list of a scan's lesions.

    `lesion` is the number of the lesion, `mm3` its volume, and `region` one of `LESION_REGIONS`.
    `x_mm`, `y_mm` and `z_mm` are its centre of gravity in RAS mm. `probability` is None if the mask
    was corrected by hand.
    """

    lesion: int
    mm3: FiniteFloat
    region: str
    x_mm: FiniteFloat
    y_mm: FiniteFloat
    z_mm: FiniteFloat
    probability: FiniteFloat | None


class LesionsResult(FurtherResult):
    """Lesions of white matter; `lesions` are sorted by volume, the largest first."""

    title = "Lesions of white matter"

    lesions: list[LesionResult]

    @property
    def mm3(self) -> float:
        """Volume of all lesions together, in mm³."""
        return round(sum(lesion.mm3 for lesion in self.lesions), 3)

    def columns(self, left_out: Collection[str] = ()) -> dict[str, float | None]:
        """Return the volume in mm³ of all lesions and of the lesions in each region, by column.

        `left_out` is ignored.
        """
        columns: dict[str, float | None] = {"lesions_mm3": self.mm3}
        for region in LESION_REGIONS:
            found = [lesion.mm3 for lesion in self.lesions if lesion.region == region]
            columns[f"{region}_mm3"] = round(sum(found), 3)
        return columns

    def measures_mm3(self) -> dict[str, float]:
        """Return the volume of all lesions in mm³."""
        return {"White-matter-lesions": self.mm3}

    def profile(self) -> dict[str, float]:
        """Return the number of lesions in total, in each region and of each size, by column."""
        counts: dict[str, float] = {"lesions": len(self.lesions)}
        for region in LESION_REGIONS:
            of_region = [lesion for lesion in self.lesions if lesion.region == region]
            counts[f"{region}_lesions"] = len(of_region)
        low = 0
        for high in LESION_SIZES_MM3:
            within = [low <= lesion.mm3 < high for lesion in self.lesions]
            counts[f"lesions_below_{high}_mm3"] = sum(within)
            low = high
        counts[f"lesions_from_{low}_mm3"] = sum(
            lesion.mm3 >= low for lesion in self.lesions
        )
        return counts


# Further outputs are optional results with a table of their own. Keys are the names of the tables
# and of the fields of `ScanResult`, in the order of reports.
FURTHER: dict[str, type[FurtherResult]] = {
    "thickness": ThicknessResult,
    "callosum": CallosumResult,
    "lesions": LesionsResult,
}


class TimePoint(_Record):
    """Data of a scan that was segmented together with other scans of the same participant.

    - `participant` is the name, and `group` the group of the participant; "" if it is not known.
    - `year` is the time of the scan in years from an arbitrary start; None if it is not known.
    - `scans` maps the cases that were segmented together to the SHA-256 of their scans.
    - `volumes_mm3` maps structures to the volumes that changes over time are computed from.
    - `stretch_percent` is how much larger the head is in this scan, along one axis, than in most of
      the participant's scans; 0 for an equal size.
    - `views` are the views that were requested; empty for all views of the model.
    - `lesion_sites` has a number for each lesion of the scan: lesions of all scans of the
      participant that lie at one place have the same number. `voxel_mm3` is the volume of a voxel
      of the scan. Both are set only if lesions were requested.
    """

    participant: str
    group: str = ""
    year: FiniteFloat | None = None
    scans: dict[str, str] = {}
    volumes_mm3: dict[str, FiniteFloat]
    stretch_percent: FiniteFloat = 0
    views: tuple[str, ...] = ()
    lesion_sites: list[int] = []
    voxel_mm3: FiniteFloat = 0


class ScanResult(_Record):
    """The numbers of one segmentation: grade, volumes in mm³, and measures of quality.

    The keys of mappings are names of structures, or of parcels for `parcels`. `structure_grades`
    are the grades of single structures, `reasons` explain the grade of the scan, and `notes` are
    other messages. `measures_mm3` has further volumes, such as the intracranial volume. `agreement`
    is the mean Dice between the views; `iou`, `pairwise_dice` and `volume_cv` measure the
    uncertainty by dropout samples. `cleaned` is the share of a structure that clean-up changed.
    `picture` is the path of the picture below the output folder. `pseudo_labels` names the labels
    by other models that the model was trained with.
    """

    model: str = ""
    grade: str = ""
    reasons: list[str] = []
    structure_grades: dict[str, str] = {}
    notes: list[str] = []
    total_brain_mm3: FiniteFloat | None = None
    volumes_mm3: dict[str, FiniteFloat] = {}
    measures_mm3: dict[str, FiniteFloat | None] = {}
    csf: Csf | None = None
    tissue_contrast: FiniteFloat | None = None
    pseudo_labels: str = ""
    mean_agreement: FiniteFloat | None = None
    agreement: dict[str, FiniteFloat | None] = {}
    iou: dict[str, FiniteFloat | None] = {}
    pairwise_dice: dict[str, FiniteFloat | None] = {}
    volume_cv: dict[str, FiniteFloat | None] = {}
    cleaned: dict[str, FiniteFloat] = {}
    parcels: dict[str, ParcelResult] = {}
    thickness: ThicknessResult | None = None
    callosum: CallosumResult | None = None
    lesions: LesionsResult | None = None
    picture: str = ""
    longitudinal: TimePoint | None = None

    def as_json(self) -> dict[str, JsonValue]:
        """Return all fields that were set as JSON values, for the ledger and the pages."""
        return self.model_dump(mode="json")

    def quality_columns(self) -> dict[str, str | float | None]:
        """Return grade, mean agreement, tissue contrast and brain volume, by column of qc.tsv.

        An unknown value is None.
        """
        return {
            "grade": self.grade or None,
            "mean_agreement": self.mean_agreement,
            "tissue_contrast": self.tissue_contrast,
            "total_brain_mm3": self.total_brain_mm3,
        }

    def structure_measures(self) -> dict[str, Mapping[str, float | None]]:
        """Return the measures of quality that qc.tsv has for each structure.

        Keys are names of measures, such as "agreement"; each value maps structures to numbers, None
        if not measured.
        """
        return {
            "agreement": self.agreement,
            "iou": self.iou,
            "pairwise_dice": self.pairwise_dice,
            "volume_cv": self.volume_cv,
        }

    def further(self) -> dict[str, FurtherResult]:
        """Return the results for cortical thickness, corpus callosum and lesions, if measured.

        Keys are the names of the outputs: thickness, callosum and lesions, in the order of reports.
        """
        found = {}
        for name in FURTHER:
            result: FurtherResult | None = getattr(self, name)
            if result is not None:
                found[name] = result
        return found

    def counted_columns(
        self, name: str, excluded: Collection[str], left_out: Collection[str] = ()
    ) -> dict[str, float]:
        """Return the measures of one output that group statistics may use, by column.

        `name` is the output: thickness, callosum or lesions. Outputs and structures whose grade is
        in `excluded` are omitted, and so are the structures in `left_out` and columns without a
        value.
        """
        result = self.further().get(name)
        if result is None or result.grade in excluded:
            return {}
        columns = result.columns({*self.structures_left_out(excluded), *left_out})
        return {column: value for column, value in columns.items() if value is not None}

    @property
    def intracranial_mm3(self) -> float | None:
        """Volume inside the skull; None if it was not measured."""
        return self.measures_mm3.get(INTRACRANIAL.column)

    @property
    def remarks(self) -> list[str]:
        """Reasons for the grade, followed by the notes."""
        return [*self.reasons, *self.notes]

    def corrected(self) -> ScanResult:
        """Return a copy without grades, for a scan whose label map was corrected by hand."""
        result = self.model_copy()
        result.grade = ""
        result.reasons = []
        result.structure_grades = {}
        result.notes = ["corrected by hand"]
        return result

    def why_left_out(self, excluded: Collection[str]) -> str:
        """Return the grade and its reasons if group statistics leave out this scan; "" if not.

        A scan is left out if its grade is in `excluded`.
        """
        if self.grade not in excluded:
            return ""
        why = f"graded {self.grade}"
        if self.reasons:
            why += f": {'; '.join(self.reasons)}"
        return why

    def structures_left_out(self, excluded: Collection[str]) -> dict[str, str]:
        """Return the grade of each structure and parcel that group statistics leave out, by name.

        These are the structures and parcels whose own grade is in `excluded`.
        """
        grades = dict(self.structure_grades)
        for name, parcel in self.parcels.items():
            grades[name] = parcel.grade or ""
        return {name: grade for name, grade in grades.items() if grade in excluded}

    def counted_volumes(self, *, layers: bool = False) -> dict[str, float]:
        """Return the volume in mm³ of each structure that group statistics may use, by name.

        Structures graded `reject` are omitted; the result is empty if the scan is graded `reject`.
        With `layers`, volumes of cortical parcels, of the parts of the corpus callosum and of all
        lesions are added.
        """
        if self.why_left_out(EXCLUDED_GRADES):
            return {}
        left_out = self.structures_left_out(EXCLUDED_GRADES)
        volumes_mm3 = dict(self.volumes_mm3)
        if layers:
            for name, parcel in self.parcels.items():
                volumes_mm3[name] = parcel.mm3
            callosum = self.callosum
            if callosum is not None and callosum.grade not in EXCLUDED_GRADES:
                volumes_mm3.update(callosum.volumes_mm3)
            lesions = self.lesions
            if lesions is not None and lesions.grade not in EXCLUDED_GRADES:
                volumes_mm3.update(lesions.measures_mm3())
        return {name: mm3 for name, mm3 in volumes_mm3.items() if name not in left_out}

    def doubt_about(self, structure: str) -> str:
        """Return why a structure has the grade look or reject; "" if it has another grade."""
        if self.structure_grades.get(structure) not in DOUBTFUL:
            return ""
        if not self.volumes_mm3.get(structure):
            return "not found"
        naming = [reason for reason in self.reasons if structure in reason]
        if naming:
            return "; ".join(naming)
        agreement = self.agreement.get(structure)
        if agreement is None:
            return "a reason above is about it"
        return f"views agree by {agreement:.2f} only"


def measured_in(
    scheme: LabelScheme, structures: Iterable[str], parcels: Iterable[str]
) -> set[str]:
    """Return the names of the structures and parcels that are measured with a label scheme.

    A label scheme is a list of structures with their numbers. `structures` and `parcels` are the
    names in the results of a run. If both the scheme and the results have parcels, the parcels
    replace the structures that the scheme lacks, such as the cortex. Otherwise all structures are
    returned, and no parcels.
    """
    if scheme.has_parcels and parcels:
        return (set(structures) & set(scheme.names)) | set(parcels)
    return set(structures)
