"""The public datasets of configs/datasets.yaml, as typed values."""

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

    `bytes` is the total size of all members, unpacked.
    """

    members: int
    bytes: int


_PLAUSIBLE_BYTES = (1, 10**11)


class _Strict(BaseModel):
    """A value that does not change, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RemoteFile(_Strict):
    """One file to fetch: mirrors in order of preference, and how a good copy is known.

    By its MD5 and size, where these are published; else its size must be plausible.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    urls: tuple[str, ...] = Field(min_length=1)
    size: int | None = None
    md5: Md5 | None = None
    plausible_bytes: tuple[int, int] = _PLAUSIBLE_BYTES

    def problem_of(self, size: int) -> str:
        """Return what is wrong with a file of `size` bytes, or "".

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
    """One archive, or a numbered series of them: `{disc}` is replaced by 1 to discs.

    Sizes and checksums are by the number of the disc, where they are published.
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

        Size and checksum are None if nobody published them.
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
    """A public dataset: what it holds, on what terms, and its archives.

    `get` says how to come by one that has no archives for download.
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
        """Return the files of one part; without disc numbers, all of them.

        ConfigError for an unknown part or disc, and for a dataset without download.
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
    """Return the limits of a dataset's archives by file name; {} for a private dataset."""
    entry = load_catalogue().get(dataset)
    if entry is None:
        return {}
    limits = {}
    for archive in entry.archives:
        for number in range(1, archive.discs + 1):
            limits[archive.disc(number).name] = archive.limits
    return limits
