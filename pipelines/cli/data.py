"""trinat data, prepare, split and phantom: datasets, slice stores and synthetic scans."""

from __future__ import annotations

from pathlib import Path

import typer

from trinat.pipelines.cli.export import export
from trinat.pipelines.cli.options import (
    ListOptions,
    Quiet,
    TrustAffine,
    say_next,
    say_nothing,
)

app = typer.Typer(help="List, download and inspect datasets.", no_args_is_help=True)
app.command("export", cls=ListOptions)(export)

_STORE = typer.Argument(help="Slice store.", exists=True, file_okay=False)


@app.command("list")
def list_() -> None:
    """Print the public datasets: what they hold, their size, licence and citation.

    Example: trinat data list
    """
    from trinat.pipelines.data.catalogue import load_catalogue

    for name, dataset in load_catalogue().items():
        parts = []
        for archive in dataset.archives:
            if archive.discs > 1:
                parts.append(f"{archive.part} (discs 1-{archive.discs})")
            else:
                parts.append(archive.part)
        rows = {
            "holds": dataset.holds,
            "size": dataset.size,
            "parts": ", ".join(parts),
            "licence": dataset.licence,
            "terms": dataset.terms,
            "cite": dataset.citation,
            "get": dataset.get,
        }
        typer.echo(f"{name}: {dataset.title}")
        for label, text in rows.items():
            if text:
                typer.echo(f"  {label:8}{text}")


@app.command("get")
def get(
    dataset: str = typer.Argument(help="Dataset name, as printed by trinat data list."),
    root: Path = typer.Option(..., "--root", help="Download folder."),
    disc: list[int] = typer.Option(
        None, help="Disc to download; repeatable. Default: all."
    ),
    part: str = typer.Option("images", help="oasis1: images or freesurfer."),
    accept_terms: bool = typer.Option(
        False,
        "--accept-terms",
        help="Confirm that you have read and accept the dataset's terms.",
    ),
    quiet: Quiet = False,
) -> None:
    """Download a dataset's archives; run the same command again to resume.

    Example: trinat data get oasis1 --disc 1 --root oasis --accept-terms
    """
    from trinat.pipelines.common.progress import byte_progress
    from trinat.pipelines.data.catalogue import load_catalogue
    from trinat.pipelines.data.download import CHECKSUMS, fetch
    from trinat.segmentation.errors import ConfigError

    catalogue = load_catalogue()
    if dataset not in catalogue:
        raise ConfigError(
            f"no dataset {dataset!r}", remedy=f"choose from {', '.join(catalogue)}"
        )
    entry = catalogue[dataset]
    files = entry.files(part=part, discs=tuple(disc or ()))
    if not accept_terms:
        what = f"{entry.title} has terms of use ({entry.licence}): {entry.terms}"
        raise ConfigError(what, remedy="read them, then add --accept-terms")
    for remote in files:
        with byte_progress(remote.name, quiet) as progress:
            fetched = fetch(remote, root, progress=progress)
        how = "already downloaded" if fetched.was_there else "downloaded"
        source = f"not published; saved in {CHECKSUMS}"
        if fetched.published:
            source = "as published"
        typer.echo(f"{fetched.path}: {how}, {fetched.checksum} ({source})")


@app.command("show")
def show(
    store: Path = _STORE,
    subject: str = typer.Argument(help="Subject in the store."),
    out: Path = typer.Option(
        None, "--out", "-o", help="PNG file. Default: SUBJECT.png."
    ),
    augment: int = typer.Option(
        0, min=0, max=48, help="Show this many augmented slices per view instead."
    ),
    augmentation: Path = typer.Option(
        None, help="YAML file with augmentation settings."
    ),
    seed: int = typer.Option(0, min=0, help="Random seed of the augmentation."),
    whole_head: bool = typer.Option(
        False,
        "--whole-head",
        help="Show the face too; by default only the brain is shown.",
    ),
) -> None:
    """Write a mosaic of a subject: image, labels and overlay in three views.

    Example: trinat data show store OAS1_0001_MR1 --augment 12
    """
    from trinat.pipelines.data.show import show_augmented, show_subject

    path = Path(f"{subject}.png") if out is None else out
    if augment:
        show_augmented(
            store, subject, path, count=augment, config=augmentation, seed=seed
        )
    else:
        show_subject(store, subject, path, whole_head=whole_head)
    typer.echo(str(path))


