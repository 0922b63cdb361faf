"""trinat bundle: views that were trained apart become one model.

Also where the commands that make and measure models find them, and where they may write them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from trinat.pipelines.common.config import check, read_yaml
from trinat.segmentation.errors import ConfigError, ModelError
from trinat.segmentation.inference.prior import build_template, default_prior
from trinat.segmentation.inference.segmenter import Segmenter
from trinat.segmentation.models.architectures import Ensemble, EnsembleConfig
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import (
    Model,
    class_weights,
    load_model,
    save_model,
)
from trinat.segmentation.models.model_info import (
    Description,
    Fusion,
    ModelInfo,
    Origin,
    Training,
)
from trinat.segmentation.models.zoo import MODEL_FILE, find_model, shipped_models
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import load_heads

# In place of a weights file: the weights that a model has when nothing else is said.
DEFAULT = "default"


def check_out(out: Path, overwrite: bool) -> None:
    """Nothing but a model is replaced, and that only when asked for."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MODEL_FILE).is_file():
        raise ModelError(
            "is there already, and is no model", where=out, remedy="choose another"
        )
    if not overwrite:
        raise ModelError(
            "is there already",
            where=out,
            remedy="choose another name, or add --overwrite",
        )


def find_source(given: Path) -> Path:
    """The model folder of a run, or a model folder."""
    if (given / "model" / MODEL_FILE).is_file() and not (given / MODEL_FILE).is_file():
        return given / "model"
    if not given.is_dir():
        raise ModelError(
            "no such folder", where=given, remedy="give runs or model folders"
        )
    return given


def load_views(
    model: str, device: str, instead: str, *, changed: bool = True
) -> Segmenter:
    """A model of several views that may be changed; `instead` says what to do where it may not."""
    folder = find_model(model)
    if changed and folder in shipped_models().values():
        raise ConfigError(
            f"{model} comes with the software and is not changed", remedy=instead
        )
    segmenter = Segmenter.load(folder, device=device)
    if len(segmenter.views) < 2:
        what = f"has the {segmenter.views[0].value} view alone, and views are compared"
        raise ConfigError(
            what, where=folder, remedy="join views with trinat bundle first"
        )
    return segmenter


def bundle(
    given: Sequence[Path],
    out: Path,
    *,
    name: str | None = None,
    weights: str | Path | None = None,
    licence: str = "",
    label_maps: Path | None = None,
    ensemble: bool = False,
    overwrite: bool = False,
) -> ModelInfo:
    """Write to `out` a model of all views that runs or model folders hold.

    With `ensemble`, those that hold the same view become members of one network for it.

    `weights` is a file that fuse-weights wrote, or "default"; else the sources' own. `licence`
    is what the weights may be used under, where a source does not say it. From `label_maps` an
    anatomical prior is made; else the model has that of the first source, if it has one.
    """
    check_out(out, overwrite)
    sources = [load_model(find_source(place)) for place in given]
    first = sources[0]
    members: dict[View, list[Model]] = {}
    for view in View:
        if found := [source for source in sources if view in source.networks]:
            members[view] = found
            if len(found) > 1 and not ensemble:
                what = f"has the {view.value} network, and so has {found[0].folder}"
                remedy = "give one source for each view, or add --ensemble"
                raise ModelError(what, where=found[1].folder, remedy=remedy)
    for source in sources[1:]:
        _check_fits(first, source)
    fusion = _fusion(sources, weights)
    class_weights(fusion, first.scheme, list(members), weights or first.folder)
    # What was measured of one model with its weights holds for the same again.
    alone = first.info if len(sources) == 1 else None
    origins = {view: _joined_origin(found, view) for view, found in members.items()}
    template, prior = first.template, first.info.prior
    if label_maps is not None:
        fluid = {label.name for label in first.scheme.labels if label.group == "csf"}
        learn_fluid = fluid.isdisjoint(first.info.not_predicted)
        template = build_template(
            load_heads(label_maps), first.scheme, learn_fluid=learn_fluid
        )
        prior = default_prior(first.scheme)
    # The common grid, and each view's slices as its own model cuts them.
    own = {view: found[0].info.preprocessing for view, found in members.items()}
    slices = {
        view: said.slices[view] for view, said in own.items() if view in said.slices
    }
    preprocessing = next(iter(own.values()))
    # A structure that one view does not predict cannot be fused.
    untaught = {
        structure for source in sources for structure in source.info.not_predicted
    }
    description = check(
        Description,
        {
            "name": out.resolve().name if name is None else name,
            "labels": first.info.labels,
            "preprocessing": preprocessing.model_copy(update={"slices": slices}),
            "fusion": fusion,
            "not_predicted": tuple(n for n in first.scheme.names if n in untaught),
            "quality": alone.quality if alone else None,
            "prior": prior,
            "training": _training(origins, licence),
            "metrics": alone.metrics if alone and alone.fusion == fusion else {},
            "origins": origins,
        },
        out if name is None else "--name",
    )
    # Half precision is stored again as it was; no weight is rounded here.
    half = all(source.info.precision == "float16" for source in sources)
    return save_model(
        out,
        description,
        {view: _joined_network(found, view) for view, found in members.items()},
        label_table=first.label_table,
        template=template,
        precision="float16" if half else "float32",
        overwrite=overwrite,
    )


