"""Cases of a folder whose layout says whose each scan is: a BIDS dataset, a SUBJECTS_DIR."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from natsort import natsorted

from trinat.pipelines.common.cases import Case, Found, Refusal, closed_folder
from trinat.pipelines.common.folders import is_closed, is_dir
from trinat.pipelines.common.naming import safe_component
from trinat.segmentation.data.sources.base import without_suffix
from trinat.segmentation.data.sources.bids import anat_files, entities, misnamed
from trinat.segmentation.data.sources.freesurfer import find_image
from trinat.segmentation.errors import InputError

# BIDS's word for the scans that are taken unless others are asked for.
T1W = "T1w"
# The space of their results; that of others is called by their suffix.
_SPACE_OF_T1W = "orig"
# Where BIDS has folders; one that cannot be read may hide scans.
_BIDS_FOLDERS = ("sub-*", "sub-*/anat", "sub-*/ses-*", "sub-*/ses-*/anat")


def is_bids(root: Path, suffix: str = T1W) -> bool:
    """Whether it is a BIDS dataset: one that says so, or a folder with such scans as BIDS has it.

    `suffix` is BIDS's word for them.
    """
    if not is_dir(root):
        return False
    is_described = (root / "dataset_description.json").is_file()
    return is_described or any(anat_files(root, suffix))


def find_bids(
    root: Path,
    participants: Collection[str],
    sessions: Collection[str],
    suffix: str = T1W,
) -> Found:
    """The scans of a BIDS dataset that have a suffix; participants and sessions say which of them.

    Labels may have their prefix or not (01, sub-01). Refused are folders that may not be read,
    images whose names say another person than their folders, and participants without such a scan.
    InputError where the whole dataset has none. Results of other scans than T1w have the suffix in
    their names, as BIDS has it.
    """
    wanted = {label.removeprefix("sub-") for label in participants}
    visits = {label.removeprefix("ses-") for label in sessions}
    refusals: list[Refusal] = []
    for pattern in _BIDS_FOLDERS:
        closed = filter(is_closed, root.glob(pattern))
        refusals += [closed_folder(folder.relative_to(root)) for folder in closed]
    cases: list[Case] = []
    present: set[str] = set()
    for path in natsorted(anat_files(root, suffix), key=str):
        place = path.relative_to(root)
        if reason := misnamed(path, root):
            refusals.append(Refusal(str(place), reason))
            continue
        stem = without_suffix(path).removesuffix(f"_{suffix}")
        facts = entities(stem)
        present.add(facts["sub"])
        if wanted and facts["sub"] not in wanted:
            continue
        if visits and facts.get("ses") not in visits:
            continue
        # Results have these two of their own.
        for added in ("space", "desc"):
            facts.pop(added, None)
        if suffix != T1W:
            facts["space"] = suffix
            stem = f"{stem}_space-{suffix}"
        cases.append(Case(f"{place.parent}/{stem}", path, str(place), facts))
    refusals += [
        Refusal(f"sub-{label}", f"no such participant with a {suffix} scan")
        for label in natsorted(wanted - present)
    ]
    if not cases and not refusals and not visits:
        raise InputError(
            f"no sub-*/[ses-*/]anat/*_{suffix}.nii[.gz] in this BIDS dataset",
            where=root,
        )
    return Found.of(cases, refusals, root)


def suffix_of_results(outputs: Iterable[str]) -> str | None:
    """The suffix of the scan of a BIDS dataset that has these results; None of other scans."""
    for output in outputs:
        space = entities(Path(output).name.partition(".")[0]).get("space")
        if space == _SPACE_OF_T1W:
            return T1W
        if space is not None:
            return space
    return None


def is_subjects_dir(root: Path) -> bool:
    """Whether it is a SUBJECTS_DIR of FreeSurfer's: a folder of subjects with images."""
    return is_dir(root) and any(find_image(folder) for folder in root.iterdir())


def find_subjects(root: Path) -> Found:
    """The image of each subject in a SUBJECTS_DIR.

    Folders without `mri/` are passed over. A folder that may not be read, or whose `mri/` has no
    image, is refused.
    """
    cases: list[Case] = []
    refusals: list[Refusal] = []
    for folder in natsorted(root.iterdir(), key=str):
        if is_closed(folder) or is_closed(folder / "mri"):
            refusals.append(closed_folder(folder.name))
            continue
        if not is_dir(folder / "mri") or folder.name.startswith("."):
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
    return Found.of(cases, refusals)
