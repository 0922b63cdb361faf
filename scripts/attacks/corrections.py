"""Attacks on corrections: other programs, replaced scans, replaced results, kills at any call.

What must count is known because the try did it: a correction counts for the scan that it was made
of, whole or not at all, and alike for `report` and `learn`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from attacks.injection import KINDS, Calls
from attacks.verdicts import Bad, Verdict, wrong
from attacks.workshop import READ_S, Try, happens, time_limit, tiny_scan
from trinat.pipelines.learn.corrected import Corrected, find_corrected
from trinat.pipelines.study.corrections import (
    Saving,
    corrected_path,
    correction_of,
    mask_path,
    save_correction,
    sidecar_path,
)
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.files import find_files
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.record import ScanResult
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import reoriented

_SCHEME = load_scheme("quicknat33")
_NAMES = {label.fs_id: label.name for label in _SCHEME.labels if label.fs_id}
_HIPPOCAMPUS = 17
_NAME = "sub-01_T1w"
# A saving has about so many calls of each kind.
_MOST_CALLS = 8

Numbers = NDArray[np.integer]


@dataclass
class _State:
    """What was done to one scan's result and its correction.

    `data` is the corrected map, None if there is none, and `changed` are the voxels that a
    person has changed, None if only the comparison with the result says it. A saving that was
    killed has left the pair before or the pair `instead`, or something that is refused.
    """

    folder: Path
    scan_number: int = 0
    data: Numbers | None = None
    changed: NDArray[Any] | None = None
    corrected_scan: int = 0
    is_hash_known: bool = False
    instead: tuple[Numbers, Numbers] | None = None
    may_be_refused: bool = False
    is_empty: bool = False
    # The map was empty once. The few voxels painted since do not tell left from right.
    was_empty: bool = False
    is_swapped: bool = False  # left and right are exchanged
    # SHA-256 of the map that was saved last together with its mask; the mask belongs to it again if
    # another program writes the same bytes.
    saved_sha256: str = ""
    saved_mask: NDArray[Any] | None = None
    done: list[str] = field(default_factory=list)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def result(self) -> Path:
        return self.results / f"{_NAME}_dseg.nii.gz"

    @property
    def scan(self) -> Path:
        return self.folder / f"scans/{_NAME}.nii.gz"


def corrections(attempt: Try) -> None:
    """After any order of savings, kills and other programs, only true corrections count."""
    chance = attempt.chance
    state = _State(attempt.folder)
    state.scan.parent.mkdir()
    _segment(state, 0)
    actions: list[Callable[[_State, Try], None]] = [
        _save,
        _save,
        _save_killed,
        _save_elsewhere,
        _change_elsewhere,
        _replace_scan,
        _replace_result,
        _forget,
        _spoil,
    ]
    with time_limit(READ_S):
        _save(state, attempt)
        for _ in range(chance.randint(0, 4)):
            action = chance.choice(actions)
            state.done.append(action.__name__.strip("_"))
            action(state, attempt)
            _check(state)


def _segment(state: _State, number: int) -> None:
    """Write a scan and its result, as `trinat predict` does."""
    image, labels, affine = tiny_scan(number)
    state.scan_number = number
    Volume(image, affine).write(state.scan)
    _write_result(state, labels)


def _write_result(state: _State, labels: Numbers) -> None:
    state.results.mkdir(exist_ok=True)
    affine = Volume.read(state.scan).affine
    Volume(labels, affine).write(state.result, labels=True)
    with Ledger(state.results / "run.jsonl") as ledger:
        entry = Entry(
            _NAME,
            "done",
            state.scan.name,
            input_sha256=sha256_of(state.scan),
            scan=os.path.relpath(state.scan, state.results.resolve()),
            outputs={state.result.name: sha256_of(state.result)},
            result=ScanResult(model="tiny"),
        )
        ledger.add(entry)


def _painted(state: _State, attempt: Try) -> tuple[Volume, Numbers, Path]:
    """Return a map with a larger hippocampus, its mask of changes, and the map below it."""
    shown = corrected_path(state.result)
    if not shown.is_file():
        shown = state.result
    result = Volume.read(state.result, labels=True)
    # The axes of the result, whatever those of the correction are.
    volume = result
    if shown != state.result:
        correction = correction_of(state.result)
        assert correction is not None
        volume = correction.read()
    data = volume.data.copy()
    places = np.argwhere((data != _HIPPOCAMPUS) & (result.data > 0))
    chosen = attempt.chance.sample(range(len(places)), 5)
    data[tuple(places[chosen].T)] = _HIPPOCAMPUS
    return Volume(data, result.affine), data != result.data, shown


def _write_correction(state: _State, painted: Volume, shown: Path) -> None:
    save_correction(
        state.result,
        painted,
        Saving(by="anna", at="2026-11-29T00:00:00+00:00", minutes=1),
        builds_on=sha256_of(shown),
        names=_NAMES,
        scan_sha256=sha256_of(state.scan),
        lock=state.results / ".trinat-work/lock.corrections",
    )


def _save(state: _State, attempt: Try) -> None:
    """Paint and save, as the viewer does."""
    (state.results / ".trinat-work").mkdir(exist_ok=True)
    painted, differs, shown = _painted(state, attempt)
    _write_correction(state, painted, shown)
    _note_saving(state, painted, differs)


def _note_saving(state: _State, painted: Volume, differs: Numbers) -> None:
    """Note a saving that has written all its files."""
    earlier = state.changed
    found = correction_of(state.result)
    assert found is not None
    state.data = painted.data
    # What was changed in a result that was replaced since stays changed.
    state.changed = found.changed() if earlier is not None else differs
    state.saved_sha256 = sha256_of(corrected_path(state.result))
    state.saved_mask = state.changed
    state.corrected_scan = state.scan_number
    state.is_hash_known = True
    state.instead = None
    state.is_empty = False
    # A few voxels in an empty map can look like exchanged sides.
    state.may_be_refused = state.was_empty


def _save_killed(state: _State, attempt: Try) -> None:
    """Be killed at any call of a saving."""
    (state.results / ".trinat-work").mkdir(exist_ok=True)
    painted, differs, shown = _painted(state, attempt)
    chance = attempt.chance
    sidecar = sidecar_path(state.result)
    before = sidecar.read_bytes() if sidecar.is_file() else b""
    kind = chance.choice(("rename", "rename", *KINDS))
    calls = Calls(state.results, kind, chance.randint(1, _MOST_CALLS))
    pid = os.fork()
    if not pid:
        try:
            calls.install()
            _write_correction(state, painted, shown)
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise Bad(Verdict.TRACEBACK, f"a saving ended with {status}")
    # The JSON is moved last: the kill came too late, or never.
    if sidecar.is_file() and sidecar.read_bytes() != before:
        _note_saving(state, painted, differs)
        return
    state.instead = (painted.data, differs)
    state.saved_sha256 = ""
    state.may_be_refused = True


def _save_elsewhere(state: _State, attempt: Try) -> None:
    """Save the map once more, as another program does, mostly with other bytes."""
    path = corrected_path(state.result)
    before = sha256_of(path)
    volume = Volume.read(path, labels=True)
    axes = attempt.chance.choice(("LIA", "RAS", "PSR"))
    reoriented(volume, axes).write(path, labels=True)
    if sha256_of(path) == before:
        # The map has its old axes, and still belongs to its mask.
        return
    state.changed = None
    if sha256_of(path) == state.saved_sha256:
        state.changed = state.saved_mask
    if state.instead is not None:
        # Which of the two it was is not known here.
        state.may_be_refused = True


def _change_elsewhere(state: _State, attempt: Try) -> None:
    """Change the map with another program."""
    painted, _, _ = _painted(state, attempt)
    path = corrected_path(state.result)
    painted.write(path, labels=True)
    state.data = painted.data
    state.changed = None
    state.is_empty = False
    state.may_be_refused = state.may_be_refused or state.instead is not None
    state.instead = None


def _replace_scan(state: _State, attempt: Try) -> None:
    """Replace the scan by that of another head on the same grid, and segment it."""
    _segment(state, state.scan_number + 1)


def _replace_result(state: _State, attempt: Try) -> None:
    """Segment the same scan with another model."""
    labels = Volume.read(state.result, labels=True).data.copy()
    labels[tuple(np.argwhere(labels > 0)[attempt.chance.randrange(50)])] = 0
    _write_result(state, labels)
    # Without a mask, the comparison is with the new result.
    state.may_be_refused = state.may_be_refused or state.instead is not None


def _forget(state: _State, attempt: Try) -> None:
    """Delete the mask, the JSON or both: the map is that of another program then."""
    which = attempt.chance.choice(("mask", "json", "both"))
    state.saved_sha256 = ""
    if which in ("mask", "both"):
        mask_path(state.result).unlink(missing_ok=True)
    if which in ("json", "both"):
        sidecar_path(state.result).unlink(missing_ok=True)
        state.is_hash_known = False
    state.changed = None
    # A mask without its JSON is that of an unfinished saving.
    state.may_be_refused = which == "json" or state.may_be_refused


def _spoil(state: _State, attempt: Try) -> None:
    """Empty the map, or exchange its sides, with another program."""
    path = corrected_path(state.result)
    volume = Volume.read(path, labels=True)
    data = np.zeros_like(volume.data)
    swaps = happens(attempt.chance, 0.5) and not state.was_empty
    if state.is_empty or swaps:
        # An empty map is the same with its sides exchanged.
        state.is_swapped = not state.is_swapped and not state.is_empty
        partners = np.arange(int(_SCHEME.fs_ids.max()) + 1)
        partners[_SCHEME.fs_ids] = _SCHEME.fs_ids[_SCHEME.partner_permutation]
        data = partners[volume.data].astype(volume.data.dtype)
    else:
        state.is_empty = state.was_empty = True
        state.is_swapped = False
    spoilt = Volume(data, volume.affine)
    spoilt.write(path, labels=True)
    # Another program may have saved the map in other axes than those of the result.
    axes = "".join(nib.aff2axcodes(Volume.read(state.result, labels=True).affine))
    state.data = reoriented(spoilt, axes).data
    state.changed = None
    state.may_be_refused = state.may_be_refused or state.instead is not None
    state.instead = None


def _check(state: _State) -> None:
    """Raise unless all commands agree on the correction, and it is a true one."""
    what = " > ".join(state.done)
    files = find_files(state.results)
    if len(files) != 1:
        raise wrong(f"{what}: {len(files)} label maps of one scan")
    (file,) = files
    study = Study(state.results)
    unfit = any(checked.unfit for checked in study.checked(study.label_maps()))
    in_report = file.corrects is not None and not unfit
    learnt: list[Corrected] = []
    try:
        learnt, failures = find_corrected(study)
    except EvaluationError as error:
        failures = [str(error)]
    if in_report != bool(learnt):
        raise wrong(f"{what}: report {in_report}, learn {bool(learnt)}: {failures}")
    is_of_another_scan = (
        state.is_hash_known and state.corrected_scan != state.scan_number
    )
    must_not = state.is_empty or state.is_swapped or is_of_another_scan
    if in_report and must_not:
        raise wrong(f"{what}: a correction counts that must not")
    if not in_report:
        if not must_not and not state.may_be_refused:
            raise wrong(f"{what}: a correction is refused: {failures}")
        if not failures:
            raise wrong(f"{what}: a correction is refused without a word")
        return
    _check_content(state, what, learnt[0])


def _check_content(state: _State, what: str, learnt: Corrected) -> None:
    """Raise unless map and changed voxels belong together."""
    correction = correction_of(state.result)
    assert correction is not None
    data = correction.read().data
    pairs: list[tuple[Numbers | None, Numbers | None]] = [(state.data, state.changed)]
    if state.instead is not None:
        pairs.append(state.instead)
    fitting = [
        pair for pair in pairs if pair[0] is not None and (pair[0] == data).all()
    ]
    if not fitting:
        raise wrong(f"{what}: the map is neither the old nor the new one")
    # Killed between map and JSON with an unchanged mask, it is like a map of another program.
    is_killed = state.instead is not None and (state.instead[0] == data).all()
    if learnt.structures is None and not is_killed:
        if state.changed is not None:
            raise wrong(
                f"{what}: a painted correction counts as a map of another program"
            )
        return
    mask = correction.changed()
    known = [changed for _, changed in fitting if changed is not None]
    if known and not any((changed == mask).all() for changed in known):
        raise wrong(f"{what}: the mask is of another map")


ATTACKS = {"corrections": corrections}
