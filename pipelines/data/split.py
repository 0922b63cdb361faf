"""Split files of a store."""

from __future__ import annotations

from pathlib import Path

from segmentation.data.splits import Split, make_folds, make_split
from segmentation.data.store import Store

__all__ = ["split_store"]


def split_store(
    root: Path,
    *,
    ratios: tuple[float, float, float] = (8, 1, 1),
    folds: int | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> list[tuple[Path, Split]]:
    """Write split.json, or split-0.json and so on for folds, and return what stands in them."""
    store = Store(root)
    people = [p for p in store.participants if store.info.subjects[p.subject].has_labels]
    path = out or root / "split.json"
    if folds is None:
        splits = [make_split(people, ratios, seed=seed, store=store.fingerprint)]
        paths = [path]
    else:
        splits = make_folds(people, folds, seed=seed, store=store.fingerprint)
        paths = [path.with_stem(f"{path.stem}-{index}") for index in range(folds)]
    for each, split in zip(paths, splits, strict=True):
        split.write(each)
    return list(zip(paths, splits, strict=True))
