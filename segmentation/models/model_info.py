"""Content of model.yaml: everything that inference needs besides the weights.

`Description` is supplied by the maker of a model; `ModelInfo` is the whole file. Unknown keys
and values out of range are refused. Comments before fields are shown in the documentation.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)

from trinat.segmentation.errors import ModelError
from trinat.segmentation.grid import world_axes
from trinat.segmentation.labels import DEFAULT_SCHEME, Csf
from trinat.segmentation.models.architectures import Architecture
from trinat.segmentation.space.views import SliceAxes, View, slice_axes

FORMAT = 1
PRIOR_FILE = "prior.npz"
_LARGEST_PRIOR_BYTES = 256 << 20

Precision = Literal["float32", "float16"]


def _usable_name(name: str) -> str:
    """Return the name if it is valid for a folder on every system; raise ValueError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ValueError(
            f"{name!r} is no name: use letters, digits, dots, underscores and dashes, a letter or "
            "digit first, 64 at most"
        )
    return name


Name = Annotated[str, AfterValidator(_usable_name)]
# Length of a side of the working grid in voxels. A grid with sides of 512 voxels takes half a
# gibibyte for each map of values.
Side = Annotated[int, Field(ge=16, le=512)]
# Weight of a view. The limit keeps the ratio of two weights within single precision.
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Odds = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
# The limits are the range in which `trinat fit` searches.
ClassOdds = Annotated[float, Field(ge=0.1, le=10, allow_inf_nan=False)]
# Exponent of a template's probabilities.
PriorWeight = Annotated[float, Field(ge=0, le=4, allow_inf_nan=False)]


def _axis_codes(axes: str) -> str:
    """Return the codes unchanged if they name three axes; raise an error otherwise."""
    world_axes(axes)
    return axes


def _each_axis_once(axes: SliceAxes) -> SliceAxes:
    """Return the axes unchanged if each axis occurs once; raise ValueError otherwise."""
    if sorted(axes) != [0, 1, 2]:
        raise ValueError("must name each of the axes 0, 1 and 2 once")
    return axes


class _Section(BaseModel):
    """Immutable section of model.yaml that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Preprocessing(_Section):
    """The input of the networks, and how inference makes it from a scan.

    The scan is brought to a grid of `shape` voxels of `spacing_mm`, whose axes grow towards the
    three letters of `axes`, and its intensities are scaled:

    - "trinat": as `conform` does, 0 in empty background and about 1 at the bright end of the head;
    - "minimum-maximum": (v - min) / (max - min) over the whole conformed volume.

    Slices are then cut from that array along `slices[view]`: axes of the array, not of the
    anatomy. A view that is not listed is cut as `views.py` cuts an RAS array.
    """

    axes: Annotated[str, AfterValidator(_axis_codes)] = "RAS"
    shape: tuple[Side, Side, Side] = (256, 256, 256)
    spacing_mm: float = Field(default=1.0, ge=0.1, le=10)
    scaling: Literal["trinat", "minimum-maximum"] = "trinat"
    slices: dict[View, Annotated[SliceAxes, AfterValidator(_each_axis_once)]] = {}

    def slice_axes(self, view: View) -> SliceAxes:
        """Return the axes of the array along which the slices of a view are cut.

        The array has the orientation `axes`.
        """
        if view in self.slices:
            return self.slices[view]
        return slice_axes(view)


Mean = Literal["arithmetic", "geometric"]
# Contrast of scans that a model is for: only in T1 is white matter brighter than cortex.
Contrast = Literal["T1", "any"]

# Default weights of the views, as in the paper (arXiv 1801.04161). The only place where these
# numbers are written. A model's own weights, under `fusion` in its model.yaml, take precedence:
# `trinat fit` fits them, and the shipped models have theirs.
DEFAULT_WEIGHTS = {View.AXIAL: 0.4, View.CORONAL: 0.4, View.SAGITTAL: 0.2}


class Fusion(_Section):
    """Fusion of views: a weighted mean of their probabilities.

    Entries of a model.yaml override the defaults. Only the ratios of weights matter, and views
    that do not run are left out.
    """

    mean: Mean = "arithmetic"
    weights: dict[View, Weight] = DEFAULT_WEIGHTS
    # The odds of CSF against background are multiplied by this: 0.5 halves them. It moves the outer
    # border of the fluid, and with it the intracranial volume.
    csf_odds: Odds = 1.0
    # For structures, by name: their probability is multiplied by this before the most probable one
    # is taken, after the prior. Above 1 a structure wins more of the voxels in doubt.
    class_odds: dict[str, ClassOdds] = {}
    # Exponent by which views count less that see thick slices from the side, and so blurred
    # (`weights_for_voxels`). 0: all scans have the same weights. Networks for parcels ignore it.
    blur_exponent: float = Field(default=0.0, ge=0, le=8, allow_inf_nan=False)


class Quality(_Section):
    """Limits of the agreement between views, calibrated for a model.

    A structure whose mean Dice between views is below the first limit of `agreement` gets the grade
    look, below the second the grade reject. `origin` says where the limits come from.
    """

    agreement: tuple[Share, Share]
    origin: str = ""

    @field_validator("agreement")
    @classmethod
    def _look_before_reject(cls, agreement: tuple[float, float]) -> tuple[float, float]:
        """Check that the limit for looking at a scan is higher than the limit for rejecting it."""
        if agreement[0] < agreement[1]:
            raise ValueError("the first limit must not be below the second")
        return agreement


class Prior(_Section):
    """Weight of the model's anatomical template where its networks are uncertain."""

    weight: PriorWeight = 1.0
    # For structures, by name, whose place or size differs more from head to head.
    per_class: dict[str, PriorWeight] = {}
    # Voxels where a class has this probability are left alone.
    certain: float = Field(default=0.97, gt=0, le=1)
    # Probability of a class at places where the template never shows it.
    floor: float = Field(default=0.005, gt=0, lt=1)


