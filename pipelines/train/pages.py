"""Pages and pictures of training: run.html of a job, its examples, and runs compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.train.log import VALIDATIONS, Curve, read_curves, read_rows
from trinat.segmentation.io.files import atomic_write, write_whole
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.report.page import Column, Columns, Table, render, table
from trinat.segmentation.report.pictures import (
    brain_window,
    label_colors,
    overlay,
    png_bytes,
)
from trinat.segmentation.training.validation import Examples

# A run or a job by its name, and its curves.
NamedCurves = tuple[str, Mapping[str, Curve]]

_DPI = 110
# Validation has curves of their own; the titles of their panels.
_VALIDATED = {"dice": "mean validation Dice", "iou": "mean validation IoU"}
# Steps are marked on curves of fewer than this.
_FEW_STEPS = 30
# As many steps as can be read below a panel.
_MOST_STEP_LABELS = 6


def write_page(job: Path, title: str, scheme: LabelScheme) -> None:
    """progress.png and run.html of one job, as it is now.

    The page has the curves, and once there is a validation also each structure's scores through
    time, the last scores as a table, and the pictures of examples.
    """
    picture = draw_curves([("", read_curves(job))])
    write_whole(job / "progress.png", picture)
    pictures = [("curves of training", picture)]
    tables = []
    scores = read_rows(job / VALIDATIONS)
    if scores:
        caption = "Dice and IoU of each structure through time"
        pictures.append((caption, _draw_structures(scores)))
        tables.append(_last_scores(scores))
    write_run_page(
        job / "run.html",
        title=title,
        lead=f"One job of a training, as it is now. Label scheme: {scheme.name}.",
        pictures=pictures,
        tables=tables,
        examples=_read_examples(job),
    )


def _last_scores(scores: Sequence[Mapping[str, str]]) -> Table:
    """The table of the last validation."""
    last = max(int(row["step"]) for row in scores)
    rows = []
    for row in scores:
        if int(row["step"]) == last:
            dice = _number_of(row["dice"])
            iou = _number_of(row["iou"])
            rows.append((row["structure"], row["view"], dice, iou))
    columns: Columns = [
        "Structure",
        Column("View", pick=True),
        Column("Dice", 3),
        Column("IoU", 3),
    ]
    return table("scores", f"Validation at step {last}", columns, rows)


def _number_of(text: str) -> float | None:
    """The number in a cell of validations.csv; None of an empty one."""
    if not text:
        return None
    return float(text)


def _read_examples(job: Path) -> list[tuple[str, bytes]]:
    """The pictures that `write_examples` has written, with their captions."""
    examples = []
    for path in sorted((job / "examples").glob("*.png")):
        view, step = path.stem.split("-")[:2]
        examples.append((f"{view}, step {int(step)}", path.read_bytes()))
    return examples


def write_examples(
    job: Path, step: int, view: str, examples: Examples, scheme: LabelScheme
) -> None:
    """Validation slices, the same at each step: image, truth and prediction, as one PNG.

    It is examples/<view>-<step>.png in the job's folder.
    """
    from matplotlib.image import imsave

    colors = label_colors(scheme)
    no_labels = np.zeros_like(examples.truth)
    # Cropped by the truth, so that pictures of all steps show the same field.
    window = (slice(None), *brain_window(examples.truth))
    images = examples.images[window]
    panels = [
        overlay(images, labels[window], colors)
        for labels in (no_labels, examples.truth, examples.predicted)
    ]
    # (S, H, 3 W, 3) to one slice below another; row 0 of each is at its bottom.
    rows = np.concatenate(panels, axis=2)[:, ::-1]
    folder = job / "examples"
    folder.mkdir(exist_ok=True)
    with atomic_write(folder / f"{view}-{step:09d}.png") as file:
        imsave(file, np.concatenate(rows), format="png")


def write_run_page(
    path: Path,
    *,
    title: str,
    lead: str,
    pictures: Sequence[tuple[str, bytes]],
    tables: Sequence[Table],
    examples: Sequence[tuple[str, bytes]] = (),
) -> None:
    """A page of a job or of several runs; pictures and examples are captions and PNGs.

    `lead` is the sentence below the title.
    """
    page = render(
        "run.html",
        title=title,
        lead=lead,
        pictures=pictures,
        tables=tables,
        examples=examples,
    )
    write_whole(path, page)


def draw_curves(runs: Sequence[NamedCurves]) -> bytes:
    """Loss, rate, Dice and IoU over steps, as PNG; a job alone has no name."""
    # Figure, not pyplot: no global state, and no window system is asked for.
    from matplotlib.figure import Figure

    # Without validation there is no Dice to draw.
    known = _known_panels(runs)
    panels = ["loss", "rate", *(panel for panel in _VALIDATED if panel in known)]
    figure = Figure(figsize=(11, 1.5 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels) // 2, 2).flat
    for panel, axes in zip(panels, all_axes, strict=True):
        _draw_panel(axes, panel, runs)
    return png_bytes(figure, _DPI)


def _known_panels(runs: Sequence[NamedCurves]) -> set[str]:
    """The kinds of curves of which any run has a value."""
    known = set()
    for _, curves in runs:
        for key, (steps, _) in curves.items():
            if steps:
                known.add(key.split()[-1])
    return known


def _draw_panel(axes: Any, panel: str, runs: Sequence[NamedCurves]) -> None:
    """All curves of one kind; those of validation are also named by their views."""
    has_legend = False
    for name, curves in runs:
        for key, (steps, values) in curves.items():
            if key != panel and not key.endswith(f" {panel}"):
                continue
            words = [word for word in (name, key.removesuffix(f" {panel}")) if word]
            marker = None
            if len(steps) < _FEW_STEPS:
                marker = "."
            axes.plot(steps, values, label=" ".join(words), marker=marker)
            if key != panel or name:
                has_legend = True
    axes.set_title(_VALIDATED.get(panel, panel))
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    if panel in _VALIDATED:
        axes.set_ylim(0, 1)
    if has_legend:
        axes.legend(fontsize="small")


def _draw_structures(scores: Sequence[Mapping[str, str]]) -> bytes:
    """Dice and IoU of each structure at each validation, a row of panels a view, as PNG."""
    import pandas as pd
    from matplotlib.figure import Figure

    frame = pd.DataFrame(scores)
    views = list(frame["view"].unique())
    lines = len(frame.groupby(["view", "structure"]))
    figure = Figure(figsize=(11, 1.5 + 0.17 * lines), layout="constrained")
    panels = figure.subplots(len(views), 2, squeeze=False)
    for (dice_panel, iou_panel), view in zip(panels, views, strict=True):
        of_view = frame[frame["view"] == view]
        _draw_heat_map(figure, dice_panel, of_view, "dice", f"Dice, {view}")
        _draw_heat_map(figure, iou_panel, of_view, "iou", f"IoU, {view}")
    return png_bytes(figure, _DPI)


def _draw_heat_map(
    figure: Any, panel: Any, frame: Any, metric: str, title: str
) -> None:
    """A score of each structure (rows) at each validation (columns); `frame` is of one view."""
    names = list(frame["structure"].unique())
    steps = list(frame["step"].unique())
    table = frame.pivot_table(metric, "structure", "step", aggfunc="last")
    table = table.reindex(index=names, columns=steps).astype(float)
    shown = panel.imshow(table, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    panel.set_title(title)
    panel.set_yticks(range(len(names)), names, fontsize="x-small")
    every = -(-len(steps) // _MOST_STEP_LABELS)  # rounded up
    labelled = range(0, len(steps), every)
    panel.set_xticks(labelled, [steps[place] for place in labelled])
    panel.set_xlabel("step")
    figure.colorbar(shown, ax=panel)
