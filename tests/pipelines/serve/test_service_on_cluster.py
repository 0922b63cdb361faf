"""The service with its scans done on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.serial import run_serially
from helpers.service import AT, Service, quick_model, tiny_scan

pytest.importorskip("distributed")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scans_are_done_on_a_cluster_and_what_waits_survives_a_kill(
    tmp_path: Path,
) -> None:
    scans = [tiny_scan(tmp_path / f"{number}.nii.gz", number) for number in range(3)]
    broken = (scans[0].read_bytes()[:-30], "broken.nii.gz")
    run_serially([str(scans[0])], tmp_path / "out", model=str(quick_model()))
    with Service(tmp_path / "queue", "--cluster", "local:2") as service:
        ids = [service.ready().send(scan).json()["id"] for scan in scans]
        refused = service.send(*broken)
        assert refused.status_code in (202, 422)
        service.kill()
        service.start()
        ends = [service.ready().wait(id) for id in ids]
        assert [end["state"] for end in ends] == ["done"] * 3, ends
        labels = service.client.get(f"{AT}/{ids[0]}/labels.nii.gz").content
        assert labels == (tmp_path / "out/0_dseg.nii.gz").read_bytes()
        if refused.status_code == 202:
            end = service.wait(refused.json()["id"])
            assert (end["state"], bool(end["reason"])) == ("failed", True)
        assert service.end() == 0
        assert "Traceback" not in service.log.read_text()