class Training(_Section):
    """Origin of the weights, and their licence."""

    data: str = ""
    licence: str = ""
    recipe: str = ""
    # Labels that other models made, of this training or of the weights that it started from.
    pseudo_labels: str = ""
    slices_seen: int | None = Field(default=None, ge=0)


class Origin(_Section):
    """In a model that joins several: the notes of a view's own model."""

    name: Name
    model_sha256: Sha256  # hash of the model.yaml that stated it
    training: Training
    not_predicted: tuple[str, ...] = ()
    metrics: dict[str, JsonValue] = {}
    versions: dict[str, str] = {}


class Description(_Section):
    """Metadata supplied by the maker of a model."""

    name: Name
    labels: Name = DEFAULT_SCHEME
    preprocessing: Preprocessing = Preprocessing()
    fusion: Fusion = Fusion()
    # Contrast of the scans that the model is for. Grades of a T1 model doubt other contrasts.
    contrast: Contrast = "T1"
    # If true, scans in which fluid and cortex are brighter than white matter (T2, PD) are shown
    # to the networks with reversed brightness, so that tissues have the order of T1.
    reverse_contrast: bool = False
    # For networks that learnt from stripped scans: the shipped model whose mask of the inside of
    # the skull strips whole heads before they see them. Stripped scans stay as they are.
    stripped_by: Name | None = None
    # Structures of the scheme that the model does not predict: they have no volume.
    not_predicted: tuple[str, ...] = ()
    # Definition of CSF: "region", a small one as in FreeSurfer's aseg and in manual labels, or
    # "intracranial", all fluid inside the skull around the brain. The two are never compared.
    csf: Csf = "region"
    quality: Quality | None = None
    prior: Prior | None = None
    training: Training = Training()
    metrics: dict[str, JsonValue] = {}
    origins: dict[View, Origin] = {}

    @model_validator(mode="after")
    def _reverses_what_it_can(self) -> Self:
        """Raise ValueError for reverse_contrast with other settings than it supports.

        Contrast must be "any", and scaling "trinat".
        """
        if not self.reverse_contrast:
            return self
        if self.contrast != "any":
            raise ValueError("reverse_contrast: only with contrast: any")
        if self.preprocessing.scaling != "trinat":
            raise ValueError("reverse_contrast: only with scaling: trinat")
        return self

    @model_validator(mode="after")
    def _strips_what_it_can(self) -> Self:
        """Raise ValueError for stripped_by unless axes and scaling are the defaults.

        The model that strips gets the same input.
        """
        usual = Preprocessing()
        given = self.preprocessing
        is_usual = (given.axes, given.scaling) == (usual.axes, usual.scaling)
        if self.stripped_by is not None and not is_usual:
            raise ValueError(
                f"stripped_by: only with axes: {usual.axes} and scaling: {usual.scaling}"
            )
        return self


