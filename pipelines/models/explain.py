"""trinat explain: which voxels of a slice make a network see a structure there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.errors import ConfigError, InputError
from trinat.segmentation.inference.network import thick
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.base import Network
from trinat.segmentation.report.pictures import brain_window, png_bytes
from trinat.segmentation.space.views import View, to_slices

METHODS = ("gradients", "occlusion")
_STEPS = 32  # of the integral
_BOX, _STRIDE = 12, 6  # pixels that are covered at a time, and from one to the next

Map = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Maps of the part of a slice with brain, by method: what each pixel adds to the logit."""

    view: View
    number: int
    window: tuple[slice, slice]
    maps: dict[str, Map]


def explain(
    scan: Path,
    structure: str,
    out: Path,
    *,
    model: str,
    view: View,
    device: str = "auto",
) -> Explanation:
    """Write a picture and a NIfTI of each method for the slice that shows most of a structure."""
    segmenter = Predictor.load(model, device=device, views=[view])
    network = segmenter.model.networks[view].fold().to(segmenter.device)
    label = segmenter.model.classes_of(view).find(structure)
    volume = segmenter.prepare(Volume.read(scan)).volume
    axes = segmenter.model.info.preprocessing.slice_axes(view)
    image = torch.from_numpy(volume.data)
    parts = [
        part.probabilities.argmax(-1).cpu() for _, part in segmenter.each_view(image)
    ]
    classes = torch.cat(parts).numpy()
    counts = (classes == label.index).sum((1, 2))
    if not counts.any():
        raise InputError(
            f"the {view.value} network sees no {label.name} in it", where=scan
        )
    number = int(counts.argmax())
    # Where the brain is: what the network is shown when it segments, and no face in the picture.
    window = brain_window(classes > 0)
    region = classes[number][window] == label.index
    slices = thick(to_slices(image, axes), network.config.channels)[number, :, *window]
    given = (slices[None].to(segmenter.device), label.index, torch.from_numpy(region))
    maps = attribute(network, *given)
    out.mkdir(parents=True, exist_ok=True)
    name = f"{scan.name.split('.')[0]}_{label.name}_{view.value}-{number}"
    for method, found in maps.items():
        whole = np.zeros_like(volume.data)
        to_slices(whole, axes)[number][window] = found
        Volume(whole, volume.affine).write(out / f"{name}_{method}.nii.gz")
    write_whole(
        out / f"{name}.png", _draw(slices[len(slices) // 2].numpy(), region, maps, name)
    )
    return Explanation(view, number, window, maps)


def attribute(
    network: Network, slices: Tensor, index: int, region: Tensor
) -> dict[str, Map]:
    """Of slices (1, C, H, W), by method: summed over the neighbours that come as channels.

    What is explained is the mean, over a region (H, W), of how far the class's logit is above the
    largest other: a logit alone says nothing of which class wins.
    """
    try:
        from captum.attr import IntegratedGradients, Occlusion
    except ImportError:
        raise ConfigError(
            "captum is not installed", remedy="pip install 'trinat[explain]'"
        ) from None
    region = region.to(slices.device)

    def seen(given: Tensor) -> Tensor:
        logits = network(given)
        others = torch.cat((logits[:, :index], logits[:, index + 1 :]), 1).amax(1)
        ahead: Tensor = (logits[:, index] - others) * region
        return ahead.sum((1, 2)) / region.sum()

    integral = IntegratedGradients(seen).attribute(
        slices, n_steps=_STEPS, internal_batch_size=4
    )
    depth = slices.shape[1]
    with torch.inference_mode():
        covered = Occlusion(seen).attribute(
            slices,
            (depth, _BOX, _BOX),
            (depth, _STRIDE, _STRIDE),
            perturbations_per_eval=4,
        )
    found = dict(zip(METHODS, (integral, covered), strict=True))
    return {
        name: v.detach().sum(1)[0].float().cpu().numpy() for name, v in found.items()
    }


def _draw(
    gray: Map, region: NDArray[np.bool_], maps: dict[str, Map], title: str
) -> bytes:
    """The slice with the structure's outline, and each map over it; red speaks for it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 1 + len(maps))
    for panel, (name, found) in zip(
        panels, {"slice": 0 * gray, **maps}.items(), strict=True
    ):
        panel.imshow(gray, cmap="gray", origin="lower")
        # The few largest values would leave all else pale.
        most = float(np.percentile(np.abs(found), 99.5)) or 1.0
        strength = np.clip(np.abs(found) / most, 0, 1) * 0.8
        panel.imshow(
            found, cmap="bwr", vmin=-most, vmax=most, alpha=strength, origin="lower"
        )
        panel.contour(region, levels=[0.5], colors="lime", linewidths=0.8)
        panel.set_title(name)
        panel.set_axis_off()
    figure.suptitle(title)
    return png_bytes(figure, 110)
