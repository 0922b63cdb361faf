"""trinat bundle: views that were trained apart become one model."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.common.config import check, read_yaml
from segmentation.errors import ConfigError, ModelError
from segmentation.inference.prior import build_template, default_prior
from segmentation.models.base import Network
from segmentation.models.checkpoint import (
    MODEL_FILE,
    Model,
    class_weights,
    load_model,
    save_model,
)
from segmentation.models.ensemble import Ensemble, EnsembleConfig
from segmentation.models.model_info import (
    Description,
    Fusion,
    ModelInfo,
    Origin,
    Preprocessing,
    Training,
)
from segmentation.space.views import View
from segmentation.synthetic.heads import load_heads

__all__ = ["DEFAULT", "bundle", "check_out", "find_source"]

# In place of a weights file: the weights that a model has when nothing else is said.
DEFAULT = "default"
_UNKNOWN = "not stated"


@dataclass(frozen=True)
class _Source:
    given: Path
    model: Model

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(self.model.networks)


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
    sources = [_Source(place, load_model(find_source(place))) for place in given]
    first = sources[0]
    members = _by_view(sources, ensemble)
    by_view = {view: found[0] for view, found in members.items()}
    for source in sources[1:]:
        _check_fits(first, source)
    fusion = _fusion(sources, weights)
    views = [view for view in View if view in by_view]
    class_weights(fusion, first.model.scheme, views, weights or first.given)
    # What was measured of one model with its weights holds for the same again.
    alone = first.info if len(sources) == 1 else None
    origins = {view: _joined_origin(members[view], view) for view in views}
    template, prior = first.model.template, first.info.prior
    if label_maps is not None:
        template = build_template(load_heads(label_maps), first.model.scheme)
        prior = default_prior(first.model.scheme)
    description = check(
        Description,
        {
            "name": out.resolve().name if name is None else name,
            "labels": first.info.labels,
            "preprocessing": _preprocessing(by_view),
            "fusion": fusion,
            # A structure that one view does not predict cannot be fused.
            "not_predicted": _in_order(
                first.model.scheme.names,
                {structure for source in sources for structure in source.info.not_predicted},
            ),
            "quality": alone.quality if alone else None,
            "prior": prior,
            "training": _training(origins, licence),
            "metrics": alone.metrics if alone and alone.fusion == fusion else {},
            "origins": origins,
        },
        out if name is None else "--name",
    )
    table = first.model.folder / f"{first.info.labels}.tsv"
    out.parent.mkdir(parents=True, exist_ok=True)
    return save_model(
        out,
        description,
        {view: _joined_network(members[view], view) for view in views},
        label_table=table if table.name in first.info.files else None,
        template=template,
        # Half precision is stored again as it was; no weight is rounded here.
        precision="float16"
        if all(source.info.precision == "float16" for source in sources)
        else "float32",
        overwrite=overwrite,
    )


def check_out(out: Path, overwrite: bool) -> None:
    """Nothing but a model is replaced, and that only when asked for."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MODEL_FILE).is_file():
        raise ModelError("is there already, and is no model", where=out, remedy="choose another")
    if not overwrite:
        raise ModelError(
            "is there already", where=out, remedy="choose another name, or add --overwrite"
        )


def find_source(given: Path) -> Path:
    """The model folder of a run, or a model folder."""
    if (given / "model" / MODEL_FILE).is_file() and not (given / MODEL_FILE).is_file():
        return given / "model"
    if not given.is_dir():
        raise ModelError("no such folder", where=given, remedy="give runs or model folders")
    return given


def _by_view(sources: Sequence[_Source], ensemble: bool) -> dict[View, list[_Source]]:
    found: dict[View, list[_Source]] = {}
    for source in sources:
        for view in source.views:
            if view in found and not ensemble:
                raise ModelError(
                    f"has the {view.value} network, and so has {found[view][0].given}",
                    where=source.given,
                    remedy="give one source for each view, or add --ensemble",
                )
            found.setdefault(view, []).append(source)
    return found