@app.command("report")
def report(
    store: Path = _STORE,
    out: Path = typer.Option(
        None, "--out", "-o", help="HTML file. Default: STORE/report.html."
    ),
) -> None:
    """Write an HTML page: subjects, exclusions, class volumes, intensities, outliers.

    Example: trinat data report store
    """
    from trinat.pipelines.data.report import write_report

    path = store / "report.html" if out is None else out
    write_report(store, path)
    typer.echo(str(path))


def prepare(
    out: Path = typer.Option(
        ..., "--out", "-o", help="Slice store to create or update."
    ),
    source: str = typer.Option(
        None, help="oasis1, neurite, ixi, malc, freesurfer, bids, pairs or labelmaps."
    ),
    root: Path = typer.Option(
        None, "--root", "-i", help="Dataset folder (for pairs also its table)."
    ),
    labels: str = typer.Option(
        None, help="Label scheme: quicknat33 (default), tissue4, left4 or a TSV file."
    ),
    views: list[str] = typer.Option(
        None,
        help="Views to cut: coronal axial sagittal. Default: all that the scheme allows.",
    ),
    image: str = typer.Option(
        None,
        help="Image to use: oasis1 t88-masked, t88, subj111, raw, freesurfer; neurite orig, norm; "
        "malc head, stripped; freesurfer a file name in mri/.",
    ),
    label_maps: str = typer.Option(
        None,
        help="Labels to use: freesurfer a file name in mri/; bids a derivatives folder.",
    ),
    fold: str = typer.Option(
        None,
        help="Numbering of the label maps, if not FreeSurfer's: neuromorphometrics, or a TSV file "
        "with columns first, last, name, target.",
    ),
    subjects_dir: Path = typer.Option(
        None, help="FreeSurfer results of these scans (ixi)."
    ),
    label_with: str = typer.Option(
        None,
        "--label-with",
        help="Model that labels all scans (pseudo-labels): name of a shipped model, or a folder.",
    ),
    participants: Path = typer.Option(
        None,
        help="Table with participant_id and any of age, sex, family (twins), or IXI's or OASIS's "
        "own; CSV, TSV or Excel.",
    ),
    config: Path = typer.Option(
        None, help="YAML file with any of these settings, and with extra and ignore."
    ),
    trust_affine: TrustAffine = None,
    # Without these options, the config's settings count.
    fill_nonfinite: bool = typer.Option(
        None, "--fill-nonfinite", help="Replace NaN and infinite voxels by 0."
    ),
    require_checksum: bool = typer.Option(
        None,
        "--require-checksum",
        help="Refuse scans and label maps in formats without a checksum (.nii, .mgh, .hdr).",
    ),
    jobs: int = typer.Option(1, "--jobs", "-j", min=1, help="Number of processes."),
    quiet: Quiet = False,
) -> int:
    """Resample each subject of a dataset to the working grid and cut it into slices.

    Example: trinat prepare --source oasis1 --root oasis --labels tissue4 --out store --jobs 4
    """
    from trinat.pipelines.common.process import prepare_process
    from trinat.pipelines.common.progress import batch_progress
    from trinat.pipelines.data.prepare import prepare_store, read_config

    prepare_process()
    given = {
        "source": source,
        "root": root,
        "labels": labels,
        "views": views or None,
        "image": image,
        "label_maps": label_maps,
        "fold": fold,
        "subjects_dir": subjects_dir,
        "label_with": label_with,
        "participants": participants,
        "trust_affine": trust_affine,
        "fill_nonfinite": fill_nonfinite,
        "require_checksum": require_checksum,
    }
    say = say_nothing if quiet else typer.echo
    with batch_progress(quiet) as finished:
        settings = read_config(config, given)
        summary = prepare_store(settings, out, jobs=jobs, say=say, finished=finished)
    for row in summary.rows:
        has_failed = row.status == "failed"
        if has_failed or (row.reason and not quiet):
            typer.echo(f"{row.subject}: {row.status}: {row.reason}", err=has_failed)
    typer.echo(
        f"{out}: {len(summary.rows)} in, {summary.made} made, {summary.current} up to date, "
        f"{summary.failed} failed, {summary.skipped} skipped"
    )
    if not quiet:
        _say_split(out, settings.source)
    return summary.exit


