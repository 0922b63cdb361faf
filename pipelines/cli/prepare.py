"""trinat prepare: a dataset becomes a slice store."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer


def command(
    out: Path = typer.Option(..., "--out", help="The slice store to make or bring up to date."),
    source: str = typer.Option(
        None,
        help="oasis1, neurite, ixi, freesurfer, bids, pairs or labelmaps.",
    ),
    root: Path = typer.Option(None, help="Folder of the dataset (pairs: or its table)."),
    labels: str = typer.Option(
        None, help="Label scheme: quicknat33 (default), tissue4, left4 or a TSV file."
    ),
    views: list[str] = typer.Option(
        None, help="Views to cut: coronal axial sagittal (default: all that the scheme can have)."
    ),
    image: str = typer.Option(
        None,
        help="Which image: oasis1 t88-masked, t88, subj111, raw, freesurfer; neurite orig, norm; "
        "freesurfer a name in mri/.",
    ),
    label_maps: str = typer.Option(
        None, help="Which labels: freesurfer a name in mri/; bids a folder of derivatives."
    ),
    subjects_dir: Path = typer.Option(None, help="FreeSurfer results of these scans (ixi)."),
    participants: Path = typer.Option(
        None, help="Table with participant_id and any of age, sex, family (twins)."
    ),
    config: Path = typer.Option(None, help="YAML file with any of these settings, extra, ignore."),
    trust_affine: Literal["sform", "qform", "header"] | None = typer.Option(
        None, "--trust-affine", help="What to believe where a header's two forms disagree."
    ),
    fill_nonfinite: bool = typer.Option(
        None, "--fill-nonfinite", help="NaN and infinite voxels become 0."
    ),
    require_checksum: bool = typer.Option(
        None,
        "--require-checksum",
        help="Refuse scans and label maps in formats without one (.nii, .mgh, .hdr).",
    ),
    jobs: int = typer.Option(1, "--jobs", "-j", min=1, help="Subjects at a time."),
    export: str = typer.Option(None, help="png: also write all slices as pictures."),
    from_png: Path = typer.Option(None, help="Make the store from such pictures instead."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print failures and the sum alone."),
) -> int:
    """Bring every subject of a dataset to the working grid and cut it into slices.

    Example: trinat prepare --source oasis1 --root oasis --labels tissue4 --out store --jobs 4
    """
    from pipelines.cli.progress import batch_progress
    from pipelines.common.process import prepare_process
    from pipelines.data.prepare import export as export_slices
    from pipelines.data.prepare import read_config, run, run_from_png
    from segmentation.errors import ConfigError

    prepare_process()
    if export not in (None, "png"):
        raise ConfigError(f"slices are not exported as {export!r}", remedy="use --export png")
    say = (lambda line: None) if quiet else typer.echo
    with batch_progress(quiet) as finished:
        if from_png is not None:
            summary = run_from_png(from_png, out, jobs=jobs, finished=finished)
        else:
            given = {
                "source": source,
                "root": root,
                "labels": labels,
                "views": views or None,
                "image": image,
                "label_maps": label_maps,
                "subjects_dir": subjects_dir,
                "participants": participants,
                "trust_affine": trust_affine,
                "fill_nonfinite": fill_nonfinite,
                "require_checksum": require_checksum,
            }
            settings = read_config(config, given)
            summary = run(settings, out, jobs=jobs, say=say, finished=finished)
    if export:
        export_slices(out, say)
    for row in summary.rows:
        if row.status == "failed" or (row.reason and not quiet):
            typer.echo(f"{row.subject}: {row.status}: {row.reason}", err=row.status == "failed")
    typer.echo(
        f"{out}: {len(summary.rows)} in, {summary.made} made, {summary.current} up to date, "
        f"{summary.failed} failed, {summary.skipped} skipped"
    )
    return summary.exit
