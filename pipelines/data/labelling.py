"""Labels that a model makes of a source's scans: pseudo-labels, which are no truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

from pipelines.common.discovery import Case, Found
from pipelines.predict.ledger import ledgers_in, read_entries
from pipelines.predict.outputs import CaseNames, OutputSettings
from pipelines.predict.run import Plan, predict
from segmentation.data.preparing import Cut
from segmentation.data.sources.base import Exclusion, Listing, Subject
from segmentation.data.store import Pseudo
from segmentation.errors import InterruptedRunError
from segmentation.io.files import sha256_of
from segmentation.labels.scheme import LabelScheme
from segmentation.models.checkpoint import Model, load_model
from segmentation.models.zoo import MODEL_FILE


def label(
    listing: Listing, name: str, out: Path, cut: Cut, say: Callable[[str], None]
) -> tuple[Listing, Pseudo]:
    """The same scans with label maps of the model `name`, written to `out` as by trinat predict."""
    model = load_model(name)
    pseudo = Pseudo(
        model=model.name,
        sha256=sha256_of(model.folder / MODEL_FILE),
        not_predicted=_unknown(cut.scheme, model),
    )
    output = OutputSettings(
        picture=False, trust_affine=cut.trust_affine, fill_nonfinite=cut.fill_nonfinite
    )
    cases = [Case(s.id, s.image, s.id, axes=s.image_axes) for s in listing.subjects if s.image]
    plan = Plan(inputs=(), found=Found(tuple(cases)), out=out, model=name, output=output)
    outcome = predict(plan, on_entry=lambda entry: say(f"{entry.case}: {entry.reason or pseudo}"))
    if outcome.interrupted:
        remedy = "the same command goes on"
        raise InterruptedRunError("stopped while labels were made", where=out, remedy=remedy)
    entries, scans = read_entries(ledgers_in(out)), {case.id: case.path for case in cases}

    def labelled(subject: Subject) -> Subject | Exclusion:
        entry = entries.get(subject.id)
        if entry is None or entry.status == "failed":
            reason = entry.reason if entry else "no image"
            return Exclusion(subject.id, reason, broken=True)
        return replace(
            subject,
            labels=CaseNames(out, subject.id, {}, bids=False).labels(output, scans[subject.id]),
            labels_axes=None,
            extra={},
            ignore=(),
            note="; ".join(filter(None, (subject.note, str(pseudo)))),
        )

    return Listing.of([*map(labelled, listing.subjects), *listing.exclusions]), pseudo


def _unknown(scheme: LabelScheme, model: Model) -> tuple[str, ...]:
    """Classes of a scheme that the model's labels never hold: no structure in them is predicted."""
    absent = model.info.not_predicted
    known = (label.numbers for label in model.scheme.labels if label.name not in absent)
    predicted = set(chain.from_iterable(known))
    return tuple(
        unknown.name
        for unknown in scheme.labels
        if unknown.rim_of is None and not predicted & set(unknown.numbers)
    )
