"""Settings of `trinat prepare` and `trinat data export`; their fields are the options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from trinat.pipelines.common.option import Option, TrustAffine, as_tuple
from trinat.segmentation.labels import DEFAULT_SCHEME, SHIPPED_SCHEMES


@dataclass(frozen=True)
class PrepareOptions:
    """Settings of a store by the names that `PrepareConfig` has for them.

    What is not typed is None: there the file of --config counts, or the usual value.
    """

    source: Annotated[
        str | None,
        Option("oasis1, neurite, ixi, malc, freesurfer, bids, pairs or labelmaps."),
    ] = None
    root: Annotated[
        Path | None,
        Option("Dataset folder (for pairs also its table).", names=("--root", "-i")),
    ] = None
    labels: Annotated[
        str | None,
        Option(
            f"Label scheme: {DEFAULT_SCHEME} (default), {', '.join(SHIPPED_SCHEMES[1:])} "
            "or a TSV file."
        ),
    ] = None
    views: Annotated[
        list[str] | None,
        Option(
            "Views to cut: coronal axial sagittal. Default: all that the scheme allows."
        ),
    ] = None
    image: Annotated[
        str | None,
        Option(
            "Image to use: oasis1 t88-masked, t88, subj111, raw, freesurfer; neurite orig, "
            "norm; malc head, stripped; freesurfer a file name in mri/."
        ),
    ] = None
    mixed_heads: Annotated[
        bool | None,
        Option(
            "Take skull-stripped images too, where other subjects have whole heads.",
            names=("--mixed-heads",),
        ),
    ] = None
    label_maps: Annotated[
        str | None,
        Option(
            "Labels to use: freesurfer a file name in mri/; bids a derivatives folder."
        ),
    ] = None
    fold: Annotated[
        str | None,
        Option(
            "Numbering of the label maps, if not FreeSurfer's: neuromorphometrics, or a TSV "
            "file with columns first, last, name, target.",
            names=("--numbering", "--fold"),  # the second in the first versions
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
    strict: Annotated[
        bool | None,
        Option(
            "Stop if anything in a table of persons is not understood (`trinat people TABLE`).",
            names=("--strict",),
        ),
    ] = None
    trust_affine: TrustAffine = None
    fill_nonfinite: Annotated[
        bool | None,
        Option("Replace NaN and infinite voxels by 0.", names=("--fill-nonfinite",)),
    ] = None
    require_checksum: Annotated[
        bool | None,
        Option(
            "Refuse scans and label maps in formats without a checksum (.nii, .mgh, .hdr).",
            names=("--require-checksum",),
        ),
    ] = None


@dataclass(frozen=True)
class ExportSettings:
    """Which slices of a store go where; without `views`, `part` and `subjects` all do.

    `split` is the file of the split, without it STORE/split.json if that is there. With
    `labelled`, slices without a structure are left out.
    """

    store: Path
    out: Annotated[
        Path,
        Option("Output folder: empty, or of an earlier export.", names=("--out", "-o")),
    ]
    format: Annotated[
        Literal["png"],
        Option("png: 16-bit grey images, and labels as class indices with a palette."),
    ] = "png"
    views: Annotated[
        tuple[str, ...],
        Option(
            "Views: coronal axial sagittal. Default: all of the store.",
            typed=list[str] | None,
            parse=as_tuple,
        ),
    ] = ()
    part: Annotated[
        Literal["train", "validation", "test"] | None,
        Option("Part of the split. Default: all subjects."),
    ] = None
    subjects: Annotated[
        tuple[str, ...],
        Option("Subjects. Default: all.", typed=list[str] | None, parse=as_tuple),
    ] = ()
    split: Annotated[
        Path | None,
        Option("File of the split. Default: STORE/split.json, if it is there."),
    ] = None
    labelled: Annotated[bool, Option("Leave out slices without a structure.")] = False