def _joined_network(sources: Sequence[_Source], view: View) -> Network:
    networks = [source.model.networks[view] for source in sources]
    if len(networks) == 1:
        return networks[0]
    for source, network in zip(sources, networks, strict=True):
        same_licence = source.info.training.licence == sources[0].info.training.licence
        if network.config != networks[0].config or not same_licence:
            raise ModelError(
                f"has another {view.value} network or licence than {sources[0].given}",
                where=source.given,
                remedy="join members of one recipe",
            )
    return Ensemble(EnsembleConfig.of(networks[0].config, len(networks)), networks)


def _check_fits(first: _Source, other: _Source) -> None:
    """One model has one label scheme and one working grid; architectures may differ by view."""
    pairs = {
        "labels": (first.info.labels, other.info.labels),
        "classes of these labels": (first.info.labels_sha256, other.info.labels_sha256),
        **{
            f"preprocessing.{key}": (
                getattr(first.info.preprocessing, key),
                getattr(other.info.preprocessing, key),
            )
            for key in Preprocessing.model_fields
            if key != "slices"  # a view's own
        },
    }
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise ModelError(
                f"{what}: {theirs}, where {first.given} has {ours}",
                where=other.given,
                remedy="join views that were trained alike",
            )


def _fusion(sources: Sequence[_Source], weights: str | Path | None) -> Fusion:
    if weights == DEFAULT:
        return Fusion()
    if weights is not None:
        path = Path(weights)
        return check(Fusion, read_yaml(path), path)
    fusion = sources[0].info.fusion
    for source in sources[1:]:
        if source.info.fusion != fusion:
            raise ConfigError(
                f"joins its views otherwise than {sources[0].given}",
                where=source.given,
                remedy=f"say how with --weights FILE or --weights {DEFAULT}",
            )
    return fusion


def _preprocessing(by_view: Mapping[View, _Source]) -> Preprocessing:
    """The common grid, and each view's slices as its own model cuts them."""
    slices = {
        view: source.info.preprocessing.slices[view]
        for view, source in by_view.items()
        if view in source.info.preprocessing.slices
    }
    common = next(iter(by_view.values())).info.preprocessing
    return common.model_copy(update={"slices": slices})


def _origin(source: _Source, view: View) -> Origin:
    """What a view's own model says of it; of a bundle, what it says of that view."""
    info = source.info
    if view in info.origins:
        return info.origins[view]
    return Origin(
        name=info.name,
        model_sha256=hashlib.sha256((source.model.folder / MODEL_FILE).read_bytes()).hexdigest(),
        training=info.training,
        not_predicted=info.not_predicted,
        metrics=info.metrics,
        versions=info.versions,
    )


def _joined_origin(sources: Sequence[_Source], view: View) -> Origin:
    """The first member's, with the data of all."""
    all_ = [_origin(source, view) for source in sources]
    if len(all_) == 1:
        return all_[0]
    said = {
        key: "; ".join(filter(None, dict.fromkeys(getattr(o.training, key) for o in all_)))
        for key in ("data", "pseudo_labels")
    }
    training = all_[0].training.model_copy(update=said)
    return all_[0].model_copy(update={"training": training, "metrics": {}})


def _training(origins: Mapping[View, Origin], licence: str) -> Training:
    """All views' notes as one, and nothing claimed for a view that does not say it."""
    # Views of one run share its count.
    runs = {origin.model_sha256: origin.training for origin in origins.values()}
    seen = [note.slices_seen for note in runs.values()]
    known = [count for count in seen if count is not None]
    return Training(
        data=_joined({view: origin.training.data for view, origin in origins.items()}),
        licence=_joined({v: origin.training.licence or licence for v, origin in origins.items()}),
        recipe=_joined({view: origin.training.recipe for view, origin in origins.items()}),
        pseudo_labels="; ".join(sorted({n.pseudo_labels for n in runs.values()} - {""})),
        slices_seen=sum(known) if len(known) == len(seen) else None,
    )


def _joined(texts: Mapping[View, str]) -> str:
    """ "x" where all say x; else "coronal, axial: x; sagittal: not stated"."""
    said: dict[str, list[str]] = {}
    for view, text in texts.items():
        said.setdefault(text, []).append(view.value)
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"{', '.join(views)}: {text or _UNKNOWN}" for text, views in said.items())


def _in_order(names: Sequence[str], chosen: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in chosen)
