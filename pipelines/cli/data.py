"""trinat data, prepare, split, suspects and phantom: datasets, slice stores and synthetic scans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import Typed, with_fields
from trinat.pipelines.cli.options import Group, say_next
from trinat.pipelines.common.option import Device, Threads
from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.jobs.progress import (
    batch_progress,
    byte_progress,
    log_lines,
    progress,
)
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.segmentation.errors import ConfigError

Store = Annotated[
    Path, typer.Argument(help="Slice store.", exists=True, file_okay=False)
]


app = typer.Typer(
    help="List, download and inspect datasets.", cls=Group, rich_markup_mode=None
)


@app.command("list")
def list_(json_: options.Json = False) -> None:
    """Print the public datasets: what they hold, their size, licence and citation.

    Example: trinat data list
    """
    from trinat.pipelines.prepare.catalogue import load_catalogue

    catalogue = load_catalogue()
    if json_:
        listed = {
            name: each.model_dump(mode="json") for name, each in catalogue.items()
        }
        typer.echo(json.dumps(listed, indent=2))
        return
    for name, dataset in catalogue.items():
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
    dataset: Annotated[
        str, typer.Argument(help="Dataset name, as printed by trinat data list.")
    ],
    root: Annotated[Path, typer.Option("--root", help="Download folder.")],
    disc: Annotated[
        list[int] | None,
        typer.Option(help="Disc to download; repeatable. Default: all."),
    ] = None,
    part: Annotated[str, typer.Option(help="oasis1: images or freesurfer.")] = "images",
    accept_terms: Annotated[
        bool,
        typer.Option(
            "--accept-terms",
            help="Confirm that you have read and accept the dataset's terms.",
        ),
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Download a dataset's archives; run the same command again to resume.

    Example: trinat data get oasis1 --disc 1 --root oasis --accept-terms
    """
    from trinat.pipelines.prepare.catalogue import load_catalogue
    from trinat.pipelines.prepare.download import CHECKSUMS, fetch

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
    store: Store,
    subject: Annotated[str, typer.Argument(help="Subject in the store.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="PNG file. Default: SUBJECT.png.")
    ] = None,
    augment: Annotated[
        int,
        typer.Option(
            min=0,
            max=48,
            help="Show this many augmented slices per view instead.",
        ),
    ] = 0,
    augmentation: Annotated[
        Path | None, typer.Option(help="YAML file with augmentation settings.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the augmentation.")
    ] = 0,
    whole_head: Annotated[
        bool,
        typer.Option(
            "--whole-head",
            help="Show the face too; by default only the brain is shown.",
        ),
    ] = False,
) -> None:
    """Write a mosaic of a subject: image, labels and overlay in three views.

    Example: trinat data show store OAS1_0001_MR1 --augment 12
    """
    from trinat.pipelines.prepare.store_pictures import show_augmented, show_subject

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


@with_fields
def prepare(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Slice store to create or update.")
    ],
    asked: Annotated[Mapping[str, Any], Typed(PrepareConfig)],
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with any of these settings (label_maps: aparc+aseg.mgz), and with "
            "extra and ignore."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Number of processes.")
    ] = 1,
    quiet: options.Quiet = False,
) -> int:
    """Resample each subject of a dataset to the working grid and cut it into slices.

    Example: trinat prepare --source oasis1 --root oasis --labels tissue4 --out store --jobs 4
    """
    from trinat.pipelines.prepare.making import prepare_store, read_config

    prepare_process()
    with log_lines(quiet), batch_progress(quiet) as finished:
        settings = read_config(config, asked)
        summary = prepare_store(settings, out, jobs=jobs, finished=finished)
    for row in summary.rows:
        has_failed = row.status == "failed"
        if has_failed or (row.reason and not quiet):
            typer.echo(f"{row.subject}: {row.status}: {row.reason}", err=has_failed)
    typer.echo(
        f"{out}: {len(summary.rows)} in, {summary.made} made, {summary.current} up to date, "
        f"{summary.failed} failed, {summary.skipped} skipped"
    )
    if not quiet:
        _print_next_split(out, settings.source)
    return summary.exit


def _print_next_split(store: Path, source: str) -> None:
    """Print the `trinat split` command that suits a new slice store, as the next step.

    Nothing is printed for fewer than three participants. `source` is the name of the dataset that
    the store was made from.
    """
    from trinat.segmentation.data.sources.registry import SOURCES
    from trinat.segmentation.data.store import Store

    labelled = Store(store).labelled
    participants = {subject.participant for subject in labelled}
    if len(participants) < 3:
        return
    training = SOURCES[source].published_training
    if not training:
        say_next("split", store, "--ratios", "8", "1", "1", "--seed", "0")
    elif any(subject.subject not in training for subject in labelled):
        say_next("split", store, "--published")
    else:
        # The published test part is missing here.
        folds = str(min(5, len(participants)))
        say_next("split", store, "--kfold", folds, "--validation", "0")


