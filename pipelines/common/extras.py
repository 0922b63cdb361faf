"""Packages that some commands alone need: the extras of the installation."""

from __future__ import annotations

from importlib.util import find_spec

from trinat.segmentation.errors import ConfigError, extra_remedy


def require_extra(extra: str, *packages: str, what: str = "") -> None:
    """Refuse to go on without the packages of an extra: ConfigError, with how to install them.

    `what` is the error's text; by default it names the first package that is not there.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(
                what or f"needs the package {package}",
                remedy=extra_remedy(extra),
            )
