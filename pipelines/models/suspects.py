"""trinat suspects: which subjects of a store have labels that a model does not believe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from trinat.pipelines.common.lock import claimed
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.inference.network import ViewNetwork
from trinat.segmentation.io.files import atomic_text, write_tsv, write_whole
from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.hardware import choose_device
from trinat.segmentation.report.page import Column, Columns, render, table
from trinat.segmentation.report.pictures import (
    brain_window,
    draw_rows,
    encoded,
    label_colors,
    overlay,
)
from trinat.segmentation.space.views import View
from trinat.segmentation.training.suspects import MEASURES, Look, look, rank, summarise

EXCLUDE = "exclude.txt"
_FILES = ("suspects.tsv", "suspects.html")
# Robust standard deviations; five measures and all structures look for the worst.
LIMIT = 8.0
_FEWEST = 5
_SHOWN = 12


@dataclass(frozen=True, eq=False)
class _Sight:
    """A view's network, and which slices of each subject it looks at."""

    store: Store
    model: Model
    view: View
    network: ViewNetwork
    slices: Sequence[int]

    def look(self, subject: str, slices: Sequence[int]) -> tuple[Look, np.ndarray]:
        """What it sees in slices, and their images (N, H, W)."""
        file = self.store.file(subject)
        images = np.stack(
            [file.slab(self.view, n, self.network.channels).values() for n in slices]
        )
        labels = np.concatenate([file.labels(self.view, n, n + 1) for n in slices])
        file.close()
        # What the model never predicts is no fault of the labels.
        labels[np.isin(labels, self.model.not_predicted_in(self.view))] = IGNORE
        size, device = self.network.batch, self.network.device
        batches = (
            torch.split(torch.from_numpy(each), size) for each in (images, labels)
        )
        network = self.network.network
        looks = [
            look(network, x.to(device), y.to(device))
            for x, y in zip(*batches, strict=True)
        ]
        joined = Look(*(np.concatenate(parts) for parts in zip(*looks, strict=True)))
        return joined, images[:, images.shape[1] // 2]


def find_suspects(
    root: Path,
    name: str,
    out: Path,
    *,
    every: int = 6,
    limit: float = LIMIT,
    device: str = "auto",
    finished: Callable[[int, int], object] = lambda done, of: None,
) -> pd.DataFrame:
    """Write suspects.tsv, suspects.html and exclude.txt; a row a subject, the worst first."""
    store, model = Store(root), load_model(name)
    if store.scheme.names != model.scheme.names:
        what = f"has the labels {store.scheme.name}, and the model {model.scheme.name}"
        raise ConfigError(what, where=root, remedy="give a model of the same labels")
    subjects = [
        p.subject for p in store.labelled if store.info.subjects[p.subject].has_image
    ]
    if len(subjects) < _FEWEST:
        what = f"has {len(subjects)} subjects with image and labels, where {_FEWEST} are needed"
        raise ConfigError(what, where=root)
    sights = _sights(store, model, subjects, every, choose_device(device))
    classes = model.classes_of(sights[0].view)
    partners = classes.partner_permutation
    found = {}
    for number, subject in enumerate(subjects, start=1):
        looks = [sight.look(subject, sight.slices)[0] for sight in sights]
        found[subject] = summarise(looks, partners)
        finished(number, len(subjects))
    ranked = rank(found, classes.names, partners)
    with claimed(out, (*_FILES, EXCLUDE)):
        worst = {subject: found[subject].worst for subject in ranked.index[:_SHOWN]}
        pictures = [
            _picture(s, ranked.loc[s], sights[v], at) for s, (v, at) in worst.items()
        ]
        _write(model, out, ranked, pictures, limit)
    return ranked


def _sights(
    store: Store,
    model: Model,
    subjects: Sequence[str],
    every: int,
    device: torch.device,
) -> list[_Sight]:
    """Views that tell left from right, where there are any; slices where anybody has labels."""
    views = [view for view in model.networks if view in store.views]
    if not views:
        raise ConfigError("shares no view with the model", where=store.root)
    sights = []
    for view in [v for v in views if not model.is_merged(v)] or views:
        counts = [
            store.file(subject).class_counts(view)[:, 1:].any(1) for subject in subjects
        ]
        low, high = np.flatnonzero(np.any(counts, axis=0))[[0, -1]]
        never = model.not_predicted_in(view)
        network = ViewNetwork(model.networks[view], device, torch.float32, never=never)
        slices = range(low, high + 1)[(high - low) % every // 2 :: every]
        sights.append(_Sight(store, model, view, network, slices))
    return sights


def _write(
    model: Model,
    out: Path,
    ranked: pd.DataFrame,
    pictures: Sequence[tuple[str, bytes]],
    limit: float,
) -> None:
    rows = list(ranked.itertuples(name=None))
    listed = [(subject, f"{score:.2f}", *rest) for subject, score, *rest in rows]
    write_tsv(out / "suspects.tsv", ("subject", *ranked.columns), listed)
    beyond = ranked.index[ranked["score"] > limit]
    with atomic_text(out / EXCLUDE) as file:
        file.write(f"# {model.name}, score above {limit:g}; take out what is right\n")
        file.writelines(f"{subject}\n" for subject in beyond)
    hints = {
        "loss": "mean cross entropy",
        "shift": "voxels",
        "sides": "share that is exchanged",
    }
    numbers = [Column(m, 3, hints.get(m, "")) for m in MEASURES]
    columns: Columns = ["Subject", Column("Score", 1), "Why", "Structure", *numbers]
    page = render(
        "toolbox.html",
        title="Suspects",
        lead=f"Labels of {len(ranked)} subjects against the model {model.name}.",
        cards=[
            ("Subjects", len(ranked), "with image and labels"),
            ("Suspects", len(beyond), f"score above {limit:g}, in {EXCLUDE}"),
        ],
        text="The score is the largest distance from the other subjects, in robust standard "
        "deviations. Look at each suspect: unusual anatomy has a high score too.",
        pictures=pictures,
        tables=[
            table("suspects", "All subjects, the most suspect first", columns, rows)
        ],
    )
    write_whole(out / "suspects.html", page)


def _picture(subject: str, row: pd.Series, sight: _Sight, at: int) -> tuple[str, bytes]:
    """Image, labels and prediction of the slice with the highest loss, with a caption."""
    place = sight.slices[at]
    found, gray = sight.look(subject, [place])
    shown = (0, *brain_window(found.truth | found.predicted))
    colors = label_colors(sight.model.classes_of(sight.view))
    kinds = (np.zeros_like(found.truth), found.truth, found.predicted)
    pictures = [overlay(gray[shown], kind[shown], colors) for kind in kinds]
    what = f"{sight.view.value} {place}"
    reason = f"{row['why']} (score {row['score']:.1f})"
    caption = f"{subject}: {reason}. Image, labels, prediction; {what}"
    return caption, encoded(draw_rows({what: pictures}, subject), "PNG")
