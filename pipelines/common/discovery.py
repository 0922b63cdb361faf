"""Where scans and label maps are: a file, a folder, a glob, a list, a BIDS dataset, a SUBJECTS_DIR.

`find_cases` is for what is segmented: nothing given is lost, what cannot become a case is returned
with the reason. `find_files` is for what is compared or measured.
"""

from __future__ import annotations

import glob
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path

from natsort import natsorted

from trinat.pipelines.common.naming import LEFT_OUT, RESULT_ENDINGS, Product, safe_component
from trinat.segmentation.data.sources.base import natural_order, without_suffix
from trinat.segmentation.data.sources.bids import anat_files, entities, misnamed
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels, person_and_session
from trinat.segmentation.data.sources.pairs import image_files
from trinat.segmentation.errors import ConfigError, EvaluationError, InputError, reason_of
from trinat.segmentation.io.dicom import find_series, is_dicom
from trinat.segmentation.io.files import read_text
from trinat.segmentation.io.streams import SCAN_SUFFIXES
from trinat.segmentation.labels.folding import FoldingTable

_LISTS = (".txt", ".list")
# All that can be read; a header stands for its pair.
_READ = tuple(suffix for suffix in SCAN_SUFFIXES if suffix != ".img")
# What a file is, not whose: these may differ between the two files of a pair.
_NOT_IDENTITY = ("space", "desc", "label", "res", "den", "seg", "atlas")


@dataclass(frozen=True)
class Case:
    """One scan: where it lies, and what its outputs are called.

    `id` is unique and stands for the case in ledger and tables; it is also folder/stem.
    """

    id: str
    path: Path
    shown: str  # path below the input's root, for people
    entities: Mapping[str, str] = field(default_factory=dict)  # only in a BIDS dataset
    # Of a store's: where the dataset vouches for axes; what the file was when the store was made.
    axes: str | None = None
    sha256: str = ""
    also: tuple[str, ...] = ()  # settings of further outputs that this case alone gets
    series: tuple[str, ...] = ()  # the DICOM files that it is, in the folder or zip `path`

    @property
    def stem(self) -> str:
        return self.id.rpartition("/")[2]

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the scan consists of, a header before its image; a zip as a whole."""
        if self.series and not _is_file(self.path):
            return tuple(self.path / name for name in self.series)
        suffix = self.path.suffix
        if suffix.lower() not in (".hdr", ".img"):
            return (self.path,)
        halves = (".HDR", ".IMG") if suffix.isupper() else (".hdr", ".img")
        return tuple(self.path.with_suffix(half) for half in halves)


@dataclass(frozen=True)
class Refusal:
    """Something that was given and is not segmented; `harmless`: nothing is missing without it."""

    shown: str
    reason: str
    harmless: bool = False
    case: str = ""  # the id of the case that it would have been, and may have been in a run before


@dataclass(frozen=True)
class Found:
    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...] = ()
    bids_root: Path | None = None

    @classmethod
    def of(
        cls, cases: Iterable[Case], refusals: Iterable[Refusal], bids_root: Path | None = None
    ) -> Found:
        """Cases in natural order; those that would write the same output are refused."""
        by_id: dict[str, list[Case]] = defaultdict(list)
        for case in cases:
            by_id[case.id].append(case)
        alone = (same[0] for same in by_id.values() if len(same) == 1)
        twins = []
        for same in (same for same in by_id.values() if len(same) > 1):
            for case in same:
                others = ", ".join(other.path.name for other in same if other is not case)
                reason = f"{others} beside it would get the same output: keep one"
                twins.append(Refusal(case.shown, reason, case=case.id))
        return cls(tuple(natsorted(alone, key=attrgetter("id"))), (*refusals, *twins), bids_root)


@dataclass(frozen=True)
class ScanFile:
    """A label map or image, and whose it is by its name."""

    name: str
    path: Path
    subject: str
    session: str = ""
    identity: tuple[tuple[str, str], ...] = ()  # BIDS entities, sorted; empty for other names
    # Below the folder that was searched, where they say whose the file is; empty of BIDS.
    folders: tuple[str, ...] = ()
    is_given: bool = False  # by itself, not as one of a folder
    # Of a store's: as of a Case, and the dataset's own label numbers -> FreeSurfer numbers, before
    # those of its folding table.
    axes: str | None = None
    sha256: str = ""
    numbers: Mapping[int, int] = field(default_factory=dict)
    fold: FoldingTable | None = None

    @property
    def shown(self) -> str:
        """The file, for people."""
        return "/".join((*self.folders, self.path.name))

    @property
    def scan(self) -> str:
        """Which of the person's scans it is, "ses-1_run-2"; empty where the name does not say."""
        rest = dict(self.identity)
        rest.pop("sub", None)
        first = [("ses", rest.pop("ses"))] if "ses" in rest else []
        return "_".join(f"{k}-{v}" for k, v in [*first, *rest.items()]) or self.session


