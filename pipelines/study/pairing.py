"""Matching of predictions to true (manual) label maps, by file name.

Rules are tried from the most specific to the loosest. A rule makes a pair only if it finds exactly
one file on each side. For a file without a partner, the result gives the reason. The prediction may
be any other file of the same scan, such as its image.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trinat.pipelines.study.files import ScanFile
from trinat.segmentation.data.sources.base import natural_order, safe_component
from trinat.segmentation.errors import some

# Number of pairs that are named in a message; the rest is counted.
_MOST_NAMED = 3

_SEPARATORS = "_-. "
_SEPARATOR = re.compile(r"[_. -]")
# Words that name kinds of files beside scans; any other word may distinguish two scans.
_KINDS = frozenset((
    "seg", "segmentation", "label", "labels", "labelmap", "pred", "prediction", "predicted",
    "dseg", "parcels", "lesion", "lesions", "wmh", "aseg", "mask", "manual", "truth", "true", "gt",
    "auto", "result", "brain", "t1", "t1w", "mri", "mprage", "flair", "anat", "anon", "orig",
    "image", "img", "scan",
))  # fmt: skip

# Function that returns the key of a file: files with equal keys match. A file with an empty key
# matches no other.
Key = Callable[[ScanFile], object]
# A truth and a prediction that a rule matches; either may match other files, too.
_Match = tuple[ScanFile, ScanFile]


@dataclass(frozen=True)
class Pair:
    """A true label map and its prediction; `how` names the rule that has found the pair.

    `is_guess` is True if the names do not prove that the files belong together, so that the user is
    asked to check the pair.
    """

    truth: ScanFile
    prediction: ScanFile
    how: str
    is_guess: bool = False


@dataclass(frozen=True)
class Pairing:
    """Result of the matching: pairs, and the true label maps and predictions without a partner.

    `doubts` maps the path of a file without a partner to the reason. It has no reason for files to
    which no other name was similar.
    """

    pairs: tuple[Pair, ...]
    truths_alone: tuple[ScanFile, ...]
    predictions_alone: tuple[ScanFile, ...]
    doubts: Mapping[Path, str] = field(default_factory=dict)

    @property
    def guesses(self) -> list[str]:
        """Lines that name the pairs that the user is asked to check, one pair per line.

        After three pairs, a last line has the number of the rest. Empty if all pairs are certain.
        """
        guessed = [pair for pair in self.pairs if pair.is_guess]
        lines = []
        for pair in guessed[:_MOST_NAMED]:
            both = f"{pair.truth.shown} is compared with {pair.prediction.shown}"
            lines.append(f"{both}, by {pair.how}")
        more = len(guessed) - _MOST_NAMED
        if more > 0:
            lines.append(f"{more} more pairs of that kind")
        return lines


def pair_files(
    truths: Iterable[ScanFile],
    predictions: Iterable[ScanFile],
    *,
    guess: bool = False,
) -> Pairing:
    """Pair each true label map with its prediction, by BIDS entities, name, session or subject.

    Rules are tried from the most specific to the loosest. A rule makes a pair only if it finds
    exactly one file on each side. It considers all files, including those in pairs: leaving files
    out does not make the others unique. Only if these rules have found no pair at all, looser rules
    are tried, which ignore endings of names. With `guess`, these also compare names without their
    common beginnings and endings.

    Two files whose names or folders say that they are of two sessions or participants are never
    paired, by any rule.
    """
    matching = _Matching(list(truths), list(predictions))
    for how, key in _RULES:
        matching.take(matching.alike(key, key), how)
    if not matching.pairs:
        matching.take_by_one_ending()
    if not matching.pairs:
        matching.take_by_beginning(guess=guess)
    if guess and not matching.pairs:
        matching.take_by_distinct_parts()
    if not matching.pairs:
        matching.take_the_only_two()
    return matching.result()


def partners_of(
    files: Iterable[ScanFile], others: Iterable[ScanFile]
) -> dict[Path, ScanFile]:
    """Return the one of `others` that belongs to the scan of each file, by the path of the file.

    Files without a partner are omitted.
    """
    pairs = pair_files(files, others).pairs
    return {pair.truth.path: pair.prediction for pair in pairs}


# Strict rules, the most specific first: the text of `Pair.how`, and the key.
_RULES: tuple[tuple[str, Key], ...] = (
    ("BIDS entities", lambda file: file.parsed.entities),  # empty for other names
    ("name", lambda file: file.name),
    ("subject and session", lambda file: (file.parsed.subject, file.parsed.session)),
    ("subject", lambda file: file.parsed.subject),
)


@dataclass
class _Matching:
    """True label maps and predictions, with the pairs that the rules have found so far.

    `paired` has the `id()` of each file in a pair. `doubts` maps the path of a file to the first
    reason why it has no partner.
    """

    truths: list[ScanFile]
    predictions: list[ScanFile]
    pairs: list[Pair] = field(default_factory=list)
    paired: set[int] = field(default_factory=set)
    doubts: dict[Path, str] = field(default_factory=dict)

    def alike(self, truth_key: Key, prediction_key: Key) -> list[_Match]:
        """Return all pairs of a true label map and a prediction for which two keys are equal.

        Each key is a function of a file: `truth_key` for true label maps, `prediction_key` for
        predictions. Files for which it returns an empty value match no other file.
        """
        predictions_by_key: dict[object, list[ScanFile]] = defaultdict(list)
        for prediction in self.predictions:
            predictions_by_key[prediction_key(prediction)].append(prediction)
        matches: list[_Match] = []
        for truth in self.truths:
            key = truth_key(truth)
            if key:
                predictions = predictions_by_key.get(key, [])
                matches += [(truth, prediction) for prediction in predictions]
        return matches

    def take(
        self,
        matches: Iterable[_Match],
        how: str,
        *,
        is_guess: bool = False,
    ) -> None:
        """Add each match to `pairs`, unless one of its two files has a second match.

        `how` is the name of the rule, for `Pair.how`. Matches of two sessions or participants are
        ignored. For other files that are not paired, the reason is added to `doubts`.
        """
        # Matches without those whose names show that the files are of two scans or participants.
        possible = []
        for truth, prediction in matches:
            if not _same_scan(truth, prediction):
                continue
            if _folders_differ(truth, prediction):
                for file, other in ((truth, prediction), (prediction, truth)):
                    why = f"{other.shown} has its name, in another folder"
                    self.doubts.setdefault(file.path, why)
                continue
            possible.append((truth, prediction))

        predictions_of: dict[int, list[ScanFile]] = defaultdict(list)
        truths_of: dict[int, list[ScanFile]] = defaultdict(list)
        for truth, prediction in possible:
            predictions_of[id(truth)].append(prediction)
            truths_of[id(prediction)].append(truth)
        for truth, prediction in possible:
            predictions = predictions_of[id(truth)]
            truths = truths_of[id(prediction)]
            if len(predictions) > 1 or len(truths) > 1:
                why = _not_unique(predictions, truths)
                self.doubts.setdefault(truth.path, why)
                why = _not_unique(truths, predictions)
                self.doubts.setdefault(prediction.path, why)
            elif self.paired.isdisjoint((id(truth), id(prediction))):
                guessed = is_guess or _differ_in_detail(truth, prediction)
                self.pairs.append(Pair(truth, prediction, how, guessed))
                self.paired |= {id(truth), id(prediction)}

    def take_by_one_ending(self) -> None:
        """Pair `case_1` with `case_1_seg` if all names of one side end in `_seg`.

        The sides are true label maps and predictions. Any ending that all names of one side share
        is used in this way. The pairs are guesses if the ending may say more than the kind of a
        file.
        """
        of_truths = _common_ending([file.name for file in self.truths])
        of_predictions = _common_ending([file.name for file in self.predictions])
        for truth_ending, prediction_ending in (("", of_predictions), (of_truths, "")):
            ending = truth_ending or prediction_ending
            if ending and not self.pairs:
                matches = self.alike(
                    _name_without(truth_ending), _name_without(prediction_ending)
                )
                is_guess = not _says_kind_alone(ending)
                self.take(matches, f"name and {ending}", is_guess=is_guess)

    def take_by_beginning(self, *, guess: bool) -> None:
        """Pair files if one name is the beginning of the other, up to a separator.

        The longest such beginning is used: `case_1_b_seg` belongs to `case_1_b` if that exists, and
        to `case_1` otherwise. `case_1` and `case_1_seg` are a certain pair, because `seg` only says
        what kind of file it is. `case_1` and `case_1_b` are a guess. If any match is a guess, all
        pairs are marked as guesses, and without `guess` there are no pairs.
        """
        matches: list[_Match] = []
        truths_by_name = _by_name(self.truths)
        for prediction in self.predictions:
            found = _longest_beginning(prediction.name, truths_by_name)
            matches += [(truth, prediction) for truth in found]
        predictions_by_name = _by_name(self.predictions)
        for truth in self.truths:
            found = _longest_beginning(truth.name, predictions_by_name)
            matches += [(truth, prediction) for prediction in found]
        is_guess = False
        for truth, prediction in matches:
            shorter, longer = sorted((truth.name, prediction.name), key=len)
            if not _says_kind_alone(longer.removeprefix(shorter)):
                is_guess = True
        if guess or not is_guess:
            self.take(matches, "beginning of the name", is_guess=is_guess)

    def take_by_distinct_parts(self) -> None:
        """Pair files by the part of their names that distinguishes them on their side, as guesses.

        For true label maps `t_1_manual` and `t_2_manual`, and predictions `p_1_auto` and
        `p_2_auto`, these parts are `1` and `2`.
        """
        truth_parts = _distinct_parts(self.truths)
        prediction_parts = _distinct_parts(self.predictions)
        matches = self.alike(
            lambda file: truth_parts[file.path],
            lambda file: prediction_parts[file.path],
        )
        how = "what is left of names that begin or end otherwise"
        self.take(matches, how, is_guess=True)

    def take_the_only_two(self) -> None:
        """Pair the only true label map with the only prediction, if the user has named one of them.

        They are a guess unless the user has named both.
        """
        if len(self.truths) != 1 or len(self.predictions) != 1:
            return
        truth = self.truths[0]
        prediction = self.predictions[0]
        if truth.is_given and prediction.is_given:
            self.take([(truth, prediction)], "the two files that were given")
        elif truth.is_given or prediction.is_given:
            self.take([(truth, prediction)], "being the only files", is_guess=True)

    def result(self) -> Pairing:
        """Return the pairs, sorted by the true label maps, and all files without a partner."""
        pairs = sorted(self.pairs, key=lambda pair: natural_order(pair.truth.name))
        truths = [file for file in self.truths if id(file) not in self.paired]
        predictions = [file for file in self.predictions if id(file) not in self.paired]
        alone = {file.path for file in (*truths, *predictions)}
        doubts = {path: why for path, why in self.doubts.items() if path in alone}
        return Pairing(tuple(pairs), tuple(truths), tuple(predictions), doubts)


def _name_without(ending: str) -> Key:
    """Return a key function: the file's name without an ending, or unchanged if it has another."""
    return lambda file: file.name.removesuffix(ending)


