"""trinat explain: which voxels of a slice make a network see a structure there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segmentation.errors import ConfigError, InputError
from segmentation.inference.network import thick
from segmentation.inference.segmenter import Segmenter
from segmentation.io.files import atomic_write
from segmentation.io.volume import Volume
from segmentation.models.base import Network
from segmentation.report.pictures import brain_window, png_bytes
from segmentation.space.views import View, to_slices

METHODS = ("gradients", "occlusion")
_STEPS = 32  # of the integral
_BOX, _STRIDE = 12, 6  # pixels that are covered at a time, and from one to the next


@dataclass(frozen=True, eq=False)
class Explanation:
    """Maps of the part of a slice with brain, by method: what each pixel adds to the logit."""

    view: View
    number: int
    window: tuple[slice, slice]
    maps: dict[str, NDArray[np.float32]]


def explain(
    scan: Path, structure: str, out: Path, *, model: str, view: View, device: str = "auto"
) -> Explanation:
    """Write a picture and a NIfTI of each method for the slice that shows most of a structure."""
    segmenter = Segmenter.load(model, device=device, views=[view])
    network = segmenter.model.networks[view].fold().to(segmenter.device)
    scheme = segmenter.model.classes_of(view)
    label = scheme.find(structure)
    conformed = segmenter.prepare(Volume.read(scan))
    axes = segmenter.model.info.preprocessing.slice_axes(view)
    slices = thick(
        to_slices(torch.from_numpy(conformed.volume.data), axes), network.config.channels
    )
    classes = np.concatenate(
        [
            part.probabilities.argmax(-1).cpu().numpy()
            for _, part in segmenter.each_view(torch.from_numpy(conformed.volume.data))
        ]
    )
    counts = (classes == label.index).sum((1, 2))
    if not counts.any():
        raise InputError(f"the {view.value} network sees no {label.name} in it", where=scan)
    number = int(counts.argmax())
    # Where the brain is: what the network is shown when it segments, and no face in the picture.
    window = brain_window(classes > 0)
    region = torch.from_numpy(classes[number][window] == label.index)
    chosen = slices[number : number + 1, :, *window].to(segmenter.device)
    maps = attribute(network, chosen, label.index, region.to(segmenter.device))
    out.mkdir(parents=True, exist_ok=True)
    name = f"{scan.name.split('.')[0]}_{label.name}_{view.value}-{number}"
    for method, found in maps.items():
        whole = np.zeros_like(conformed.volume.data)
        to_slices(whole, axes)[number][window] = found
        Volume(whole, conformed.volume.affine).write(out / f"{name}_{method}.nii.gz")
    picture = _draw(chosen[0, chosen.shape[1] // 2].cpu().numpy(), region.numpy(), maps, name)
    with atomic_write(out / f"{name}.png") as file:
        file.write(picture)
    return Explanation(view, number, window, maps)


def attribute(
    network: Network, slices: Tensor, index: int, region: Tensor
) -> dict[str, NDArray[np.float32]]:
    """Of slices (1, C, H, W), by method: summed over the neighbours that come as channels.

    What is explained is the mean, over a region (H, W), of how far the class's logit is above the
    largest other: a logit alone says nothing of which class wins.
    """
    captum = _captum()

    def seen(given: Tensor) -> Tensor:
        logits = network(given)
        others = torch.cat((logits[:, :index], logits[:, index + 1 :]), 1).amax(1)
        ahead: Tensor = (logits[:, index] - others) * region
        return ahead.sum((1, 2)) / region.sum()

    integral = captum.IntegratedGradients(seen).attribute(
        slices, n_steps=_STEPS, internal_batch_size=4
    )
    box = (slices.shape[1], _BOX, _BOX)
    with torch.inference_mode():
        covered = captum.Occlusion(seen).attribute(
            slices,
            sliding_window_shapes=box,
            strides=(box[0], _STRIDE, _STRIDE),
            perturbations_per_eval=4,
        )
    found = dict(zip(METHODS, (integral, covered), strict=True))
    return {name: v.detach().sum(1)[0].float().cpu().numpy() for name, v in found.items()}


def _captum() -> Any:
    try:
        import captum.attr
    except ImportError:
        raise ConfigError(
            "captum is not installed", remedy="pip install 'trinat[explain]'"
        ) from None
    return captum.attr


def _draw(
    gray: NDArray[np.float32],
    region: NDArray[np.bool_],
    maps: dict[str, NDArray[np.float32]],
    title: str,
) -> bytes:
    """The slice with the structure's outline, and each map over it; red speaks for it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 1 + len(maps))
    for panel, (name, found) in zip(panels, {"slice": None, **maps}.items(), strict=True):
        panel.imshow(gray, cmap="gray", origin="lower")
        if found is not None:
            # The few largest values would leave all else pale.
            most = float(np.percentile(np.abs(found), 99.5)) or 1.0
            strength = np.clip(np.abs(found) / most, 0, 1) * 0.8
            panel.imshow(found, cmap="bwr", vmin=-most, vmax=most, alpha=strength, origin="lower")
        panel.contour(region, levels=[0.5], colors="lime", linewidths=0.8)
        panel.set_title(name)
        panel.set_axis_off()
    figure.suptitle(title)
    return png_bytes(figure, 110)
