"""What to segment: a file, a folder, a glob, a list, a BIDS dataset or a SUBJECTS_DIR, as cases.

Nothing given is lost: what cannot become a case is returned with the reason.
"""

from __future__ import annotations

import glob
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from natsort import natsorted

from pipelines.batch.naming import safe_component, split_entities
from segmentation.data.freesurfer import find_image
from segmentation.errors import ConfigError, InputError

__all__ = ["Case", "Found", "Refusal", "find_cases"]

_SUFFIXES = (".nii.gz", ".nii", ".mgh.gz", ".mgz", ".mgh", ".hdr", ".img")
_LISTS = (".txt", ".list")
# What BIDS and trinat call results that lie beside scans: labels, probabilities, masks, doubt.
_RESULTS = ("_dseg", "_probseg", "_mask", "_entropy")


@dataclass(frozen=True)
class Case:
    """One scan: where it lies, and what its outputs are called.

    `id` is unique and stands for the case in ledger and tables; it is also folder/stem.
    """

    id: str
    path: Path
    shown: str  # path below the input's root, for people
    entities: dict[str, str] = field(default_factory=dict)  # only in a BIDS dataset

    @property
    def folder(self) -> str:
        return os.path.dirname(self.id)  # noqa: PTH120 - a name, not a path

    @property
    def stem(self) -> str:
        return os.path.basename(self.id)  # noqa: PTH119 - a name, not a path

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the scan consists of, a header before its image."""
        suffix = self.path.suffix.lower()
        if suffix not in (".hdr", ".img"):
            return (self.path,)
        upper = self.path.suffix.isupper()
        return tuple(
            self.path.with_suffix(half.upper() if upper else half) for half in (".hdr", ".img")
        )


@dataclass(frozen=True)
class Refusal:
    """Something that was given and is not segmented; `harmless`: nothing is missing without it."""

    shown: str
    reason: str
    harmless: bool = False


@dataclass(frozen=True)
class Found:
    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...] = ()
    bids_root: Path | None = None


def find_cases(
    inputs: Sequence[str | Path],
    *,
    exclude: Path | None = None,
    participants: Collection[str] = (),
) -> Found:
    """Every scan that `inputs` name, in natural order; `exclude` is never searched (the output)."""
    if len(inputs) == 1:
        root = Path(inputs[0])
        if _is_bids(root):
            return _find_bids(root, participants)
        if _is_subjects_dir(root):
            return _find_subjects(root)
    else:
        # Their scans are told by where they lie, which a walk through all files does not.
        for given in inputs:
            if _is_bids(Path(given)) or _is_subjects_dir(Path(given)):
                raise ConfigError(
                    "a BIDS dataset or SUBJECTS_DIR is given alone",
                    where=given,
                    remedy="run once for each, with an --out of its own",
                )
    refusals: list[Refusal] = []
    paths: list[Path] = []
    roots: list[Path] = []
    for given in inputs:
        try:
            root, found = _expand(str(given), exclude)
        except InputError as error:
            refusals.append(Refusal(str(given), error.what))
            continue
        roots.append(root)
        paths.extend(found)
    root = _absolute(os.path.commonpath(roots)) if roots else Path.cwd()
    return _name_cases(root, _without_results(paths, inputs, refusals), refusals)


def _without_results(
    paths: Sequence[Path], inputs: Sequence[str | Path], refusals: list[Refusal]
) -> list[Path]:
    """Scans alone, unless results are all there is or were named one by one."""
    named = {_absolute(given) for given in inputs}
    scans = [p for p in paths if p in named or not (_is_scan(p) and _is_result(p))]
    if not scans:
        return list(paths)
    left = [path for path in paths if path not in set(scans)]
    refusals += [
        Refusal(path.name, "a result by its name, not a scan", harmless=True) for path in left
    ]
    return scans


def _is_result(path: Path) -> bool:
    return _stem(path).lower().endswith(_RESULTS)


def _expand(given: str, exclude: Path | None) -> tuple[Path, list[Path]]:
    """(the folder that output paths mirror from, scans) of one INPUT."""
    path = _absolute(given)
    if path.is_dir():
        if exclude and path.resolve() == exclude.resolve():
            raise InputError("is the output folder, too: choose another --out", where=path)
        if image := find_image(path):
            # A subject of FreeSurfer's: its other images are results.
            return path.parent, [image]
        found = natsorted(_walk(path, exclude), key=str)
        if not found:
            raise InputError(f"no scan in this folder ({', '.join(_SUFFIXES[:4])})", where=path)
        return path, found
    if path.suffix.lower() in _LISTS and path.is_file():
        return _read_list(path)
    if not path.exists() and glob.has_magic(given):
        return _expand_glob(given, exclude)
    return path.parent, [path]


def _read_list(path: Path) -> tuple[Path, list[Path]]:
    """One path a line, relative to the list; empty lines and # comments are passed over."""
    lines = path.read_text("utf-8-sig", errors="surrogateescape").splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not names:
        raise InputError("the list names no scan", where=path)
    found = [_absolute(path.parent / name) for name in names]
    return _absolute(os.path.commonpath([scan.parent for scan in found])), found


