"""trinat data: which datasets there are, fetching them, and looking at what was made of them."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(help="List, fetch and look at datasets.", no_args_is_help=True)


@app.command("list")
def list_() -> int:
    """Print the public datasets: what they hold, their size, licence and citation.

    Example: trinat data list
    """
    from pipelines.common.exits import Exit
    from pipelines.data.catalogue import load_catalogue

    for name, dataset in load_catalogue().items():
        parts = ", ".join(
            f"{archive.part} (discs 1-{archive.discs})" if archive.discs > 1 else archive.part
            for archive in dataset.archives
        )
        typer.echo(f"{name}: {dataset.title}")
        for label, text in (
            ("holds", dataset.holds),
            ("size", dataset.size),
            ("parts", parts),
            ("licence", dataset.licence),
            ("terms", dataset.terms),
            ("cite", dataset.citation),
        ):
            typer.echo(f"  {label:8}{text}")
    return Exit.OK


@app.command("get")
def get(
    dataset: str = typer.Argument(help="A name that `trinat data list` prints."),
    root: Path = typer.Option(..., "--root", help="Folder to keep the archives in."),
    disc: list[int] = typer.Option(None, help="Only these discs (default: all)."),
    part: str = typer.Option("images", help="oasis1: images or freesurfer."),
    accept_terms: bool = typer.Option(
        False, "--accept-terms", help="You have read the dataset's terms and keep to them."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress bar."),
) -> int:
    """Fetch a dataset's archives; an interrupted download is resumed by the same command.

    Example: trinat data get oasis1 --disc 1 --root oasis --accept-terms
    """
    from pipelines.cli.progress import byte_progress
    from pipelines.common.exits import Exit
    from pipelines.data.catalogue import load_catalogue
    from pipelines.data.download import CHECKSUMS, fetch
    from segmentation.errors import ConfigError

    catalogue = load_catalogue()
    if dataset not in catalogue:
        raise ConfigError(f"no dataset {dataset!r}", remedy=f"name one of {', '.join(catalogue)}")
    entry = catalogue[dataset]
    files = entry.files(part=part, discs=tuple(disc or ()))
    if not accept_terms:
        raise ConfigError(
            f"{entry.title} comes under terms ({entry.licence}): {entry.terms}",
            remedy="read them, then add --accept-terms",
        )
    for remote in files:
        with byte_progress(remote.name, quiet) as progress:
            fetched = fetch(remote, root, progress=progress)
        if fetched.published:
            known = "as published"
        else:
            known = f"none is published; recorded in {CHECKSUMS} as the measure from now on"
        there = "was there" if fetched.was_there else "fetched"
        typer.echo(f"{fetched.path}: {there}, {fetched.checksum} ({known})")
    return Exit.OK


@app.command("show")
def show(
    store: Path = typer.Argument(help="A slice store.", exists=True, file_okay=False),
    subject: str = typer.Argument(help="One of its subjects."),
    out: Path = typer.Option(None, help="Picture to write (default: SUBJECT.png)."),
    augment: int = typer.Option(
        0, min=0, max=48, help="Instead: so many augmented slices of each view."
    ),
    augmentation: Path = typer.Option(None, help="YAML file with augmentation settings."),
    seed: int = typer.Option(0, min=0, help="Of the augmentation."),
    whole_head: bool = typer.Option(
        False, "--whole-head", help="Show the face too; by default pictures end with the brain."
    ),
) -> int:
    """Write a mosaic of a subject: image, labels and overlay in three views.

    Example: trinat data show store OAS1_0001_MR1 --augment 12
    """
    from pipelines.common.exits import Exit
    from pipelines.data.show import show_augmented, show_subject

    path = out or Path(f"{subject}.png")
    if augment:
        show_augmented(store, subject, path, count=augment, config=augmentation, seed=seed)
    else:
        show_subject(store, subject, path, whole_head=whole_head)
    typer.echo(str(path))
    return Exit.OK


@app.command("report")
def report(
    store: Path = typer.Argument(help="A slice store.", exists=True, file_okay=False),
    out: Path = typer.Option(None, help="Page to write (default: STORE/report.html)."),
) -> int:
    """Write an HTML page: subjects, exclusions, class volumes, intensities, outliers.

    Example: trinat data report store
    """
    from pipelines.common.exits import Exit
    from pipelines.data.report import write_report

    path = out or store / "report.html"
    write_report(store, path)
    typer.echo(str(path))
    return Exit.OK
