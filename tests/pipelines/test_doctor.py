"""trinat doctor reports what is missing, too old or too small, and what to do."""

from __future__ import annotations

import json

import pytest

from trinat.pipelines import doctor
from trinat.pipelines.common.exits import Exit


def test_a_missing_package_is_wrong_and_the_remedy_installs_it() -> None:
    finding = doctor._package("no-such-package-anywhere", ">=1")
    assert finding.severity == "wrong"
    assert finding.remedy == "pip install 'no-such-package-anywhere>=1'"


def test_a_package_older_than_its_bound_is_wrong() -> None:
    finding = doctor._package("numpy", ">=999")
    assert finding.severity == "wrong"
    assert "needs >=999" in finding.value


def test_a_package_within_its_bound_is_ok() -> None:
    assert doctor._package("numpy", ">=1").severity == "ok"


@pytest.mark.parametrize(("gib", "severity"), [(3.9, "wrong"), (4.0, "ok")])
def test_too_little_memory_is_wrong(gib: float, severity: str) -> None:
    assert doctor._at_least("memory", gib, 4, "free some").severity == severity


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_a_torch_that_cannot_be_imported_is_wrong(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("libtorch_cpu.so: cannot open shared object file")

    monkeypatch.setattr("builtins.__import__", fail)
    (finding,) = doctor._torch()
    assert finding.severity == "wrong"
    assert "libtorch_cpu.so" in finding.value


def test_every_declared_dependency_is_examined() -> None:
    subjects = {finding.subject for finding in doctor.examine()}
    assert {
        "torch",
        "monai",
        "torchio",
        "nibabel",
        "natsort",
        "matplotlib",
        "GPU",
    } <= subjects


def test_something_wrong_gives_a_failing_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = doctor.Finding("memory", "1.0 GiB free", "wrong", "close other programs")
    monkeypatch.setattr(doctor, "examine", lambda: [bad])
    assert doctor.diagnose(as_json=True) == Exit.ALL_FAILED
    assert json.loads(capsys.readouterr().out)[0]["subject"] == "memory"
