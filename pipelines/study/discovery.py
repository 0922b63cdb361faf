"""Discovery of scans: a file, a folder, a glob, a list, a BIDS dataset, a SUBJECTS_DIR.

No input is lost: an input that cannot become a case is returned with the reason. Directory walks
and the recognition of files by name are here too, for the discovery of label maps.

Some functions use `os.path` instead of `Path`, because it returns False where `Path` raises: if
permissions are missing or a name is too long.
"""

from __future__ import annotations

import glob
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from natsort import natsorted

from trinat.pipelines.study.cases import Case, Found, Refusal
from trinat.pipelines.study.naming import LEDGERS, LEFT_OUT, RESULT_ENDINGS, T1W
from trinat.segmentation.data.sources.base import safe_component, without_suffix
from trinat.segmentation.data.sources.bids import (
    anat_files,
    entities,
    naming_problem,
    why_left_out,
)
from trinat.segmentation.data.sources.freesurfer import find_image, why_no_scan
from trinat.segmentation.errors import ConfigError, InputError, reason_of, some
from trinat.segmentation.io.dicom.series import find_series, is_dicom
from trinat.segmentation.io.files import (
    absolute,
    files_of_scan,
    given_path,
    is_broken_link,
    read_text,
)
from trinat.segmentation.io.streams import SCAN_SUFFIXES, remedy_for_format

_LISTS = (".txt", ".list")
# Image formats of other programs that users may expect to be segmented.
_NOT_READ = (".nrrd", ".nhdr", ".mha", ".mhd", ".mnc", ".mif", ".mif.gz")
# Space of results of T1w scans; the space of other results is named after their suffix.
_SPACE_OF_T1W = "orig"
# Folders of a BIDS dataset that may contain scans. Unreadable ones are reported.
_BIDS_FOLDERS = ("sub-*", "sub-*/anat", "sub-*/ses-*", "sub-*/ses-*/anat")


def _ends_with(file: Path, *endings: str) -> bool:
    """Return True if a file's name has one of these endings, ignoring case."""
    return file.name.lower().endswith(endings)


def is_dir(path: Path) -> bool:
    """Return True if the path is a directory, False if it is not or cannot be checked."""
    return os.path.isdir(path)  # noqa: PTH112 - see above


def is_file(path: Path) -> bool:
    """Return True if the path is a regular file, False if it is not or cannot be checked."""
    return os.path.isfile(path)  # noqa: PTH113 - see above


def is_closed(folder: Path) -> bool:
    """Return True if the path is a directory that may not be listed or entered."""
    return not os.access(folder, os.R_OK | os.X_OK) and is_dir(folder)


def is_scan(path: Path) -> bool:
    """Return True if a file has the name of a scan, in any format but DICOM."""
    if path.name.startswith("."):
        return False
    return path.name.lower().endswith(SCAN_SUFFIXES)


def is_zip(path: Path) -> bool:
    """Return True if the path has the name of a zip, which may contain DICOM images."""
    return path.suffix.lower() == ".zip"


def is_result(path: Path) -> bool:
    """Return True if a file has the name of a result of `trinat predict`."""
    return is_scan(path) and stem_ends(path, *RESULT_ENDINGS)


def stem_ends(path: Path, *endings: str) -> bool:
    """Return True if a file name without its suffix, such as .nii.gz, has one of the endings.

    Case is ignored; `endings` are in lower case.
    """
    return without_suffix(path).lower().endswith(endings)


def _fail(error: OSError) -> None:
    raise error