def _joined_network(sources: Sequence[Model], view: View) -> Network:
    networks = [source.networks[view] for source in sources]
    if len(networks) == 1:
        return networks[0]
    for source, network in zip(sources, networks, strict=True):
        same_licence = source.info.training.licence == sources[0].info.training.licence
        if network.config != networks[0].config or not same_licence:
            what = (
                f"has another {view.value} network or licence than {sources[0].folder}"
            )
            raise ModelError(
                what, where=source.folder, remedy="join members of one recipe"
            )
    return Ensemble(EnsembleConfig.of(networks[0].config, len(networks)), networks)


def _check_fits(first: Model, other: Model) -> None:
    """One model has one label scheme and one working grid; architectures may differ by view."""
    said = []
    for info in (first.info, other.info):
        common = info.preprocessing.model_dump(
            exclude={"slices"}
        )  # these are a view's own
        grid = {f"preprocessing.{key}": value for key, value in common.items()}
        said.append(
            {
                "labels": info.labels,
                "classes of these labels": info.labels_sha256,
                **grid,
            }
        )
    for what, ours in said[0].items():
        if said[1][what] != ours:
            raise ModelError(
                f"{what}: {said[1][what]}, where {first.folder} has {ours}",
                where=other.folder,
                remedy="join views that were trained alike",
            )


def _fusion(sources: Sequence[Model], weights: str | Path | None) -> Fusion:
    if weights == DEFAULT:
        return Fusion()
    if weights is not None:
        path = Path(weights)
        return check(Fusion, read_yaml(path), path)
    for source in sources:
        if source.info.fusion != sources[0].info.fusion:
            what = f"joins its views otherwise than {sources[0].folder}"
            remedy = f"choose with --weights FILE or --weights {DEFAULT}"
            raise ConfigError(what, where=source.folder, remedy=remedy)
    return sources[0].info.fusion


def _joined_origin(sources: Sequence[Model], view: View) -> Origin:
    """What a view's own model says of it, or a bundle of that view; the first's of several."""
    origins = []
    for source in sources:
        info = source.info
        digest = hashlib.sha256((source.folder / MODEL_FILE).read_bytes()).hexdigest()
        shared = {
            k: getattr(info, k) for k in Origin.model_fields if k != "model_sha256"
        }
        origins.append(info.origins.get(view) or Origin(model_sha256=digest, **shared))
    if len(origins) == 1:
        return origins[0]
    # The data of all members.
    said = {
        key: "; ".join(
            filter(None, dict.fromkeys(getattr(o.training, key) for o in origins))
        )
        for key in ("data", "pseudo_labels")
    }
    training = origins[0].training.model_copy(update=said)
    return origins[0].model_copy(update={"training": training, "metrics": {}})


def _training(origins: Mapping[View, Origin], licence: str) -> Training:
    """All views' notes as one, and nothing claimed for a view that does not say it."""
    # Views of one run share its count.
    runs = {origin.model_sha256: origin.training for origin in origins.values()}
    known = [note.slices_seen for note in runs.values() if note.slices_seen is not None]
    notes = {view: origin.training for view, origin in origins.items()}
    return Training(
        data=_joined({view: note.data for view, note in notes.items()}),
        licence=_joined(
            {view: note.licence or licence for view, note in notes.items()}
        ),
        recipe=_joined({view: note.recipe for view, note in notes.items()}),
        pseudo_labels="; ".join(
            sorted({n.pseudo_labels for n in runs.values()} - {""})
        ),
        slices_seen=sum(known) if len(known) == len(runs) else None,
    )


def _joined(texts: Mapping[View, str]) -> str:
    """ "x" where all say x; else "coronal, axial: x; sagittal: not stated"."""
    said: dict[str, list[str]] = {}
    for view, text in texts.items():
        said.setdefault(text, []).append(view.value)
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(
        f"{', '.join(views)}: {text or 'not stated'}" for text, views in said.items()
    )
