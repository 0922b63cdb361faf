"""Segmentations that are kept between runs of a benchmark."""

from __future__ import annotations

import os
import pickle
from functools import cached_property
from pathlib import Path

from trinat.segmentation.data.sources.freesurfer import find_image
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume

__all__ = ["Segmentations", "find_image"]


class Segmentations:
    """Segmentations by the model in the environment variable MODEL, by default `fast`.

    With KEPT, each is written to this folder and read from there by the next run, which then takes
    seconds a scan instead of minutes. Use a folder of your own: pickled files can run code.
    """

    def __init__(self, *, parcels: bool = False) -> None:
        """Create a reader of segmentations, with `parcels` if these are needed."""
        self._model = os.environ.get("MODEL", "fast")
        self._parcels = parcels
        folder = os.environ.get("KEPT", "")
        self._folder = Path(folder) if folder else None

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self._model, parcels=self._parcels)

    def of(self, path: Path) -> Prediction:
        """Return the segmentation of a scan."""
        if self._folder is None:
            return self._predictor.segment(Volume.read(path))
        kept = self._folder / f"{Path(self._model).name}-{sha256_of(path)[:16]}.pickle"
        if kept.is_file():
            found: Prediction = pickle.loads(kept.read_bytes())
            if found.parcel_map is not None or not self._parcels:
                return found
        found = self._predictor.segment(Volume.read(path))
        self._folder.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL))
        return found