def walk(
    root: Path,
    exclude: Path | None = None,
    on_closed: Callable[[OSError], None] = _fail,
    wanted: Callable[[Path], bool] = is_scan,
) -> Iterator[Path]:
    """Yield files below a folder for which `wanted` returns True, in any depth.

    Links to folders are followed, after the folders beside them, but no folder is searched twice.
    The folder `exclude` and hidden folders are not searched. `on_closed` is called with the error
    for each folder that cannot be read; by default it raises the error.
    """
    seen: set[Path] = set()
    if exclude:
        seen.add(exclude.resolve())
    for folder, subfolders, names in os.walk(root, onerror=on_closed, followlinks=True):
        here = Path(folder)
        real = here.resolve()
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        # Assign in place: os.walk enters the folders that are left in this list.
        shown = [name for name in subfolders if not name.startswith(".")]
        # A folder that is reached by a link, too, has its own name, whatever the order on disk.
        subfolders[:] = sorted(
            shown, key=lambda name: ((here / name).is_symlink(), name)
        )
        for name in names:
            if wanted(here / name):
                yield here / name


def find_cases(
    inputs: Sequence[str | Path],
    *,
    exclude: Path | None = None,
    participants: Collection[str] = (),
    sessions: Collection[str] = (),
    suffix: str = T1W,
    any_contrast: bool = False,
) -> Found:
    """Find all scans in `inputs`; return them as cases, with the inputs that have no scan.

    `inputs` are files, folders, globs and lists, or a single BIDS dataset or SUBJECTS_DIR. Cases
    are in natural order. The folder `exclude`, usually the output folder, is not searched.
    Participants, sessions and `suffix` select scans of a BIDS dataset. Of DICOM series, the
    T1-weighted series are taken, or with `any_contrast` all anatomical series. Raises ConfigError
    for a dataset among other inputs, for a suffix without a dataset, or for an input that is empty
    or the output folder.
    """
    for given in map(given_path, inputs):
        if exclude and is_dir(given) and given.resolve() == exclude.resolve():
            what = "is the output folder, too"
            raise ConfigError(what, where=given, remedy="choose another --out")
    if not suffix.isalnum():
        raise ConfigError(
            f"--suffix {suffix}: no suffix of BIDS", remedy="give a word, such as T2w"
        )
    if len(inputs) == 1 and is_bids(Path(inputs[0]), suffix):
        root = absolute(Path(inputs[0]))
        return find_bids(root, participants, sessions, suffix)
    if suffix != T1W:
        raise ConfigError(
            f"--suffix {suffix}: not one BIDS dataset with such scans",
            remedy="give the folder of one, or other scans without --suffix",
        )
    if len(inputs) == 1:
        root = Path(inputs[0])
        if is_subjects_dir(root):
            return find_subjects(absolute(root))
    else:
        # The layout of a dataset assigns scans to participants, which a walk through all files
        # cannot do.
        for given in map(Path, inputs):
            if is_bids(given) or is_subjects_dir(given):
                raise _not_alone(given)
    return _Search(exclude, any_contrast).run(inputs)


