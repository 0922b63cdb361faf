"""trinat suspects: subjects of a store whose labels contradict a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from trinat.pipelines.jobs.lock import claimed
from trinat.pipelines.report.page import Column, Columns, render, table
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.inference.network import suitable_batch
from trinat.segmentation.inference.runtime import TorchRuntime
from trinat.segmentation.io.files import atomic_text, write_tsv, write_whole
from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.hardware import choose_device
from trinat.segmentation.rendering.pictures import (
    brain_window,
    draw_rows,
    encoded,
    label_colors,
    overlay,
)
from trinat.segmentation.space.views import View
from trinat.segmentation.training.suspects import (
    MEASURES,
    Look,
    are_judged,
    look,
    rank,
    summarise,
    where_to_look,
)

EXCLUDE = "exclude.txt"
TABLE = "suspects.tsv"
PAGE = "suspects.html"
# In units of the usual spread between subjects. A subject's score is the maximum over four measures
# and all structures.
LIMIT = 8.0
_FEWEST_SUBJECTS = 5
# With fewer subjects, a predefined spread has more than a third of the weight against the spread of
# the subjects (docs/notes/suspects.md), so scores are less certain.
_SURE_SUBJECTS = 10
_MOST_PICTURES = 12

Finished = Callable[[int, int], object]  # number of subjects done, and total


@dataclass(frozen=True, eq=False)
class _SampledView:
    """A view, such as coronal, whose slices are examined, with the numbers of these slices.

    `store` has the slices, `model` the labels to compare with, and `runtime` runs the model's
    network of this view. `slices` are the same for each subject.
    """

    store: Store
    model: Model
    view: View
    runtime: TorchRuntime
    slices: Sequence[int]

    def look(self, subject: str, slices: Sequence[int]) -> tuple[Look, np.ndarray]:
        """Compare labels and predictions in some slices of a subject.

        Returns labels, predictions and the loss of each slice, and the images of the slices, (N, H,
        W). `slices` are their numbers in this view.
        """
        network = self.runtime.network
        device = self.runtime.device
        file = self.store.file(subject)
        slabs = []
        classes = []
        for number in slices:
            slab = file.slab(self.view, number, network.config.channels)
            slabs.append(slab.values())
            truth_here = file.labels(self.view, number, number + 1)
            counted = file.counted(self.view, number, number + 1)
            if counted is not None:
                truth_here[~counted] = IGNORE
            classes.append(truth_here)
        file.close()
        images = np.stack(slabs)
        labels = np.concatenate(classes)
        # Labels that the model never predicts do not count as errors.
        labels[np.isin(labels, self.model.not_predicted_in(self.view))] = IGNORE
        size = suitable_batch(network.config, device)
        image_batches = torch.split(torch.from_numpy(images), size)
        label_batches = torch.split(torch.from_numpy(labels), size)
        looks = []
        for batch, truth in zip(image_batches, label_batches, strict=True):
            found = look(network, batch.to(device), truth.to(device))
            looks.append(found)
        fields = zip(*looks, strict=True)
        joined = Look(*(np.concatenate(of_batches) for of_batches in fields))
        middle_channel = images.shape[1] // 2
        return joined, images[:, middle_channel]


def find_suspects(
    root: Path,
    name: str,
    out: Path,
    *,
    every: int = 6,
    limit: float = LIMIT,
    device: str = "auto",
    finished: Finished = lambda done, of: None,
) -> pd.DataFrame:
    """Compare a store's labels with a model; return a row for each subject, the worst first.

    `root` is the folder of the store, `name` the model, `out` the folder for a table, a page and a
    list of the subjects whose score is above `limit`. Every `every`-th slice is examined.
    `finished` is called with the number of subjects done and the total. ConfigError is raised for a
    model with other labels or for too few subjects.
    """
    store = Store(root)
    model = load_model(name)
    if store.scheme.names != model.scheme.names:
        raise ConfigError(
            f"has the labels {store.scheme.name}, and the model {model.scheme.name}",
            where=root,
            remedy="give a model of the same labels",
        )
    subjects = [
        entry.subject
        for entry in store.labelled
        if store.info.subjects[entry.subject].has_image
    ]
    if len(subjects) < _FEWEST_SUBJECTS:
        raise ConfigError(
            f"has {len(subjects)} subjects with image and labels, "
            f"where {_FEWEST_SUBJECTS} are needed",
            where=root,
        )
    views = _sampled_views(store, model, subjects, every, choose_device(device))
    classes = model.classes_of(views[0].view)
    partners = classes.partner_permutation
    measured = {}
    for number, subject in enumerate(subjects, start=1):
        looks = []
        for view in views:
            seen, _ = view.look(subject, view.slices)
            looks.append(seen)
        measured[subject] = summarise(looks, partners)
        finished(number, len(subjects))
    ranked = rank(measured, classes.names, partners, limit)
    in_few_slices = [
        name
        for name, is_judged in zip(
            classes.names[1:], are_judged(measured.values()), strict=True
        )
        if not is_judged
    ]
    with claimed(out, (TABLE, PAGE, EXCLUDE)):
        pictures = []
        for subject in ranked.index[:_MOST_PICTURES]:
            row = ranked.loc[subject]
            view_number, position = where_to_look(
                measured[subject], row["why"], classes.names
            )
            pictures.append(_picture(subject, row, views[view_number], position))
        beyond = ranked.index[ranked["score"] > limit]
        rows = []
        for subject, score, *rest in ranked.itertuples(name=None):
            why, structure, *measures = rest
            cells = (why or None, structure or None, *measures)
            rows.append((subject, round(score, 2), *cells))
        write_tsv(out / TABLE, ("subject", *ranked.columns), rows)
        # Exclusion list for trinat split, to be shortened by hand.
        with atomic_text(out / EXCLUDE) as file:
            file.write(
                f"# {model.name}, score above {limit:g}; take out what is right\n"
            )
            for subject in beyond:
                file.write(f"{subject}\n")
        page = _page(model, ranked, len(beyond), in_few_slices, pictures, limit)
        write_whole(out / PAGE, page)
    return ranked


def _sampled_views(
    store: Store,
    model: Model,
    subjects: Sequence[str],
    every: int,
    device: torch.device,
) -> list[_SampledView]:
    """Return the views to examine, such as coronal, each with the numbers of its slices.

    These are the views that store and model have in common; if some of them distinguish left from
    right, only those. Every `every`-th slice is examined. ConfigError if there is no common view.
    """
    views = [view for view in model.networks if view in store.views]
    if not views:
        raise ConfigError("shares no view with the model", where=store.root)
    sided_views = [view for view in views if not model.is_merged(view)]
    sampled = []
    for view in sided_views or views:
        runtime = TorchRuntime(
            model.networks[view],
            device,
            torch.float32,
            never=model.not_predicted_in(view),
        )
        slices = _sampled_slices(store, view, subjects, every)
        sampled.append(_SampledView(store, model, view, runtime, slices))
    return sampled


def _sampled_slices(
    store: Store,
    view: View,
    subjects: Sequence[str],
    every: int,
) -> range:
    """Return the numbers of the slices to examine, at a distance of `every`.

    They lie in the middle of the range of slices that have labels in any subject.
    """
    has_labels = []
    for subject in subjects:
        counts = store.file(subject).class_counts(view)
        has_labels.append(counts[:, 1:].any(1))
    labelled = np.flatnonzero(np.any(has_labels, axis=0))
    first = int(labelled[0])
    last = int(labelled[-1])
    offset = (last - first) % every // 2
    return range(first + offset, last + 1, every)


def _page(
    model: Model,
    ranked: pd.DataFrame,
    suspects: int,
    in_few_slices: Sequence[str],
    pictures: Sequence[tuple[str, bytes]],
    limit: float,
) -> str:
    """Return the page: pictures of the worst subjects, and a table of all subjects.

    `ranked` has a row for each subject, the worst first. `suspects` is the number of subjects above
    the `limit`. `pictures` are captions and PNG files. The structures `in_few_slices` are listed as
    not judged.
    """
    hints = {
        "loss": "mean cross entropy",
        "shift": "voxels",
        "sides": "share that is exchanged",
    }
    columns: Columns = ["Subject", Column("Score", 1), "Why", "Structure"]
    for measure in MEASURES:
        columns.append(Column(measure, 3, hints.get(measure, "")))
    rows = ranked.itertuples(name=None)
    few = ""
    if len(ranked) < _SURE_SUBJECTS:
        few = (
            f" {len(ranked)} subjects say little about what is usual, so scores are lower than "
            "among many: look at all pictures."
        )
    if in_few_slices:
        few += (
            f" Not judged, since too few of the slices show them: {', '.join(in_few_slices)}; "
            "a lower --every looks at more slices."
        )
    return render(
        "suspects.html",
        title="Suspects",
        lead=f"Labels of {len(ranked)} subjects against the model {model.name}.",
        cards=[
            ("Subjects", len(ranked), "with image and labels"),
            ("Suspects", suspects, f"score above {limit:g}, in {EXCLUDE}"),
        ],
        text="The score is the largest distance from the other subjects, in units of what is "
        "usual: the spread over subjects, or what the choice of slices alone does, if that is "
        f"more. Above {limit:g} a subject is suspect. Look at each suspect: unusual anatomy has a "
        "high score too." + few,
        pictures=pictures,
        tables=[
            table("suspects", "All subjects, the most suspect first", columns, rows)
        ],
    )


def _picture(
    subject: str,
    row: pd.Series,
    view: _SampledView,
    position: int,
) -> tuple[str, bytes]:
    """Return a caption and a PNG: image, labels and prediction of one slice of a subject.

    `row` is the subject's row in the table of results, with `why` and `score`. `view` has the
    slices that were examined; `position` is the place of the slice in `view.slices`.
    """
    number = view.slices[position]
    seen, gray = view.look(subject, [number])
    rows, columns = brain_window(seen.truth | seen.predicted)
    colors = label_colors(view.model.classes_of(view.view))
    nothing = np.zeros_like(seen.truth)
    pictures = []
    for classes in (nothing, seen.truth, seen.predicted):
        shown = (0, rows, columns)
        pictures.append(overlay(gray[shown], classes[shown], colors))
    name_of_slice = f"{view.view.value} {number}"
    reason = f"{row['why'] or 'nothing stands out'} (score {row['score']:.1f})"
    caption = f"{subject}: {reason}. Image, labels, prediction; {name_of_slice}"
    return caption, encoded(draw_rows({name_of_slice: pictures}, subject), "PNG")