def _by_name(files: Iterable[ScanFile]) -> dict[str, list[ScanFile]]:
    """Group files by their names; several files may have the same name."""
    by_name: dict[str, list[ScanFile]] = defaultdict(list)
    for file in files:
        by_name[file.name].append(file)
    return by_name


def _not_unique(candidates: list[ScanFile], rivals: list[ScanFile]) -> str:
    """Return the message that a file has no partner, because several files match.

    `candidates` are the files that match it. If there is only one, `rivals` are the other files
    that match this candidate.
    """
    if len(candidates) > 1:
        return f"not unique: {_joined_names(candidates)} could be its partner"
    candidate = candidates[0].shown
    return f"not unique: {candidate} could be the partner of {_joined_names(rivals)}"


def _joined_names(files: Sequence[ScanFile]) -> str:
    """Join the names of files with "or"; after three files, give the number of the rest."""
    names = sorted((file.shown for file in files), key=natural_order)
    return some(names, between=" or ", last=" or ")


def _same_scan(one: ScanFile, other: ScanFile) -> bool:
    """Return False if the names of two files show that they are of two scans.

    That is so if a BIDS entity that both names have differs, or if both have a session and these
    differ.
    """
    entities = dict(other.parsed.entities)
    for entity, value in one.parsed.entities:
        if entities.get(entity, value) != value:
            return False
    if one.parsed.session and other.parsed.session:
        return one.parsed.session == other.parsed.session
    return True


