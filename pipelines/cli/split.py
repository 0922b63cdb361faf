"""trinat split: who trains, who validates, who tests."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    store: Path = typer.Argument(help="A slice store.", exists=True, file_okay=False),
    ratios: tuple[float, float, float] = typer.Option(
        (8, 1, 1), help="Proportions of train, validation and test."
    ),
    kfold: int = typer.Option(None, min=3, help="Instead: so many splits for cross-validation."),
    seed: int = typer.Option(0, min=0, help="The same seed gives the same split."),
    out: Path = typer.Option(None, help="File to write (default: STORE/split.json)."),
) -> int:
    """Divide the persons of a store; sessions of one person and families stay together.

    Age, sex and family are read from STORE/participants.tsv.

    Example: trinat split store --ratios 8 1 1 --seed 0
    """
    from pipelines.common.exits import Exit
    from segmentation.data.store import split_store

    for path, split in split_store(store, ratios=ratios, folds=kfold, seed=seed, out=out):
        counts = ", ".join(
            f"{len(names)} {part}"
            for part, names in (
                ("train", split.train),
                ("validation", split.validation),
                ("test", split.test),
            )
        )
        typer.echo(f"{path}: {counts}")
    return Exit.OK
