"""Options of trinat data, prepare, split and phantom.

Those that commands of several modules have are in `options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

# trinat data get

Dataset = Annotated[
    str, typer.Argument(help="Dataset name, as printed by trinat data list.")
]
GetRoot = Annotated[Path, typer.Option("--root", help="Download folder.")]
Disc = Annotated[
    list[int] | None, typer.Option(help="Disc to download; repeatable. Default: all.")
]
Part = Annotated[str, typer.Option(help="oasis1: images or freesurfer.")]
AcceptTerms = Annotated[
    bool,
    typer.Option(
        "--accept-terms",
        help="Confirm that you have read and accept the dataset's terms.",
    ),
]

# trinat data show

Store = Annotated[
    Path, typer.Argument(help="Slice store.", exists=True, file_okay=False)
]
Subject = Annotated[str, typer.Argument(help="Subject in the store.")]
ShowOut = Annotated[
    Path | None, typer.Option("--out", "-o", help="PNG file. Default: SUBJECT.png.")
]
Augment = Annotated[
    int,
    typer.Option(
        min=0,
        max=48,
        help="Show this many augmented slices per view instead.",
    ),
]
Augmentation = Annotated[
    Path | None, typer.Option(help="YAML file with augmentation settings.")
]
ShowSeed = Annotated[int, typer.Option(min=0, help="Random seed of the augmentation.")]
WholeHead = Annotated[
    bool,
    typer.Option(
        "--whole-head", help="Show the face too; by default only the brain is shown."
    ),
]

# trinat data report

ReportOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="HTML file. Default: STORE/report.html."),
]

# trinat prepare

PrepareOut = Annotated[
    Path, typer.Option("--out", "-o", help="Slice store to create or update.")
]
Source = Annotated[
    str | None,
    typer.Option(
        help="oasis1, neurite, ixi, malc, freesurfer, bids, pairs or labelmaps."
    ),
]
PrepareRoot = Annotated[
    Path | None,
    typer.Option("--root", "-i", help="Dataset folder (for pairs also its table)."),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="Label scheme: quicknat33 (default), tissue4, left4 or a TSV file."
    ),
]
Views = Annotated[
    list[str] | None,
    typer.Option(
        help="Views to cut: coronal axial sagittal. Default: all that the scheme allows."
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        help="Image to use: oasis1 t88-masked, t88, subj111, raw, freesurfer; neurite orig, norm; "
        "malc head, stripped; freesurfer a file name in mri/."
    ),
]
LabelMaps = Annotated[
    str | None,
    typer.Option(
        help="Labels to use: freesurfer a file name in mri/; bids a derivatives folder."
    ),
]
Numbering = Annotated[
    str | None,
    typer.Option(
        "--numbering",
        "--fold",  # its name in the first versions
        help="Numbering of the label maps, if not FreeSurfer's: neuromorphometrics, or a TSV file "
        "with columns first, last, name, target.",
    ),
]
SubjectsDir = Annotated[
    Path | None, typer.Option(help="FreeSurfer results of these scans (ixi).")
]
MixedHeads = Annotated[
    bool | None,
    typer.Option(
        "--mixed-heads",
        help="Take skull-stripped images too, where other subjects have whole heads.",
    ),
]
LabelWith = Annotated[
    str | None,
    typer.Option(
        "--label-with",
        help="Model that labels all scans (pseudo-labels): name of a shipped model, or a folder.",
    ),
]
CsfWith = Annotated[
    str | None,
    typer.Option(
        "--csf-with",
        help="Model whose CSF fills what labels like FreeSurfer's leave out around the brain: name "
        "of a shipped model, or a folder.",
    ),
]
Participants = Annotated[
    Path | None,
    typer.Option(
        help="Table with participant_id and any of age, sex, family (twins), or IXI's or OASIS's "
        "own; CSV, TSV or Excel."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        help="YAML file with any of these settings, and with extra and ignore."
    ),
]
FillNonfinite = Annotated[
    bool | None,
    typer.Option("--fill-nonfinite", help="Replace NaN and infinite voxels by 0."),
]
RequireChecksum = Annotated[
    bool | None,
    typer.Option(
        "--require-checksum",
        help="Refuse scans and label maps in formats without a checksum (.nii, .mgh, .hdr).",
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of processes.")]

# trinat split

Ratios = Annotated[
    tuple[float, float, float],
    typer.Option(help="Ratio of training, validation and test persons."),
]
Kfold = Annotated[
    int | None,
    typer.Option(min=3, help="Make this many splits for cross-validation instead."),
]
Published = Annotated[
    bool,
    typer.Option(
        "--published",
        help="The split that the dataset was published with (malc). With --kfold, only its "
        "training persons are divided.",
    ),
]
Validation = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="With --published: number of training persons for validation. Default: 0. With "
        "--kfold, 0: no fold validates, so all but one train.",
    ),
]
SplitSeed = Annotated[
    int, typer.Option(min=0, help="Random seed; the same seed gives the same split.")
]
Exclude = Annotated[
    Path | None,
    typer.Option(
        help="Text file of subjects to leave out, one a line, as trinat suspects writes it."
    ),
]
SplitOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="JSON file. Default: STORE/split.json."),
]

# trinat phantom

PhantomOut = Annotated[Path, typer.Argument(help="Output folder.", file_okay=False)]
Subjects = Annotated[
    int, typer.Option(min=1, max=9999, help="Number of heads, all different.")
]
PhantomSeed = Annotated[
    int, typer.Option(min=0, help="Random seed; the same seed gives the same files.")
]
Spacing = Annotated[
    tuple[float, float, float],
    typer.Option(help="Voxel size in mm along the array's axes, 0.3 to 10."),
]
Orientation = Annotated[
    str, typer.Option(help="Orientation of the array's axes, such as LIA.")
]
Oblique = Annotated[
    float, typer.Option(help="Rotate the grid by this many degrees, up to 45.")
]
PhantomCsf = Annotated[
    Literal["region", "intracranial"],
    typer.Option(
        "--csf",
        help="What the labels call CSF: a small region, as in aseg, or all fluid in the skull.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