def _differ_in_detail(one: ScanFile, other: ScanFile) -> bool:
    """Return True if one of two file names says more about its scan than the other.

    Then their match is a guess: sub-01_ses-1 may be sub-01, and p1/T1 may be T1.
    """
    if one.name != other.name and one.parsed.scan != other.parsed.scan:
        return True
    return _safe_folders(one) != _safe_folders(other)


def _safe_folders(file: ScanFile) -> list[str]:
    """Return the names of a file's folders as they are in the output of `trinat predict`."""
    return [safe_component(part) for part in file.parsed.folders]


def _folders_differ(one: ScanFile, other: ScanFile) -> bool:
    """Return True if two files are in folders of different participants: p1/T1 is not p2/T1.

    False if the folders of one file contain those of the other in the same order: disc1/p1/T1 can
    be p1/T1.
    """
    both = (_safe_folders(one), _safe_folders(other))
    shorter, longer = sorted(both, key=len)
    # Each search continues behind the folder found before: the order of folders counts.
    rest = iter(longer)
    return not all(part in rest for part in shorter)


# The functions below find common parts of names: beginnings, endings, and the rest.


def _says_kind_alone(ending: str) -> bool:
    """Return True if an ending names the kind of a file (`_seg`), not its scan (`_MR2`)."""
    words = [word for word in _SEPARATOR.split(ending) if word]
    return all(word.casefold() in _KINDS for word in words)


