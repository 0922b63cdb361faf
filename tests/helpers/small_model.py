"""Small networks, and edits of the folder in which they are saved."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import yaml

from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.space.views import View

SCHEME = load_scheme("quicknat33")
MERGED = len(SCHEME.merged.scheme)


def network(classes: int = 33, **settings: Any) -> QuickNat:
    """Return a small network whose norms and slopes differ from their initial values."""
    made = QuickNat(
        QuickNatConfig(classes=classes, filters=4, depth=1, kernel=3, **settings)
    )
    for name, tensor in made.state_dict().items():
        if "norm" in name and tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
    return made


def save_small(folder: Path) -> Path:
    """Save a model of three views in a folder, and return the folder."""
    networks = {
        View.CORONAL: network(),
        View.AXIAL: network(channels=3),
        View.SAGITTAL: network(MERGED),
    }
    save_model(folder, Description(name="small"), networks)
    return folder


def save_parcels(folder: Path, scheme: str = "desikan34") -> Path:
    """Save a model that divides the cortex into the parcels of a scheme, and return the folder."""
    parcels = load_scheme(scheme)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        networks = {view: network(len(parcels)) for view in View}
    description = Description(name="small-parcels", labels=scheme)
    save_model(folder, description, networks)
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit model.yaml."""
    path = folder / "model.yaml"
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Edit the coronal weights and update their hash."""
    path = folder / "coronal.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)
    digest = sha256(path.read_bytes()).hexdigest()
    edit(folder, lambda content: content["files"].update({path.name: digest}))


def set_key(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = to

    return change