def _expand_glob(pattern: str, exclude: Path | None) -> tuple[Path, list[Path]]:
    # Not Path.glob: patterns are relative to the current folder or absolute, as in a shell.
    matches = natsorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    found = [_absolute(match) for match in matches]
    scans = [path for path in found if path.is_file() and _is_scan(path)]
    if exclude and (kept := [p for p in scans if not p.is_relative_to(_absolute(exclude))]):
        # Unless all lies there: then names tell scans from results.
        scans = kept
    if not scans:
        raise InputError("no scan matches this pattern", where=pattern)
    parts = Path(pattern).parts
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return _absolute(Path(*parts[:fixed])), scans


def _walk(root: Path, exclude: Path | None) -> Iterator[Path]:
    """Scans below a folder, through links to folders but never twice round."""
    avoided = {exclude.resolve()} if exclude else set()
    seen: set[Path] = set()
    for folder, subfolders, names in os.walk(root, followlinks=True):
        here = Path(folder)
        real = here.resolve()
        if real in seen or real in avoided:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            # A header stands for its pair.
            if _is_scan(here / name) and not name.lower().endswith(".img"):
                yield here / name


def _is_scan(path: Path) -> bool:
    return path.name.lower().endswith(_SUFFIXES) and not path.name.startswith(".")


def _name_cases(root: Path, paths: Iterable[Path], refusals: list[Refusal]) -> Found:
    """Cases that mirror the tree below `root`; what would write the same output is refused."""
    seen: set[Path] = set()
    by_id: dict[str, list[Case]] = defaultdict(list)
    for path in paths:
        relative = path.relative_to(root)
        shown = str(relative)
        # Not resolved: in some archives equal scans of two sessions are links to one file.
        same = path.with_suffix(".hdr") if path.suffix == ".img" else path
        if same in seen:
            refusals.append(Refusal(shown, "given twice", harmless=True))
        elif not path.is_file():
            refusals.append(Refusal(shown, "no such file"))
        elif not _is_scan(path):
            refusals.append(Refusal(shown, f"not a known kind of scan ({', '.join(_SUFFIXES)})"))
        else:
            parts = (*relative.parts[:-1], _stem(path))
            name = "/".join(safe_component(part) for part in parts)
            by_id[name].append(Case(name, path, shown))
        seen.add(same)
    return Found(*_without_collisions(by_id, refusals))


def _without_collisions(
    by_id: dict[str, list[Case]], refusals: list[Refusal]
) -> tuple[tuple[Case, ...], tuple[Refusal, ...]]:
    cases = []
    for same in by_id.values():
        if len(same) == 1:
            cases.append(same[0])
            continue
        for case in same:
            others = ", ".join(other.path.name for other in same if other is not case)
            refusals.append(
                Refusal(case.shown, f"{others} beside it would get the same output: keep one")
            )
    return tuple(natsorted(cases, key=lambda case: case.id)), tuple(refusals)


def _is_bids(root: Path) -> bool:
    return root.is_dir() and (
        (root / "dataset_description.json").is_file() or next(_bids_scans(root), None) is not None
    )


def _bids_scans(root: Path) -> Iterator[Path]:
    for anat in ("sub-*/anat", "sub-*/ses-*/anat"):
        for suffix in (".nii.gz", ".nii"):
            yield from root.glob(f"{anat}/*_T1w{suffix}")


def _find_bids(root: Path, participants: Collection[str]) -> Found:
    wanted = {label.removeprefix("sub-") for label in participants}
    by_id: dict[str, list[Case]] = defaultdict(list)
    refusals: list[Refusal] = []
    present: set[str] = set()
    for path in natsorted(_bids_scans(root), key=str):
        shown = str(path.relative_to(root))
        stem = _stem(path).removesuffix("_T1w")
        entities = split_entities(stem)
        if "sub" not in entities:
            refusals.append(Refusal(shown, "its name is not made of BIDS entities"))
            continue
        folders = [f"{key}-{entities[key]}" for key in ("sub", "ses") if key in entities]
        if path.parent.relative_to(root).parts != (*folders, "anat"):
            refusals.append(
                Refusal(shown, "its name is of another subject or session than its folder")
            )
            continue
        present.add(entities["sub"])
        if not wanted or entities["sub"] in wanted:
            name = f"{path.parent.relative_to(root)}/{stem}"
            by_id[name].append(Case(name, _absolute(path), shown, entities))
    refusals += [
        Refusal(f"sub-{label}", "no such participant with a T1w scan")
        for label in natsorted(wanted - present)
    ]
    if not by_id and not refusals:
        raise InputError("no sub-*/[ses-*/]anat/*_T1w.nii[.gz] in this BIDS dataset", where=root)
    return Found(*_without_collisions(by_id, refusals), bids_root=_absolute(root))


def _is_subjects_dir(root: Path) -> bool:
    return root.is_dir() and any(find_image(entry) for entry in root.iterdir())


def _find_subjects(root: Path) -> Found:
    cases, refusals = [], []
    for folder in natsorted(root.iterdir(), key=str):
        if not (folder / "mri").is_dir() or folder.name.startswith("."):
            continue
        image = find_image(folder)
        if image is None:
            refusals.append(Refusal(folder.name, "mri/ has no image to segment"))
            continue
        name = safe_component(folder.name)
        cases.append(Case(f"{name}/{name}", _absolute(image), f"{folder.name}/mri/{image.name}"))
    return Found(tuple(cases), tuple(refusals))


def _stem(path: Path) -> str:
    lower = path.name.lower()
    suffix = next(ending for ending in _SUFFIXES if lower.endswith(ending))
    return path.name[: -len(suffix)]


def _absolute(path: str | Path) -> Path:
    """Absolute, without `..`, links kept."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
