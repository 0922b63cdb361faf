"""Selection of the structures that count in a comparison of label maps and in a group's mean.

The command line, `trinat.evaluate`, ratings and reports all use this module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels import SHIPPED_SCHEMES, Csf
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.scheme import Label, LabelScheme, load_scheme
from trinat.segmentation.metrics.definitions import NOT_PREDICTED, OTHER_CSF

ALL_STRUCTURES = "all"
# Raters do not agree on the edge of CSF outside the ventricles; background is no structure.
_IN_NO_MEAN = ("background", CSF_GROUP)


def members_of_groups(scheme: LabelScheme) -> dict[str, tuple[Label, ...]]:
    """Return the structures that each group's mean includes, by group name, starting with "all".

    A label is in the group of all structures and in its own. Groups are in the order of their first
    label in the scheme.
    """
    members: dict[str, list[Label]] = {ALL_STRUCTURES: []}
    for label in scheme.labels:
        if label.group in _IN_NO_MEAN:
            continue
        members[ALL_STRUCTURES].append(label)
        members.setdefault(label.group, []).append(label)
    return {group: tuple(labels) for group, labels in members.items()}


@dataclass(frozen=True)
class Made:
    """Provenance of a prediction: its label scheme, and the structures that it does not predict.

    `named` are structures that the user declares as not predicted, by names of the measuring
    scheme. `source` is the scheme of the model; None if unknown, then the measuring scheme replaces
    it. `not_predicted` are structures of `source`. `csf` is the model's definition of CSF; None if
    unknown.
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

        `rejected` has the raters who rejected a structure, by structure. The two schemes may use
        one name for different things: CSF of tissue4 includes the ventricles. Therefore structures
        are matched by FreeSurfer number, and a structure counts as long as any part of it counts.
        `truth_csf` is the truth's definition of CSF, if there is a truth: a structure with CSF does
        not count if the truth defines CSF differently. Raises ConfigError if `scheme` lacks a
        structure in `named`.
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
        """Return rejected structures whose rejection has no effect on measurements.

        These are only part of a structure of `scheme`, or unknown to it. `rejected` has a
        reason for each name. The caller reports them to the user.
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
    """Derive the provenance of a prediction from its files.

    `predicted` are the structures with volumes in a ledger; if empty, nothing is known. `rated` are
    the structures that raters judged. `scheme` is the measuring scheme; `named` and `csf` are as in
    `Made`.
    """
    source = _scheme_of({*predicted, *rated}, scheme)
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
    """Map each structure of `scheme` to the structures of `source` whose voxels become it."""
    by_class: list[list[str]] = [[] for _ in scheme.labels]
    for part in source.labels[1:]:
        for index in scheme.classes_of_number(part.fs_id):
            by_class[index].append(part.name)
    for label in scheme.labels:
        # A rim that a map lacks is made around that structure.
        if label.rim_of is not None:
            by_class[label.index].extend(by_class[label.rim_of])
    return dict(zip(scheme.names, by_class, strict=True))
