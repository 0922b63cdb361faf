"""Label maps made by a model for a store: all labels of a scan, or its CSF."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from trinat.pipelines.predict.run import Listener, predict
from trinat.pipelines.predict.settings import CaseNames, OutputSettings, PredictRequest
from trinat.pipelines.study.cases import Case, Found
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import ledgers_in, read_entries
from trinat.segmentation.data.preparing import Cut
from trinat.segmentation.data.sources.base import Exclusion, Listing, Subject
from trinat.segmentation.data.store import Pseudo
from trinat.segmentation.errors import ConfigError, InterruptedRunError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import GENERATION_SURROUNDINGS
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import MODEL_FILE, licence_notice

_log = logging.getLogger(__name__)


def label_with_model(
    listing: Listing,
    name: str,
    out: Path,
    cut: Cut,
) -> tuple[Listing, Pseudo, Csf]:
    """Replace the label maps of subjects by those of a model.

    `name` is the name or folder of the model. Label maps are written to `out`, as by trinat
    predict. `cut` has the settings of the store: label scheme, views and size of the grid. Returns
    the subjects with their new label maps, name and hash of the model for the store, and which
    fluid the model calls CSF. A subject without an image or a result is excluded, with the reason.
    """
    model = load_model(name)
    if notice := licence_notice(model.folder):
        _log.info("%s", notice)
    predicted: set[int] = set()
    for label in model.scheme.labels:
        if label.name not in model.info.not_predicted:
            predicted.update(label.numbers)
    # Classes that the model never predicts. A class that is made as the rim of another counts as
    # predicted.
    never = tuple(
        label.name
        for label in cut.scheme.labels
        if label.rim_of is None and not predicted.intersection(label.numbers)
    )
    pseudo = Pseudo(
        model=model.name,
        sha256=sha256_of(model.folder / MODEL_FILE),
        not_predicted=never,
    )
    made, failed = _predict(listing, name, out, cut, str(pseudo))
    labelled = tuple(
        replace(
            subject,
            labels=labels,
            labels_axes=None,
            extra={},
            ignore=(),
            fold=None,
            note=_with_note(subject, str(pseudo)),
        )
        for subject, labels in made
    )
    labelled_listing = Listing(labelled, (*failed, *listing.exclusions))
    return labelled_listing, pseudo, model.info.csf


def add_csf_of_model(
    listing: Listing,
    name: str,
    out: Path,
    cut: Cut,
) -> Listing:
    """Fill background in the labels of subjects with the CSF that a model finds.

    FreeSurfer's labels leave out most of the fluid around the brain. `name` is the name or folder
    of the model; its label maps are written to `out`, as by trinat predict. `cut` has the settings
    of the store: label scheme, views and size of the grid. Returns the subjects with these label
    maps as their source of CSF. A subject without an image or a result is excluded, with the
    reason. ConfigError if the model does not find all fluid inside the skull, or if the scheme has
    no CSF.
    """
    model = load_model(name)
    if model.info.csf != "intracranial":
        raise ConfigError(
            f"{model.name} does not find all fluid inside the skull",
            where="csf_with",
            remedy="take fast",
        )
    if cut.scheme.classes_of_number(GENERATION_SURROUNDINGS) <= {0}:
        raise ConfigError(f"{cut.scheme.name} has no CSF", where="csf_with")
    if notice := licence_notice(model.folder):
        _log.info("%s", notice)
    digest = sha256_of(model.folder / MODEL_FILE)
    note = f"CSF of {model.name} ({digest[:12]})"
    made, failed = _predict(listing, name, out, cut, note)
    subjects = tuple(
        replace(subject, csf=labels, note=_with_note(subject, note))
        for subject, labels in made
    )
    exclusions = (*failed, *listing.exclusions)
    return replace(listing, subjects=subjects, exclusions=exclusions)


def _with_note(subject: Subject, note: str) -> str:
    """Return the note of a subject with another note appended."""
    return "; ".join(filter(None, (subject.note, note)))


def _predict(
    listing: Listing,
    name: str,
    out: Path,
    cut: Cut,
    remark: str,
) -> tuple[list[tuple[Subject, Path]], list[Exclusion]]:
    """Segment the scans of all subjects; return each subject with the path of its label map.

    A subject without an image, or whose scan failed, is returned as an exclusion. `name` is the
    model, `out` the folder for its results; results of an earlier call are used again. `remark` is
    logged for each segmented scan.
    """
    output = OutputSettings(
        picture=False,
        brain_mask=False,
        trust_affine=cut.trust_affine,
        fill_nonfinite=cut.fill_nonfinite,
    )
    cases = tuple(
        Case(subject.id, subject.image, subject.id, axes=subject.image_axes)
        for subject in listing.subjects
        if subject.image
    )

    def log_result(entry: Entry) -> None:
        _log.info("%s: %s", entry.case, entry.reason or remark)

    request = PredictRequest(
        inputs=(),
        found=Found(cases),
        out=out,
        model=name,
        output=output,
    )
    outcome = predict(request, Listener(on_entry=log_result))
    if outcome.interrupted:
        remedy = "the same command goes on"
        raise InterruptedRunError(
            "stopped while labels were made", where=out, remedy=remedy
        )
    entries = read_entries(ledgers_in(out))
    made = []
    failed = []
    for subject in listing.subjects:
        entry = entries.get(subject.id)
        if entry is None or subject.image is None:
            failed.append(Exclusion(subject.id, "no image", broken=True))
        elif entry.status == "failed":
            failed.append(Exclusion(subject.id, entry.reason, broken=True))
        else:
            names = CaseNames(out, subject.id, {}, bids=False)
            made.append((subject, names.labels(output, subject.image)))
    return made, failed
