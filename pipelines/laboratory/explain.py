"""trinat explain: attribution maps of a network for a structure in a slice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.pipelines.common.extras import require_extra
from trinat.segmentation.errors import InputError
from trinat.segmentation.inference.network import thick
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.base import Network
from trinat.segmentation.rendering.pictures import brain_window, png_bytes
from trinat.segmentation.space.views import View, to_slices
from trinat.segmentation.timing import stage

METHODS = ("gradients", "occlusion")
_STEPS = 32  # steps of the integral
_COVER = 12  # side of the occluded square, in pixels
_STRIDE = 6  # distance between squares, in pixels

Map = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Attribution maps: the contribution of each pixel to a structure's logit.

    `number` is the index of the slice in its view. `window` holds the rows and columns of the slice
    that contain brain. `maps` has a map of this window, (H, W), for each name in `METHODS`.
    """

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
    """Write attribution maps of a structure in one slice: a NIfTI of each method, and a PNG of all.

    `scan` is an image file, `structure` the name of a structure, `model` a name or a folder, and
    `out` the folder for the files. The slice is the one in which the network of `view` finds the
    largest area of the structure. InputError is raised if the network does not find the structure
    in the scan, and ConfigError, before anything is read, if captum is not installed.
    """
    require_extra("explain", "captum", what="captum is not installed")
    with stage("loading the model"):
        segmenter = Predictor(model, device=device, views=[view])
    network = segmenter.model.networks[view].fold().to(segmenter.device)
    label = segmenter.model.classes_of(view).find(structure)
    with stage("reading"):
        prepared = segmenter.prepare(Volume.read(scan))
    volume = prepared.volume
    axes = segmenter.model.info.preprocessing.slice_axes(view)
    image = segmenter.image_of(prepared).cpu()
    # Classes (N, H, W) of all slices; the segmenter has only this view.
    batches = [
        batch.probabilities.argmax(-1).cpu() for _, batch in segmenter.each_view(image)
    ]
    classes = torch.cat(batches).numpy()
    voxels_by_slice = (classes == label.index).sum((1, 2))
    if not voxels_by_slice.any():
        raise InputError(
            f"the {view.value} network finds no {label.name} in it", where=scan
        )
    number = int(voxels_by_slice.argmax())
    # Window of the brain, which is the network's input in segmentation, and keeps the face out of
    # the picture.
    window = brain_window(classes > 0)
    region = classes[number][window] == label.index
    all_slices = thick(to_slices(image, axes), network.config.channels)
    shown = all_slices[number, :, *window]
    maps = attribute(
        network,
        shown[None].to(segmenter.device),
        label.index,
        torch.from_numpy(region),
    )
    out.mkdir(parents=True, exist_ok=True)
    scan_name = scan.name.split(".")[0]
    name = f"{scan_name}_{label.name}_{view.value}-{number}"
    for method, values in maps.items():
        whole = np.zeros_like(volume.data)
        to_slices(whole, axes)[number][window] = values
        Volume(whole, volume.affine).write(out / f"{name}_{method}.nii.gz")
    middle = shown[len(shown) // 2].numpy()
    write_whole(out / f"{name}.png", _draw_maps(middle, region, maps, name))
    return Explanation(view, number, window, maps)


def attribute(
    network: Network,
    slices: Tensor,
    index: int,
    region: Tensor,
) -> dict[str, Map]:
    """Return the attribution map (H, W) of a class for each name in `METHODS`.

    `slices` (1, C, H, W) has a slice and its neighbours as channels; a map is the sum over the
    channels. `index` is the class, `region` a mask (H, W). The attributed value is the mean, over
    the region, of the difference between the logit of the class and the largest other logit: a
    logit alone does not determine which class wins.
    """
    from captum.attr import IntegratedGradients, Occlusion

    region = region.to(slices.device)

    def mean_lead(given: Tensor) -> Tensor:
        """Return the mean difference over the region, (N,), for a batch (N, C, H, W)."""
        logits = network(given)
        before = logits[:, :index]
        behind = logits[:, index + 1 :]
        other_logits = torch.cat((before, behind), 1)
        lead: Tensor = (logits[:, index] - other_logits.amax(1)) * region
        return lead.sum((1, 2)) / region.sum()

    with stage("integrated gradients"):
        gradients = IntegratedGradients(mean_lead).attribute(
            slices, n_steps=_STEPS, internal_batch_size=4
        )
    channels = slices.shape[1]
    with torch.inference_mode(), stage("occlusion"):
        occlusion = Occlusion(mean_lead).attribute(
            slices,
            sliding_window_shapes=(channels, _COVER, _COVER),
            strides=(channels, _STRIDE, _STRIDE),
            perturbations_per_eval=4,
        )
    maps = {}
    for name, values in zip(METHODS, (gradients, occlusion), strict=True):
        over_channels = values.detach().sum(1)[0]
        maps[name] = over_channels.float().cpu().numpy()
    return maps


def _draw_maps(
    gray: Map,
    region: NDArray[np.bool_],
    maps: dict[str, Map],
    title: str,
) -> bytes:
    """Draw a PNG: the slice, and each map over the slice, with the outline of the structure.

    `gray`, the mask `region` of the structure, and each map are (H, W). Red pixels favour the
    structure, blue ones speak against it. The keys of `maps` are the titles of the pictures.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 1 + len(maps))
    nothing = 0 * gray
    named = {"slice": nothing, **maps}
    for panel, (name, values) in zip(panels, named.items(), strict=True):
        panel.imshow(gray, cmap="gray", origin="lower")
        size = np.abs(values)
        # Clip the few largest values, which would make all others pale.
        most = float(np.percentile(size, 99.5)) or 1.0
        opacity = np.clip(size / most, 0, 1) * 0.8
        panel.imshow(
            values,
            cmap="bwr",
            vmin=-most,
            vmax=most,
            alpha=opacity,
            origin="lower",
        )
        panel.contour(region, levels=[0.5], colors="lime", linewidths=0.8)
        panel.set_title(name)
        panel.set_axis_off()
    figure.suptitle(title)
    return png_bytes(figure, 110)