# To segment ---------------------------------------------------------------------------------


def find_cases(
    inputs: Sequence[str | Path],
    *,
    exclude: Path | None = None,
    participants: Collection[str] = (),
    sessions: Collection[str] = (),
) -> Found:
    """Every scan that `inputs` name, in natural order; `exclude` is never searched (the output)."""
    if len(inputs) == 1:
        root = Path(inputs[0])
        if _is_bids(root):
            return _find_bids(_absolute(root), participants, sessions)
        if _is_subjects_dir(root):
            return _find_subjects(_absolute(root))
    # Their scans are told by where they lie, which a walk through all files does not.
    elif given := next((i for i in map(Path, inputs) if _is_bids(i) or _is_subjects_dir(i)), None):
        remedy = "run once for each, with an --out of its own"
        what = "a BIDS dataset or SUBJECTS_DIR is given alone"
        raise ConfigError(what, where=given, remedy=remedy)
    refusals: list[Refusal] = []
    paths: list[Path] = []
    roots: list[Path] = []
    for text in map(str, inputs):
        try:
            root, found = _expand(text, exclude, refusals)
        except InputError as error:
            refusals.append(Refusal(text, error.what))
        else:
            roots.append(root)
            paths += found
    root = _absolute(os.path.commonpath(roots)) if roots else Path.cwd()
    named = {_absolute(given) for given in inputs}
    results = {path for path in paths if path not in named and _is_result(path)}
    if len(results) < len(set(paths)):
        # Scans alone, unless results are all there is or were named one by one.
        refusals += [
            Refusal(path.name, "a result by its name, not a scan", harmless=True)
            for path in paths
            if path in results
        ]
        paths = [path for path in paths if path not in results]
    dicom = [path for path in dict.fromkeys(paths) if not _is_scan(path) and _is_dicom(path)]
    others = [path for path in paths if path not in set(dicom)] if dicom else paths
    cases = [*_name_cases(root, others, refusals), *_name_series(root, dicom, refusals)]
    return Found.of(cases, refusals)


def _expand(given: str, exclude: Path | None, refusals: list[Refusal]) -> tuple[Path, list[Path]]:
    """(the folder that output paths mirror from, scans) of one INPUT."""
    path = _absolute(given)
    if _is_dir(path):
        if exclude and path.resolve() == exclude.resolve():
            what = "is the output folder, too"
            raise ConfigError(what, where=path, remedy="choose another --out")
        if image := find_image(path):
            # A subject of FreeSurfer's: its other images are results.
            return path.parent, [image]
        every = _walk(
            path,
            exclude,
            lambda error: refusals.append(_closed(os.path.relpath(error.filename, path))),
            lambda file: not file.name.startswith("."),
        )
        # A header stands for its pair.
        files = [file for file in every if file.suffix.lower() != ".img"]
        dicom = {file for file in files if not _is_scan(file) and is_dicom(file)}
        scans = natsorted((f for f in files if f in dicom or _is_scan(f)), key=str)
        if dicom and (count := len(files) - len(scans)):
            left_out = f"{LEFT_OUT}files that are neither DICOM nor scans: {count}"
            refusals.append(Refusal(f"{path.name}/", left_out, harmless=True))
        if scans:
            return path, scans
        known = f"{', '.join(SCAN_SUFFIXES[:4])}, DICOM"
        raise InputError(f"no scan in this folder ({known})", where=path)
    if path.suffix.lower() in _LISTS and _is_file(path):
        return _read_list(path)
    if glob.has_magic(given) and not _is_file(path):
        return _expand_glob(given, exclude)
    return path.parent, [path]


