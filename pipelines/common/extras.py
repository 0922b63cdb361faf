"""Optional packages of some commands: the extras of the installation."""

from __future__ import annotations

from importlib.util import find_spec

from trinat.segmentation.errors import ConfigError, extra_remedy


def require_extra(extra: str, *packages: str) -> None:
    """Raise ConfigError if optional packages are missing, with the command to install them.

    `extra` is the name of the extra of the installation, and `packages` are the modules to import.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(
                f"needs the package {package}",
                remedy=extra_remedy(extra),
            )
