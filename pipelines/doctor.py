"""Diagnosis of this machine for `trinat doctor`: what is installed, and what will cause problems.

Each check gives a finding: the value, whether it is sufficient, and the remedy if it is not.
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Literal

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.jobs.process import cpu_count, tune_allocation
from trinat.segmentation.errors import extra_remedy
from trinat.segmentation.io.limits import free_memory

Severity = Literal["ok", "note", "wrong"]
_GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """Result of one check of the machine, with a remedy if it failed.

    `subject` is what was checked, such as "memory", and `value` what was found, such as "3.2 GiB
    free". `severity` is "ok", "note" (it works, but could be faster) or "wrong".
    """

    subject: str
    value: str
    severity: Severity = "ok"
    remedy: str = ""


def examine() -> list[Finding]:
    """Check Python, packages, torch, processors, memory and disk; return a finding for each.

    This imports torch and takes a second or two.
    """
    findings = [Finding("Python", platform.python_version()), *_packages(), *_torch()]
    findings.append(Finding("processors", str(cpu_count())))
    # Tuned as in every command that computes.
    allocation = "system default (no glibc)"
    if tune_allocation():
        allocation = "tuned"
    findings.append(Finding("allocation", allocation))
    remedy = "close other programs: a scan takes about 2 GiB"
    findings.append(_at_least("memory", free_memory() / _GIB, 4, remedy))
    folder = tempfile.gettempdir()
    free_gib = shutil.disk_usage(folder).free / _GIB
    remedy = f"free space in {folder} or set TMPDIR"
    findings.append(_at_least("temporary space", free_gib, 1, remedy))
    return findings


def diagnose(*, as_json: bool) -> Exit:
    """Check this machine and print the findings, as a table or as JSON.

    Returns OK if nothing is wrong, else ALL_FAILED.
    """
    findings = examine()
    wrong = sum(finding.severity == "wrong" for finding in findings)
    status = Exit.ALL_FAILED if wrong else Exit.OK
    if as_json:
        rows = [asdict(finding) for finding in findings]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return status

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "note": "yellow", "wrong": "bold red"}
    table = Table(box=None, pad_edge=False)
    for header in ("", "what", "found", "to do"):
        table.add_column(header, overflow="fold")
    for finding in findings:
        severity = Text(finding.severity, styles[finding.severity])
        table.add_row(severity, finding.subject, finding.value, finding.remedy)
    console = Console()
    console.print(table)
    if not wrong:
        console.print("Nothing is wrong.")
    elif wrong == 1:
        console.print("1 thing wrong.")
    else:
        console.print(f"{wrong} things wrong.")
    return status


def _packages() -> list[Finding]:
    """Check that each declared dependency is installed in a sufficient version."""
    from packaging.requirements import Requirement

    findings = []
    for line in metadata.requires("trinat") or []:
        needed = Requirement(line)
        # Dependencies of extras are optional.
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            findings.append(_package(needed.name, str(needed.specifier)))
    return findings


def _package(name: str, bounds: str) -> Finding:
    from packaging.specifiers import SpecifierSet

    remedy = f"pip install '{name}{bounds}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "wrong", remedy)
    if not SpecifierSet(bounds).contains(version, prereleases=True):
        return Finding(name, f"{version}, needs {bounds}", "wrong", remedy)
    return Finding(name, version)


def _torch() -> list[Finding]:
    """Report torch's version and devices: the processor, and GPUs if there are any."""
    try:
        import torch
    except (ImportError, OSError) as error:
        # OSError: one of torch's shared libraries is missing.
        remedy = "install torch again: see README"
        return [Finding("torch import", str(error), "wrong", remedy)]
    from trinat.segmentation.models.hardware import (
        bfloat16_hardware,
        count_gpus,
        describe_gpu,
    )

    computes = "float32 (no bfloat16 in hardware)"
    hardware = bfloat16_hardware(torch.device("cpu"))
    if hardware:
        computes = f"bfloat16 ({hardware})"
    findings = [
        Finding("CPU instructions", torch.backends.cpu.get_cpu_capability()),
        Finding("CPU arithmetic", computes),
        Finding("CPU threads", str(torch.get_num_threads())),
        _int8(helps=not hardware),
    ]

    gpus = count_gpus()
    cuda = torch.version.cuda
    if not gpus and not cuda:
        findings.append(Finding("GPU", "none (CPU build)"))
    elif not gpus:
        value = f"none (torch is built for CUDA {cuda}, but finds no device)"
        remedy = "check the driver with nvidia-smi"
        findings.append(Finding("GPU", value, "note", remedy))
    for index in range(gpus):
        name, free, total = describe_gpu(index)
        memory = f"{free / _GIB:.0f} of {total / _GIB:.0f} GiB free"
        findings.append(Finding(f"GPU {index}", f"{name}, {memory}"))
    return findings


def _int8(*, helps: bool) -> Finding:
    """Report whether networks can run in int8, and whether that saves time here.

    `helps` is True for processors without bfloat16, on which int8 is faster than float32.
    """
    value = "not installed"
    if find_spec("openvino") is not None:
        value = "available"
    if not helps:
        return Finding("int8 networks", f"{value}; bfloat16 is about as fast")
    value += "; faster than float32 here"
    if find_spec("openvino") is not None:
        return Finding("int8 networks", value, remedy="use --precision int8")
    return Finding("int8 networks", value, "note", extra_remedy("fast-cpu"))


def _at_least(subject: str, gib: float, needed_gib: float, remedy: str) -> Finding:
    """Return the finding for `gib` GiB of free memory or space: wrong if less than needed.

    `subject` names the memory or space, `needed_gib` is the amount needed, and `remedy` the advice
    if it is less.
    """
    value = f"{gib:.1f} GiB free"
    if gib < needed_gib:
        return Finding(subject, value, "wrong", remedy)
    return Finding(subject, value)