def _read_list(path: Path) -> tuple[Path, list[Path]]:
    """One path a line, relative to the list; empty lines and # comments are passed over."""
    lines = read_text(path, "utf-8-sig", "surrogateescape").splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not names:
        raise InputError("the list names no scan", where=path)
    found = [_absolute(path.parent / name) for name in names]
    return _absolute(os.path.commonpath([scan.parent for scan in found])), found


def _expand_glob(pattern: str, exclude: Path | None) -> tuple[Path, list[Path]]:
    # Not Path.glob: patterns are relative to the current folder or absolute, as in a shell.
    matches = natsorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    scans = [
        path
        for path in map(_absolute, matches)
        if _is_file(path) and (_is_scan(path) or _is_dicom(path))
    ]
    if exclude and (kept := [p for p in scans if not p.is_relative_to(_absolute(exclude))]):
        # Unless all lies there: then names tell scans from results.
        scans = kept
    if not scans:
        raise InputError("no scan matches this pattern", where=pattern)
    parts = Path(pattern).parts
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return _absolute(Path(*parts[:fixed])), scans


def _name_cases(root: Path, paths: Iterable[Path], refusals: list[Refusal]) -> Iterator[Case]:
    """Cases that mirror the tree below `root`."""
    seen: set[Path] = set()
    for path in paths:
        relative = path.relative_to(root)
        parts = (*relative.parts[:-1], without_suffix(path))
        name = "/".join(map(safe_component, parts))
        # Not resolved: in some archives equal scans of two sessions are links to one file.
        same = path.with_suffix(".hdr") if path.suffix == ".img" else path
        if same in seen:
            refusals.append(Refusal(str(relative), "given twice", harmless=True))
        elif not _is_file(path):
            is_there = os.path.exists(path)  # noqa: PTH110 - as _is_file asks
            reason = "not a regular file" if is_there else "no such file"
            refusals.append(Refusal(str(relative), reason, case=name))
        elif not _is_scan(path):
            reason = f"not a known kind of scan ({', '.join(SCAN_SUFFIXES)})"
            refusals.append(Refusal(str(relative), reason))
        else:
            yield Case(name, path, str(relative))
        seen.add(same)


def _name_series(root: Path, paths: Sequence[Path], refusals: list[Refusal]) -> Iterator[Case]:
    """A case for each T1-weighted series in zips and DICOM files below `root`; told: the others."""
    zips = [path for path in paths if path.suffix.lower() == ".zip"]
    loose = [str(path.relative_to(root)) for path in paths if path not in zips]
    for place, names in [*((path, None) for path in zips), *([(root, loose)] if loose else [])]:
        try:
            found = find_series(place, names)
        except (InputError, OSError) as error:
            refusals.append(Refusal(place.name, reason_of(error, where=False)))
            continue
        if not found:
            reason = "no DICOM image in it (of a DICOMDIR give the folder)"
            refusals.append(Refusal(place.name, reason))
        harmless = any(not series.reason for series in found)
        for series in found:
            folder = Path(without_suffix(place))
            if names:
                folder = Path(os.path.commonpath([Path(file).parent for file in series.files]))
            name = "/".join(map(safe_component, (*folder.parts, series.name)))
            if series.reason:
                # Without a scan it is what was given; a damaged file may be a part of a scan.
                part = harmless and not series.damaged
                reason = f"{LEFT_OUT}{series.reason}" if part else series.reason
                refusals.append(Refusal(name, reason, part, case=name))
            else:
                yield Case(name, place, name, series=series.files)


def _is_bids(root: Path) -> bool:
    return _is_dir(root) and (
        (root / "dataset_description.json").is_file() or any(anat_files(root, "T1w"))
    )