@dataclass
class _Search:
    """Search for scans in files, folders, globs and lists; collects refusals and remarks.

    The folder `exclude` is not searched. `any_contrast` is that of `find_cases`. `named` are the
    scans that the user has named, by themselves or in a list; other scans were found in a folder.
    `refusals` are inputs that are no scans, `closed` folders that cannot be read, `unreadable`
    files that cannot be read and may be DICOM, and `remarks` messages about files that are not
    read.
    """

    exclude: Path | None
    any_contrast: bool
    named: set[Path] = field(default_factory=set)
    refusals: list[Refusal] = field(default_factory=list)
    closed: list[Path] = field(default_factory=list)
    unreadable: set[Path] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)

    def run(self, inputs: Sequence[str | Path]) -> Found:
        """Return the scans in all inputs as cases, with the inputs that have no scan."""
        roots: list[Path] = []
        paths: list[Path] = []
        for given in inputs:
            try:
                root, scans = self._expand(str(given))
            except InputError as error:
                self.refusals.append(Refusal(str(given), reason_of(error, where=False)))
            else:
                roots.append(root)
                paths += scans
        # Outputs mirror the tree of folders below the common folder of all inputs.
        root = absolute(os.path.commonpath(roots)) if roots else Path.cwd()
        for folder in self.closed:
            self.refusals.append(_closed_folder(os.path.relpath(folder, root)))
        paths = self._without_results(root, paths)
        # A dict is used as an ordered set.
        dicom = dict.fromkeys(path for path in paths if self._is_dicom_or_zip(path))
        self._refuse_unreadable(root)
        others = [
            path for path in paths if path not in dicom and path not in self.unreadable
        ]
        cases = list(self._name_cases(root, others))
        loose: list[str] = []
        for path in dicom:
            if is_zip(path):
                cases += self._series_in(path, root, None)
            else:
                loose.append(str(path.relative_to(root)))
        if loose:
            cases += self._series_in(root, root, loose)
        return Found.of(cases, self.refusals, remarks=self.remarks)

    def _expand(self, given: str) -> tuple[Path, list[Path]]:
        """Return the folder below which the scans of an input are named, and their paths.

        InputError is raised if there is no scan.
        """
        path = absolute(given)
        if is_dir(path):
            return self._expand_folder(path)
        if path.suffix.lower() in _LISTS and is_file(path):
            root, scans = _read_list(path)
            self.named.update(scans)
            return root, scans
        if glob.has_magic(given) and not is_file(path):
            return self._expand_glob(given)
        self.named.add(path)
        return path.parent, [path]

    def _is_dicom(self, path: Path) -> bool:
        """Return True if a file is DICOM; if it cannot be read, add it to `unreadable`."""
        if is_scan(path):
            return False
        try:
            return is_dicom(path)
        except InputError:
            self.unreadable.add(path)
            return False

    def _is_dicom_or_zip(self, path: Path) -> bool:
        """Return True if the path is a file that may contain DICOM images."""
        return is_file(path) and (is_zip(path) or self._is_dicom(path))

    def _refuse_unreadable(self, root: Path) -> None:
        """Refuse the unreadable files of each folder, which may be slices of its scans.

        Their names are not shown, because they may contain that of a patient.
        """
        counts = Counter(os.path.relpath(path.parent, root) for path in self.unreadable)
        for folder, count in natsorted(counts.items()):
            reason = f"files in it cannot be read: {count}: check their permissions"
            self.refusals.append(Refusal(folder, reason))

    def _without_results(self, root: Path, paths: list[Path]) -> list[Path]:
        """Return the paths without files that are named like results, such as NAME_dseg.nii.gz.

        These files are refused, by their paths below `root`. Results that the user has named stay.
        If there are only results, all paths stay.
        """
        results = {path for path in paths if path not in self.named and is_result(path)}
        if len(results) == len(set(paths)):
            return paths
        scans = []
        for path in paths:
            if path in results:
                reason = "a result by its name, not a scan"
                shown = str(path.relative_to(root))
                self.refusals.append(Refusal(shown, reason, harmless=True))
            else:
                scans.append(path)
        return scans

    def _expand_folder(self, folder: Path) -> tuple[Path, list[Path]]:
        """Return a folder and the paths of all scans and DICOM files below it.

        For a FreeSurfer subject, return the folder above it and the subject's image. InputError is
        raised if there is no scan, ConfigError if a BIDS dataset or SUBJECTS_DIR is below the
        folder, or if it is a part of a BIDS dataset with other images than T1w scans.
        """
        image = find_image(folder)
        if image:
            # In a subject of FreeSurfer, the other images are results.
            remark = _why_passed_over(folder)
            if remark:
                self.remarks.append(remark)
                return folder.parent, []
            return folder.parent, [image]

        def note_closed(error: OSError) -> None:
            self.closed.append(Path(error.filename))

        def is_visible(file: Path) -> bool:
            return not file.name.startswith(".")

        # List only the header of a pair of .hdr and .img.
        every = list(walk(folder, self.exclude, note_closed, is_visible))
        _refuse_layouts(folder, every)
        headers = {file.with_suffix("") for file in every if _ends_with(file, ".hdr")}
        files = [
            file
            for file in every
            if not (_ends_with(file, ".img") and file.with_suffix("") in headers)
        ]
        dicom = {file for file in files if self._is_dicom(file)}
        scans = natsorted(
            (file for file in files if file in dicom or is_scan(file)), key=str
        )
        unread = [
            file
            for file in files
            if not (file in dicom or file in self.unreadable or is_scan(file))
        ]
        zips = [file for file in unread if is_zip(file)]
        others = [file for file in unread if file not in zips]
        if zips:
            self.remarks.append(
                f"{folder.name}/: zips in a folder are not opened: {len(zips)}; give them by name, "
                f"such as {folder.name}/*.zip"
            )
        if dicom and others:
            kinds = natsorted(
                {file.suffix.lower() or "without suffix" for file in others}
            )
            self.remarks.append(
                f"{folder.name}/: files that are neither DICOM nor scans are not read: "
                f"{len(others)} ({', '.join(kinds)})"
            )
        images = [file.name for file in others if _ends_with(file, *_NOT_READ)]
        if scans and images and not dicom:
            self.remarks.append(
                f"{folder.name}/: images of kinds that are not read: {some(images)}"
            )
        if not scans and folder not in self.closed:
            known = f"{', '.join(SCAN_SUFFIXES[:4])}, DICOM"
            raise InputError(f"no scan in this folder ({known})", where=folder)
        return folder, scans

    def _expand_glob(self, pattern: str) -> tuple[Path, list[Path]]:
        """Return a root folder and the paths of the scans that match a glob pattern.

        The root consists of the parts of the pattern before the first wildcard. Folders that match
        are searched, and refused if they have no scan. Files in the output folder are omitted
        unless all matches are there.
        """
        scans = []
        searched: set[Path] = set()
        if self.exclude:
            searched.add(absolute(self.exclude))
        # Patterns are relative to the current folder or absolute, as in a shell, which Path.glob
        # does not support.
        for match in natsorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207
            path = absolute(match)
            if is_file(path) and (is_scan(path) or self._is_dicom_or_zip(path)):
                scans.append(path)
            # A pattern with ** matches the folders in a folder, too.
            elif is_dir(path) and searched.isdisjoint((path, *path.parents)):
                searched.add(path)
                try:
                    scans += self._expand_folder(path)[1]
                except InputError as error:
                    self.refusals.append(Refusal(match, reason_of(error, where=False)))
        if self.exclude:
            output = absolute(self.exclude)
            # If all matches are in the output folder, keep them; results are recognised by name
            # later.
            scans = [path for path in scans if not path.is_relative_to(output)] or scans
        scans = list(dict.fromkeys(scans))
        if not scans:
            raise InputError("no scan matches this pattern", where=pattern)
        fixed = takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts)
        return absolute(Path(*fixed)), scans

    def _name_cases(self, root: Path, paths: Iterable[Path]) -> Iterator[Case]:
        """Yield a case for each path that is a scan; refuse the others.

        The id of a case is its path below `root`, without ending. The image of a FreeSurfer subject
        has the id that it has if its SUBJECTS_DIR is given.
        """
        seen: set[Path] = set()
        for path in paths:
            relative = path.relative_to(root)
            parts = (*relative.parts[:-1], without_suffix(path))
            is_below_mri = len(parts) > 2 and parts[-2] == "mri"
            if is_below_mri and find_image(path.parents[1]) == path:
                *above, subject, _, _ = parts
                parts = (*above, subject, subject)
            name = "/".join(safe_component(part) for part in parts)
            # Do not resolve links: in some archives equal scans of two sessions are links to one
            # file.
            same, *_ = files_of_scan(path)
            if same in seen:
                self.refusals.append(
                    Refusal(str(relative), "given twice", harmless=True)
                )
            elif not is_file(path) and not is_broken_link(path):
                reason = "no such file"
                if os.path.exists(path):  # noqa: PTH110 - as is_file asks
                    reason = "not a regular file"
                self.refusals.append(Refusal(str(relative), reason, case=name))
            elif not is_scan(path):
                reason = f"not a known kind of scan: {remedy_for_format(path)}"
                self.refusals.append(Refusal(str(relative), reason))
            else:
                yield Case(name, path, str(relative))
            seen.add(same)

    def _series_in(
        self, place: Path, root: Path, names: list[str] | None
    ) -> Iterator[Case]:
        """Yield a case for each DICOM series that is a scan, in one zip or in files of a folder.

        `place` is the zip, with `names` None, and the cases are named by its path below `root` as
        if it were a folder; or it is `root`, with the paths of the DICOM files relative to it. The
        other series are refused.
        """
        folder = Path()
        shown = place.name
        if names is None:
            relative = place.relative_to(root)
            folder = relative.with_name(without_suffix(place))
            shown = str(relative)
        try:
            found = find_series(place, names, any_contrast=self.any_contrast)
        except (InputError, OSError) as error:
            self.refusals.append(Refusal(shown, reason_of(error, where=False)))
            return
        if not found:
            remedy = "of a DICOMDIR give the folder; unpack a zip of NIfTI files"
            reason = f"no DICOM image in it ({remedy})"
            self.refusals.append(Refusal(shown, reason))
        has_scan = any(not series.reason for series in found)
        patients: dict[Path, set[str]] = defaultdict(set)
        for series in found:
            source = place
            files = series.files
            if names:
                # The folder of the series itself is the same whatever else is given.
                folders = [Path(file).parent for file in files]
                folder = Path(os.path.commonpath(folders))
                source = place / folder
                files = tuple(str(Path(file).relative_to(folder)) for file in files)
            parts = (*folder.parts, series.name)
            name = "/".join(safe_component(part) for part in parts)
            if not series.reason:
                patients[folder].add(series.patient)
                yield Case(name, source, "/".join(parts), series=files)
            elif has_scan and not series.damaged:
                # The series is no scan, but there is a scan beside it. A damaged file may be a part
                # of a scan.
                reason = f"{LEFT_OUT}{series.reason}"
                self.refusals.append(Refusal(name, reason, harmless=True, case=name))
            else:
                self.refusals.append(Refusal(name, series.reason, case=name))
        for folder, of_folder in patients.items():
            if folder.parts and len(of_folder) > 1:
                self.remarks.append(
                    f"{folder}: scans of {len(of_folder)} patients count as one participant in "
                    "reports: give each patient a folder"
                )