def _say_split(store: Path, source: str) -> None:
    """Print the command that splits a store of this source, if it has a person for each part."""
    from trinat.segmentation.data.sources.registry import SOURCES
    from trinat.segmentation.data.store import Store

    persons = {subject.person for subject in Store(store).labelled}
    if len(persons) < 3:
        return
    if SOURCES[source].published_training:
        say_next("split", store, "--published", "--validation", "2")
    else:
        say_next("split", store, "--ratios", "8", "1", "1", "--seed", "0")


def split(
    store: Path = _STORE,
    ratios: tuple[float, float, float] = typer.Option(
        (8, 1, 1), help="Ratio of training, validation and test persons."
    ),
    kfold: int = typer.Option(
        None, min=3, help="Make this many splits for cross-validation instead."
    ),
    published: bool = typer.Option(
        False,
        "--published",
        help="The split that the dataset was published with (malc). With --kfold, only its "
        "training persons are divided.",
    ),
    validation: int = typer.Option(
        None,
        min=0,
        help="With --published: number of training persons for validation. Default: 0. With "
        "--kfold, 0: no fold validates, so all but one train.",
    ),
    seed: int = typer.Option(
        0, min=0, help="Random seed; the same seed gives the same split."
    ),
    exclude: Path = typer.Option(
        None,
        help="Text file of subjects to leave out, one a line, as trinat suspects writes it.",
    ),
    out: Path = typer.Option(
        None, "--out", "-o", help="JSON file. Default: STORE/split.json."
    ),
) -> None:
    """Divide a store's persons; sessions of one person and families stay together.

    Age, sex and family are read from STORE/participants.tsv.

    Example: trinat split store --ratios 8 1 1 --seed 0
    """
    from trinat.segmentation.data.splits import read_exclusions
    from trinat.segmentation.data.splitting import split_store
    from trinat.segmentation.data.store import Store
    from trinat.segmentation.errors import ConfigError

    left_out = () if exclude is None else read_exclusions(exclude)
    if validation is not None and kfold is None and not published:
        raise ConfigError("--validation without --published", remedy="use --ratios")
    if validation and kfold is not None:
        raise ConfigError(
            "--kfold has a fold for validation", remedy="give --validation 0 or none"
        )
    for path, split in split_store(
        store,
        ratios=ratios,
        folds=kfold,
        seed=seed,
        out=out,
        exclude=left_out,
        published=published,
        validation=validation,
    ):
        typer.echo(
            f"{path}: {len(split.train)} train, {len(split.validation)} validation, "
            f"{len(split.test)} test"
        )
    if out is None:
        run = Path("runs") / Store(store).info.source
        folds = [] if kfold is None else ["--folds"]
        recipe = _recipe_for(Store(store).info.source)
        say_next("train", recipe, "--store", store, *folds, "--out", run)


def _recipe_for(source: str) -> str:
    """The recipe to propose for a store of a dataset."""
    from trinat.segmentation.models.hardware import count_gpus

    if source == "malc":
        return "manual"
    # Without a GPU quicknat would take weeks.
    return "quicknat" if count_gpus() else "finetune"


def phantom(
    out: Path = typer.Argument(help="Output folder.", file_okay=False),
    subjects: int = typer.Option(
        1, min=1, max=9999, help="Number of heads, all different."
    ),
    seed: int = typer.Option(
        0, min=0, help="Random seed; the same seed gives the same files."
    ),
    spacing: tuple[float, float, float] = typer.Option(
        (1.0, 1.0, 1.0), help="Voxel size in mm along the array's axes, 0.3 to 10."
    ),
    orientation: str = typer.Option(
        "RAS", help="Orientation of the array's axes, such as LIA."
    ),
    oblique: float = typer.Option(
        0.0, help="Rotate the grid by this many degrees, up to 45."
    ),
    force: bool = typer.Option(False, "--force", help="Overwrite existing files."),
) -> None:
    """Write synthetic T1 scans of a head, each with its exact segmentation.

    Example: trinat phantom heads --subjects 3 --seed 7 --spacing 0.9 0.9 1.2 --orientation LIA
    """
    from trinat.pipelines.common.process import prepare_process
    from trinat.pipelines.demo import write_phantoms

    prepare_process()
    for image, labels in write_phantoms(
        out,
        subjects=subjects,
        seed=seed,
        spacing_mm=spacing,
        orientation=orientation.upper(),
        oblique_deg=oblique,
        force=force,
    ):
        typer.echo(f"{image} {labels.name}")
