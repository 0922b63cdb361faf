"""What the service takes and keeps at most. `trinat serve` has an option for the first four."""

from __future__ import annotations

# Largest upload (--max-upload), in megabytes of 10^6 bytes. `pipelines/web/guard.py` stops
# a request as soon as more bytes of it have come.
MAX_UPLOAD_MB = 1000
# Scans that may wait in the queue (--max-queue), uploads that are under way among them.
MAX_WAITING = 200
# Scans of one client address that have not ended (--max-client).
MAX_OF_CLIENT = 50
# Hours after its end at which a scan is deleted with its results (--keep).
KEEP_HOURS = 24
# A disk with less free space has no room for results, so no upload is taken.
MIN_FREE_BYTES = 1 << 30
# Fields of an upload's form beside its file, and the bytes of one.
MAX_FORM_FIELDS = 9
MAX_FIELD_BYTES = 200
# A scan is not tried again after the whole server ended this often while it was at work on it.
MAX_STARTS = 5


def bytes_of(megabytes: float) -> int:
    """Megabytes, as --max-upload gives them, in bytes; fractions of a byte are dropped."""
    return int(megabytes * 1e6)
