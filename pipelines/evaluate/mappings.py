"""Label numbers of a dataset's own, read as FreeSurfer numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.labels.folding import FoldingTable

_COLUMNS = ("number", "freesurfer")
# The first row of a table is on this line of its file.
_FIRST_LINE = 2


@dataclass(frozen=True)
class Mappings:
    """Label numbers of a dataset's own -> FreeSurfer numbers, for either side.

    Where a side has a folding table, all its numbers are those of the table.
    """

    truth: Mapping[int, int] = field(default_factory=dict)
    prediction: Mapping[int, int] = field(default_factory=dict)
    truth_fold: FoldingTable | None = None
    prediction_fold: FoldingTable | None = None


def read_mapping(path: Path) -> Mappings:
    """A table with columns `number` and `freesurfer`, and maybe `of`.

    `of` is truth (the default), prediction or both. Anything else, and a number that is not
    whole, is a ConfigError with its line.
    """
    truth: dict[int, int] = {}
    prediction: dict[int, int] = {}
    rows = read_rows(path, required=_COLUMNS)
    for line, row in enumerate(rows, start=_FIRST_LINE):
        side = row.get("of") or "truth"
        if side not in ("truth", "prediction", "both"):
            raise ConfigError(
                f"line {line}: `of` is truth, prediction or both, not {side!r}",
                where=path,
            )
        try:
            number = int(row["number"])
            freesurfer = int(row["freesurfer"])
        except ValueError:
            raise ConfigError(
                f"line {line}: label numbers are whole numbers", where=path
            ) from None
        if side in ("truth", "both"):
            truth[number] = freesurfer
        if side in ("prediction", "both"):
            prediction[number] = freesurfer
    return Mappings(truth, prediction)