@with_fields
def split(
    store: Store,
    ratios: Annotated[
        tuple[float, float, float],
        typer.Option(help="Ratio of training, validation and test participants."),
    ] = (8, 1, 1),
    kfold: Annotated[
        int | None,
        typer.Option(
            help="Make this many splits for cross-validation instead, 3 or more; 2 with "
            "--validation 0."
        ),
    ] = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="The split that the dataset was published with (malc). With --kfold, only its "
            "training participants are divided.",
        ),
    ] = False,
    validation: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --published: number of training participants for validation. "
            "Default: 0. With --kfold, 0: no fold validates, so all but one train.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Random seed; the same seed gives the same split."),
    ] = 0,
    exclude: Annotated[
        Path | None,
        typer.Option(
            help="Text file of subjects to leave out, one a line, as trinat suspects writes it."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="JSON file. Default: STORE/split.json."),
    ] = None,
) -> None:
    """Divide a store's participants; sessions of one participant and families stay together.

    Age, sex and family are read from STORE/participants.tsv.

    Example: trinat split store --ratios 8 1 1 --seed 0
    """
    from trinat.segmentation.data.splits import read_exclusions
    from trinat.segmentation.data.splitting import split_store
    from trinat.segmentation.data.store import Store
    from trinat.segmentation.models.hardware import count_gpus

    opened = Store(store)
    for line in opened.copies:
        typer.echo(line, err=True)
    left_out = () if exclude is None else read_exclusions(exclude)
    if validation is not None and kfold is None and not published:
        raise ConfigError(
            "--validation requires --published or --kfold", remedy="use --ratios"
        )
    if validation and kfold is not None:
        raise ConfigError(
            "--validation cannot be combined with --kfold, which takes a fold for validation",
            remedy="leave it out, or give 0",
        )
    has_validation = False
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
        has_validation = has_validation or bool(split.validation)
    if out is None:
        source = opened.info.source
        folds = [] if kfold is None else ["--folds"]
        # Without a GPU, quicknat would take weeks.
        recipe = "quicknat" if count_gpus() else "finetune"
        if source == "malc":
            recipe = "manual"
        settings = []
        if recipe == "finetune" and not has_validation:
            # Unlike the other two, it refuses a split without participants for validation.
            settings = ["--set", "validation=null"]
        run = Path("runs") / source
        say_next("train", recipe, "--store", store, *folds, *settings, "--out", run)


@with_fields
def suspects(
    store: Annotated[Path, typer.Argument(help="Slice store.")],
    model: Annotated[
        str, typer.Option(help="Model to compare the labels with: a name or a folder.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Output folder. Default: STORE/suspects."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Check every n-th slice.")] = 6,
    limit: Annotated[
        float, typer.Option(min=0, help="Score above which a subject is excluded.")
    ] = 8.0,
    device: Device = "auto",
    threads: Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Find subjects whose labels are likely wrong; write a page and a list for trinat split.

    Example: trinat suspects store --model fast
    """
    from trinat.pipelines.common.models import print_licences
    from trinat.pipelines.prepare.suspects import EXCLUDE, find_suspects

    prepare_process(threads)
    print_licences([model])
    folder = store / "suspects" if out is None else out
    with progress(quiet) as shown:

        def show(done: int, total: int) -> None:
            shown.show(f"{done}/{total} subjects", done, total)

        ranked = find_suspects(
            store,
            model,
            folder,
            every=every,
            limit=limit,
            device=device,
            finished=show,
        )
    above_limit = ranked[ranked["score"] > limit]
    for subject, row in above_limit.iterrows():
        typer.echo(f"{subject}: {row['score']:.1f}, {row['why']}")
    typer.echo(folder / "suspects.html")
    if not quiet:
        say_next("split", store, "--exclude", folder / EXCLUDE)


def phantom(
    out: Annotated[Path, typer.Argument(help="Output folder.", file_okay=False)],
    subjects: Annotated[
        int, typer.Option(min=1, max=9999, help="Number of heads, all different.")
    ] = 1,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Random seed; the same seed gives the same files."),
    ] = 0,
    spacing: Annotated[
        tuple[float, float, float],
        typer.Option(help="Voxel size in mm along the array's axes, 0.3 to 10."),
    ] = (1.0, 1.0, 1.0),
    orientation: Annotated[
        str, typer.Option(help="Orientation of the array's axes, such as LIA.")
    ] = "RAS",
    oblique: Annotated[
        float, typer.Option(help="Rotate the grid by this many degrees, up to 45.")
    ] = 0.0,
    csf: Annotated[
        Literal["region", "intracranial"],
        typer.Option(
            "--csf",
            help="What the labels call CSF: a small region, as in aseg, or all fluid in the skull.",
        ),
    ] = "region",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite existing files.")
    ] = False,
) -> None:
    """Write synthetic T1 scans of a head, each with its exact segmentation.

    Example: trinat phantom heads --subjects 3 --seed 7 --spacing 0.9 0.9 1.2 --orientation LIA
    """
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
