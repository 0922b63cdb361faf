"""Selection of the structures that count: in comparisons of label maps, and in means over groups.

The command line, `trinat.evaluate`, ratings and reports all use this module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels import SHIPPED_SCHEMES, Csf
from trinat.segmentation.labels.label import CSF_GROUP, Label
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.definitions import NOT_PREDICTED, OTHER_CSF

ALL_STRUCTURES = "all"
# Groups that no mean includes. Raters do not agree on the edge of CSF outside the ventricles, and
# background is no structure.
_GROUPS_WITHOUT_MEAN = ("background", CSF_GROUP)


def members_of_groups(scheme: LabelScheme) -> dict[str, tuple[Label, ...]]:
    """Return the structures of each group, such as ventricles, over which its mean is taken.

    Keys are names of groups. The first group, "all", has the labels of all other groups. These
    follow in the order of their first label in the scheme. Background and CSF outside the
    ventricles are in no group.
    """
    members: dict[str, list[Label]] = {ALL_STRUCTURES: []}
    for label in scheme.labels:
        if label.group in _GROUPS_WITHOUT_MEAN:
            continue
        members[ALL_STRUCTURES].append(label)
        members.setdefault(label.group, []).append(label)
    return {group: tuple(labels) for group, labels in members.items()}


@dataclass(frozen=True)
class Made:
    """Provenance of a prediction: its label scheme, and the structures that it does not predict.

    The measuring scheme is the scheme in which structures are compared; it may differ from that of
    the model. `named` are the structures of the measuring scheme that the user declares as not
    predicted. `source` is the scheme of the model; None means unknown, and the measuring scheme is
    used in its place. `not_predicted` are the structures of `source` that the model does not
    predict. `csf` is the model's definition of CSF; None means unknown.
    """

    named: tuple[str, ...] = ()
    source: LabelScheme | None = None
    not_predicted: tuple[str, ...] = ()
    csf: Csf | None = None

    def left_out(
        self,
        scheme: LabelScheme,
        rejected: Mapping[str, str] | None = None,
        *,
        truth_csf: Csf | None = None,
    ) -> dict[str, str]:
        """Return the structures of `scheme` that do not count, with the reason for each.

        `scheme` is the scheme in which structures are compared. `rejected` maps a structure's name
        to the raters who rejected it. `truth_csf` is the definition of CSF in the truth, or None if
        there is no truth: a structure with CSF does not count if truth and model define CSF
        differently.

        The two schemes may use one name for different structures: CSF of tissue4 includes the
        ventricles. Therefore structures are matched by FreeSurfer number. A structure of `scheme`
        that consists of several structures of the model counts if at least one of them counts.

        Raises ConfigError if `scheme` lacks a structure in `named`.
        """
        for name in self.named:
            if name not in scheme.names[1:]:
                raise ConfigError(
                    f"{scheme.name} has no {name!r}, so it cannot be listed as not predicted"
                )
        rejected = rejected or {}
        source = self.source or scheme
        parts_of = _parts(scheme, source)
        other_csf: set[str] = set()
        if truth_csf is not None and self.csf is not None and truth_csf != self.csf:
            other_csf = {
                label.name for label in source.labels if label.group == CSF_GROUP
            }
        found: dict[str, str] = {}
        for label in scheme.labels[1:]:
            parts = parts_of[label.name]
            predicted = [part for part in parts if part not in self.not_predicted]
            rejecting = [rejected[part] for part in predicted if part in rejected]
            if label.name in self.named or not predicted:
                found[label.name] = NOT_PREDICTED
            elif not other_csf.isdisjoint(predicted):
                found[label.name] = OTHER_CSF
            elif len(rejecting) == len(predicted):
                raters = dict.fromkeys(rejecting)  # without duplicates
                found[label.name] = f"rejected by {', '.join(raters)}"
        return found

    def rejected_but_measured(
        self, scheme: LabelScheme, rejected: Mapping[str, str]
    ) -> set[str]:
        """Return the names of rejected structures that are measured in spite of the rejection.

        `rejected` maps a structure's name to the raters who rejected it. A rejection has no effect
        if the structure is only one part of a structure of `scheme`, or unknown to it. The caller
        tells the user about these structures.
        """
        found = self.left_out(scheme, rejected)
        gone: set[str] = set()
        for name, parts in _parts(scheme, self.source or scheme).items():
            if name in found:
                gone.update(parts)
        return {name for name in rejected if name not in gone}


def made_by(
    predicted: Collection[str],
    rated: Collection[str],
    scheme: LabelScheme,
    named: Collection[str] = (),
    csf: Csf | None = None,
) -> Made:
    """Derive which structures a prediction can have from its files and from the user.

    `predicted` are the structures whose volumes are in the run ledger; if there are none, the
    prediction may have all structures. `rated` are the structures that raters judged. `scheme` is
    the scheme in which structures are compared. `named` are the structures that the user declares
    as not predicted, and `csf` is the model's definition of CSF, None if unknown.
    """
    # Ratings may name a structure that no scheme has.
    source = _scheme_of({*predicted, *rated}, scheme) or _scheme_of(predicted, scheme)
    not_predicted: tuple[str, ...] = ()
    if source and predicted:
        not_predicted = tuple(
            name for name in source.names[1:] if name not in predicted
        )
    return Made(tuple(named), source, not_predicted, csf)


def _scheme_of(names: Collection[str], scheme: LabelScheme) -> LabelScheme | None:
    """Find a scheme with structures of all these names: `scheme` itself, else a shipped scheme."""
    if set(names) <= set(scheme.names):
        return scheme
    for shipped in SHIPPED_SCHEMES:
        candidate = load_scheme(shipped)
        if set(names) <= set(candidate.names):
            return candidate
    return None


def _parts(scheme: LabelScheme, source: LabelScheme) -> dict[str, list[str]]:
    """Map each structure of `scheme` to the structures of `source` that it consists of, by name."""
    by_class: list[list[str]] = [[] for _ in scheme.labels]
    for part in source.labels[1:]:
        for index in scheme.classes_of_number(part.fs_id):
            by_class[index].append(part.name)
    for label in scheme.labels:
        # A rim that is missing in a label map is made from the structure that it surrounds.
        if label.rim_of is not None:
            by_class[label.index].extend(by_class[label.rim_of])
    return dict(zip(scheme.names, by_class, strict=True))
