"""Recorder of a run: moves output files into place, writes the ledger and counts outcomes."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.predict.settings import CaseNames, RunSettings, slices_of
from trinat.pipelines.study.cases import Case, Participant, Refusal, Work
from trinat.pipelines.study.entry import (
    Entry,
    digest_of,
    digests_of,
    most_doubtful,
)
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.naming import LABEL_TABLES
from trinat.pipelines.study.record import ScanResult, TimePoint
from trinat.segmentation.errors import (
    DiskFullError,
    OutputError,
    is_disk_full,
    reason_of,
)
from trinat.segmentation.io.files import absolute
from trinat.segmentation.io.streams import NO_CHECKSUM, has_checksum
from trinat.segmentation.timing import Spent, stage, together

_log = logging.getLogger(__name__)

_NO_SERIES = (
    "--dicom-seg needs scans given as DICOM: leave it out, or give the DICOM files"
)


@dataclass(frozen=True)
class Outcome:
    """Numbers of a run's inputs that were segmented (done), skipped, and have failed.

    If the run was stopped, `interrupted` is True. The counts then leave out the inputs that were
    not begun.

    - `is_part`: the run was a part of the work, and `trinat merge` joins it with the others.
    - `grades` counts the done scans by grade.
    - `spent` maps stages of the work to wall and processor time in seconds, if the request has
      `timings`.
    """

    done: int
    skipped: int
    failed: int
    interrupted: bool
    is_part: bool = False
    grades: Mapping[str, int] = field(default_factory=dict)
    spent: Spent = field(default_factory=dict)

    @property
    def exit(self) -> Exit:
        """Exit status of a command that ends with this outcome."""
        if self.interrupted:
            return Exit.INTERRUPTED
        return batch_exit(done=self.done + self.skipped, failed=self.failed)


def sum_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Add up the outcomes of several runs: their counts and times.

    Without outcomes, all counts are zero.
    """
    grades: Counter[str] = Counter()
    for outcome in outcomes:
        grades.update(outcome.grades)
    return Outcome(
        sum(outcome.done for outcome in outcomes),
        sum(outcome.skipped for outcome in outcomes),
        sum(outcome.failed for outcome in outcomes),
        interrupted=any(outcome.interrupted for outcome in outcomes),
        is_part=any(outcome.is_part for outcome in outcomes),
        grades=grades,
        spent=together(outcome.spent for outcome in outcomes),
    )


