"""trinat learn and next: a model of one's own from corrected label maps, and what to correct."""

from __future__ import annotations

import json
from functools import partial

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import with_fields
from trinat.pipelines.cli.options import say_nothing
from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.learn.settings import LearnSettings, NextSettings


@with_fields
def learn(settings: LearnSettings, quiet: options.Quiet = False) -> int:
    """Make the best model that corrected label maps allow; kept only if Dice rises.

    Example: trinat learn results --out own
    """
    from trinat.pipelines.common.models import say_licences
    from trinat.pipelines.learn.learning import learn

    prepare_process(settings.threads)
    say = say_nothing if quiet else partial(typer.echo, err=True)
    learnt = learn(settings, say, progress=not quiet)
    for line in learnt.lines:
        typer.echo(line)
    say_licences([str(settings.out)])
    typer.echo(settings.out)
    return learnt.exit


@with_fields
def next_(settings: NextSettings, json_: options.Json = False) -> None:
    """List the scans whose correction is expected to teach a model most, the best first.

    Example: trinat next results
    """
    from trinat.pipelines.learn.order import next_scans

    scans, corrected = next_scans(settings)
    if json_:
        listed = [scan.facts for scan in scans]
        typer.echo(json.dumps({"corrected": corrected, "next": listed}, indent=2))
        return
    typer.echo(f"{corrected} corrected; to correct next:")
    for scan in scans:
        agreement = "n/a"
        if scan.agreement is not None:
            agreement = f"{scan.agreement:.3f}"
        typer.echo(
            f"{scan.scan}\t{scan.grade}\tagreement {agreement}\t{scan.share:.0%} of the doubt"
        )
