"""Optional packages of some commands: the extras of the installation."""

from __future__ import annotations

import os
from importlib.util import find_spec

from trinat.segmentation.errors import ConfigError, extra_remedy

# Variables that stop NNCF and ONNX Runtime from reporting each use to their makers.
_NO_REPORTS = {"NNCF_CI": "1", "ORT_DISABLE_TELEMETRY": "1"}


def require_extra(extra: str, *packages: str) -> None:
    """Raise ConfigError if optional packages are missing, with the command to install them.

    `extra` is the name of the extra of the installation, and `packages` are the modules to import.
    Packages that report their use are told not to, so call this before the import.
    """
    os.environ.update(_NO_REPORTS)
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(
                f"needs the package {package}",
                remedy=extra_remedy(extra),
            )
