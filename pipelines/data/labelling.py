"""Label maps that a model makes for scans without any, on their way into a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trinat.pipelines.common.cases import Case, Found
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.ledger import ledgers_in, read_entries
from trinat.pipelines.predict.outputs import CaseNames
from trinat.pipelines.predict.request import PredictRequest
from trinat.pipelines.predict.run import predict
from trinat.pipelines.predict.settings import OutputSettings
from trinat.segmentation.data.preparing import Cut
from trinat.segmentation.data.sources.base import Exclusion, Listing, Subject
from trinat.segmentation.data.store import Pseudo
from trinat.segmentation.errors import InterruptedRunError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.zoo import MODEL_FILE, licence_notice


def label_with_model(
    listing: Listing,
    name: str,
    out: Path,
    cut: Cut,
    say: Callable[[str], None],
) -> tuple[Listing, Pseudo]:
    """The same scans with label maps of the model `name`, written to `out` as by trinat predict.

    A subject without an image, or whose scan gave no result, becomes an exclusion.
    """
    model = load_model(name)
    if notice := licence_notice(model.folder):
        say(notice)
    pseudo = Pseudo(
        model=model.name,
        sha256=sha256_of(model.folder / MODEL_FILE),
        not_predicted=_never_predicted(cut.scheme, model),
    )
    output = OutputSettings(
        picture=False,
        brain_mask=False,
        trust_affine=cut.trust_affine,
        fill_nonfinite=cut.fill_nonfinite,
    )
    _predict(listing, name, out, output, pseudo, say)
    entries = read_entries(ledgers_in(out))
    found: list[Subject | Exclusion] = []
    for subject in listing.subjects:
        entry = entries.get(subject.id)
        found.append(_labelled(subject, entry, out, output, pseudo))
    found += listing.exclusions
    return Listing.of(found), pseudo


def _predict(
    listing: Listing,
    name: str,
    out: Path,
    output: OutputSettings,
    pseudo: Pseudo,
    say: Callable[[str], None],
) -> None:
    """Segment all scans of a listing; what an earlier call has made stays as it is."""
    cases = tuple(
        Case(subject.id, subject.image, subject.id, axes=subject.image_axes)
        for subject in listing.subjects
        if subject.image
    )

    def say_result(entry: Entry) -> None:
        say(f"{entry.case}: {entry.reason or pseudo}")

    request = PredictRequest(
        inputs=(),
        found=Found(cases),
        out=out,
        model=name,
        output=output,
    )
    outcome = predict(request, on_entry=say_result)
    if outcome.interrupted:
        remedy = "the same command goes on"
        raise InterruptedRunError(
            "stopped while labels were made", where=out, remedy=remedy
        )


def _labelled(
    subject: Subject,
    entry: Entry | None,
    out: Path,
    output: OutputSettings,
    pseudo: Pseudo,
) -> Subject | Exclusion:
    """A subject with its new label map in place of its own; `entry` is that of its scan."""
    if entry is None or subject.image is None:
        return Exclusion(subject.id, "no image", broken=True)
    if entry.status == "failed":
        return Exclusion(subject.id, entry.reason, broken=True)
    names = CaseNames(out, subject.id, {}, bids=False)
    note = str(pseudo)
    if subject.note:
        note = f"{subject.note}; {note}"
    return replace(
        subject,
        labels=names.labels(output, subject.image),
        labels_axes=None,
        extra={},
        ignore=(),
        fold=None,
        note=note,
    )


def _never_predicted(scheme: LabelScheme, model: Model) -> tuple[str, ...]:
    """Classes of a scheme that the model's labels never hold: no structure in them is predicted.

    A class that is made as the rim of another counts as predicted.
    """
    predicted: set[int] = set()
    for label in model.scheme.labels:
        if label.name not in model.info.not_predicted:
            predicted.update(label.numbers)
    return tuple(
        label.name
        for label in scheme.labels
        if label.rim_of is None and not predicted.intersection(label.numbers)
    )