class ModelInfo(Description):
    """All of model.yaml: the description, and what `save_model` adds."""

    format: Literal[1] = 1
    labels_sha256: Sha256
    precision: Precision
    architectures: dict[View, Architecture] = Field(min_length=1)
    versions: dict[str, str]
    files: dict[str, Sha256]

    @field_validator("files")
    @classmethod
    def _plain_names(cls, files: dict[str, str]) -> dict[str, str]:
        """Raise ValueError for a file name that could lead out of the model's folder."""
        for name in files:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise ValueError(f"{name!r} is not a plain file name")
        return files

    @model_validator(mode="after")
    def _weights_of_each_view(self) -> ModelInfo:
        """Raise ValueError if a file that the description requires has no checksum."""
        for view in self.architectures:
            if weights_file(view) not in self.files:
                raise ValueError(f"files: {weights_file(view)} has no SHA-256")
        if self.prior is not None and PRIOR_FILE not in self.files:
            raise ValueError(f"files: {PRIOR_FILE} has no SHA-256")
        return self


def weights_file(view: View) -> str:
    """Return the name of the file with a view's weights."""
    return f"{view.value}.safetensors"


@dataclass(frozen=True, eq=False)
class Template:
    """Anatomical template (prior.npz): the probability of each of K classes in an average head.

    `shares` (X, Y, Z, K) uint8 are probabilities times 255. `affine` (4, 4) maps their voxels to
    template millimetres. `centroids` (K, 3) are the centres of the classes in template millimetres,
    NaN for a class without a centre.
    """

    shares: NDArray[np.uint8]
    affine: NDArray[np.float64]
    centroids: NDArray[np.float64]

    def to_bytes(self) -> bytes:
        """Return the bytes of the file prior.npz."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            shares=self.shares,
            affine=self.affine,
            centroids=self.centroids,
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, classes: int, where: Path) -> Template:
        """Read a template of `classes` classes from the bytes of prior.npz; inverse of `to_bytes`.

        Raises ModelError, with the file `where`, if the data are no template or have other classes.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                sizes = [entry.file_size for entry in archive.infolist()]
            if sum(sizes) > _LARGEST_PRIOR_BYTES:
                raise ModelError("is too large for a prior", where=where)
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                # Entries that are no arrays are returned as bytes.
                shares = np.asarray(arrays["shares"])
                affine = np.asarray(arrays["affine"])
                centroids = np.asarray(arrays["centroids"])
        except ModelError:
            raise
        # numpy and zipfile may raise any exception on files of another format.
        except Exception as error:
            raise ModelError("is no prior", where=where) from error
        found = cls(shares, affine, centroids)
        is_of_these_classes = (
            shares.ndim == 4
            and shares.dtype == np.uint8
            and shares.shape[3] == classes
            and affine.shape == (4, 4)
            and centroids.shape == (classes, 3)
        )
        if not is_of_these_classes:
            raise ModelError("is a prior of other classes", where=where)
        if not found._has_a_place():
            raise ModelError("is a prior without a place", where=where)
        return found

    def _has_a_place(self) -> bool:
        """Return True if the template can be placed: it has voxels, and an invertible affine.

        No centroid may be infinite.
        """
        if self.shares.size == 0:
            return False
        if self.affine.dtype.kind != "f" or self.centroids.dtype.kind != "f":
            return False
        is_placed = np.isfinite(self.affine).all()
        # A class that is in no head has a centroid of NaN.
        is_finite = not np.isinf(self.centroids).any()
        if not is_placed or not is_finite:
            return False
        return bool(np.linalg.det(self.affine) != 0)