def _find_bids(root: Path, participants: Collection[str], sessions: Collection[str]) -> Found:
    wanted = {label.removeprefix("sub-") for label in participants}
    visits = {label.removeprefix("ses-") for label in sessions}
    cases: list[Case] = []
    folders = ("sub-*", "sub-*/anat", "sub-*/ses-*", "sub-*/ses-*/anat")
    refusals = [
        _closed(place.relative_to(root))
        for place in chain.from_iterable(map(root.glob, folders))
        if _is_closed(place)
    ]
    present: set[str] = set()
    for path in natsorted(anat_files(root, "T1w"), key=str):
        place = path.relative_to(root)
        if reason := misnamed(path, root):
            refusals.append(Refusal(str(place), reason))
            continue
        stem = without_suffix(path).removesuffix("_T1w")
        facts = entities(stem)
        present.add(facts["sub"])
        if (not wanted or facts["sub"] in wanted) and (not visits or facts.get("ses") in visits):
            cases.append(Case(f"{place.parent}/{stem}", path, str(place), facts))
    refusals += [
        Refusal(f"sub-{label}", "no such participant with a T1w scan")
        for label in natsorted(wanted - present)
    ]
    if not cases and not refusals and not visits:
        raise InputError("no sub-*/[ses-*/]anat/*_T1w.nii[.gz] in this BIDS dataset", where=root)
    return Found.of(cases, refusals, root)


def _is_subjects_dir(root: Path) -> bool:
    return _is_dir(root) and any(map(find_image, root.iterdir()))


def _find_subjects(root: Path) -> Found:
    cases, refusals = [], []
    for folder in natsorted(root.iterdir(), key=str):
        if _is_closed(folder) or _is_closed(folder / "mri"):
            refusals.append(_closed(folder.name))
            continue
        if not _is_dir(folder / "mri") or folder.name.startswith("."):
            continue
        name = safe_component(folder.name)
        if image := find_image(folder):
            cases.append(Case(f"{name}/{name}", image, f"{folder.name}/mri/{image.name}"))
        else:
            reason = "mri/ has no image to segment"
            refusals.append(Refusal(folder.name, reason, case=f"{name}/{name}"))
    return Found.of(cases, refusals)


# To compare ---------------------------------------------------------------------------------


def find_files(place: Path, *, suffix: str = Product.LABELS.suffix) -> list[ScanFile]:
    """Label maps (or with suffix "T1w" images) under a folder, in natural order.

    Understood: one file; a BIDS dataset or derivative; a FreeSurfer SUBJECTS_DIR; folders of
    files called *_dseg, and what is neither such a file's scan nor a result; a folder of files.
    """
    if place.is_file():
        return [replace(_named(place), is_given=True)]
    if not place.is_dir():
        remedy = "check the path; a relative one starts at the current folder"
        raise ConfigError("no such file or folder", where=place, remedy=remedy)
    labels = suffix == Product.LABELS.suffix
    finders: list[Callable[[], list[ScanFile]]] = [
        lambda: [_named(path) for path in anat_files(place, suffix)],
        lambda: _of_subjects_dir(place, find_labels if labels else find_image),
        lambda: [_named_below(place, path) for path in _marked_label_maps(place) if labels],
        lambda: [_named(path) for path in image_files(place, _READ).values()],
    ]
    for find in finders:
        if found := find():
            return sorted(_apart(found, place), key=lambda file: natural_order(file.name))
    what = "no label map here" if labels else "no image here"
    remedy = "give a BIDS folder, a SUBJECTS_DIR, or a folder of .nii.gz, .nii or .mgz files"
    raise EvaluationError(what, where=place, remedy=remedy)


def _apart(files: Sequence[ScanFile], place: Path) -> Iterator[ScanFile]:
    """Files of one name are told by their folders: a/T1 and b/T1 are of two persons.

    Their names become a_T1 and b_T1; where two would become one (a_b/c and a/b_c), a_b/c and a/b_c.
    """
    count = Counter(file.name for file in files)
    names = []
    for file in files:
        alike = count[file.name] > 1 and not file.identity
        names.append("_".join((*file.folders, file.name)) if alike else file.name)
    count = Counter(names)
    for file, name in zip(files, names, strict=True):
        if name == file.name:
            yield file
            continue
        if count[name] > 1:
            name = "/".join((*file.folders, file.name))
        yield replace(file, name=name, subject=name)


