"""trinat explain, profile and suspects: a researcher's tools around training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import with_fields
from trinat.pipelines.cli.options import say_next
from trinat.pipelines.common.option import Device, Threads
from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.jobs.progress import progress, stage_progress


@with_fields
def explain(
    scan: Annotated[Path, typer.Argument(help="T1 scan.")],
    structure: Annotated[
        str, typer.Option(help="Name, abbreviation or FreeSurfer number.")
    ],
    model: Annotated[
        str, typer.Option(help="Name of a shipped model, or a model folder.")
    ] = "fast",
    view: Annotated[
        Literal["coronal", "axial", "sagittal"], typer.Option(help="Network.")
    ] = "coronal",
    out: options.Out = Path("explained"),
    device: Device = "auto",
    threads: Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Show which voxels make a network find a structure: integrated gradients and occlusion.

    Example: trinat explain scan.nii.gz --structure left-hippocampus
    """
    from trinat.pipelines.common.models import print_licences
    from trinat.pipelines.laboratory.explain import explain
    from trinat.segmentation.space.views import View

    prepare_process(threads)
    print_licences([model])
    with stage_progress(scan.name, quiet):
        found = explain(
            scan, structure, out, model=model, view=View(view), device=device
        )
    typer.echo(f"{out}: {view} slice {found.number}, {' and '.join(found.maps)}")


@with_fields
def profile(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RECIPE", help="A model's or a recipe's name or path."
        ),
    ],
    out: options.Out = Path("profile"),
    steps: Annotated[
        int, typer.Option(min=1, help="Steps to measure, after one step of warm-up.")
    ] = 5,
    store: Annotated[
        Path | None,
        typer.Option(
            help="For a recipe: train on this store instead of synthetic slices."
        ),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure where a network's time goes: tables and a trace for Perfetto.

    For a model: the forward pass of one slice. For a recipe: a training step with its data.

    Example: trinat profile fast --steps 10 --out profile
    """
    from trinat.pipelines.laboratory.profile import write_profile

    prepare_process(threads)
    found = write_profile(name, out, device=device, steps=steps, store=store)
    typer.echo(found.what)
    step_ms = 1e3 * found.seconds
    typer.echo(f"{step_ms:.1f} ms a step, {found.flops / 1e9:.1f} GFLOP forward")
    slowest = sorted(found.modules, key=lambda module: -module.share)[:5]
    for module in slowest:
        module_name = module.name or "(network)"
        typer.echo(f"{module.share:6.1%} {module_name} {module.kind}")
    if found.bound:
        typer.echo(found.bound)
    typer.echo(out)


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
    from trinat.pipelines.laboratory.suspects import EXCLUDE, find_suspects

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
