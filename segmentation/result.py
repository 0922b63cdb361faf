"""Result of `trinat.segment`: labels, volumes, surfaces and pictures of a scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError
from trinat.segmentation.grid import grown, occupied_box
from trinat.segmentation.inference.checks.anatomy import total_brain_mm3
from trinat.segmentation.inference.checks.limits import LIMITS, Limits
from trinat.segmentation.inference.measuring import measure, measure_parcels
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.quality import Grade, grade, limits_of
from trinat.segmentation.io.foreign_images import to_monai, to_simpleitk, to_torchio
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.label import Label
from trinat.segmentation.labels.measures import INTRACRANIAL, BrainVolumes
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.rendering.mesh import Surface, surface_net
from trinat.segmentation.rendering.pictures import data_uri, draw_mosaic, encoded

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


# Columns of the table of volumes.
_COLUMNS = ("structure", "freesurfer", "side", "mm3", "share", "grade")
# Columns of the table of parcels.
_PARCEL_COLUMNS = (
    *("parcel", "freesurfer", "side", "lobe"),
    *("mm3", "share", "asymmetry", "agreement", "grade"),
)

# Notebooks style tables by element (small, right-aligned, centred), which only inline styles
# override.
_TABLE = "font: inherit; margin: .3em 0; border-collapse: collapse; table-layout: auto"
_CELL = "padding: .1em .6em; vertical-align: top"
_TEXT = f"{_CELL}; text-align: left"
_NAME = f"{_TEXT}; font-weight: normal"
_NUMBER = f"{_CELL}; text-align: right; white-space: nowrap"


@dataclass(frozen=True, eq=False, repr=False)
class Result(Prediction):
    """Segmentation of one scan, in the scan's own space.

    A structure is given by its name ("Left-Hippocampus"), its abbreviation ("L-Hi") or its
    FreeSurfer number (17). A map is a `Volume` (X, Y, Z): `.data` is the array, `.affine` maps
    voxel indices to RAS mm, `.write(path)` saves it.

    Attributes
    ----------
    labels : Volume
        FreeSurfer numbers, int16; 0 is background.
    parcel_labels : Volume
        FreeSurfer numbers, int16, with parcels in place of the cortex. Only after
        `segment(..., parcels=True)`.
    entropy : Volume
        Entropy of the probabilities in nats, float32; 0 is certain.
    model : str
        Name of the model.
    """

    model: str = ""
    limits: Limits = LIMITS
    parcel_limits: Limits = LIMITS

    @classmethod
    def of(
        cls, found: Prediction, model: Model, parcels_model: Model | None = None
    ) -> Self:
        """Return the result for a prediction, with the name and the quality limits of its model.

        `parcels_model` is the model that predicted the parcels, whose limits they are graded by;
        None without parcels.
        """
        known = {field.name: getattr(found, field.name) for field in fields(found)}
        parcel_limits = LIMITS
        if parcels_model is not None:
            parcel_limits = limits_of(parcels_model.info)
        return cls(
            **known,
            model=model.name,
            limits=limits_of(model.info),
            parcel_limits=parcel_limits,
        )

    def __repr__(self) -> str:
        shape = "×".join(str(length) for length in self.plan.scan.shape)
        volumes = self.volumes_mm3
        brain_ml = total_brain_mm3(self.scheme, volumes) / 1000
        return (
            f"Result({shape} voxels, model {self.model}: "
            f"{self.quality.name}, {len(volumes)} structures, brain {brain_ml:.0f} ml)"
        )

    @cached_property
    def quality(self) -> Grade:
        """Grade of the scan and of its structures, by the model's limits.

        Its `name` is pass, look or reject, `reasons` has the reasons in sentences, and `structures`
        has the grades of structures by name. Structures without a grade are left out.
        """
        return grade(self.evidence, self.limits)

    def brain_mask(self) -> Volume:
        """Return the inside of the skull as a mask: bool (X, Y, Z) in the scan's own space.

        It contains brain, ventricles, and the fluid around the brain if the model predicts it.

        Examples
        --------
        >>> brain = result.brain_mask()
        >>> brain.data.shape == result.labels.shape
        True
        """
        return self.brain

    @property
    def intracranial_volume(self) -> float | None:
        """Volume of the inside of the skull in mm³; None if it is unknown.

        It is the volume of `brain_mask()`. It is unknown for models that do not predict all fluid
        around the brain, for scans that do not show the skull on all sides, and if the field of
        view ends inside the skull. `measures_note` has the reason.

        Examples
        --------
        >>> result.intracranial_volume is None or result.intracranial_volume > 0
        True
        """
        return self._brain_volumes.mm3[INTRACRANIAL.column]

    @property
    def measures(self) -> dict[str, float | None]:
        """Volumes of the whole brain in mm³, under FreeSurfer's names.

        A volume is left out if it needs a structure that the model does not predict.

        Examples
        --------
        >>> result.measures["BrainSegVol"] > result.measures["CortexVol"]
        True
        """
        return dict(self._brain_volumes.mm3)

    @property
    def measures_note(self) -> str:
        """Reason why the intracranial volume is unknown; "" if it is known."""
        return self._brain_volumes.note

    @cached_property
    def _brain_volumes(self) -> BrainVolumes:
        """Volumes of the whole brain, and the reason if the intracranial volume is unknown."""
        return measure(self, self.limits)

    def volumes(self) -> pd.DataFrame:
        """Return a table of the structures that the model predicts.

        Returns
        -------
        DataFrame
            One row per structure: `structure`, `freesurfer` (number), `side` (left, right or
            empty), `mm3`, `share` (of the brain: all tissue, no fluid) and `grade` (pass, look,
            reject; empty if unknown).

        Examples
        --------
        >>> table = result.volumes().set_index("structure")
        >>> int(table.freesurfer["Left-Hippocampus"])
        17
        """
        import pandas as pd

        volumes = self.volumes_mm3
        grades = self.quality.structures
        brain_mm3 = total_brain_mm3(self.scheme, volumes)
        if not brain_mm3:
            # Shares of an empty brain are undefined.
            brain_mm3 = np.nan
        rows = []
        for label in self.scheme.labels:
            if label.name not in volumes:
                continue
            row = {
                "structure": label.name,
                "freesurfer": label.fs_id,
                "side": label.side or "",
                "mm3": volumes[label.name],
                "share": volumes[label.name] / brain_mm3,
                "grade": grades.get(label.name, ""),
            }
            rows.append(row)
        return pd.DataFrame(rows, columns=list(_COLUMNS))

    def parcels(self) -> pd.DataFrame:
        """Return a table of the parcels of the cortex.

        Requires `segment(..., parcels=True)` and a model with parcels.

        Returns
        -------
        DataFrame
            One row per parcel: `parcel`, `freesurfer` (number), `side`, `lobe`, `mm3`, `share`
            (of the cortex of its side), `asymmetry` (left minus right, divided by their mean),
            `agreement` (mean Dice between the predictions of the single views: axial, coronal,
            sagittal) and `grade` (pass, look or reject, by agreement). Sum rows for lobes:
            `.groupby(["side", "lobe"]).mm3.sum()`.

        Raises
        ------
        LabelError
            If the scan was segmented without parcels.

        Examples
        --------
        >>> table = trinat.segment("scan.nii.gz", model="own", parcels=True).parcels()
        >>> len(table)
        68
        """
        import pandas as pd

        measures = measure_parcels(self, self.parcel_limits.agreement)
        table = pd.DataFrame([asdict(parcel) for parcel in measures])
        return table.rename(columns={"name": "parcel"})[list(_PARCEL_COLUMNS)]

    def thickness(self) -> pd.DataFrame:
        """Return a table of cortical thickness by parcel.

        Requires `segment(..., parcels=True)` and a model with parcels.

        Returns
        -------
        DataFrame
            One row per parcel: `parcel`, `side`, `thickness_mm` (mean over the middle surface,
            half-way between the inner and the outer one), `std_mm`, `area_mm2` (of that
            surface) and `mm3` (sum of the probabilities). The map in mm is `thickness_map`.

        Raises
        ------
        LabelError
            If the scan was segmented without parcels.

        Examples
        --------
        >>> table = trinat.segment("scan.nii.gz", model="own", parcels=True).thickness()
        >>> len(table)
        68
        """
        import pandas as pd

        sheets = self.cortex_thickness.parcels
        table = pd.DataFrame([asdict(sheet) for sheet in sheets])
        table = table.rename(columns={"name": "parcel", "volume_mm3": "mm3"})
        return table[["parcel", "side", "thickness_mm", "std_mm", "area_mm2", "mm3"]]

    def mask(self, structure: str | int) -> Volume:
        """Return the mask of a structure in the scan's own space.

        Parameters
        ----------
        structure : str or int
            Name, abbreviation or FreeSurfer number of a structure.

        Returns
        -------
        Volume
            bool (X, Y, Z).

        Raises
        ------
        LabelError
            If the structure does not exist, or the model does not predict it.

        Examples
        --------
        >>> mask = result.mask("Left-Hippocampus")
        >>> mask.data.shape == result.labels.shape
        True
        """
        inside = self.indices.data == self._find_predicted(structure).index
        return Volume(inside, self.indices.affine, self.indices.codes)

    def probability(self, structure: str | int) -> Volume:
        """Return the probability of a structure in the scan's own space.

        Parameters
        ----------
        structure : str or int
            Name, abbreviation or FreeSurfer number of a structure.

        Returns
        -------
        Volume
            float32 (X, Y, Z), from 0 to 1.

        Raises
        ------
        LabelError
            If the structure does not exist, or the model does not predict it.

        Examples
        --------
        >>> bool(result.probability("L-Hi").data.max() <= 1)
        True
        """
        found = self.probabilities(self._find_predicted(structure).name)
        # Sums of float16 shares may slightly exceed 1.
        return replace(found, data=np.minimum(found.data, 1))

    def surface(self, structure: str | int) -> Surface:
        """Return the surface of a structure, from the probabilities on the working grid of 1 mm.

        Parameters
        ----------
        structure : str or int
            Name, abbreviation or FreeSurfer number of a structure.

        Returns
        -------
        Surface
            `vertices` (V, 3) in the scanner's RAS mm, `faces` (F, 3), `area_mm2`, `volume_mm3`;
            `.save("x.ply")` or `.save("x.surf.gii")`.

        Raises
        ------
        LabelError
            If the structure does not exist, is not predicted by the model, or was not found in
            the scan.

        Examples
        --------
        >>> result.surface("Left-Hippocampus").save("hippocampus.ply")
        """
        label = self._find_predicted(structure)
        inside = self.working.data == label.index
        if not inside.any():
            raise LabelError(f"{label.name} was not found in this scan")
        box = grown(occupied_box(inside), inside.shape)
        probabilities = self.fused[box].float().numpy()
        own = probabilities[..., label.index].copy()
        probabilities[..., label.index] = -1
        largest_other = probabilities.max(-1)
        # Lead over the next structure. At a tie, the side is that of the label map.
        distance = np.maximum(np.abs(own - largest_other), 1e-3)
        lead = np.where(inside[box], distance, -distance)
        return surface_net(lead, self.plan.working.cut(box).affine)

    def to_nibabel(self) -> Any:
        """Return the labels as a nibabel image, uint8 as in files (int16 for numbers above 255).

        Examples
        --------
        >>> result.to_nibabel().get_data_dtype().name
        'uint8'
        """
        return self.labels.to_nibabel(labels=True)

    def to_torchio(self) -> Any:
        """Return the labels as a torchio.LabelMap, int16 (1, X, Y, Z).

        Examples
        --------
        >>> result.to_torchio().spatial_shape == result.labels.shape
        True
        """
        return to_torchio(self.labels.data, self.labels.affine)

    def to_monai(self) -> Any:
        """Return the labels as a monai.data.MetaTensor, int16 (1, X, Y, Z), in RAS mm.

        Examples
        --------
        >>> tuple(result.to_monai().shape[1:]) == result.labels.shape
        True
        """
        return to_monai(self.labels.data, self.labels.affine)

    def to_simpleitk(self) -> Any:
        """Return the labels as a SimpleITK.Image of int16, at the position of the scan in ITK.

        Examples
        --------
        >>> result.to_simpleitk().GetSize() == result.labels.shape
        True
        """
        return to_simpleitk(self.labels.data, self.labels.affine)

    def save(self, path: str | Path) -> None:
        """Write the labels to .nii.gz, .nii or .mgz, byte-identical to `trinat predict`.

        Parameters
        ----------
        path : str or path
            File to write; its suffix chooses the format.

        Raises
        ------
        FormatError
            If the suffix is none of these.
        OutputError
            If the file cannot be written.

        Examples
        --------
        >>> result.save("labels.nii.gz")
        """
        self.labels.write(path, labels=True)

    def plot(self) -> Figure:
        """Plot a slice of each view with the outlines of its labels.

        The figure belongs to pyplot: notebooks show it, `.savefig("look.png")` saves it.

        Examples
        --------
        >>> result.plot().savefig("look.png")
        """
        from matplotlib import pyplot

        drawn = self._mosaic()
        height, width = drawn.shape[:2]
        size_in = (width / 100, height / 100)
        figure: Figure = pyplot.figure(figsize=size_in, dpi=100)
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set_axis_off()
        axis.imshow(drawn, interpolation="nearest")
        return figure

    def _mosaic(self) -> NDArray[np.uint8]:
        """Draw a slice of each view with the outlines of its labels, RGB (H, W, 3)."""
        return draw_mosaic(self.image, self.working, self.scheme, slices_per_view=1)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the grade, a picture, and a table of volumes to unfold."""
        return notebook_html(
            repr(self),
            self.quality.reasons,
            encoded(self._mosaic(), "PNG"),
            self.volumes(),
        )

    def _find_predicted(self, structure: str | int) -> Label:
        """Return the label of a structure; raise LabelError if it is unknown or not predicted.

        `structure` is a name, an abbreviation or a FreeSurfer number.
        """
        label = self.scheme.find(structure)
        if label.name in self.not_predicted:
            raise LabelError(f"the model {self.model} does not predict {label.name}")
        return label


