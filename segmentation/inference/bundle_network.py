"""A trinat model for MONAI bundles: voxels of a scan in, its label map out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor, nn
from torch.utils.data import Dataset

from trinat.segmentation.data.sources.base import without_suffix
from trinat.segmentation.errors import InputError, OutputError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.foreign_images import from_monai, to_monai
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.checkpoint import load_model

# Shown according to the bundle's configs/logging.conf.
_log = logging.getLogger("trinat.bundle")


class ReadScand:
    """MONAI dictionary transform that replaces the path of a scan by its voxels.

    It reads as `trinat predict` does, with the same checks.
    """

    def __init__(self, keys: str) -> None:
        """Store `keys`, the single key whose value is the path of the scan."""
        self.key = keys

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return a copy of `data` with a MetaTensor (1, X, Y, Z), RAS mm, in place of the path.

        Raises the errors of `Volume.read`.
        """
        found = dict(data)
        path = str(found[self.key])
        volume = Volume.read(path)
        image = to_monai(volume.data, volume.affine)
        image.meta["filename_or_obj"] = path
        found[self.key] = image
        return found


class WriteLabelsd:
    """MONAI dictionary transform that writes a label map to OUTPUT_DIR/NAME_dseg.nii.gz.

    It replaces MONAI's SaveImaged, which cannot write some axis orders.
    """

    def __init__(self, keys: str, output_dir: str | Path) -> None:
        """Store `keys`, the single key of the label map, and the folder to write to.

        `output_dir` is created when the first label map is written.
        """
        self.key = keys
        self.folder = Path(output_dir)
        self._scan_of: dict[str, Path] = {}  # by the name of its label map

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Write the label map of `data`; return a copy of `data`.

        The label map is a MetaTensor (1, X, Y, Z) whose metadata hold the file name of the scan.
        Raises OutputError if a scan of another folder with the same name was written before.
        """
        labels = data[self.key]
        voxels, affine = from_monai(labels)
        scan = Path(labels.meta["filename_or_obj"])
        name = without_suffix(scan)
        other = self._scan_of.setdefault(name, scan)
        if other != scan:
            raise OutputError(
                f"{other.name} beside it got the same label map",
                where=scan,
                remedy="rename one",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        volume = Volume(voxels.astype(np.int16), affine)
        volume.write(self.folder / f"{name}_dseg.nii.gz", labels=True)
        return dict(data)


class LabelNetwork(nn.Module):
    """Module that segments whole scans in their own space with all networks of a model.

    Move it with `to(device)`; it computes as `trinat predict` does on that device.
    """

    def __init__(self, model: str | Path) -> None:
        """Load `model`, a model folder or the name of a shipped model."""
        super().__init__()
        self.model = load_model(model)
        # Registered, so that the module has parameters and can be moved.
        self.views = nn.ModuleDict(
            {view.value: network for view, network in self.model.networks.items()}
        )
        self._predictors: dict[torch.device, Predictor] = {}

    def forward(self, image: Tensor) -> Tensor:
        """Segment scans (N, 1, X, Y, Z); return FreeSurfer numbers, float32, of the same shape.

        The affine of a MetaTensor is used, and the result is a MetaTensor with the same metadata. A
        plain tensor is assumed to be in RAS orientation with voxels of 1 mm.
        """
        labels = torch.zeros_like(image, dtype=torch.float32)
        device = image.device
        if device not in self._predictors:
            self._predictors[device] = Predictor(self.model, device=str(device))
        predictor = self._predictors[device]
        for number, scan in enumerate(image):
            if isinstance(scan, MetaTensor):
                volume = Volume.of(from_monai(scan.cpu()))
            else:
                volume = Volume.of((scan[0].cpu().numpy(), np.eye(4)))
            found = predictor.segment(volume).labels
            labels[number, 0] = torch.from_numpy(found.data.astype(np.float32))
        return labels


class ScanEvaluator:
    """MONAI-style evaluator that runs the network on the scans of a dataset, one at a time.

    It replaces `SupervisedEvaluator`, which needs pytorch-ignite and does not say which scan
    failed.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        network: nn.Module,
        inferer: Callable[[Tensor, nn.Module], Tensor],
        device: torch.device,
        postprocessing: Callable[[dict[str, Any]], Any],
    ) -> None:
        """Store the parts of the bundle.

        Each item of `dataset` is a dictionary whose key `image` is a MetaTensor. `inferer` is
        called with a batch of one image and the network. `postprocessing` is called with the item,
        to which the key `pred` was added: the label map.
        """
        self.dataset = dataset
        self.network = network
        self.inferer = inferer
        self.device = device
        self.postprocessing = postprocessing

    def run(self) -> None:
        """Segment all scans and log the begin and end of each.

        Raises InputError if there are no scans, and the errors of reading a scan.
        """
        count = len(self.dataset)  # type: ignore[arg-type]
        if not count:
            raise InputError(
                "no scan found", where="dataset_dir", remedy="give --dataset_dir FOLDER"
            )
        for number in range(count):
            item = dict(self.dataset[number])
            name = Path(item["image"].meta["filename_or_obj"]).name
            place = f"{number + 1}/{count} {name}"
            _log.info("%s: segmenting", place)
            image = item["image"].to(self.device)
            with torch.inference_mode():
                labels = self.inferer(image[None], self.network)
            item["pred"] = labels[0].cpu()
            self.postprocessing(item)
            _log.info("%s: done", place)
