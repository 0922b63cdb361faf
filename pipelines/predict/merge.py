"""trinat merge: one ledger, one set of tables and one page from the shards of a run."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

from pipelines.common.lock import run_lock
from pipelines.predict.ledger import Ledger, ledgers_in, read_entries
from pipelines.predict.naming import WORK
from pipelines.predict.run import Outcome
from pipelines.predict.tables import write_tables
from segmentation.errors import InputError

__all__ = ["merge"]


def merge(out: Path) -> Outcome:
    """Join the ledgers in `out` into run.jsonl, reading each once; make the tables and the page."""
    ledgers, joined = ledgers_in(out), out / "run.jsonl"
    if not ledgers:
        raise InputError("no run*.jsonl here", where=out, remedy="give the --out of trinat predict")
    with run_lock(out / WORK / "lock"):
        own = read_entries([joined] if joined.exists() else [])
        entries = read_entries([path for path in ledgers if path != joined], known=own)
        write_tables(out, entries.values())
        with Ledger(joined) as ledger:
            for case, entry in entries.items():
                if own.get(case) != entry:
                    ledger.add(entry)
    with contextlib.suppress(OSError):
        (out / WORK).rmdir()
    counts = Counter(entry.status for entry in entries.values())
    return Outcome(counts["done"], counts["skipped"], counts["failed"], interrupted=False)
