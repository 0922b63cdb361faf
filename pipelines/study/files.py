"""Label maps and images to compare or measure, identified by the participant in their file names.

`pipelines/study/pairing.py` matches files by the subject, the session and the BIDS entities that
are found here. `pipelines/study/stored.py` finds the files that a slice store was made from.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from trinat.pipelines.study.cases import given_names
from trinat.pipelines.study.corrections import (
    Correction,
    corrected_path,
    correction_of,
    has_parcels_from_before,
    is_of_correction,
    newest,
    structures_beside,
)
from trinat.pipelines.study.discovery import is_result, stem_ends, walk
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.naming import LAYERS, RESULT_ENDINGS, Product
from trinat.pipelines.study.record import ScanResult
from trinat.segmentation.data.identity import (
    Identity,
    Named,
    disambiguate,
    identify,
    identity_alone,
    is_series,
)
from trinat.segmentation.data.sources.base import natural_order, without_suffix
from trinat.segmentation.data.sources.bids import (
    OWN_SPACES,
    anat_files,
    entities,
    is_cortical_parcellation,
    kind_of_labels,
)
from trinat.segmentation.data.sources.freesurfer import (
    find_image,
    find_labels,
    find_parcels,
    why_no_subject,
)
from trinat.segmentation.data.sources.pairs import image_files
from trinat.segmentation.errors import ConfigError, EvaluationError, some
from trinat.segmentation.io.cells import composed
from trinat.segmentation.io.files import absolute
from trinat.segmentation.io.streams import SCAN_SUFFIXES, is_archive, remedy_for_format
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.scheme import MapKind

# Suffixes of readable files. Of a pair of .hdr and .img, only the header is listed.
_READ = tuple(suffix for suffix in SCAN_SUFFIXES if suffix != ".img")
# Endings of names of scans in BIDS.
_SCANS = ("_t1w", "_t2w", "_pdw", "_flair")
# Endings of results that masks of lesions by others may have, too.
_ENDINGS_OF_MASKS = ("_lesions", "_mask")
# Entities that describe the kind of a file: they may differ between the two files of a pair.
_NOT_IDENTITY = ("space", "desc", "label", "res", "den", "seg", "atlas")
# Entry of files that no ledger lists.
NO_ENTRY = Entry("", "done")
# Output folder and ledger entry of a label map.
Listed = tuple[Path, Entry]
_NOT_LISTED: Listed = (Path(), NO_ENTRY)


@dataclass(frozen=True)
class StoreRecord:
    """Facts from a slice store that are needed to read a file that it was made from."""

    axes: str | None = None  # voxel axes (such as LAS) if the header lacks them
    sha256: str = ""  # hash of the file when the store was made
    # Mapping from the dataset's own label numbers to FreeSurfer numbers.
    numbers: Mapping[int, int] = field(default_factory=dict)
    fold: FoldingTable | None = None  # applied after this mapping
    csf: Csf = "region"  # which fluid the label map calls CSF
    fill_nonfinite: bool = False  # NaN and infinite voxels become 0


@dataclass(frozen=True)
class ParsedName:
    """Name of a file without its suffix, and what it says about the scan, to find pairs of files.

    `subject` is "sub-01" in a BIDS name, the participant in a SUBJECTS_DIR or a store, and the
    whole name elsewhere: `ScanFile.participant` says whose scan it is. `entities` are the BIDS
    entities, sorted; empty for other names. `folders` are the names of the folders between the
    searched folder and the file, if they identify the subject; empty in BIDS.
    """

    name: str
    subject: str
    session: str = ""
    entities: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def scan(self) -> str:
        """Name that distinguishes the scan from others of its participant, such as "ses-1_run-2".

        It consists of the BIDS entities without `sub`; without entities it is the session. "" if
        the file name has neither.
        """
        rest = dict(self.entities)
        rest.pop("sub", None)
        session = rest.pop("ses", None)
        words = [f"{entity}-{value}" for entity, value in rest.items()]
        if session is not None:
            words.insert(0, f"ses-{session}")
        return "_".join(words) or self.session


@dataclass(frozen=True)
class ScanFile:
    """A label map or an image of a scan: its participant, its session and its ledger entry.

    In tables, scans are identified by `participant` (with the name of a folder in front if
    participants in several folders have the same name) and by `session`, which distinguishes
    several scans of a participant. `parsed` has the name of the file, to find pairs of files.

    A `Study` lists scans without a label map, too, such as failed ones: `path` is then the path
    that it would have.
    """

    path: Path
    parsed: ParsedName
    participant: str
    session: str = ""
    is_given: bool = False  # named by itself, not found in a folder
    # For a correction: the path of the label map that it corrects, whose name it has here.
    corrects: Path | None = None
    stored: StoreRecord = StoreRecord()  # empty for a file of no store
    # Ledger entry of the run that made the label map; an empty one if no ledger lists it. Its
    # result describes the predicted label map, even if a rater has corrected it since.
    entry: Entry = NO_ENTRY
    folder: Path = Path()  # the output folder that has this ledger
    # Name in the list of a `Study`: the id of the case with the name of a subfolder in front.
    case: str = ""
    is_missing: bool = False  # without a label map
    # Found by `Study.checked`: the reason not to use the label map, and whether another program has
    # changed it since a run wrote it.
    unfit: str = ""
    is_edited: bool = False

    @property
    def name(self) -> str:
        """Name of the file without its suffix; `find_files` makes equal names unique."""
        return self.parsed.name

    @property
    def result(self) -> Path:
        """Path of the label map before correction, which is the path that ledgers list."""
        return self.corrects or self.path

    @property
    def labels(self) -> Path | None:
        """Path of the label map before correction; None if the scan has none."""
        return None if self.is_missing else self.result

    @property
    def newest_labels(self) -> Path | None:
        """Path of the corrected label map if there is one now, else of the result; or None."""
        if self.labels is None:
            return None
        return newest(self.labels, self.entry.input_sha256)

    @property
    def correction(self) -> Correction | None:
        """Correction of the label map by hand, as it is now; None if there is none."""
        return None if self.labels is None else correction_of(self.labels)

    @property
    def is_by_hand(self) -> bool:
        """True if the label map is a correction or was edited, so the ledger describes another."""
        return self.corrects is not None or self.is_edited

    @property
    def judged(self) -> ScanResult:
        """Volumes, grades and notes in the ledger; without grades if it was corrected by hand.

        The grades are those of the predicted label map, before a rater corrected it.
        """
        result = self.entry.result
        return result.corrected() if self.is_by_hand else result

    def output(self, product: Product) -> Path | None:
        """Return the path of one kind of output file of the scan; None if no ledger lists one."""
        return self.entry.output(self.folder, product)

    @property
    def layers(self) -> dict[str, Path]:
        """Paths of the further label maps "parcels" (of the cortex), "callosum" and "lesions".

        Lesions that were corrected by hand are those after correction.
        """
        paths = {layer: self.output(product) for layer, product in LAYERS.items()}
        scan = self.entry.input_sha256
        return {layer: newest(path, scan) for layer, path in paths.items() if path}

    @property
    def lesion_correction(self) -> Correction | None:
        """Correction of the mask of lesions by hand, as it is now; None if there is none."""
        mask = self.output(Product.LESIONS)
        return None if mask is None else correction_of(mask)

    @property
    def shown(self) -> str:
        """Name of the file in messages: the names of its folders and its own, joined by slashes."""
        return "/".join((*self.parsed.folders, self.path.name))


@dataclass(frozen=True)
class FoundFile:
    """A label map or an image as it was found, before `name_files` decides whose scan it is."""

    path: Path
    parsed: ParsedName
    # Participant and session if a SUBJECTS_DIR has named them.
    identity: Identity | None = None


def find_files(
    place: Path,
    *,
    suffix: str = Product.LABELS.suffix,
    kind: MapKind = "structures",
    corrected: bool = True,
    entries: Mapping[Path, Listed] = MappingProxyType({}),
) -> list[ScanFile]:
    """Return the label maps (or with suffix "T1w" the images) under a path, in natural order.

    `place` may be a single file; a BIDS dataset or derivative; a FreeSurfer SUBJECTS_DIR; a folder
    with files called *_dseg at any depth; or a folder of files, directly in it or else at any
    depth. With files called *_dseg, other images directly in the folder are label maps, too, except
    their scans and results. The `kind` parcels prefers maps of cortical parcels if there are any.
    The kind lesions returns masks instead: of BIDS those with `label-lesion`, files called
    *_lesions at any depth, or the files of a folder.

    In a folder, a correction (a label map corrected by hand) replaces the label map that it
    corrects and gets its name. Without `corrected`, label maps are returned as they were before
    correction.

    `entries` has the output folder and the ledger entry of label maps by absolute path. Label maps
    with an entry have the names of the scan and its folders as given, not as made safe for the
    output, and the participant of a joint segmentation.

    ConfigError is raised if the path does not exist, EvaluationError if it has no such file.
    """
    if place.is_file():
        if is_archive(place):
            raise EvaluationError(
                "not a known kind of scan", where=place, remedy=remedy_for_format(place)
            )
        found = [FoundFile(place, parse_name(place))]
        (file,) = name_files(found, place.parent, entries)
        return [replace(file, is_given=True)]
    if not place.is_dir():
        remedy = "check the path; a relative one starts at the current folder"
        raise ConfigError("no such file or folder", where=place, remedy=remedy)
    found = _files_below(place, suffix, kind)
    are_labels = suffix == Product.LABELS.suffix
    if found:
        files = name_files(found, place, entries)
        if corrected and are_labels:
            for number, file in enumerate(files):
                path = corrected_path(file.path)
                if path.is_file():
                    files[number] = replace(file, path=path, corrects=file.path)
        return sorted(
            files, key=lambda file: (natural_order(file.name), str(file.path))
        )
    what = "no image here"
    remedy = (
        "give a BIDS folder, a SUBJECTS_DIR, or a folder of .nii.gz, .nii or .mgz files"
    )
    if kind == "lesions":
        what = "no mask of lesions here"
        remedy = "give a folder of masks, or run trinat predict --lesions"
    elif are_labels:
        what = "no label map here"
    raise EvaluationError(what, where=place, remedy=remedy)


def find_images(place: Path, label_maps: Iterable[Path]) -> list[ScanFile]:
    """Return the scans under a folder that given label maps belong to.

    In a BIDS dataset these are T1w scans, except if all label maps have the same entity `space`,
    such as T2w, and the dataset has scans with this suffix: then it is these scans.
    """
    spaces = {entities(without_suffix(path)).get("space", "") for path in label_maps}
    suffix = "T1w"
    if len(spaces) == 1:
        (space,) = spaces
        if space and any(anat_files(place, space)):
            suffix = space
    return find_files(place, suffix=suffix)


def _files_below(place: Path, suffix: str, kind: MapKind) -> list[FoundFile]:
    """Return the label maps or images in a folder of unknown layout.

    `suffix` is that of the BIDS names, such as dseg or T1w, and `kind` that of the label maps.
    Layouts are tried one after the other (BIDS, SUBJECTS_DIR, files called *_dseg, any files, any
    files at any depth); the first layout with any files is used. A correction is no file of its own
    if the label map that it corrects is beside it.
    """
    if kind == "lesions":
        return _lesion_masks(place)
    parcels = kind == "parcels"
    kinds = ("parcels", "", "tissues") if parcels else ("", "tissues", "parcels")
    of_labels = suffix == Product.LABELS.suffix
    bids = [
        FoundFile(path, parse_name(path))
        for path in anat_files(place, suffix)
        if not is_of_correction(path)
    ]
    if bids:
        return _of_one_kind(bids, kinds) if of_labels else bids
    find_in_subject: Callable[[Path], Path | None] = find_image
    if of_labels:
        find_in_subject = find_parcels if parcels else find_labels
    subjects = _of_subjects_dir(place, find_in_subject)
    if subjects:
        return subjects
    if of_labels:
        marked = _marked_label_maps(place, Product.LABELS.suffix)
        if parcels:
            marked = _with_parcels(place, marked)
        if marked:
            # In subfolders, there may be BIDS datasets of several sites.
            return _of_one_kind([file_below(place, path) for path in marked], kinds)
    # Skip results beside the scans.
    is_unwanted = is_of_correction if of_labels else is_result
    return _any_images(place, lambda path: not is_unwanted(path))


def _any_images(place: Path, is_wanted: Callable[[Path], bool]) -> list[FoundFile]:
    """Return the wanted images of a folder; if it has none, those at any depth.

    `trinat predict` searches subfolders for scans in the same way.
    """
    files = [
        FoundFile(path, parse_name(path))
        for path in image_files(place, _READ).values()
        if is_wanted(path)
    ]
    if files:
        return files
    return [
        file_below(place, path)
        for path in walk(place)
        if path.name.lower().endswith(_READ) and is_wanted(path)
    ]


def _lesion_masks(place: Path) -> list[FoundFile]:
    """Return the masks of lesions in a folder: of BIDS, files called *_lesions, or any files.

    Results of other kinds are not masks of lesions.
    """
    label = Product.LESIONS.own_entities["label"]
    bids = [
        FoundFile(path, parse_name(path))
        for path in anat_files(place, Product.LESIONS.suffix)
        if entities(without_suffix(path)).get("label") == label
        and not is_of_correction(path)
    ]
    if bids:
        return bids
    marked = _marked_label_maps(place, Product.LESIONS.plain)
    if marked:
        return [file_below(place, path) for path in marked]
    others = tuple(end for end in RESULT_ENDINGS if end not in _ENDINGS_OF_MASKS)
    return _any_images(place, lambda path: not stem_ends(path, *others))


def _of_one_kind(files: Sequence[FoundFile], kinds: Sequence[str]) -> list[FoundFile]:
    """Return one label map for each scan with BIDS names, if scans have several kinds of them.

    `kinds` are values of `kind_of_labels` in the order of preference; the first kind that a scan
    has is used. Label maps belong to one scan if they are in one folder `anat` and have the same
    identity. All others are each of a scan of their own.
    """
    of_scan: dict[object, list[FoundFile]] = defaultdict(list)
    for file in files:
        folder = file.path.parent
        scan = file.parsed.entities if folder.name == "anat" else file.path
        of_scan[folder, scan].append(file)
    kept = []
    for same in of_scan.values():
        for kind in kinds:
            wanted = [file for file in same if kind_of_labels(file.path) == kind]
            if wanted:
                kept += [file for file in wanted if _is_plain(file.path)] or wanted
                break
    return kept


def _is_plain(labels: Path) -> bool:
    """Return True for a BIDS label map of structures in the space of its own scan.

    False for maps in the space of a template, and for maps in which parcels replace the cortex.
    """
    space = entities(without_suffix(labels)).get("space")
    is_on_scan = space in OWN_SPACES or f"_{space}".lower() in _SCANS
    return is_on_scan and not is_cortical_parcellation(labels)


def _of_subjects_dir(
    root: Path, find: Callable[[Path], Path | None]
) -> list[FoundFile]:
    """Return the file that `find` returns for each subject in a SUBJECTS_DIR.

    `find` gets the folder of a subject, and returns None if the file is missing. The list is empty
    for other folders. Templates and longitudinal bases are not subjects.
    """
    found = []
    for folder in root.iterdir():
        if not folder.is_dir() or why_no_subject(folder):
            continue
        path = find(folder)
        if path is not None:
            found.append((folder, path))
    files = []
    named = identify([Named(folder.name) for folder, _ in found])
    for (folder, path), names in zip(found, named, strict=True):
        facts: dict[str, str] = {}
        if folder.name.startswith("sub-"):
            facts = entities(folder.name)
        words = tuple(sorted(facts.items()))
        parsed = ParsedName(folder.name, names.participant, names.scan, words)
        identity = Identity(names.participant, scan=parsed.scan)
        files.append(FoundFile(path, parsed, identity=identity))
    return files


def _marked_label_maps(place: Path, word: str) -> list[Path]:
    """Return files called *_dseg at any depth below a folder, and other label maps directly in it.

    `word` may replace "dseg". The list is empty if no file has this ending.
    """
    ending = f"_{word}"
    marked = [
        path
        for path in walk(place)
        if stem_ends(path, ending) and not is_of_correction(path)
    ]
    if not marked:
        return []
    # The folder may also have the scans of the label maps, and other results of a run: leave these
    # out.
    scans = {without_suffix(path).lower().removesuffix(ending) for path in marked}
    others = []
    for path in image_files(place, _READ).values():
        name = without_suffix(path).lower()
        is_scan = name in scans or name.endswith(_SCANS)
        if not is_scan and not is_result(path):
            others.append(path)
    return marked + others


def _with_parcels(place: Path, structures: Sequence[Path]) -> list[Path]:
    """Return all maps of cortical parcels below a folder, and label maps of scans without parcels.

    `structures` are the label maps of structures of all scans.
    """
    parcels = _marked_label_maps(place, Product.PARCELS.plain)
    has_parcels = {structures_beside(path) for path in parcels}
    others = [
        path for path in structures if path not in parcels and path not in has_parcels
    ]
    return parcels + others


def file_below(place: Path, path: Path) -> FoundFile:
    """Return a file with what its name says.

    If the name has no BIDS entities, it is identified by its folders below `place`, too.
    """
    parsed = parse_name(path)
    if not parsed.entities:
        parsed = replace(parsed, folders=path.parent.relative_to(place).parts)
    return FoundFile(path, parsed)


def name_files(
    found: Sequence[FoundFile], place: Path, entries: Mapping[Path, Listed]
) -> list[ScanFile]:
    """Return found files as scans with unique names, and participants and sessions for tables.

    `place` is the folder that was searched. Files with BIDS names that occur in several folders get
    the names of their folders. `entries` has the output folder and the ledger entry, by absolute
    path of the label map; see `find_files`.
    """
    listed = []
    given_as = []
    identities = []
    for file in found:
        folder, entry = entries.get(absolute(file.path), _NOT_LISTED)
        given = {} if entry is NO_ENTRY else given_names(entry.input)
        parsed = _as_given(file.parsed, given)
        folders = file.path.parent.relative_to(place).parts
        folders = tuple(given.get(part, part) for part in folders)
        below = folders
        if entry is not NO_ENTRY:
            inner = absolute(file.path).parent.relative_to(absolute(folder))
            below = folders[max(len(folders) - len(inner.parts), 0) :]
        listed.append((folder, entry))
        given_as.append(parsed)
        identities.append(_decide_identity(file, parsed, folders, below, entry))
    scans = []
    for file, parsed, identity, (folder, entry) in zip(
        found, _unique_names(given_as), disambiguate(identities), listed, strict=True
    ):
        if parsed.entities and identity.participant != parsed.subject:
            parsed = replace(parsed, folders=identity.site)
        scan = ScanFile(
            file.path,
            parsed,
            identity.participant,
            identity.scan,
            entry=entry,
            folder=folder,
        )
        scans.append(scan)
    return scans


def _as_given(parsed: ParsedName, given: Mapping[str, str]) -> ParsedName:
    """Return the name of a label map with the names of its scan and folders as the user gave them.

    `given` maps names in the output, which are safe as file names, to names as given.
    """
    folders = tuple(given.get(folder, folder) for folder in parsed.folders)
    name = parsed.name.removesuffix(f"_{Product.LABELS.suffix}")
    if name in given:
        parsed = parse_name(Path(f"{given[name]}.nii"))
    return replace(parsed, folders=folders)


def _decide_identity(
    file: FoundFile,
    parsed: ParsedName,
    folders: tuple[str, ...],
    below: tuple[str, ...],
    entry: Entry,
) -> Identity:
    """Return the participant of a file, and what distinguishes its scan, without other files.

    A run that has segmented the scan together with others has named the participant, in its ledger
    entry. Otherwise it is the subject in a SUBJECTS_DIR, or the participant in the name of the file
    or of the `folders` around it. A name without a recognisable participant counts as a participant
    of its own. `parsed` and `folders` are as the user gave them. `below` are those of the folders
    that are in the output folder of a run: only they may be those of participants with DICOM
    series.
    """
    identity = file.identity
    if identity is None and is_series(parsed.name):
        identity = identity_alone(Named(parsed.name, below))
        outer = folders[: len(folders) - len(below)]
        identity = replace(identity, site=(*outer, *identity.site))
    elif identity is None:
        identity = identity_alone(Named(parsed.name, folders))
        if parsed.entities:
            # BIDS scans are distinguished by entities only, not by the suffix or the kind of file.
            identity = replace(identity, scan=parsed.scan)
    together = entry.result.longitudinal
    if together is None or together.participant == identity.participant:
        return identity
    site = identity.site
    # The participant may be named with the folders in front.
    if together.participant.startswith("/".join((*site, ""))):
        site = ()
    return Identity(together.participant, scan=identity.scan or parsed.name, site=site)


def _unique_names(names: Sequence[ParsedName]) -> Iterator[ParsedName]:
    """Yield each name such that it is unique: equal names are prefixed with their folders.

    a/T1 and b/T1 belong to two participants; their names become a_T1 and b_T1. If two of these
    would be equal (a_b/c and a/b_c), the names become a_b/c and a/b_c.
    """
    times = Counter(parsed.name for parsed in names)
    longer = []
    for parsed in names:
        name = parsed.name
        if times[name] > 1 and not parsed.entities:
            name = "_".join((*parsed.folders, name))
        longer.append(name)
    times = Counter(longer)
    for parsed, name in zip(names, longer, strict=True):
        if name == parsed.name:
            yield parsed
            continue
        if times[name] > 1:
            name = "/".join((*parsed.folders, parsed.name))
        yield replace(parsed, name=name, subject=name)


def corrected_among(files: Sequence[ScanFile], *, lesions: bool = False) -> str:
    """Return a sentence about label maps that raters have corrected; "" if there are none.

    `files` are those of `Study.checked`; unfit ones do not count. With `lesions`, it also mentions
    masks of lesions. It also mentions parcels: they are never corrected, so they may disagree with
    the corrected structures of their scan.
    """
    files = [file for file in files if not file.unfit]
    masks = 0
    if lesions:
        masks = sum(file.lesion_correction is not None for file in files)
    corrected = {
        "label maps": sum(file.corrects is not None for file in files),
        "masks of lesions": masks,
    }
    counts = [
        f"{count} of {len(files)} {kind}" for kind, count in corrected.items() if count
    ]
    sentences = []
    if counts:
        sentences.append(
            f"{' and '.join(counts)} are corrected by hand; --uncorrected takes them as they were "
            "predicted"
        )
    edited = sum(file.is_edited and file.corrects is None for file in files)
    if edited:
        sentences.append(
            f"{edited} of {len(files)} label maps were edited since they were predicted, and count "
            "as corrected by hand, with --uncorrected too"
        )
    if sentences:
        return ". ".join(sentences)
    before = sum(has_parcels_from_before(file.path) for file in files)
    if before:
        return (
            f"the structures of {before} of {len(files)} scans are corrected by hand; their maps "
            "of parcels are as they were predicted"
        )
    return ""


def corrected_before_last_run(files: Iterable[ScanFile]) -> str:
    """Return a sentence that names corrections of results that were replaced since; "" without any.

    It is a warning: voxels that were not corrected are as the earlier run, maybe with another
    model, has segmented them.
    """
    names = [
        file.name
        for file in files
        if file.corrects and file.correction and file.correction.is_of_earlier_run
    ]
    if not names:
        return ""
    return (
        f"corrected label maps whose results were replaced since: {some(names)}; outside of what "
        "was corrected they are of the earlier run: correct the new results, or give --uncorrected"
    )


def segmented_together(files: Iterable[ScanFile]) -> set[str]:
    """Return the participants whose scans a run segmented together."""
    return {
        file.participant for file in files if file.entry.result.longitudinal is not None
    }


def years_of(files: Iterable[ScanFile]) -> dict[tuple[str, str], float]:
    """Return the time of each scan that a run segmented together with others, if it is known.

    Times are in years from an arbitrary start, by the names of the scan and of its participant.
    """
    years = {}
    for file in files:
        together = file.entry.result.longitudinal
        if together is not None and together.year is not None:
            years[file.name, file.participant] = together.year
    return years


def two_maps_of_a_scan(files: Iterable[ScanFile]) -> str:
    """Return a sentence that names two label maps of the same scan; "" if there are none.

    It is a warning: both label maps are used, as if they were of two scans.
    """
    seen: dict[tuple[str, str], ScanFile] = {}
    for file in files:
        other = seen.setdefault((file.participant, file.session), file)
        if other is not file:
            both = f"{other.shown} and {file.shown}"
            if other.shown == file.shown:
                # In a SUBJECTS_DIR all files have the same name.
                both = f"{other.name} and {file.name}"
            return f"{both} are both of {file.participant} {file.session}".strip()
    return ""


def parse_name(path: Path) -> ParsedName:
    """Return the name of a file, and the subject, session and BIDS entities in it.

    If the name is not in BIDS' style, all of it is the subject. The names are in Unicode's composed
    form, so that they can be compared.
    """
    name = composed(without_suffix(path))
    facts: dict[str, str] = {}
    if name.startswith("sub-"):
        facts = entities(name)
    # Parts that look like entities but are not, as in sub-01_ses-2.auto, may distinguish scans.
    with_dash = [part.split("-")[0] for part in name.split("_") if "-" in part]
    if "sub" not in facts or not facts.keys() >= set(with_dash):
        for product in (Product.LABELS, Product.PARCELS, Product.LESIONS):
            name = name.removesuffix(f"_{product.plain}")
        return ParsedName(name, name)
    known = {
        entity: value for entity, value in facts.items() if entity not in _NOT_IDENTITY
    }
    session = ""
    if "ses" in facts:
        session = f"ses-{facts['ses']}"
    words = tuple(sorted(known.items()))
    return ParsedName(name, f"sub-{facts['sub']}", session, words)
