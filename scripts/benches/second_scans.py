"""How often a second scan is taken for what it is: true, mirrored, or of another size.

    scripts/bench second_scans heads FIGURES SCAN ...
    scripts/bench second_scans pairs FIGURES FIRST SECOND [FIRST SECOND ...]
    scripts/bench second_scans table FIGURES

`heads` acquires each head anew by code, `pairs` has two scans of a person. What comes second is
compared with the first as it is, and with three faults of its header. FIGURES is a table of
tab-separated values; comparisons that it has are not made again. `table` prints it by change. No
network runs: a comparison takes half a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benches._visits import Protocol, visit
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.longitudinal.person import image_to_align
from trinat.segmentation.longitudinal.space import heads_of

__all__ = ["CHANGES", "run", "verdict_of"]

_COLUMNS = ["scan", "change", "verdict", "larger_percent"]


def _mirrored(scan: Volume) -> Volume:
    return replace(scan, data=np.ascontiguousarray(scan.data[::-1]))


def _larger(*factors: float) -> Callable[[Volume], Volume]:
    """The change of a header that says larger voxels, by a factor along each axis."""
    scaled = np.diag([*factors, 1.0])
    return lambda scan: replace(scan, affine=scan.affine @ scaled)


# What is done to the second scan, whose axes are those of the world.
CHANGES: dict[str, Callable[[Volume], Volume]] = {
    "true": lambda scan: scan,
    "mirrored": _mirrored,
    "2 % larger": _larger(1.02, 1.02, 1.02),
}
# Of these each scan has one.
ONE_AXIS: dict[str, Callable[[Volume], Volume]] = {
    "5 % wider": _larger(1.05, 1.0, 1.0),
    "5 % longer": _larger(1.0, 1.05, 1.0),
    "5 % higher": _larger(1.0, 1.0, 1.05),
}


def run(what: str = "", figures: str = "", *scans: str) -> None:
    """Compare, and write a row for each comparison; or print the figures."""
    if what == "table":
        _print_table(Path(figures))
    elif what == "heads":
        _measure(Path(figures), scans, _visits_of(scans))
    elif what == "pairs" and len(scans) % 2 == 0:
        _measure(Path(figures), scans[1::2], _pairs_of(scans))
    else:
        raise SystemExit(__doc__)


def _visits_of(scans: Sequence[str]) -> Iterator[tuple[Volume, Volume]]:
    """Each head as it is aligned, and acquired anew."""
    for path in scans:
        head = _read(path)
        # The same draw for a scan, whichever others there are.
        draw = np.random.default_rng(sum(path.encode()))
        yield head, visit(head, None, Protocol(), draw)


def _pairs_of(scans: Sequence[str]) -> Iterator[tuple[Volume, Volume]]:
    for first, second in zip(scans[::2], scans[1::2], strict=True):
        yield _read(first), _read(second)


def _read(path: str) -> Volume:
    return image_to_align(Volume.read(Path(path)))


def _measure(
    figures: Path, names: Sequence[str], pairs: Iterator[tuple[Volume, Volume]]
) -> None:
    done = set()
    if figures.exists():
        table = pd.read_csv(figures, sep="\t")
        done = set(zip(table["scan"], table["change"], strict=True))
    else:
        figures.write_text("\t".join(_COLUMNS) + "\n", encoding="utf-8")
    for name, (first, second) in zip(names, pairs, strict=True):
        axis = sum(name.encode()) % len(ONE_AXIS)
        for change, changed in [*CHANGES.items(), list(ONE_AXIS.items())[axis]]:
            if (name, change) in done:
                continue
            verdict, percent = verdict_of(first, image_to_align(changed(second)))
            row = [name, change, verdict, round(percent, 3)]
            line = "\t".join(str(value) for value in row)
            with figures.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
            print(line, flush=True)


def verdict_of(first: Volume, second: Volume) -> tuple[str, float]:
    """What predict --longitudinal says of the second of two scans, and the size that it names.

    Both are as `image_to_align` makes them. The size is how much larger the second is, in per cent;
    0 where it has that of the first, or is refused.
    """
    heads = heads_of([first, second])
    if any(head.is_mirrored for head in heads):
        return "mirrored", 0.0
    if len(heads) > 1:
        return "another head", 0.0
    larger_percent = heads[0].stretches_percent[1]
    return ("another size" if larger_percent else "accepted"), larger_percent


def _print_table(figures: Path) -> None:
    """Of each change: how often which verdict, and the sizes that were named."""
    table = pd.read_csv(figures, sep="\t")
    for change, rows in table.groupby("change", sort=False):
        verdicts = rows["verdict"].value_counts()
        said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        print(f"{change}: {said}")
        named = rows.loc[rows["verdict"] == "another size", "larger_percent"]
        if len(named):
            print(f"    {named.min():.2f} to {named.max():.2f} % larger")
