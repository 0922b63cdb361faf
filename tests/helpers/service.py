"""`trinat serve` in a process of its own, which a test may kill and restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np

from helpers.miniatures import head_image, head_labels
from helpers.warm import Started, Warm
from trinat.segmentation.io.volume import Volume

_START_S = 120
AT = "/v1/segmentations"


@cache
def quick_model() -> Path:
    """Return a model of one view with random weights, which needs a second per scan."""
    import torch

    from helpers.overfitted import SMALL
    from trinat.segmentation.models.checkpoint import save_model
    from trinat.segmentation.models.model_info import Description
    from trinat.segmentation.models.quicknat import QuickNat
    from trinat.segmentation.space.views import View

    folder = Path(tempfile.mkdtemp(prefix="trinat-quick-"))
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        network = QuickNat(
            SMALL.model_copy(update={"filters": 4, "depth": 2, "classes": 33})
        )
    save_model(folder, Description(name="quick"), {View.CORONAL: network})
    return folder


def tiny_scan(path: Path, seed: int = 0) -> Path:
    """Write a head of 20 x 24 x 22 voxels, different for each seed."""
    Volume(
        head_image(head_labels()[::2, ::2, ::2], seed), np.diag([4.0, 4, 4, 1])
    ).write(path)
    return path


class Service:
    """A server with its queue; with `warm` it starts at once."""

    def __init__(self, queue: Path, *options: str, warm: Warm | None = None) -> None:
        self.queue, self._warm = queue, warm
        self._words = ["trinat", "serve", "--model", str(quick_model())]
        self._words += ["--port", "0", "--threads", "1", "--queue", str(queue)]
        self._words += options
        self.log = queue.with_suffix(".log")
        self.start()

    def start(self) -> None:
        ours, theirs = os.pipe()
        self._said = os.fdopen(ours)
        with self.log.open("ab") as log, os.fdopen(theirs, "wb") as said:
            self.process: Started | subprocess.Popen[bytes]
            if self._warm:
                self.process = self._warm.start(
                    *self._words, environment=os.environ, stdout=said, stderr=log
                )
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", *self._words],
                    stdout=said,
                    stderr=log,
                    process_group=0,
                )
        self.address = self._said.readline().strip()
        url, _, self.token = self.address.partition("/?token=")
        assert self.token, self.log.read_text()
        headers = {"Authorization": f"Bearer {self.token}"}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=60)

    def ready(self) -> Self:
        end = time.monotonic() + _START_S
        while self.client.get("/readyz").status_code != 200:
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)
        return self

    def send(
        self, scan: Path | bytes, name: str = "scan.nii.gz", **fields: str
    ) -> httpx.Response:
        content = scan.read_bytes() if isinstance(scan, Path) else scan
        return self.client.post(AT, files={"file": (name, content)}, data=fields)

    def state(self, id: str) -> dict[str, Any]:
        answer = self.client.get(f"{AT}/{id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, id: str, limit_s: float = 120) -> dict[str, Any]:
        end = time.monotonic() + limit_s
        while (now := self.state(id))["state"] not in ("done", "failed"):
            assert time.monotonic() < end, (now, self.log.read_text())
            time.sleep(0.1)
        return now

    def kill(self) -> None:
        """Kill the server as a power cut would; its workers die with it."""
        self.process.kill()
        self._gone()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self._gone()
        return self.process.wait()

    def _gone(self) -> None:
        self.client.close()
        self.process.wait(30)
        self._said.close()
        end = time.monotonic() + 30
        while _group_lives(self.process.pid):
            assert time.monotonic() < end, "a worker outlives its server"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
