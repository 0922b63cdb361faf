"""The service under load, under attack and under kill -9: nothing accepted is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from attacks.web import exchange, malformed
from helpers.service import AT, Service, quick_model, tiny_scan
from helpers.warm import Warm

# From five on, a scan may be given up. Set TRINAT_KILLS=10 for a thorough run.
KILLS = int(os.environ.get("TRINAT_KILLS", "4"))
GIVEN_UP = "the server ended 5 times while it was at work"


@pytest.mark.slow
@pytest.mark.important
def test_a_killed_server_loses_nothing_that_it_accepted(
    warm: Warm, tmp_path: Path
) -> None:
    chance = random.Random(1)
    scans = [
        tiny_scan(tmp_path / f"{number}.nii.gz", number).read_bytes()
        for number in range(4)
    ]
    accepted: list[str] = []
    with Service(tmp_path / "queue", warm=warm) as service:
        for _ in range(KILLS):
            service.ready()
            stop = threading.Event()
            with ThreadPoolExecutor(2) as clients:
                for _ in range(2):
                    clients.submit(_send_until, stop, service, scans, accepted)
                time.sleep(chance.uniform(0.2, 3))
                service.kill()
                stop.set()
            service.start()
        service.ready()
        assert len(accepted) > KILLS
        states = [service.wait(id, 500) for id in accepted]
        # Every scan has ended: done, or given up because it was running at each of five kills.
        for now in states:
            assert (now["state"], now["reason"]) in {
                ("done", ""),
                ("failed", GIVEN_UP),
            }, now
            assert now["state"] == "done" or KILLS >= 5
        for id, now in zip(accepted, states, strict=True):
            status = 200 if now["state"] == "done" else 409
            assert service.client.get(f"{AT}/{id}/labels.nii.gz").status_code == status
            service.client.delete(f"{AT}/{id}")
        # Scans whose confirmation was lost have ended too.
        left = service.client.get("/metrics").text
        assert 'trinat_scans{state="failed"} 0' in left or KILLS >= 5
        assert 'trinat_scans{state="queued"} 0' in left
        assert service.end() == 0
        assert "Traceback" not in service.log.read_text()
    given_up = sum(now["state"] == "failed" for now in states)
    print(f"{KILLS} kills, {len(accepted)} accepted, {given_up} given up")


def _send_until(
    stop: threading.Event, service: Service, scans: list[bytes], accepted: list[str]
) -> None:
    while not stop.is_set():
        try:
            answer = service.send(random.choice(scans))
        except (
            httpx.HTTPError,
            RuntimeError,
        ):  # the server was killed, and its client is closed
            return
        if answer.status_code == 202:
            accepted.append(answer.json()["id"])
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_200_uploads_by_8_clients(tmp_path: Path) -> None:
    scan = tiny_scan(tmp_path / "scan.nii.gz").read_bytes()
    limits = ("--max-queue", "20", "--max-client", "1000")
    ended: list[tuple[str, float]] = []
    sent: dict[str, float] = {}
    refused: list[int] = []
    memory: list[int] = []
    with Service(tmp_path / "queue", *limits) as service:
        server = psutil.Process(service.ready().process.pid)
        lock = threading.Lock()

        def upload(_: int) -> None:
            while True:
                with lock:  # keeps the order of acceptance
                    answer = service.send(scan)
                    if answer.status_code == 202:
                        sent[answer.json()["id"]] = time.monotonic()
                if answer.status_code == 202:
                    break
                assert answer.status_code == 429, answer.text
                assert int(answer.headers["retry-after"]) > 0
                refused.append(1)
                time.sleep(0.5)
            memory.append(server.memory_info().rss)

        with ThreadPoolExecutor(8) as clients:
            list(clients.map(upload, range(200)))
        for id in sent:
            assert service.wait(id, 500)["state"] == "done"
        for id in sent:
            record = json.loads((service.queue / "jobs" / id / "job.json").read_text())
            ended.append((id, record["ended"]))
    assert len(sent) == 200
    assert refused
    assert [id for id, _ in sorted(ended, key=lambda one: one[1])] == list(sent)
    assert max(memory[100:]) - memory[20] < 30e6
    print(
        f"memory {memory[20] / 1e6:.0f} to {max(memory) / 1e6:.0f} MB, {len(refused)} refused"
    )


@pytest.mark.slow
@pytest.mark.important
def test_300_malformed_requests_get_a_line_each_and_leave_the_server_well(
    tmp_path: Path,
) -> None:
    scan = tiny_scan(tmp_path / "scan.nii.gz").read_bytes()
    with Service(tmp_path / "queue", "--max-upload", "1") as service:
        service.ready()
        for number in range(300):
            request = malformed(random.Random(number), service.address, scan)
            answer = exchange(service.address, request)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 4"), (number, request[:300], answer[:300])
            assert json.loads(body)["reason"], (number, request[:300])
            assert b"\n" not in body.strip()
        assert service.client.get("/metrics").text.count(" 0\n") == 6
        assert service.wait(service.send(scan).json()["id"])["state"] == "done"
        log = service.log.read_text()
        assert "Traceback" not in log
        assert "Error" not in log, log
        assert len(list((service.queue / "jobs").iterdir())) == 1


@pytest.mark.slow
def test_a_warm_server_is_as_quick_as_the_command_line(tmp_path: Path) -> None:
    scan = tiny_scan(tmp_path / "scan.nii.gz")
    command = [
        sys.executable,
        "-m",
        "trinat",
        "predict",
        str(scan),
        "--model",
        str(quick_model()),
    ]
    took: dict[str, list[float]] = {"service": [], "command line": []}
    with Service(tmp_path / "queue") as service:
        service.ready()
        for turn in range(3):
            begun = time.monotonic()
            id = service.send(scan).json()["id"]
            assert service.wait(id)["state"] == "done"
            labels = service.client.get(f"{AT}/{id}/labels.nii.gz").content
            took["service"].append(time.monotonic() - begun)
            out = tmp_path / f"out{turn}"
            begun = time.monotonic()
            subprocess.run([*command, "--threads", "1", "--out", str(out)], check=True)
            took["command line"].append(time.monotonic() - begun)
            assert labels == (out / "scan_dseg.nii.gz").read_bytes()
    for name, seconds in took.items():
        print(
            name, *(f"{s:.1f}" for s in seconds), "s, load", f"{os.getloadavg()[0]:.1f}"
        )
    assert min(took["service"]) <= min(took["command line"]) + 1
