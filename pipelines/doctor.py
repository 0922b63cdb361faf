"""What this machine has, and what of it will make trouble."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from typing import Literal

from pipelines.common.exits import Exit
from pipelines.common.process import cpu_count, tune_allocation
from segmentation.io.memory import free_memory

Severity = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    subject: str
    value: str
    severity: Severity = "ok"
    remedy: str = ""


@dataclass
class Health:
    findings: list[Finding] = field(default_factory=list)

    @property
    def wrong(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "wrong"]


def examine() -> Health:
    """Look at everything; import torch, so this takes a second or two."""
    return Health([_python(), *_packages(), *_torch(), *_machine()])


def run(*, as_json: bool) -> Exit:
    health = examine()
    if as_json:
        sys.stdout.write(json.dumps([asdict(f) for f in health.findings], indent=2) + "\n")
    else:
        _print(health)
    return Exit.ALL_FAILED if health.wrong else Exit.OK


def _print(health: Health) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "note": "yellow", "wrong": "bold red"}
    table = Table(box=None, pad_edge=False)
    for header in ("", "what", "found", "to do"):
        table.add_column(header, overflow="fold")
    for f in health.findings:
        table.add_row(Text(f.severity, styles[f.severity]), f.subject, f.value, f.remedy)
    console = Console()
    console.print(table)
    wrong = len(health.wrong)
    console.print(f"{wrong} thing{'s' * (wrong != 1)} wrong." if wrong else "Nothing is wrong.")


def _python() -> Finding:
    return Finding("Python", platform.python_version())


def _packages() -> list[Finding]:
    """Each declared dependency: there, and at least as new as the bound says."""
    from packaging.requirements import Requirement

    findings = []
    for line in metadata.requires("trinat") or []:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        findings.append(_package(requirement.name, str(requirement.specifier)))
    return findings


def _package(name: str, bounds: str) -> Finding:
    from packaging.specifiers import SpecifierSet

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "wrong", f"pip install '{name}{bounds}'")
    if not SpecifierSet(bounds).contains(version, prereleases=True):
        return Finding(name, f"{version}, needs {bounds}", "wrong", f"pip install '{name}{bounds}'")
    return Finding(name, version)


def _torch() -> list[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of its own is missing
        return [Finding("torch import", str(error), "wrong", "install torch again: see README")]
    from segmentation.models.hardware import bfloat16_hardware

    capability = torch.backends.cpu.get_cpu_capability()
    hardware = bfloat16_hardware(torch.device("cpu"))
    computes = f"bfloat16 ({hardware})" if hardware else "float32 (no bfloat16 in hardware)"
    threads = torch.get_num_threads()
    findings = [
        Finding("CPU instructions", capability),
        Finding("CPU arithmetic", computes),
        Finding("CPU threads", str(threads)),
    ]
    if not torch.cuda.is_available():
        built = torch.version.cuda
        note = f"torch is built for CUDA {built}, but finds no device" if built else "CPU build"
        severity: Severity = "note" if built else "ok"
        remedy = "check the driver with nvidia-smi" if built else ""
        return [*findings, Finding("GPU", f"none ({note})", severity, remedy)]
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        free_gib, total_gib = free / 2**30, total / 2**30
        findings.append(
            Finding(f"GPU {index}", f"{name}, {free_gib:.0f} of {total_gib:.0f} GiB free")
        )
    return findings


def _machine() -> list[Finding]:
    memory_gib = free_memory() / 2**30
    temporary = tempfile.gettempdir()
    disk_gib = shutil.disk_usage(temporary).free / 2**30
    return [
        Finding("processors", str(cpu_count())),
        Finding("allocation", "tuned" if tune_allocation() else "system default (no glibc)"),
        _at_least("memory", memory_gib, 4, "close other programs: a scan takes about 3 GiB"),
        _at_least("temporary space", disk_gib, 1, f"free space in {temporary} or set TMPDIR"),
    ]


def _at_least(subject: str, gib: float, needed_gib: float, remedy: str) -> Finding:
    value = f"{gib:.1f} GiB free"
    if gib < needed_gib:
        return Finding(subject, value, "wrong", remedy)
    return Finding(subject, value)
