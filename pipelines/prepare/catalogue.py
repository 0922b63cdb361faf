"""Catalogue of the public datasets in configs/datasets.yaml, as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from trinat.segmentation.errors import ConfigError

Md5 = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits of an archive, declared before it is opened.

    `members` is the number of files and folders in it, `bytes` the total size of all members,
    unpacked.
    """

    members: int
    bytes: int


_PLAUSIBLE_BYTES = (1, 10**11)


class _Strict(BaseModel):
    """Immutable entry of the catalogue, which refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RemoteFile(_Strict):
    """A file to download, with the addresses of its mirrors in order of preference.

    `size` and `md5` are None if they are not published. Without a published size, the file must
    have a size between the two `plausible_bytes`.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    urls: tuple[str, ...] = Field(min_length=1)
    size: int | None = None
    md5: Md5 | None = None
    plausible_bytes: tuple[int, int] = _PLAUSIBLE_BYTES

    def problem_of(self, size: int) -> str:
        """Return the problem of a file that has `size` bytes; "" if there is none.

        It must have the published size; without one, a plausible size.
        """
        if self.size is not None:
            if size != self.size:
                return f"the file has {self.size}"
            return ""
        low, high = self.plausible_bytes
        if not low <= size <= high:
            return f"and {low} to {high} are plausible"
        return ""


class Archive(_Strict):
    """An archive of a dataset, or a numbered series of archives ("discs").

    In `name` and `urls`, `{disc}` is replaced by the numbers 1 to `discs`. `part` is the name by
    which users choose the archive. `size` and `md5` are given by the number of the disc, if they
    are published.
    """

    part: str
    name: str
    urls: tuple[str, ...]
    discs: int = 1
    size: dict[int, int] = {}
    md5: dict[int, Md5] = {}
    plausible_bytes: tuple[int, int] = _PLAUSIBLE_BYTES
    limits: ArchiveLimits

    def disc(self, number: int) -> RemoteFile:
        """Return the file of one disc, counted from 1.

        Its size and MD5 are None if they are not published.
        """
        urls = tuple(url.format(disc=number) for url in self.urls)
        return RemoteFile(
            name=self.name.format(disc=number),
            urls=urls,
            size=self.size.get(number),
            md5=self.md5.get(number),
            plausible_bytes=self.plausible_bytes,
        )


class Dataset(_Strict):
    """A public dataset: its content, its terms, and its archives.

    Without `archives` there is no public download, and `get` tells users how to obtain the data.
    """

    title: str
    holds: str
    size: str
    licence: str
    terms: str
    citation: str
    archives: tuple[Archive, ...] = ()
    get: str = ""

    def files(self, *, part: str, discs: tuple[int, ...]) -> list[RemoteFile]:
        """Return the files of one part of the dataset.

        `discs` are the numbers of its discs; empty: all. ConfigError for an unknown part or disc,
        and for a dataset without a public download.
        """
        if not self.archives:
            raise ConfigError(
                f"{self.title}: there is no public download", remedy=self.get
            )
        found = next((each for each in self.archives if each.part == part), None)
        if found is None:
            parts = ", ".join(archive.part for archive in self.archives)
            what = f"{self.title} has no part {part!r}"
            raise ConfigError(what, remedy=f"name one of {parts}")
        wrong = [number for number in discs if not 1 <= number <= found.discs]
        if wrong:
            what = f"{self.title} ({part}) has no disc {wrong[0]}"
            raise ConfigError(what, remedy=f"its discs are 1 to {found.discs}")
        numbers = discs or range(1, found.discs + 1)
        return [found.disc(number) for number in numbers]


@cache
def load_catalogue() -> dict[str, Dataset]:
    """Read the datasets of configs/datasets.yaml, by name."""
    path = resources.files("trinat.configs") / "datasets.yaml"
    entries = yaml.safe_load(path.read_text("utf-8"))
    return {name: Dataset.model_validate(entry) for name, entry in entries.items()}


def archives_of(dataset: str) -> dict[str, ArchiveLimits]:
    """Return the limits of each archive of a dataset by file name.

    {} for a dataset that is not in the catalogue.
    """
    entry = load_catalogue().get(dataset)
    if entry is None:
        return {}
    limits = {}
    for archive in entry.archives:
        for number in range(1, archive.discs + 1):
            limits[archive.disc(number).name] = archive.limits
    return limits