def notebook_html(
    title: str,
    reasons: Sequence[str],
    picture: bytes,
    volumes: pd.DataFrame,
) -> str:
    """Return the HTML that a notebook shows for a result.

    It has the `title`, the `reasons` of the grade, the `picture` (content of a PNG file), no wider
    than the notebook, and a table to unfold: name, volume, share and grade of each structure.
    `volumes` is the table of `Result.volumes`. The notebook's font is used, and no style sheet.
    """
    listed = ""
    if reasons:
        items = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
        listed = f"<ul>{items}</ul>"
    rows = [
        f'<tr><th style="{_TEXT}">structure</th><th style="{_NUMBER}">mm³</th>'
        f'<th style="{_NUMBER}">% of brain</th><th style="{_TEXT}">grade</th></tr>'
    ]
    for row in volumes.to_dict("records"):
        share = ""
        if np.isfinite(row["share"]):
            share = f"{100 * row['share']:.2f}"
        rows.append(
            f'<tr><th scope="row" style="{_NAME}">{escape(row["structure"])}</th>'
            f'<td style="{_NUMBER}">{row["mm3"]:,.0f}</td>'
            f'<td style="{_NUMBER}">{share}</td>'
            f'<td style="{_TEXT}">{row["grade"]}</td></tr>'
        )
    table = f'<table style="{_TABLE}">{"".join(rows)}</table>'
    return (
        f'<div style="overflow-x: auto"><p>{escape(title)}</p>{listed}'
        f'<img src="{data_uri("png", picture)}" alt="slices" '
        'style="max-width: 100%; height: auto">'
        f"<details><summary>volumes</summary>{table}</details></div>"
    )
