"""trinat data, prepare, split and phantom: datasets, slice stores and synthetic scans."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from trinat.pipelines.cli import data_options, options
from trinat.pipelines.cli.export import export
from trinat.pipelines.cli.options import ListOptions, say_next, say_nothing

app = typer.Typer(help="List, download and inspect datasets.", no_args_is_help=True)
app.command("export", cls=ListOptions)(export)


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
    dataset: data_options.Dataset,
    root: data_options.GetRoot,
    disc: data_options.Disc = None,
    part: data_options.Part = "images",
    accept_terms: data_options.AcceptTerms = False,
    quiet: options.Quiet = False,
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
    store: data_options.Store,
    subject: data_options.Subject,
    out: data_options.ShowOut = None,
    augment: data_options.Augment = 0,
    augmentation: data_options.Augmentation = None,
    seed: data_options.ShowSeed = 0,
    whole_head: data_options.WholeHead = False,
) -> None:
    """Write a mosaic of a subject: image, labels and overlay in three views.

    Example: trinat data show store OAS1_0001_MR1 --augment 12
    """
    from trinat.pipelines.data.show import show_augmented, show_subject

    path = Path(f"{subject}.png") if out is None else out
    if augment:
        show_augmented(
            store,
            subject,
            path,
            count=augment,
            config=augmentation,
            seed=seed,
        )
    else:
        show_subject(store, subject, path, whole_head=whole_head)
    typer.echo(str(path))


@app.command("report")
def report(
    store: data_options.Store,
    out: data_options.ReportOut = None,
) -> None:
    """Write an HTML page: subjects, exclusions, class volumes, intensities, outliers.

    Example: trinat data report store
    """
    from trinat.pipelines.data.report import write_report

    path = store / "report.html" if out is None else out
    write_report(store, path)
    typer.echo(str(path))


def prepare(
    out: data_options.PrepareOut,
    source: data_options.Source = None,
    root: data_options.PrepareRoot = None,
    labels: data_options.Labels = None,
    views: data_options.Views = None,
    image: data_options.Image = None,
    mixed_heads: data_options.MixedHeads = None,
    label_maps: data_options.LabelMaps = None,
    numbering: data_options.Numbering = None,
    subjects_dir: data_options.SubjectsDir = None,
    label_with: data_options.LabelWith = None,
    csf_with: data_options.CsfWith = None,
    participants: data_options.Participants = None,
    strict: options.Strict = False,
    config: data_options.Config = None,
    trust_affine: options.TrustAffine = None,
    fill_nonfinite: data_options.FillNonfinite = None,
    require_checksum: data_options.RequireChecksum = None,
    jobs: data_options.Jobs = 1,
    quiet: options.Quiet = False,
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
        "mixed_heads": mixed_heads,
        "label_maps": label_maps,
        "fold": numbering,
        "subjects_dir": subjects_dir,
        "label_with": label_with,
        "csf_with": csf_with,
        "participants": participants,
        "strict": strict or None,
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

    labelled = Store(store).labelled
    persons = {subject.person for subject in labelled}
    if len(persons) < 3:
        return
    training = SOURCES[source].published_training
    if not training:
        say_next("split", store, "--ratios", "8", "1", "1", "--seed", "0")
    elif any(subject.subject not in training for subject in labelled):
        say_next("split", store, "--published")
    else:
        # The published test part is not here.
        folds = str(min(5, len(persons)))
        say_next("split", store, "--kfold", folds, "--validation", "0")


def split(
    store: data_options.Store,
    ratios: data_options.Ratios = (8, 1, 1),
    kfold: data_options.Kfold = None,
    published: data_options.Published = False,
    validation: data_options.Validation = None,
    seed: data_options.SplitSeed = 0,
    exclude: data_options.Exclude = None,
    strict: options.Strict = False,
    out: data_options.SplitOut = None,
) -> None:
    """Divide a store's persons; sessions of one person and families stay together.

    Age, sex and family are read from STORE/participants.tsv.

    Example: trinat split store --ratios 8 1 1 --seed 0
    """
    from trinat.pipelines.common.understood import say_of_table
    from trinat.segmentation.data.splits import read_exclusions
    from trinat.segmentation.data.splitting import split_store
    from trinat.segmentation.data.store import Store
    from trinat.segmentation.errors import ConfigError

    opened = Store(store)
    people = opened.people
    table = store / "participants.tsv"
    say = partial(typer.echo, err=True)
    say_of_table(table, people.notes, people.doubts, say, strict=strict)
    for line in opened.copies:
        say(line)
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
    out: data_options.PhantomOut,
    subjects: data_options.Subjects = 1,
    seed: data_options.PhantomSeed = 0,
    spacing: data_options.Spacing = (1.0, 1.0, 1.0),
    orientation: data_options.Orientation = "RAS",
    oblique: data_options.Oblique = 0.0,
    csf: data_options.PhantomCsf = "region",
    force: data_options.Force = False,
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
        csf=csf,
        force=force,
    ):
        typer.echo(f"{image} {labels.name}")
