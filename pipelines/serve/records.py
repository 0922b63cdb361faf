"""What is known of a scan that was sent: what its client sees, and what the queue keeps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trinat.segmentation.io.files import read_text

State = Literal["queued", "running", "done", "failed"]

# What may be asked for besides labels and volumes, and the setting that makes a worker write it.
OUTPUTS = {"mgz": "", "dicom-seg": "dicom_seg", "probabilities": "probabilities"}
# The record's file in the folder of its scan.
RECORD_FILE = "job.json"


class Segmentation(BaseModel):
    """What a client gets to know of its scan."""

    id: str = Field(examples=["0f8c2d6a9b1e4c7d8a5f3e2b1c0d9e8f"])
    state: State = "queued"
    place: int = Field(
        default=0, description="1 for the next that is begun, 0 for what is begun"
    )
    progress: float = Field(default=0.0, ge=0, le=1)
    stage: str = Field(
        default="", description="of a running one: reading, networks or writing"
    )
    seconds_left: int | None = Field(
        default=None,
        description="of a running one, from how long others took since the start",
    )
    reason: str = Field(default="", description="why it failed", examples=[""])
    grade: str = Field(
        default="",
        description="pass, look or reject",
        examples=["pass"],
    )
    notes: list[str] = []
    outputs: list[str] = Field(
        default=[],
        description="what was asked for",
        examples=[["mgz"]],
    )


class Submission(Segmentation):
    """A scan that was accepted, as its record on the disk has it.

    `client`, `given` and `running_since` are of this run of the server alone and are not written:
    after a restart every waiting scan is given to the engine again.
    """

    model_config = ConfigDict(extra="forbid")
    number: int = 0  # in the order in which they were accepted
    ending: str = ""  # of the scan's file name, as .nii.gz
    accepted: float = Field(default_factory=time.time)
    ended: float = 0.0
    begun: int = 0  # how often work on it was begun
    result: dict[str, Any] = {}  # as in a ledger
    client: str = Field(default="", exclude=True)
    given: bool = Field(default=False, exclude=True)  # to the engine
    running_since: float = Field(default=0.0, exclude=True)  # by the monotonic clock

    @property
    def scan_name(self) -> str:
        """The name of the scan's file in the folder of the submission."""
        return f"scan{self.ending}"


def read_record(folder: Path) -> Submission:
    """The record in the folder of a scan; a damaged one becomes a scan that failed."""
    try:
        return Submission.model_validate_json(read_text(folder / RECORD_FILE))
    except (ValueError, OSError):
        # Not damaged by us: our files appear whole.
        return Submission(
            id=folder.name,
            state="failed",
            reason="its record is damaged",
            ended=1,
        )
