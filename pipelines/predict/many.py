"""`trinat.segment_many`: what `trinat predict` does, in this process, as a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from natsort import natsorted

from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.ledger import ledgers_in, read_entries
from trinat.pipelines.predict.outputs import OutputSettings
from trinat.pipelines.predict.progress import listener
from trinat.pipelines.predict.run import Plan, predict

if TYPE_CHECKING:
    import pandas as pd


def segment_many(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    progress: bool = True,
    model: str | os.PathLike[str] = "fast",
    device: str = "auto",
) -> pd.DataFrame:
    """Segment many scans with a model that is loaded once; a scan that fails becomes a row.

    Parameters
    ----------
    paths : paths
        Scans, folders of scans or glob patterns.
    out : path, optional
        Folder for all that `trinat predict` writes; what is there and current is not done again.
        Without it only the table is kept.
    progress : bool
        Show progress and failures on stderr.
    model, device : str
        As for `trinat.segment`.

    Returns
    -------
    DataFrame
        One row a scan, in natural order: `scan`, `status` (done, failed, skipped), `grade`,
        `reason`, `labels` (file, with `out`), `total_brain_mm3`, and mm³ for each structure.

    Examples
    --------
    >>> table = trinat.segment_many(["scan.nii.gz", "missing.nii.gz"], progress=False)
    >>> table.status.tolist()
    ['failed', 'done']
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    inputs = [os.fspath(path) for path in given if isinstance(path, str | os.PathLike)]
    heard = [
        Entry(str(path), "failed", str(path), f"a {type(path).__name__} is not a path")
        for path in given
        if not isinstance(path, str | os.PathLike)
    ]
    with (
        TemporaryDirectory() as temporary,
        listener(quiet=False, as_json=False, interactive=sys.stderr.isatty()) as parts,
    ):
        start, tell, end = parts

        def note(entry: Entry) -> None:
            heard.append(entry)
            if progress:
                tell(entry)

        folder = Path(out if out is not None else temporary)
        output = OutputSettings(picture=out is not None)
        engine = partial(SerialEngine, device=device)
        plan = Plan(inputs, folder, os.fspath(model), output=output, engine=engine)
        if inputs:
            outcome = predict(plan, start if progress else lambda _: None, note)
            if out is not None and progress:
                end(outcome, folder)
        # What was done before is told as skipped; its result is in the ledger.
        known = read_entries(ledgers_in(folder))
    return _table(
        [known.get(entry.case, entry) for entry in heard],
        None if out is None else folder,
    )


def _table(entries: Iterable[Entry], out: Path | None) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for entry in natsorted(entries, key=lambda entry: entry.input):
        found = entry.result
        row = {"scan": entry.input, "status": entry.status, "grade": found.get("grade")}
        row["reason"] = "; ".join(found.get("reasons", ())) or entry.reason
        if out:
            maps = (
                name
                for name in entry.outputs
                if name.endswith(("_dseg.nii.gz", "_dseg.mgz"))
            )
            row["labels"] = next((str(out / name) for name in maps), None)
        rows.append(
            row
            | {"total_brain_mm3": found.get("total_brain_mm3")}
            | found.get("volumes_mm3", {})
        )
    return pd.DataFrame(rows)