def _common_ending(names: Sequence[str]) -> str:
    """Return the ending that all names share, from a separator on, such as `_seg`; "" without one.

    It contains no digits, because digits distinguish scans. It is "" for fewer than two names.
    """
    if len(names) < 2:
        return ""
    backwards = [name[::-1] for name in names]
    shared = _shared_beginning(backwards)[::-1]
    after_digits = re.split(r"\d", shared)[-1]
    first_separator = _SEPARATOR.search(after_digits)
    if first_separator is None:
        return ""
    return after_digits[first_separator.start() :]


def _common_beginning(names: Sequence[str]) -> str:
    """Return the beginning that all names share, up to a separator or a digit.

    "sub-01" and "sub-02" share "sub-": the beginning ends where the identity of the subject starts.
    It is "" for fewer than two names.
    """
    if len(names) < 2:
        return ""
    before_digits = re.split(r"\d", _shared_beginning(names))[0]
    length = len(before_digits)
    next_letters = [name[length : length + 1] for name in names]
    if all(letter.isdigit() for letter in next_letters):
        return before_digits
    # rfind returns -1 without a separator, so that the beginning is "".
    last_separator = max(before_digits.rfind(mark) for mark in _SEPARATORS)
    return before_digits[: last_separator + 1]


def _shared_beginning(names: Sequence[str]) -> str:
    """Return the letters that all names begin with."""
    first = names[0]
    length = min(len(name) for name in names)
    for end in range(length):
        if any(name[end] != first[end] for name in names):
            return first[:end]
    return first[:length]


def _distinct_parts(files: Sequence[ScanFile]) -> dict[Path, str]:
    """Return the part of each file's name that distinguishes it from the other files, by path.

    It is the name without the beginning and the ending that all names share. Files with the same
    name in two folders have the same part.
    """
    names = [file.name for file in files]
    beginning = _common_beginning(names)
    ending = _common_ending(names)
    parts = {}
    for file in files:
        part = file.name.removeprefix(beginning).removesuffix(ending)
        parts[file.path] = part.strip(_SEPARATORS)
    return parts


def _longest_beginning(
    name: str, files_by_name: Mapping[str, list[ScanFile]]
) -> list[ScanFile]:
    """Return the files whose name is a beginning of `name` that ends before a separator.

    If there are several such names, the longest is used. The list is empty without any.
    """
    for end in range(len(name) - 1, 0, -1):
        beginning = name[:end]
        if not name[end].isalnum() and beginning in files_by_name:
            return files_by_name[beginning]
    return []