def _refuse_layouts(folder: Path, files: Sequence[Path]) -> None:
    """Raise ConfigError for a folder with datasets in it, or a mixed part of a BIDS dataset.

    `files` are all files below the folder. Only the layout of a dataset says which of its files are
    scans of participants. In a participant's folder of a BIDS dataset, all images must be T1w
    scans. Output folders of trinat are no datasets, although those of BIDS datasets have the
    layout.
    """
    for above in (folder, *folder.parents):
        dataset = above.parent
        is_participant = above.name.startswith("sub-") and is_bids(dataset)
        if not is_participant or _is_output(dataset):
            continue
        images = (file for file in files if _ends_with(file, ".nii", ".nii.gz"))
        other = next((file for file in images if not stem_ends(file, "_t1w")), None)
        if other is not None:
            label = above.name.removeprefix("sub-")
            raise ConfigError(
                f"is a part of the BIDS dataset {dataset.name}, and not all of its images are T1w "
                f"scans: {other.name}",
                where=folder,
                remedy=f"give the scan, or use trinat-bids with --participant_label {label}",
            )
    for file in files:
        here = file.parent
        if file.name == "dataset_description.json" and not _is_output(here):
            raise _not_alone(here)
        if here.name == "mri" and find_image(here.parent):
            raise _not_alone(here.parents[1])


