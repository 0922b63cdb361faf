"""From file to file with random weights, in a process of its own (`scripts/bench predict`).

They take the time of trained ones but find no brain: it is looked for at their cost, and then the
networks work where another model has seen one.

    python -m pipelines.bench._predict_random SCAN OUT MODEL THREADS ROOM
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipelines.common.process import prepare_process
from segmentation.inference.room import Room
from segmentation.inference.segmenter import Segmenter
from segmentation.io.volume import Volume

__all__ = ["Informed", "room_seen", "write_room"]


class Informed(Segmenter):
    """Looks for the brain as any other, and then works where another model has seen one."""

    room: Room

    def find_brain(self, image: Tensor) -> Room:
        super().find_brain(image)
        return self.room


def room_seen(segmenter: Segmenter, scan: Volume) -> Room:
    """Where a model sees the brain of a scan, without the rim: random labels there mean nothing."""
    prepared = segmenter.prepare(scan)
    room = segmenter.find_brain(torch.from_numpy(prepared.conformed.volume.data))
    if room.mask is None:
        raise SystemExit(f"{segmenter.model.name} sees no brain there")
    return Room(room.box, room.mask)


def write_room(scan: Path, path: Path, model: str) -> None:
    room = room_seen(Segmenter.load(model, device="cpu"), Volume.read(scan))
    assert room.mask is not None
    np.savez(path, box=[(side.start, side.stop) for side in room.box], mask=room.mask.numpy())


def _run(scan: str, out: str, model: str, threads: str, room: str) -> None:
    prepare_process(int(threads))
    segmenter = Informed.load(model, device="cpu")
    assert isinstance(segmenter, Informed)
    with np.load(room) as seen:
        x, y, z = (slice(int(start), int(stop)) for start, stop in seen["box"])
        segmenter.room = Room((x, y, z), torch.from_numpy(seen["mask"]))
    segmenter.segment(Volume.read(scan)).labels.write(Path(out), labels=True)


if __name__ == "__main__":
    _run(*sys.argv[1:])
