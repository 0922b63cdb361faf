"""Settings of `trinat serve`: address, queue and limits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trinat.pipelines.common.option import Option, as_tuple
from trinat.segmentation.errors import ConfigError

# With less free space on the disk, results might not fit, so uploads are refused.
MIN_FREE_BYTES = 1 << 30
# Maximum number of fields of an upload's form besides its file, and of bytes of a field.
MAX_FORM_FIELDS = 9
MAX_FIELD_BYTES = 200
# A scan fails after work on it was begun this often and ended with the whole server.
MAX_STARTS = 5


def host_names(typed: Iterable[str] | None) -> tuple[str, ...]:
    """Return the host names of --name; raise ConfigError for a URL or a name with a port."""
    names = as_tuple(typed)
    for name in names:
        if "/" in name or ":" in name:
            raise ConfigError(
                f"--name {name}: not a host name",
                remedy="leave out https://, port and path, as in seg.example.org",
            )
    return names


@dataclass(frozen=True)
class ServiceSettings:
    """Address of a service, folder of its queue, and limits.

    `queue` is None for the default folder, see `folder`. `names` are the host names of reverse
    proxies in front of the server.
    """

    queue: Annotated[
        Path | None,
        Option(
            "Folder of the waiting scans, their results and the token. Default: trinat/queue in "
            "$XDG_STATE_HOME or ~/.local/state."
        ),
    ] = None
    host: Annotated[str, Option("Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Option("Port to listen on; 0: any free one.", min=0, max=65535)
    ] = 8765
    names: Annotated[
        tuple[str, ...],
        Option(
            "Host name of a proxy in front of this server; repeatable.",
            names=("--name",),
            typed=list[str] | None,
            parse=host_names,
        ),
    ] = ()
    keep_hours: Annotated[
        float,
        Option(
            "Hours after which a finished scan is deleted with its results.",
            names=("--keep",),
            min=0,
        ),
    ] = 24
    # In units of 10^6 bytes. `guard.Guard` stops a request as soon as it exceeds the limit.
    max_upload_mb: Annotated[
        float, Option("Largest upload, in MB.", names=("--max-upload",), min=1, max=1e6)
    ] = 1000
    # Includes uploads in progress.
    max_waiting: Annotated[
        int, Option("Number of scans that may wait.", names=("--max-queue",), min=1)
    ] = 200
    # Counts unfinished scans only.
    max_of_client: Annotated[
        int,
        Option(
            "Number of scans that one address may have.",
            names=("--max-client",),
            min=1,
        ),
    ] = 50

    @property
    def folder(self) -> Path:
        """Folder of the queue; by default the user's state folder, as specified by XDG."""
        if self.queue is not None:
            return self.queue
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        # XDG requires that a relative path is ignored.
        if not state.is_absolute():
            state = Path.home() / ".local/state"
        return state / "trinat" / "queue"

    @property
    def max_upload_bytes(self) -> int:
        """Limit of an upload in bytes; fractions of a byte are dropped."""
        return int(self.max_upload_mb * 1e6)