def _is_output(folder: Path) -> bool:
    """Return True for an output folder of trinat, which has a ledger."""
    return any(folder.glob(LEDGERS))


def _not_alone(dataset: Path) -> ConfigError:
    """Return the error for a dataset that is given with other scans."""
    return ConfigError(
        "a BIDS dataset or SUBJECTS_DIR must be the only input",
        where=dataset,
        remedy="run once for each, with an --out of its own",
    )


def _read_list(path: Path) -> tuple[Path, list[Path]]:
    """Return the common folder and the paths of the scans in a text file with one path per line.

    Paths are relative to the text file. Empty lines and lines that start with # are skipped.
    """
    text = read_text(path, "utf-8-sig", "surrogateescape")
    if "\0" in text:  # as in UTF-16, which PowerShell writes
        raise InputError(
            "not a list in UTF-8", where=path, remedy="save it as text in UTF-8"
        )
    scans = []
    for line in text.splitlines():
        name = line.strip()
        if name and not line.startswith("#"):
            scans.append(absolute(path.parent / name))
    if not scans:
        raise InputError("the list names no scan", where=path)
    folders = [scan.parent for scan in scans]
    return absolute(os.path.commonpath(folders)), scans


def is_bids(root: Path, suffix: str = T1W) -> bool:
    """Return True for a BIDS dataset: it has dataset_description.json or scans in BIDS' layout.

    `suffix` is the BIDS suffix of the scans, such as T1w. A SUBJECTS_DIR with a description is
    none.
    """
    if not is_dir(root):
        return False
    if any(anat_files(root, suffix)):
        return True
    # FreeSurfer subjects in BIDS' folder of derivatives are described, too.
    is_described = (root / "dataset_description.json").is_file()
    return is_described and not is_subjects_dir(root)


