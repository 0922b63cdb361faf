"""Options of the commands on model folders, from trinat bundle to trinat labels.

Those that commands of several modules have are in `options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

# trinat bundle

Sources = Annotated[
    list[Path], typer.Argument(help="Run folders of trinat train, or model folders.")
]
Name = Annotated[
    str | None, typer.Option(help="Name of the model. Default: name of the folder.")
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="File written by trinat fuse-weights, or: default. Default: from the sources."
    ),
]
BundleLicence = Annotated[
    str, typer.Option(help="Licence of the weights, if a source states none.")
]
Prior = Annotated[
    Path | None,
    typer.Option(
        help="Folder of label maps to make the model's anatomical prior from."
    ),
]
Ensemble = Annotated[
    bool,
    typer.Option(
        "--ensemble", help="Sources of the same view become members whose mean counts."
    ),
]

# trinat calibrate

CalibrateModel = Annotated[str, typer.Argument(help="Model folder.")]
CalibrateScans = Annotated[
    list[Path] | None,
    typer.Argument(
        help="FreeSurfer subject folders to test the limits on; they set no limits."
    ),
]

# trinat export

ExportModel = Annotated[
    str, typer.Argument(help="Name of a shipped model, or a model folder.")
]
ExportOut = Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")]
ExportFormat = Annotated[str, typer.Option("--format", help="onnx or monai-bundle.")]

# trinat fuse-weights

FuseWeightsModel = Annotated[
    str, typer.Argument(help="Model folder; with --out also a shipped model's name.")
]
FuseWeightsScans = Annotated[
    Path, typer.Option("--scans", "-i", help="T1 scans not used in training.")
]
Truth = Annotated[Path, typer.Option("--truth", help="Their true label maps.")]
FuseWeightsOut = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="Write the weights to this file; do not change the model."
    ),
]
Mapping = Annotated[
    Path | None,
    typer.Option(
        "--mapping",
        help="TSV that translates label numbers which are not FreeSurfer's. "
        "Columns: number, freesurfer.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed of the sampled voxels.")]

# trinat fit-odds

FitOddsModel = Annotated[
    str, typer.Argument(help="Model: name of a shipped model, or a folder.")
]
FitOddsScans = Annotated[
    Path, typer.Option("--scans", "-i", help="Scans not used in training.")
]
Numbering = Annotated[
    str | None,
    typer.Option(
        help="Numbering of the true label maps, if not FreeSurfer's: neuromorphometrics, or a TSV "
        "file with columns first, last, name, target."
    ),
]

# trinat import-weights

File = Annotated[
    Path,
    typer.Argument(exists=True, dir_okay=False, help="File written by torch.save."),
]
View = Annotated[
    Literal["coronal", "axial", "sagittal"],
    typer.Option(help="View that it was trained on."),
]
Labels = Annotated[str, typer.Option(help="Label scheme of its classes.")]
ImportWeightsLicence = Annotated[str, typer.Option(help="Licence of the weights.")]

# trinat labels

LabelsFormat = Annotated[
    Literal["freesurfer", "itksnap", "slicer", "fsleyes"],
    typer.Option("--format", help="Program to write for."),
]
Scheme = Annotated[
    str, typer.Option("--labels", help="Label scheme: a name or TSV file.")
]
Index = Annotated[
    bool,
    typer.Option(
        "--index", help="Numbers 0 to K, as trinat predict --format index writes them."
    ),
]
LabelsOut = Annotated[
    Path | None, typer.Option("--out", "-o", help="File to write. Default: print.")
]
