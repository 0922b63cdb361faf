"""Recipes in YAML and label tables in TSV, installed with the package."""

from importlib.resources import files
from importlib.resources.abc import Traversable


def config_root() -> Traversable:
    """The folder that holds `labels/` and `train/`."""
    return files(__name__)
