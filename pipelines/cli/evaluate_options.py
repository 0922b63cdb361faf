"""Options of trinat evaluate, report and people.

Those that commands of several modules have are in `options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

# Both

RatingsFile = Annotated[
    Path | None,
    typer.Option(
        "--ratings",
        help="ratings.tsv of trinat view: leave out rejected scans and structures, and write "
        "raters.csv (agreement, Cohen's kappa).",
    ),
]
Jobs = Annotated[
    int | None, typer.Option(help="Number of processes. Default: one per processor.")
]

# trinat evaluate

Truth = Annotated[
    Path | None, typer.Option("--truth", help="True label maps: a folder or a file.")
]
Pred = Annotated[
    list[Path],
    typer.Option(
        "--pred", "-i", help="Predicted label maps; repeat it to compare models."
    ),
]
ModelName = Annotated[
    list[str] | None,
    typer.Option("--model-name", help="Display name of a model, one for each --pred."),
]
EvaluateLabels = Annotated[
    str,
    typer.Option("--labels", help="Label scheme to compare in: a name or a TSV file."),
]
Mapping = Annotated[
    Path | None,
    typer.Option(
        "--mapping",
        help="TSV that translates label numbers which are not FreeSurfer's. Columns: number, "
        "freesurfer, and optionally of (truth, prediction or both).",
    ),
]
Numbering = Annotated[
    str | None,
    typer.Option(
        "--numbering",
        "--fold",  # its name in the first versions
        help="Numbering of the true label maps, if not FreeSurfer's: neuromorphometrics, or a TSV "
        "file with columns first, last, name, target. A store has its own numbering.",
    ),
]
NumberingPred = Annotated[
    list[str] | None,
    typer.Option(
        "--numbering-pred",
        "--fold-pred",
        help="The same for predictions, which have FreeSurfer's numbers by default: one for all, "
        "or one for each --pred (freesurfer, neuromorphometrics or a TSV file).",
    ),
]
EvaluateImages = Annotated[
    Path | None, typer.Option("--images", help="T1 scans, to show the worst cases on.")
]
Resample = Annotated[
    bool,
    typer.Option(
        "--resample", help="Resample predictions on another grid to the truth's grid."
    ),
]
NotPredicted = Annotated[
    list[str] | None,
    typer.Option(
        "--not-predicted",
        help="Structure that the models cannot predict, such as CSF; repeatable. "
        "For predictions made by trinat it is read from their folder.",
    ),
]
TruthCsf = Annotated[
    Literal["region", "intracranial"] | None,
    typer.Option(
        "--csf",
        help="What the truth calls CSF: a small region, as in aseg (default), or all fluid in the "
        "skull. CSF that is something else is not compared.",
    ),
]
ShowHeads = Annotated[
    bool,
    typer.Option(
        "--show-heads", help="Show whole heads including faces, not only the brain."
    ),
]
TablesOnly = Annotated[
    bool,
    typer.Option("--tables-only", help="Write tables only, without figures and page."),
]
Latex = Annotated[
    bool,
    typer.Option(
        "--latex",
        help="Also write structures.tex: Dice, IoU and distances for a paper.",
    ),
]
Csv = Annotated[
    bool,
    typer.Option(
        "--csv", help="Also write structures.csv: the numbers of structures.tex."
    ),
]

# trinat report

Predictions = Annotated[
    Path, typer.Argument(help="Label maps: a folder, or a BIDS derivative.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Output folder. Default: PREDICTIONS/report."),
]
ReportLabels = Annotated[str, typer.Option(help="Label scheme: a name or a TSV file.")]
Participants = Annotated[
    Path | None,
    typer.Option(
        "--participants",
        help="Table with sex, age, group and site: participants.tsv, or IXI's or OASIS's own.",
    ),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        help="TSV of normal volumes. Columns: structure, low_mm3, high_mm3, and optionally sex, "
        "age_from, age_to.",
    ),
]
Adjust = Annotated[
    Literal["residual", "proportion"] | None,
    typer.Option(
        "--adjust",
        help="Adjust volumes for the intracranial volume: residual (of a regression over the "
        "group) or proportion.",
    ),
]
ReportImages = Annotated[
    Path | None, typer.Option("--images", help="T1 scans, for pictures.")
]

# trinat people

Table = Annotated[
    Path,
    typer.Argument(help="Table of persons: participants.tsv, or IXI's or OASIS's own."),
]
Results = Annotated[
    Path | None,
    typer.Argument(help="Label maps, as for trinat report: which row each one has."),
]