def find_bids(
    root: Path,
    participants: Collection[str],
    sessions: Collection[str],
    suffix: str = T1W,
) -> Found:
    """Find the scans with a BIDS suffix in a dataset; return them as cases, with refused inputs.

    `participants` and `sessions` are labels with or without their prefix (01, sub-01); if empty,
    all are taken. Folders that cannot be read, images whose names and folders name different
    participants, and requested participants without such a scan are refused. Phase images and
    images in the space of a template are left out. InputError is raised if the whole dataset has no
    such scan, or no folder of any requested participant. Results of scans other than T1w get the
    suffix as the entity `space` of their names, as in BIDS.
    """
    wanted = {label.removeprefix("sub-") for label in participants}
    wanted_sessions = {label.removeprefix("ses-") for label in sessions}
    refusals: list[Refusal] = []

    def is_wanted(place: Path) -> bool:
        participant, *below = place.parts
        sessions_here = {part[4:] for part in below if part.startswith("ses-")}
        is_participant = not wanted or participant.removeprefix("sub-") in wanted
        is_session = not wanted_sessions or sessions_here <= wanted_sessions
        return is_participant and is_session

    for pattern in _BIDS_FOLDERS:
        closed = filter(is_closed, root.glob(pattern))
        places = (folder.relative_to(root) for folder in closed)
        refusals += [_closed_folder(place) for place in places if is_wanted(place)]
    cases: list[Case] = []
    present: set[str] = set()
    images = natsorted(anat_files(root, suffix), key=str)
    for path in images:
        place = path.relative_to(root)
        if reason := naming_problem(path, root):
            if is_wanted(place):
                refusals.append(Refusal(str(place), reason))
            continue
        stem = without_suffix(path).removesuffix(f"_{suffix}")
        facts = entities(stem)
        present.add(facts["sub"])
        if wanted and facts["sub"] not in wanted:
            continue
        if wanted_sessions and facts.get("ses") not in wanted_sessions:
            continue
        if why := why_left_out(facts):
            reason = f"{LEFT_OUT}{why}"
            refusals.append(Refusal(str(place), reason, harmless=True))
            continue
        # Names of results get their own values of these two entities.
        for added in ("space", "desc"):
            facts.pop(added, None)
        if suffix != T1W:
            facts["space"] = suffix
            stem = f"{stem}_space-{suffix}"
        cases.append(Case(f"{place.parent}/{stem}", path, str(place), facts))
    absent = natsorted(wanted - present)
    if absent and not any(is_dir(root / f"sub-{label}") for label in wanted):
        raise InputError(
            f"no such participant: {some([f'sub-{label}' for label in absent])}",
            where=root,
            remedy="check --participant_label",
        )
    refusals += [
        Refusal(f"sub-{label}", f"no such participant with a {suffix} scan")
        for label in absent
    ]
    if not cases and not refusals and not wanted_sessions:
        raise InputError(
            f"no sub-*/[ses-*/]anat/*_{suffix}.nii[.gz] in this BIDS dataset",
            where=root,
        )
    return Found.of(cases, refusals, root, _misplaced(root, suffix, images))


