"""trinat learn: the best model that some corrected label maps allow.

What is better is decided by persons that the new model has not seen. A model that is no better is
not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.common.models import check_out
from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.learn.corrected import Corrected, find_corrected
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.models.fit_odds import (
    FoundOdds,
    description_of,
    find_odds,
    save_with_odds,
    segment_all,
)
from trinat.pipelines.models.scans_with_truth import require_scans
from trinat.pipelines.web.study import Study
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.statistics import mean_interval
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import MODEL_FILE, shipped_models
from trinat.segmentation.report.page import count

Say = Callable[[str], None]


@dataclass(frozen=True)
class Learnt:
    """What was learnt, and how it was judged; `found` are the factors of structures."""

    chosen: str
    found: FoundOdds
    exit: Exit

    def lines(self) -> list[str]:
        """Write for people what was done and why, and all figures."""
        return [self.chosen, *self.found.lines(), judgement(self.found)]


def learn(settings: LearnSettings, say: Say = lambda line: None) -> Learnt:
    """Make a model of corrected scans, and write it if persons that it has not seen gain by it.

    Scans that cannot be used are reported by `say`, and count as failed. EvaluationError where
    none can be used, or the model is no better: then none is written.
    """
    check_out(settings.out, settings.overwrite)
    study = Study(
        settings.results, rater="", images=settings.images, against=settings.labels
    )
    corrected, failures = find_corrected(study)
    name = settings.model or _made_by(corrected)
    model = load_model(name)
    description = description_of(model, settings.out)
    mapping = Mappings()
    if settings.numbering is not None:
        mapping = Mappings(truth_numbering=load_folding(settings.numbering))

    pairs, scans, failed = segment_all(
        model,
        [each.pair for each in corrected],
        mapping,
        device=settings.device,
        trust_affine=settings.trust_affine,
        say=say,
    )
    failures += failed
    for reason in failures:
        say(f"not used: {reason}")
    require_scans(scans, failures, settings.results, "see what is wrong with it")

    counted = structures_corrected(corrected, model.scheme)
    found = find_odds(model, pairs, scans, len(failures), counted)
    persons = len(set(found.persons))
    chosen = (
        f"{count(len(scans), 'corrected scan')} of {count(persons, 'person')}: factors of "
        f"structures are fitted to {name}, whose networks stay as they are"
    )
    if not found.better:
        raise EvaluationError(
            f"no model is written, as it would be no better: {judgement(found)}",
            where=settings.out,
            remedy="correct more scans, of other persons",
        )
    save_with_odds(model, description, found, settings.out, settings.overwrite)
    return Learnt(chosen, found, found.exit)


def judgement(found: FoundOdds) -> str:
    """Say in one line how good a model was before and after, and how sure that is."""
    whom = "persons that it has not seen"
    if not found.held_out:
        whom = "the very person that it was fitted to"
    before = np.mean(found.before)
    after = np.mean(found.after)
    gains = pd.Series(found.after) - pd.Series(found.before)
    of_persons: NDArray[np.float64] = np.asarray(
        gains.groupby(list(found.persons)).mean()
    )
    line = f"mean Dice of {whom} {before:.3f} before, {after:.3f} after"
    if len(of_persons) < 2:
        return f"{line} (of one person there is no interval)"
    low, high = mean_interval(of_persons[:, None])[:, 0]
    return (
        f"{line}; gain {of_persons.mean():+.3f}, 95 % interval {low:+.3f} to {high:+.3f}, "
        f"{len(of_persons)} persons"
    )


def structures_corrected(
    corrected: Sequence[Corrected], scheme: LabelScheme
) -> list[int]:
    """Classes that corrections speak of, with their other sides.

    Those that people have changed in any scan; all of them as soon as a label map is from
    elsewhere.
    """
    names: set[str] = set()
    for each in corrected:
        if each.structures is None:
            return list(range(len(scheme)))
        names |= each.structures
    classes = set()
    for index, name in enumerate(scheme.names):
        if name in names:
            classes |= {index, int(scheme.partner_permutation[index])}
    return sorted(classes)


def _made_by(corrected: Sequence[Corrected]) -> str:
    """The shipped model that made the results; ConfigError where it is another one."""
    hashes = {each.item.entry.model for each in corrected}
    for name, folder in shipped_models().items():
        if hashes == {sha256_of(folder / MODEL_FILE)}:
            return name
    names = {str(each.item.entry.result.get("model", "")) for each in corrected}
    made_by = ", ".join(sorted(names - {""})) or "an unknown model"
    raise ConfigError(
        f"made by {made_by}, which is not one that comes with trinat",
        where=corrected[0].item.folder if corrected else None,
        remedy="name the model to improve with --model",
    )
