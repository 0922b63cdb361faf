"""Settings of `trinat prepare`: keys of its configuration file, and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trinat.pipelines.common.option import Option, Strict, TrustAffine
from trinat.segmentation.labels import DEFAULT_SCHEME, SHIPPED_SCHEMES

# A network halves a slice four times.
Side = Annotated[int, Field(ge=32, le=256, multiple_of=16)]


class PrepareConfig(BaseModel):
    """Settings that determine the content of a store; `--config FILE` may have any of them.

    Options that are not given on the command line leave the value of the file, or the default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Annotated[
        str,
        Option("oasis1, neurite, ixi, malc, freesurfer, bids, pairs or labelmaps."),
    ]
    root: Annotated[
        Path,
        Option("Dataset folder (for pairs also its table).", names=("--root", "-i")),
    ]
    labels: Annotated[
        str,
        Option(
            f"Label scheme: {DEFAULT_SCHEME} (default), {', '.join(SHIPPED_SCHEMES[1:])} "
            "or a TSV file."
        ),
    ] = DEFAULT_SCHEME
    views: Annotated[
        tuple[Literal["coronal", "axial", "sagittal"], ...] | None,
        Option(
            "Views to cut: coronal axial sagittal. Default: all that the scheme allows.",
            typed=list[str] | None,
        ),
    ] = None
    # Size of the working grid, in voxels of 1 mm.
    grid: tuple[Side, Side, Side] = (256, 256, 256)
    image: Annotated[
        str | None,
        Option(
            "Image to use: oasis1 t88-masked, t88, subj111, raw, freesurfer; neurite orig, "
            "norm, aligned_orig, aligned_norm; malc head, stripped; freesurfer a file name in "
            "mri/; pairs a folder."
        ),
    ] = None
    mixed_heads: Annotated[
        bool,
        Option(
            "Take skull-stripped images too, where other subjects have whole heads."
        ),
    ] = False
    label_maps: Annotated[
        str | None,
        Option(
            "Labels to use: freesurfer a file name in mri/; bids a derivatives folder; pairs a "
            "folder."
        ),
    ] = None
    numbering: Annotated[
        str | None,
        Option(
            "Numbering of the label maps, if not FreeSurfer's: neuromorphometrics, or a TSV "
            "file with columns first, last, name, target."
        ),
    ] = None
    subjects_dir: Annotated[
        Path | None, Option("FreeSurfer results of these scans (ixi).")
    ] = None
    label_with: Annotated[
        str | None,
        Option(
            "Model that labels all scans (pseudo-labels): name of a shipped model, or a "
            "folder."
        ),
    ] = None
    csf_with: Annotated[
        str | None,
        Option(
            "Model whose CSF fills what labels like FreeSurfer's leave out around the brain: "
            "name of a shipped model, or a folder."
        ),
    ] = None
    participants: Annotated[
        Path | None,
        Option(
            "Table with participant_id and any of age, sex, family (twins), or IXI's or "
            "OASIS's own; CSV, TSV or Excel."
        ),
    ] = None
    strict: Strict = False
    # Maps numbers of the label maps to FreeSurfer numbers.
    extra: dict[int, int] = Field(default_factory=dict)
    # Label numbers that become background.
    ignore: tuple[int, ...] = ()
    trust_affine: TrustAffine = None
    fill_nonfinite: Annotated[
        bool,
        Option("Replace NaN and infinite voxels by 0."),
    ] = False
    require_checksum: Annotated[
        bool,
        Option(
            "Refuse scans and label maps in formats without a checksum (.nii, .mgh, .hdr)."
        ),
    ] = False

    @model_validator(mode="after")
    def _take_csf_from_one_model(self) -> PrepareConfig:
        """Raise ValueError for two sources of CSF: a model that labels all scans finds CSF, too."""
        if self.label_with is not None and self.csf_with is not None:
            raise ValueError("give one of label_with and csf_with")
        return self
