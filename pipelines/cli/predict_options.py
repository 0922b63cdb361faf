"""Options of trinat predict, merge and demo.

Those that commands of several modules have are in `options`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

# trinat predict

Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Scans, folders, glob patterns, lists (.txt), DICOM files or zips, a BIDS dataset "
        "or a SUBJECTS_DIR."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        envvar="TRINAT_DEVICE",
        help="auto, cpu, cuda, or several GPUs: cuda:0,cuda:1 or cuda:0,1.",
    ),
]
Batch = Annotated[int | None, typer.Option(min=1, help="Number of slices per batch.")]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(help="Floating-point type that the networks compute in."),
]
Views = Annotated[
    str,
    typer.Option(
        help="Views to use, such as coronal,axial. Default: all views of the model."
    ),
]
Mirror = Annotated[
    bool,
    typer.Option("--mirror", help="Average with the prediction of the mirrored scan."),
]
Clean = Annotated[
    bool,
    typer.Option(
        "--clean", help="Keep the largest component of each structure and fill holes."
    ),
]
Format = Annotated[
    Literal["aseg", "index"],
    typer.Option(
        "--format", help="Label numbers: aseg (FreeSurfer's) or index (0 to K)."
    ),
]
Mgz = Annotated[
    bool, typer.Option("--mgz", help="Write .mgz label maps for .mgz scans.")
]
Pictures = Annotated[bool, typer.Option(help="Write a picture of each scan's labels.")]
DicomSeg = Annotated[
    bool,
    typer.Option(
        "--dicom-seg", help="Write a DICOM SEG of each scan that was given as DICOM."
    ),
]
Page = Annotated[
    bool,
    typer.Option(
        "--page", help="Write a page for each scan (HTML), to read and to print."
    ),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        help="TSV of normal volumes for the pages. Columns: structure, low_mm3, high_mm3.",
        dir_okay=False,
    ),
]
Persons = Annotated[
    Path | None,
    typer.Option(
        "--persons",
        help="Table (.tsv or .csv) with columns scan, person and date, for --longitudinal. "
        "Default: from BIDS, or from names such as OAS1_0001_MR2.",
        dir_okay=False,
    ),
]
RequireChecksum = Annotated[
    bool,
    typer.Option(
        "--require-checksum",
        help="Refuse scans in formats without a checksum (.nii, .mgh, .hdr).",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Time limit per scan, in seconds; 0: none. Default: two hours for each pass of the "
        "networks.",
    ),
]
AllowCpu = Annotated[
    bool,
    typer.Option(
        "--allow-cpu", help="Continue on the CPU if the GPU runs out of memory."
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="K/N",
        help="Process part K of N of the scans, as a task of scripts/slurm/array.sh does.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Dask cluster: local:2, tcp://host:8786, slurm, pbs, sge or lsf."
    ),
]
ClusterConfig = Annotated[
    Path | None,
    typer.Option(help="YAML file with the cluster's jobs, cores, memory and walltime."),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print only failures, scans with changed results, and the last line.",
    ),
]

# trinat merge

MergeOut = Annotated[
    Path, typer.Argument(help="The --out of the sharded trinat predict.")
]

# trinat demo

DemoOut = Annotated[
    Path, typer.Option("--out", "-o", help="Output folder.", file_okay=False)
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed of the heads.")]
Model = Annotated[str, typer.Option(help="Name of a shipped model, or a model folder.")]
