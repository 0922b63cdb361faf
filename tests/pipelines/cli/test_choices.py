"""Values on the command line become settings, or are refused before anything is read."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from helpers.refusals import refusal

from trinat.pipelines.cli.options import LeftOut
from trinat.pipelines.common.option import split_devices
from trinat.pipelines.predict.settings import OutputSettings, PredictRequest
from trinat.segmentation.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("auto", ("auto",)),
        ("cuda", ("cuda",)),
        ("cuda:0,1", ("cuda:0", "cuda:1")),
        ("cuda:0, cuda:2", ("cuda:0", "cuda:2")),
        ("cuda:1,cpu", ("cuda:1", "cpu")),
        # Two processes on one GPU.
        ("cuda:0,0", ("cuda:0", "cuda:0")),
    ],
)
def test_devices_are_named_one_by_one_or_by_number(
    text: str, names: tuple[str, ...]
) -> None:
    assert split_devices(text) == names


@pytest.mark.parametrize(
    "text", ["", ",", "0,1", "abacus", "cuda:", "cuda:0,x", "cpu,1", "cuda:-1"]
)
def test_what_is_no_device_is_refused(text: str) -> None:
    with refusal(ConfigError, "--device or TRINAT_DEVICE"):
        split_devices(text)


@pytest.mark.parametrize("volume_mm3", [-1.0, math.nan])
def test_the_smallest_lesion_has_a_volume(volume_mm3: float) -> None:
    output = OutputSettings(smallest_lesion_mm3=volume_mm3)
    with refusal(ConfigError):
        PredictRequest((), Path("out"), output=output).check()


def test_a_dicom_seg_needs_its_packages_before_any_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "highdicom", None)
    request = PredictRequest((), Path("out"), output=OutputSettings(dicom_seg=True))
    with refusal(ConfigError, remedy="dicom"):
        request.check()


@pytest.mark.parametrize(
    ("devices", "workers", "planned"),
    [
        ("auto", 1, ["auto"]),
        ("cpu", 3, ["cpu", "cpu", "cpu"]),
        # One process per GPU by default.
        ("cuda:0,1", 1, ["cuda:0", "cuda:1"]),
        ("cuda:0,1", 3, ["cuda:0", "cuda:1", "cuda:0"]),
    ],
)
def test_workers_are_dealt_out_to_devices_in_turn(
    devices, workers: int, planned
) -> None:
    request = PredictRequest(
        [], Path(), devices=split_devices(devices), workers=workers
    )
    assert request.worker_devices == planned


def test_rejected_results_are_left_out_unless_they_are_asked_for() -> None:
    assert LeftOut().grades() == ("reject",)
    assert LeftOut(include_rejected=True).grades() == ()
    assert LeftOut(exclude="look").grades() == ("reject", "look")
    with pytest.raises(
        ConfigError, match="--include-rejected and --exclude look contradict"
    ):
        LeftOut(include_rejected=True, exclude="look").grades()
