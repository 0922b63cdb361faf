"""trinat bundle: combine views that were trained separately into one model."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trinat.pipelines.common.config import check
from trinat.pipelines.common.models import check_out, find_source
from trinat.pipelines.train.provenance import read_provenance
from trinat.segmentation.errors import ConfigError, ModelError
from trinat.segmentation.inference.prior import build_template, default_prior
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.models.checkpoint import (
    Model,
    load_model,
    normalised_weights,
    save_model,
)
from trinat.segmentation.models.model_info import (
    Description,
    Fusion,
    ModelInfo,
    Origin,
    Precision,
    Training,
)
from trinat.segmentation.models.zoo import MODEL_FILE
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import load_heads


def bundle(
    given: Sequence[Path],
    out: Path,
    *,
    name: str | None = None,
    default_weights: bool = False,
    licence: str = "",
    label_maps: Path | None = None,
    overwrite: bool = False,
) -> ModelInfo:
    """Combine the views of several runs or model folders into one model, and write it to `out`.

    - `given` are the runs or model folders. The label scheme (numbers and names of structures), the
      contrast and other common properties of the new model are those of the first.
    - `name` is the model's name; by default that of the folder `out`.
    - Views are weighted as in the sources, or with `default_weights` as in a new model.
    - `licence` is the licence of the weights of sources that state none.
    - `label_maps` is a folder of label maps to make an anatomical prior from; by default the model
      has the prior of the first source, if there is one.

    Returns the metadata of the new model. ModelError or ConfigError is raised if the sources do not
    fit together; nothing is written then.
    """
    check_out(out, overwrite)
    sources = [load_model(find_source(place)) for place in given]
    first = sources[0]
    by_view = _sources_by_view(sources)
    # All sources must have the same label scheme and working grid; networks may differ by view.
    expected = _common_facts(first)
    for source in sources[1:]:
        for what, found in _common_facts(source).items():
            if found != expected[what]:
                raise ModelError(
                    f"{what}: {found}, where {first.folder} has {expected[what]}",
                    where=source.folder,
                    remedy="join views that were trained alike",
                )
    fusion = Fusion()
    if not default_weights:
        fusion = _common_fusion(sources)
    # Raises if all weights are 0, before anything is written.
    normalised_weights(fusion.weights, list(by_view), first.folder)

    template = first.template
    prior = first.info.prior
    if label_maps is not None:
        # In the template, all fluid around the brain is CSF only for models that find it.
        learn_fluid = _predicts_csf(first) and first.info.csf == "intracranial"
        heads = load_heads(label_maps)
        template = build_template(heads, first.scheme, learn_fluid=learn_fluid)
        prior = default_prior(first.scheme)

    content = _join_content(sources, by_view, fusion, licence)
    content["prior"] = prior
    if label_maps is not None:
        # Metrics were measured without this prior.
        content["metrics"] = {}
    if name is None:
        content["name"] = out.resolve().name
        description = check(Description, content, out)
    else:
        content["name"] = name
        description = check(Description, content, "--name")

    networks = {view: source.networks[view] for view, source in by_view.items()}
    # Use half precision only if all sources are stored in it, so that no weight is rounded.
    precision: Precision = "float32"
    if all(source.info.precision == "float16" for source in sources):
        precision = "float16"
    return save_model(
        out,
        description,
        networks,
        label_table=first.label_table,
        template=template,
        parcels=first.parcels,
        lesions=first.lesions,
        provenance=_join_provenance(sources),
        precision=precision,
        overwrite=overwrite,
    )


def _sources_by_view(sources: Sequence[Model]) -> dict[View, Model]:
    """Return, for each view, the source model that has a network for it.

    Views are in the order of `View`; views without any network are omitted. Raises ModelError if
    two models have a network for the same view.
    """
    by_view = {}
    for view in View:
        found = [source for source in sources if view in source.networks]
        if not found:
            continue
        if len(found) > 1:
            raise ModelError(
                f"has the {view.value} network, and so has {found[0].folder}",
                where=found[1].folder,
                remedy="give one source for each view",
            )
        by_view[view] = found[0]
    return by_view


def _common_facts(model: Model) -> dict[str, Any]:
    """Return the properties of a model that must be the same in all models to combine.

    These are its label scheme, contrast, skull stripping and preprocessing. Keys are their names in
    error messages.
    """
    info = model.info
    content: dict[str, Any] = {
        "labels": info.labels,
        "classes of these labels": info.labels_sha256,
        "contrast": info.contrast,
        "reverse_contrast": info.reverse_contrast,
        "stripped_by": info.stripped_by,
    }
    # Slicing is specific to each view, so it may differ.
    grid = info.preprocessing.model_dump(exclude={"slices"})
    for key, value in grid.items():
        content[f"preprocessing.{key}"] = value
    return content


def _common_fusion(sources: Sequence[Model]) -> Fusion:
    """Return how the models combine their views; raise ConfigError if they do not all do it alike.

    A `Fusion` has the kind of mean over views, the weights of the views and the odds of structures.
    """
    first = sources[0]
    for source in sources:
        if source.info.fusion != first.info.fusion:
            raise ConfigError(
                f"joins its views otherwise than {first.folder}",
                where=source.folder,
                remedy="add --default-weights, and run trinat fit on the new model",
            )
    return first.info.fusion


def _join_content(
    sources: Sequence[Model],
    by_view: Mapping[View, Model],
    fusion: Fusion,
    licence: str,
) -> dict[str, Any]:
    """Return the fields of the new model's `Description`, except its name and its prior.

    `sources` are the models to combine; the label scheme and other common properties are those of
    the first. `by_view` has, for each view, the model with a network for it. `fusion` has the
    weights and the kind of mean by which the views are combined. `licence` is the licence of the
    weights of sources that state none.
    """
    first = sources[0]
    origins = {view: _origin_of(source, view) for view, source in by_view.items()}
    # The grid is the same in all sources, but each view keeps the slicing of its own source.
    slices = {}
    for view, source in by_view.items():
        preprocessing = source.info.preprocessing
        if view in preprocessing.slices:
            slices[view] = preprocessing.slices[view]
    first_view = next(iter(by_view.values()))
    preprocessing = first_view.info.preprocessing.model_copy(update={"slices": slices})
    # Structures that one of the sources does not predict cannot be fused.
    missing: set[str] = set()
    for source in sources:
        missing.update(source.info.not_predicted)
    quality = None
    metrics = {}
    if len(sources) == 1:
        # Limits and metrics hold only for the fusion that they were measured with.
        known = first.info.fusion
        if (known.mean, known.weights) == (fusion.mean, fusion.weights):
            quality = first.info.quality
        if known == fusion:
            metrics = first.info.metrics
    return {
        "labels": first.info.labels,
        "preprocessing": preprocessing,
        "fusion": fusion,
        "contrast": first.info.contrast,
        "reverse_contrast": first.info.reverse_contrast,
        "stripped_by": first.info.stripped_by,
        "not_predicted": tuple(name for name in first.scheme.names if name in missing),
        "csf": _join_csf(sources),
        "quality": quality,
        "training": _join_training(origins, licence),
        "metrics": metrics,
        "origins": origins,
    }


def _join_csf(sources: Sequence[Model]) -> Csf:
    """Return which fluid the label CSF means in the models; raise ModelError if this differs.

    Models that do not predict CSF are ignored; "region" (a small region of fluid) if none predicts
    it.
    """
    known = [source for source in sources if _predicts_csf(source)]
    for source in known[1:]:
        if source.info.csf != known[0].info.csf:
            raise ModelError(
                f"csf: {source.info.csf}, where {known[0].folder} has {known[0].info.csf}",
                where=source.folder,
                remedy="join views that were trained alike",
            )
    if known:
        return known[0].info.csf
    return "region"


def _predicts_csf(source: Model) -> bool:
    """Return True if CSF is among the structures that a model predicts."""
    fluids = {label.name for label in source.scheme.labels if label.group == CSF_GROUP}
    return not fluids <= set(source.info.not_predicted)


def _origin_of(source: Model, view: View) -> Origin:
    """Return where the weights of one view come from: model, training data, licence and versions.

    It is the origin that a bundle has for this view, or made from the model.yaml of the view.
    """
    if view in source.info.origins:
        return source.info.origins[view]
    model_file = source.folder / MODEL_FILE
    return Origin(
        name=source.info.name,
        model_sha256=hashlib.sha256(model_file.read_bytes()).hexdigest(),
        training=source.info.training,
        not_predicted=source.info.not_predicted,
        metrics=source.info.metrics,
        versions=source.info.versions,
    )


def _join_training(origins: Mapping[View, Origin], licence: str) -> Training:
    """Combine the notes on the training of all views into one.

    `origins` has the notes of each view. Data, licence and recipe are listed by view if they
    differ; `licence` is the licence of views that state none. `slices_seen`, the number of slices
    used in training, is the sum over all training runs; None if any run lacks it.
    """
    notes = {view: origin.training for view, origin in origins.items()}
    # Views of one run share its notes, and its count of slices.
    runs = {origin.model_sha256: origin.training for origin in origins.values()}
    pseudo_labels = {note.pseudo_labels for note in runs.values() if note.pseudo_labels}
    counts = [note.slices_seen for note in runs.values()]
    known_counts = [count for count in counts if count is not None]
    slices_seen = None
    if len(known_counts) == len(counts):
        slices_seen = sum(known_counts)
    licences = {view: note.licence or licence for view, note in notes.items()}
    return Training(
        data=_describe_by_view({view: note.data for view, note in notes.items()}),
        licence=_describe_by_view(licences),
        recipe=_describe_by_view({view: note.recipe for view, note in notes.items()}),
        pseudo_labels="; ".join(sorted(pseudo_labels)),
        slices_seen=slices_seen,
    )


def _join_provenance(sources: Sequence[Model]) -> bytes | None:
    """Return one provenance.json with the training jobs of all models; None if none has any."""
    jobs: dict[str, list[Any]] = defaultdict(list)
    for source in sources:
        for job, calls in read_provenance(source.folder).items():
            jobs[job].extend(calls)
    return json.dumps(jobs, indent=1).encode() if jobs else None


def _describe_by_view(texts: Mapping[View, str]) -> str:
    """Return one text for the texts of all views.

    It is "x" if all texts are "x". Otherwise views with the same text are named together: "coronal,
    axial: x; sagittal: not stated".
    """
    views_that_say: dict[str, list[str]] = {}
    for view, text in texts.items():
        views_that_say.setdefault(text, []).append(view.value)
    if len(views_that_say) == 1:
        return next(iter(views_that_say))
    parts = []
    for text, views in views_that_say.items():
        parts.append(f"{', '.join(views)}: {text or 'not stated'}")
    return "; ".join(parts)
