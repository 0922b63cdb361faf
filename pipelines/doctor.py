"""What this machine has, and what of it will make trouble."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from typing import Literal

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.common.process import cpu_count, tune_allocation
from trinat.segmentation.io.memory import free_memory

Severity = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    subject: str
    value: str
    severity: Severity = "ok"
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything; import torch, so this takes a second or two."""
    from packaging.requirements import Requirement

    # Each declared dependency is there, and at least as new as the bound says.
    needed = map(Requirement, metadata.requires("trinat") or [])
    temporary = tempfile.gettempdir()
    disk_gib = shutil.disk_usage(temporary).free / 2**30
    return [
        Finding("Python", platform.python_version()),
        *(
            _package(r.name, str(r.specifier))
            for r in needed
            if r.marker is None or r.marker.evaluate({"extra": ""})
        ),
        *_torch(),
        Finding("processors", str(cpu_count())),
        Finding(
            "allocation", "tuned" if tune_allocation() else "system default (no glibc)"
        ),
        _at_least(
            "memory",
            free_memory() / 2**30,
            4,
            "close other programs: a scan takes about 3 GiB",
        ),
        _at_least(
            "temporary space", disk_gib, 1, f"free space in {temporary} or set TMPDIR"
        ),
    ]


def run(*, as_json: bool) -> Exit:
    findings = examine()
    wrong = sum(finding.severity == "wrong" for finding in findings)
    if as_json:
        sys.stdout.write(json.dumps([asdict(f) for f in findings], indent=2) + "\n")
    else:
        _print(findings, wrong)
    return Exit.ALL_FAILED if wrong else Exit.OK


def _print(findings: list[Finding], wrong: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "note": "yellow", "wrong": "bold red"}
    table = Table(box=None, pad_edge=False)
    for header in ("", "what", "found", "to do"):
        table.add_column(header, overflow="fold")
    for f in findings:
        table.add_row(
            Text(f.severity, styles[f.severity]), f.subject, f.value, f.remedy
        )
    console = Console()
    console.print(table)
    console.print(
        f"{wrong} thing{'s' * (wrong != 1)} wrong." if wrong else "Nothing is wrong."
    )


def _package(name: str, bounds: str) -> Finding:
    from packaging.specifiers import SpecifierSet

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "wrong", f"pip install '{name}{bounds}'")
    if not SpecifierSet(bounds).contains(version, prereleases=True):
        return Finding(
            name, f"{version}, needs {bounds}", "wrong", f"pip install '{name}{bounds}'"
        )
    return Finding(name, version)


def _torch() -> list[Finding]:
    try:
        import torch
    except (
        ImportError,
        OSError,
    ) as error:  # OSError: a shared library of its own is missing
        return [
            Finding(
                "torch import", str(error), "wrong", "install torch again: see README"
            )
        ]
    from trinat.segmentation.models.hardware import (
        bfloat16_hardware,
        count_gpus,
        describe_gpu,
    )

    hardware = bfloat16_hardware(torch.device("cpu"))
    computes = (
        f"bfloat16 ({hardware})" if hardware else "float32 (no bfloat16 in hardware)"
    )
    findings = [
        Finding("CPU instructions", torch.backends.cpu.get_cpu_capability()),
        Finding("CPU arithmetic", computes),
        Finding("CPU threads", str(torch.get_num_threads())),
    ]
    if not count_gpus():
        built = torch.version.cuda
        note = (
            f"torch is built for CUDA {built}, but finds no device"
            if built
            else "CPU build"
        )
        severity: Severity = "note" if built else "ok"
        remedy = "check the driver with nvidia-smi" if built else ""
        return [*findings, Finding("GPU", f"none ({note})", severity, remedy)]
    for index in range(count_gpus()):
        name, free, total = describe_gpu(index)
        memory = f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
        findings.append(Finding(f"GPU {index}", f"{name}, {memory}"))
    return findings


def _at_least(subject: str, gib: float, needed_gib: float, remedy: str) -> Finding:
    value = f"{gib:.1f} GiB free"
    if gib < needed_gib:
        return Finding(subject, value, "wrong", remedy)
    return Finding(subject, value)