def _marked_label_maps(place: Path) -> list[Path]:
    """Files called *_dseg anywhere below; if there are any, other label maps in the folder, too."""
    ending = f"_{Product.LABELS.suffix}"
    marked = [path for path in _walk(place) if _stem_ends(path, ending)]
    scans = {without_suffix(path).lower().removesuffix(ending) for path in marked}
    # Beside label maps lie the scans that they are of, and a run's entropies and probabilities.
    others = [
        path
        for path in (image_files(place, _READ).values() if marked else ())
        if not _is_result(path) and without_suffix(path).lower() not in scans
    ]
    return marked + others


def as_scan(file: ScanFile, scan: Path) -> ScanFile:
    """A label map under the name of the scan that it is of."""
    named = _named(scan)
    return replace(
        file, name=named.name, subject=named.subject, session=named.session, identity=named.identity
    )


def refuse_changed(known: str, digest: str | None, where: Path) -> None:
    """Raise if a file is not what a store was made from (`known`, empty for other files)."""
    if known and digest != known:
        remedy = "run `trinat prepare` again"
        raise InputError("was changed since the store was made", where=where, remedy=remedy)


def _named(path: Path) -> ScanFile:
    name = without_suffix(path)
    facts = entities(name) if name.startswith("sub-") else {}
    # What looks like an entity and is none, as in sub-01_ses-2.auto, may tell scans apart.
    odd = any("-" in part and part.partition("-")[0] not in facts for part in name.split("_"))
    if "sub" not in facts or odd:
        name = name.removesuffix(f"_{Product.LABELS.suffix}")
        return ScanFile(name, path, name)
    identity = tuple(sorted((k, v) for k, v in facts.items() if k not in _NOT_IDENTITY))
    session = f"ses-{facts['ses']}" if "ses" in facts else ""
    return ScanFile(name, path, f"sub-{facts['sub']}", session, identity)


def _named_below(place: Path, path: Path) -> ScanFile:
    """As `_named`; folders say whose it is as long as BIDS entities do not."""
    file = _named(path)
    if file.identity:
        return file
    return replace(file, folders=path.parent.relative_to(place).parts)


def _of_subjects_dir(root: Path, find: Callable[[Path], Path | None]) -> list[ScanFile]:
    found = []
    for folder in root.iterdir():
        if folder.is_dir() and (path := find(folder)):
            person, session = person_and_session(folder.name)
            facts = entities(folder.name) if folder.name.startswith("sub-") else {}
            identity = tuple(sorted(facts.items()))
            found.append(ScanFile(folder.name, path, person, session or "", identity))
    return found


# Both ---------------------------------------------------------------------------------------


def _fail(error: OSError) -> None:
    raise error


def _walk(
    root: Path,
    exclude: Path | None = None,
    closed: Callable[[OSError], None] = _fail,
    wanted: Callable[[Path], bool] | None = None,
) -> Iterator[Path]:
    """Scans (or what is `wanted`) below a folder, through links to folders, never twice round."""
    seen = {exclude.resolve()} if exclude else set()
    for folder, subfolders, names in os.walk(root, onerror=closed, followlinks=True):
        here = Path(folder)
        real = here.resolve()
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from filter(wanted or _is_scan, (here / name for name in names))


def _is_closed(folder: Path) -> bool:
    return not os.access(folder, os.R_OK | os.X_OK) and _is_dir(folder)


def _closed(folder: object) -> Refusal:
    return Refusal(str(folder), "this folder cannot be read: check its permissions")


def _is_dir(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - False where Path's raises: no right, a long name


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - likewise


def _is_scan(path: Path) -> bool:
    return path.name.lower().endswith(SCAN_SUFFIXES) and not path.name.startswith(".")


def _is_dicom(path: Path) -> bool:
    return _is_file(path) and (path.suffix.lower() == ".zip" or is_dicom(path))


def _is_result(path: Path) -> bool:
    return _is_scan(path) and _stem_ends(path, *RESULT_ENDINGS)


def _stem_ends(path: Path, *endings: str) -> bool:
    return without_suffix(path).lower().endswith(endings)


def _absolute(path: str | Path) -> Path:
    """Absolute, without `..`, links kept."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