@dataclass
class Recorder:
    """Recorder of the outcome of each input, which also decides which cases to segment.

    - `on_entry` is called with each ledger entry.
    - `cases` are the run's cases by id.
    - `counts` and `grades` are the numbers of inputs by status and by grade.
    - `spent` has the times of each case that was segmented, `workers` are the workers that did it.
    - `shown` has the ledger entries of the most doubtful cases so far, whose slices are on the page
      of the folder.
    """

    settings: RunSettings
    ledger: Ledger
    on_entry: Callable[[Entry], object]
    cases: Mapping[str, Case] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    spent: list[Spent] = field(default_factory=list)
    workers: set[str] = field(default_factory=set)
    shown: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        self.shown = most_doubtful(self.ledger.entries.values())

    @stage("write")
    def note(self, entry: Entry, *, keep: bool = True) -> None:
        """Move a case's files into place, add its entry to the ledger, and count it.

        With `keep=False` nothing is added, because the entry of an earlier run is still valid.
        DiskFullError is raised if the disk is full, since all further scans would be segmented in
        vain.
        """
        if entry.staged:
            entry = self._move_in(entry)
        if entry.no_room:
            remedy = "free some and run again: the run continues where it stopped"
            raise DiskFullError(
                "no space left on its disk", where=self.settings.out, remedy=remedy
            )
        if keep:
            if not entry.is_refusal:
                self._remove_outdated(entry)
            self.ledger.add(self._with_hash_of_scan(entry))
        self.counts[entry.status] += 1
        if entry.result.grade:
            self.grades[entry.result.grade] += 1
        if entry.spent:
            self.spent.append(entry.spent)
            self.workers.add(entry.worker)
        self.on_entry(entry)

    def _move_in(self, entry: Entry) -> Entry:
        """Move a case's files into place; return its ledger entry, a failed one if this fails.

        The file with slices for the page is kept only for the most doubtful cases.
        """
        others = [other for other in self.shown if other.case != entry.case]
        shown = most_doubtful([*others, entry])
        if entry not in shown:
            slices = slices_of(entry.case)
            (Path(entry.staged) / slices).unlink(missing_ok=True)
            self.ledger.remove(slices)
        self._warn_of_other_numbers(Path(entry.staged))
        try:
            self.ledger.move_in(Path(entry.staged), entry)
            for other in others:
                if other not in shown:
                    slices = slices_of(other.case)
                    (self.settings.out / slices).unlink(missing_ok=True)
        except (OutputError, OSError) as error:
            return _failed_placement(entry, error)
        self.shown = shown
        return entry

    def _warn_of_other_numbers(self, staged: Path) -> None:
        """Log a warning if a table of labels is replaced that other label maps of the folder need.

        The new tables are in the folder `staged`. Scans of this run are segmented again anyway.
        """
        for _, plain, in_bids in LABEL_TABLES.values():
            name = in_bids if self.settings.bids else plain
            table = self.settings.out / name
            new = staged / name
            if not new.is_file() or not table.is_file():
                continue
            # A part of the work reads only its own entries, but knows whether there are others.
            has_others = bool(self.ledger.contents.other_suffixes) or any(
                known.status == "done" and known.case not in self.cases
                for known in self.ledger.entries.values()
            )
            if has_others and new.read_bytes() != table.read_bytes():
                _log.warning(
                    "%s now has the label numbers of this run; label maps of earlier runs in this "
                    "folder have others",
                    name,
                )

    def _with_hash_of_scan(self, entry: Entry) -> Entry:
        """Return an entry with the hash of the scan whose earlier results stay, if it failed.

        The next attempt needs it to see whether they are results of the same scan.
        """
        before = self.ledger.entries.get(entry.case)
        if entry.status != "failed" or entry.input_sha256 or before is None:
            return entry
        return replace(entry, input_sha256=before.input_sha256)

    def _remove_outdated(self, entry: Entry) -> None:
        """Delete files that earlier attempts wrote for another scan or another label map.

        Only files that are unchanged since trinat wrote them are deleted. If a scan fails now, its
        earlier results stay as long as the scan is the same: the ledger says that it has failed.
        """
        before = self.ledger.entries.get(entry.case)
        case = self.cases.get(entry.case)
        if case is None:
            names = CaseNames(Path(), entry.case, {}, bids=False)
        else:
            names = CaseNames(Path(), case.id, case.entities, self.settings.bids)
        older = set(names.every())
        if before is not None:
            older.update(before.outputs)
        if entry.status == "failed":
            self.ledger.remove(slices_of(entry.case))
            if before is None:
                return
            if not before.is_scan_changed(self.settings.out):
                return
        elif before is not None:
            # Files made from the same scan and label map with other settings are still valid.
            labels_before = names.labels_in(before.outputs)
            is_same_scan = before.input_sha256 == entry.input_sha256
            if is_same_scan and labels_before == names.labels_in(entry.outputs):
                return
        for name in sorted(older - entry.outputs.keys()):
            self.ledger.remove(name)

    def refuse(
        self, refusals: Sequence[Refusal], *, is_here: Callable[[str], bool]
    ) -> None:
        """Record the inputs of this run that cannot be segmented.

        If an earlier run has segmented such an input, its results become invalid. `is_here` returns
        True for the name of an input if this run would have refused it, which a part of the work or
        a selection does not always. Such inputs that earlier runs refused or left out and this run
        does not, and failed scans whose file is gone, are recorded as withdrawn, so that no table
        shows them. The reason may be that a missing file was found, or that one of two files of the
        same name is gone.
        """
        refused_now = {refusal.shown for refusal in refusals}
        for known in list(self.ledger.entries.values()):
            is_unsegmented = known.is_left_out or known.status == "failed"
            if (
                not is_unsegmented
                or known.case in refused_now
                or not is_here(known.case)
            ):
                continue
            if known.is_refusal or self._is_gone(known):
                no_longer = "no longer among the inputs"
                self.ledger.add(Entry(known.case, "skipped", known.input, no_longer))
        for refusal in refusals:
            shown = refusal.shown
            if refusal.harmless:
                # Nothing is missing without this input, such as a scan that was given twice. It is
                # reported, but has no line in the ledger unless it is a part that is no scan to
                # segment.
                entry = Entry(shown, "skipped", shown, refusal.reason)
                self.note(entry, keep=entry.is_left_out)
            else:
                self._withdraw(refusal)
                self.note(Entry(shown, "failed", shown, refusal.reason))

    def _is_gone(self, entry: Entry) -> bool:
        """Return True if a scan is not among the cases of this run, and its file is missing."""
        path = self.settings.out.resolve() / entry.scan
        # Unlike `Path.exists`, this returns False instead of raising if the path cannot be checked.
        return entry.case not in self.cases and not os.path.exists(path)  # noqa: PTH110

    def _withdraw(self, refusal: Refusal) -> None:
        """Record that an earlier result is no longer valid, because its scan is now refused."""
        known = self.ledger.entries.get(refusal.case)
        if refusal.case == refusal.shown or known is None or known.is_withdrawn:
            return
        entry = Entry(refusal.case, "skipped", refusal.shown, refusal.reason)
        self.ledger.add(entry)

    def cases_to_do(
        self, cases: Sequence[Work], stop: Callable[[], bool]
    ) -> Iterator[Work]:
        """Yield the cases to segment; record those that are up to date or cannot be segmented.

        `stop` is called before each case, because checking the results of a large study takes long.
        """
        for case in cases:
            if stop():
                return
            if isinstance(case, Participant):
                participant = self._participant_to_do(case)
                if participant is not None:
                    yield participant
                continue
            reason = self._why_impossible(case)
            if reason:
                self.note(Entry.failed(case, self.settings, reason))
                continue
            self._warn_of_another_scan(case)
            known = self.ledger.entries.get(case.id)
            is_alone = known is not None and known.result.longitudinal is None
            if known is not None and is_alone and known.is_current(case, self.settings):
                self._note_current(case)
                continue
            obstructed = self._obstructed_entry(case)
            if obstructed is None:
                yield case
            else:
                self.note(obstructed)

    def _participant_to_do(self, participant: Participant) -> Participant | None:
        """Return a participant with the scans that have to be segmented; record its other scans.

        The scans are segmented together: if one is new, changed or missing, all are segmented
        again. None means that there is nothing to segment.
        """
        impossible = set()
        for case in participant.scans:
            reason = self._why_impossible(case)
            if reason:
                impossible.add(case.id)
                self.note(Entry.failed(case, self.settings, reason))
            else:
                self._warn_of_another_scan(case)
        possible = participant.only(lambda case: case.id not in impossible)
        if possible is None or self._note_if_current(possible):
            return None
        return possible

    def _note_if_current(self, participant: Participant) -> bool:
        """Return True if the results of a participant's scans are up to date, and record that.

        They are if they come from exactly these scans, participant, group and times. A scan whose
        outputs would replace files of the user is recorded as failed, and so is a scan that is
        still unusable; the other scans are not segmented again because of it. If False is returned,
        nothing is recorded.
        """
        failed_again: dict[str, Entry] = {}
        obstructed_scans = {}
        known: dict[str, TimePoint | None] = {}
        digests: dict[str, str | None] = {}
        for case in participant.scans:
            obstructed = self._obstructed_entry(case)
            if obstructed is not None:
                obstructed_scans[case.id] = obstructed
                digests[case.id] = digest_of(*case.files)
                continue
            entry = self.ledger.entries.get(case.id)
            if entry is not None and entry.is_still_unusable(case, self.settings):
                failed_again[case.id] = entry
                continue
            if entry is None or not entry.is_current(case, self.settings):
                return False
            known[case.id] = entry.result.longitudinal
            digests[case.id] = entry.input_sha256
        if not digests:
            # Without a result, nothing says that all scans were tried together.
            return False
        for case, year in zip(participant.scans, participant.years, strict=True):
            if case.id not in known:
                continue
            noted = known[case.id]
            if noted is None and len(digests) == 1:
                # The only usable scan is segmented by itself.
                continue
            if noted is None or noted.scans != digests:
                return False
            whose = (noted.participant, noted.group, noted.year)
            if whose != (participant.name, participant.group, year):
                return False
        for case in participant.scans:
            if case.id in obstructed_scans:
                self.note(obstructed_scans[case.id])
            elif case.id in failed_again:
                self.note(failed_again[case.id], keep=False)
            else:
                self._note_current(case)
        return True

    def _note_current(self, case: Case) -> None:
        # The entry of the earlier run is still valid, except for the path if the scan is read from
        # another place now, or has its earlier name again.
        known = self.ledger.entries[case.id]
        now = Entry.of(case, self.settings, "done")
        if now.scan != known.scan or known.counts_as:
            again = replace(known, scan=now.scan, counts_as="", attempt=0)
            self.ledger.add(again)
        unchanged = "unchanged since an earlier run"
        self.note(Entry(case.id, "skipped", case.shown, unchanged), keep=False)

    def _warn_of_another_scan(self, case: Case) -> None:
        """Log that a case replaces the result of another scan, if that is still where it was read.

        A scan with the same bytes is the same scan.
        """
        known = self.ledger.entries.get(case.id)
        now = Entry.of(case, self.settings, "done")
        if known is None or known.status != "done" or known.scan == now.scan:
            return
        out = self.settings.out
        is_same = digest_of(*case.files) in (known.input_sha256, None)
        if not is_same and known.digest_of_scan(out) == known.input_sha256:
            _log.warning(
                "%s: the result of another scan of this name is replaced: %s",
                case.shown,
                absolute(out.resolve() / known.scan),
            )

    def _why_impossible(self, case: Case) -> str:
        """Return why a case cannot be segmented with these settings; "" if it can."""
        if self.settings.require_checksum and not has_checksum(case.path):
            return NO_CHECKSUM
        wants_seg = self.settings.output.dicom_seg or "dicom_seg" in case.also
        if wants_seg and not case.series:
            return _NO_SERIES
        return ""

    def _obstructed_entry(self, case: Case) -> Entry | None:
        """Return a failed ledger entry if a case's outputs would replace files of the user.

        None if they would not.
        """
        names = CaseNames(Path(), case.id, case.entities, self.settings.bids)
        paths = names.all(self.settings.output, case.path)
        digests = digests_of(self.settings.out, map(str, paths))
        try:
            self.ledger.refuse(digests)
        except OutputError as error:
            return _failed_placement(Entry.of(case, self.settings, "failed"), error)
        return None

    def outcome(self, given: int, *, is_part: bool) -> Outcome:
        """Return the counts of the run; `given` is the number of its inputs.

        If fewer inputs have an outcome, the run was interrupted. `is_part` is True for a part of
        the work.
        """
        return Outcome(
            self.counts["done"],
            self.counts["skipped"],
            self.counts["failed"],
            interrupted=self.counts.total() < given,
            is_part=is_part,
            grades=self.grades,
            spent=together(self.spent, side_by_side=len(self.workers)),
        )


def _failed_placement(entry: Entry, error: Exception) -> Entry:
    """Return a failed ledger entry for a scan whose outputs cannot be moved to the output folder.

    `entry` is the entry of the finished scan, and `error` the reason for the failure.
    """
    return replace(
        entry,
        status="failed",
        reason=reason_of(error, where=False),
        no_room=is_disk_full(error),
        outputs={},
        result=ScanResult(),
    )
