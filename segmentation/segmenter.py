"""Python entry points: `segment` for one scan, `Segmenter` for many scans with one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack, overload

from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.runtime import ComputePrecision
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import ScanLike, Volume
from trinat.segmentation.models.zoo import warn_of_licence
from trinat.segmentation.result import Result
from trinat.segmentation.space.views import View
from trinat.segmentation.timing import report_stages_to, stage

_Scan = TypeVar("_Scan", bound=ScanLike)


class ScanOptions(TypedDict, total=False):
    """Keyword arguments of `segment` that are passed to `Segmenter.segment`."""

    image: str | None
    mirror: bool
    samples: int
    seed: int
    clean: bool
    trust_affine: TrustAffine | None
    fill_nonfinite: bool


class _AllOptions(ScanOptions, total=False):
    """All keyword arguments of `segment`."""

    model: str | Path
    device: str
    views: Iterable[View | str] | str | None
    precision: ComputePrecision
    parcels: bool
    lesions: bool
    progress: Callable[[str], object]


def _say_nothing(stage: str) -> None:
    """Ignore the name of a stage; the default of `progress`."""


class Segmenter(Predictor):
    """A model that is loaded once, to segment many scans one after another.

    Parameters
    ----------
    model, device, precision, views, parcels, lesions
        As in `trinat.segment`; `model` has no default.
    batch : int, optional
        Number of slices in a batch. Default: as many as suit the device.
    allow_cpu : bool
        Continue on the CPU if a GPU is out of memory.

    Raises
    ------
    ModelError
        If the model cannot be loaded, or lacks a requested view or parcels.
    ConfigError
        If a view or the precision is unknown, or the batch is empty.
    DeviceError
        If the device does not exist.

    Examples
    --------
    >>> segmenter = trinat.Segmenter("fast", device="cpu")
    >>> segmenter.segment("scan.nii.gz").model
    'fast'
    """

    # Not in the parent's module: results draw pictures, and inference does not depend on rendering.
    def segment(
        self,
        volume: ScanLike,
        *,
        image: str | None = None,
        mirror: bool = False,
        samples: int = 0,
        seed: int = 0,
        clean: bool = False,
        trust_affine: TrustAffine | None = None,
        fill_nonfinite: bool = False,
        progress: Callable[[str], object] = _say_nothing,
    ) -> Result:
        """Segment one scan; the parameters are those of `trinat.segment`.

        Parameters
        ----------
        volume : path, (array, affine), Volume, or image of nibabel, torchio, MONAI or SimpleITK
            3D with one channel.
        image, mirror, samples, seed, clean, trust_affine, fill_nonfinite, progress
            As in `trinat.segment`.

        Returns
        -------
        Result
            Labels, volumes, probabilities, surfaces and a grade, in the scan's own space.

        Raises
        ------
        InputError
            If the scan is damaged, not a supported image, or lacks an orientation.
        TypeError
            If `volume` is no scan.
        ConfigError
            If `trust_affine` is unknown, or `samples` negative.
        """
        warn_of_licence(self.model.folder)
        with report_stages_to(progress):
            with stage("reading"):
                scan = Volume.of(
                    volume,
                    image=image,
                    trust_affine=trust_affine,
                    fill_nonfinite=fill_nonfinite,
                    any_contrast=self.model.info.contrast == "any",
                )
            found = super().segment(scan, mirror=mirror, samples=samples, seed=seed)
            if clean:
                with stage("clean"):
                    found, _ = found.cleaned()
            return Result.of(found, self.model, self.parcels_model)


@overload
def segment(scan: ScanLike, **options: Unpack[_AllOptions]) -> Result: ...


@overload
def segment(scan: list[_Scan], **options: Unpack[_AllOptions]) -> list[Result]: ...


def segment(
    scan: ScanLike | list[_Scan],
    *,
    model: str | Path = "fast",
    device: str = "auto",
    views: Iterable[View | str] | str | None = None,
    precision: ComputePrecision = "auto",
    parcels: bool = False,
    lesions: bool = False,
    progress: Callable[[str], object] = _say_nothing,
    **options: Unpack[ScanOptions],
) -> Result | list[Result]:
    """Segment a T1-weighted scan of a head, or each scan of a list.

    Parameters
    ----------
    scan : path, (array, affine), Volume, or image of nibabel, torchio, MONAI or SimpleITK
        3D with one channel. The array is (X, Y, Z), the affine (4, 4) maps voxel indices to
        RAS mm. Or a list of these, whose results stay in memory: `segment_many` writes files,
        and continues after a scan that fails.
    model : str or path
        Name of a shipped model, or a model folder.
    device : str
        "auto", "cpu", "cuda" or "cuda:1".
    views : list of str, optional
        Some of "coronal", "axial" and "sagittal". Default: all views of the model.
    image : str, optional
        Name of the scan in a torchio.Subject; required if it has several.
    precision : str
        Number type of the networks: "auto", "float32", "bfloat16", "float16", or "int8", which
        needs the extra fast-cpu.
    parcels : bool
        Divide the cortex into parcels, for `result.parcels()` and `result.parcel_labels`.
    lesions : bool
        Find lesions of white matter, for `result.lesions`.
    mirror : bool
        Average with the prediction of the mirrored scan.
    samples, seed : int
        Number of predictions with dropout, from which `result.uncertainty` is computed, and their
        seed.
    clean : bool
        Keep the largest component of each structure and fill holes.
    trust_affine : str, optional
        Affine to use if a header has two: "sform", "qform" or "header".
    fill_nonfinite : bool
        Replace NaN and infinite voxels by 0.
    progress : callable, optional
        Called with the name of each stage as it begins, such as "reading" and "coronal"; for a
        list with "2/3: coronal". `progress=print` prints them. Default: no output.

    Returns
    -------
    Result
        Labels, volumes, probabilities, surfaces and a grade, in the scan's own space. For a list
        of scans a list of results, in the same order.

    Raises
    ------
    InputError
        If a scan is damaged, not a supported image, or lacks an orientation.
    TypeError
        If `scan` is no scan.
    ModelError
        If the model cannot be loaded, or lacks a requested view or parcels.
    ConfigError
        If a view, the precision or `trust_affine` is unknown, or `samples` negative.
    DeviceError
        If the device does not exist.

    Examples
    --------
    >>> result = trinat.segment("scan.nii.gz")
    >>> result.save("labels.nii.gz")
    """
    segmenter = Segmenter(
        model,
        device=device,
        views=views,
        precision=precision,
        parcels=parcels,
        lesions=lesions,
    )
    if not isinstance(scan, list):
        return segmenter.segment(scan, progress=progress, **options)
    results = []
    for number, one in enumerate(scan, start=1):

        def of_scan(name: str, place: str = f"{number}/{len(scan)}") -> None:
            progress(f"{place}: {name}")

        try:
            found = segmenter.segment(one, progress=of_scan, **options)
            results.append(found)
        except Exception as error:
            error.add_note(f"scan {number} of {len(scan)} in the list")
            raise
    return results
