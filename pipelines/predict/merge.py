"""trinat merge: the ledgers of parts of the work become one, with the tables and page of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from trinat.pipelines.common.lock import run_lock
from trinat.pipelines.predict.changes import write_changes
from trinat.pipelines.predict.doubt import EXCLUDED_GRADES, most_doubtful
from trinat.pipelines.predict.ledger import Ledger, LedgerContents, ledgers_in
from trinat.pipelines.predict.outcome import Outcome
from trinat.pipelines.predict.outputs import WORK, slices_of
from trinat.pipelines.predict.tables import write_tables
from trinat.pipelines.predict.work_folder import emptied, make_tables_folder
from trinat.segmentation.errors import InputError


def merge(
    out: Path,
    *,
    overwrite: bool = False,
    excluded: Collection[str] = EXCLUDED_GRADES,
) -> Outcome:
    """Join the ledgers in `out` into run.jsonl, reading each once; make the tables and the page.

    With `overwrite`, tables of the user give way; a copy of them stays. Results of the `excluded`
    grades are in no change.
    """
    ledgers = ledgers_in(out)
    joined = out / "run.jsonl"
    if not ledgers:
        raise InputError(
            "no run*.jsonl here", where=out, remedy="give the --out of trinat predict"
        )
    staging = out / WORK / "staging"
    with run_lock(out / WORK / "lock"), emptied(staging):
        contents = LedgerContents()
        if joined.exists():
            contents.read(joined)
        own = dict(contents.entries)
        for path in ledgers:
            if path != joined:
                contents.read(path)
        entries = contents.entries
        with Ledger(joined, own, contents.written, overwrite=overwrite) as ledger:
            folder = make_tables_folder(staging)
            write_tables(folder, entries.values(), out)
            write_changes(folder, entries.values(), excluded)
            ledger.place(folder)
            # Each part of the work has kept the slices of its own most doubtful cases.
            shown = {slices_of(entry.case) for entry in most_doubtful(entries.values())}
            for case in entries:
                slices = slices_of(case)
                if slices not in shown:
                    (out / slices).unlink(missing_ok=True)
            for case, entry in entries.items():
                if own.get(case) != entry:
                    ledger.add(entry)
    counts = Counter(
        entry.status for entry in entries.values() if not entry.is_withdrawn
    )
    return Outcome(
        counts["done"], counts["skipped"], counts["failed"], interrupted=False
    )