def _misplaced(root: Path, suffix: str, images: Collection[Path]) -> Iterator[str]:
    """Yield a message about scans with this suffix that are not where BIDS has them, if any.

    `images` are the scans where BIDS has them.
    """
    taken = set(images)
    others = []
    for pattern in _BIDS_FOLDERS:
        for path in root.glob(f"{pattern}/*"):
            stem = without_suffix(path).lower()
            if (
                is_scan(path)
                and stem.endswith(f"_{suffix.lower()}")
                and path not in taken
            ):
                others.append(str(path.relative_to(root)))
    if others:
        yield (
            f"not read, since BIDS has [ses-*/]anat/*_{suffix}.nii[.gz]: {some(natsorted(others))}"
        )


def suffix_of_results(outputs: Iterable[str]) -> str | None:
    """Return the BIDS suffix of the scan that these output files belong to, such as T1w.

    `outputs` are the paths of the output files of one scan. None for a scan outside of BIDS.
    """
    for output in outputs:
        space = entities(Path(output).name.partition(".")[0]).get("space")
        if space == _SPACE_OF_T1W:
            return T1W
        if space is not None:
            return space
    return None


def is_subjects_dir(root: Path) -> bool:
    """Return True for a SUBJECTS_DIR of FreeSurfer: a folder of subjects with images."""
    return is_dir(root) and any(find_image(folder) for folder in root.iterdir())


def find_subjects(root: Path) -> Found:
    """Find the image of each subject in a SUBJECTS_DIR; return them as cases, with refused folders.

    Folders without `mri/`, templates, longitudinal bases and duplicate scans are skipped. A folder
    that cannot be read, or whose `mri/` has no image, is refused.
    """
    cases: list[Case] = []
    refusals: list[Refusal] = []
    beside: list[str] = []
    remarks: list[str] = []
    for folder in natsorted(root.iterdir(), key=str):
        if is_closed(folder) or is_closed(folder / "mri"):
            refusals.append(_closed_folder(folder.name))
            continue
        if folder.name.startswith("."):
            continue
        if not is_dir(folder / "mri"):
            files = folder.iterdir() if is_dir(folder) else (folder,)
            beside += [file.name for file in files if is_scan(file)]
            continue
        remark = _why_passed_over(folder)
        if remark:
            remarks.append(remark)
            continue
        name = safe_component(folder.name)
        case = f"{name}/{name}"
        image = find_image(folder)
        if image:
            cases.append(Case(case, image, f"{folder.name}/mri/{image.name}"))
        else:
            refusals.append(
                Refusal(folder.name, "mri/ has no image to segment", case=case)
            )
    if beside:
        remarks.append(
            f"{root.name}/: a SUBJECTS_DIR, in which scans beside the subjects are not read: "
            f"{some(natsorted(beside))}"
        )
    return Found.of(cases, refusals, remarks=remarks)


def _why_passed_over(subject: Path) -> str:
    """Return the message about a FreeSurfer subject's folder that is no scan to segment, or ""."""
    reason = why_no_scan(subject)
    return f"{subject.name}: not segmented, since it is {reason}" if reason else ""


def _closed_folder(folder: object) -> Refusal:
    """Return the refusal of an unreadable folder, given by its name or path."""
    return Refusal(str(folder), "this folder cannot be read: check its permissions")
