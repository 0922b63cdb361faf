"""Conversion of torchio, MONAI and SimpleITK images to voxels with an affine, and back.

Voxels are (X, Y, Z). Their affine (4, 4) maps voxel indices to RAS mm, as everywhere in trinat.

No library is imported to recognise an image: if a program has an image, it has imported the image's
library, so its classes are found in `sys.modules`. The functions `to_...` import a library, and
`from_simpleitk` imports torchio, which converts the images of SimpleITK.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import FormatError

# Voxels (X, Y, Z) and their affine (4, 4).
PlacedArray = tuple[NDArray[Any], NDArray[np.float64]]

# x and y change their signs between RAS and LPS, in both directions.
_RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


def is_foreign_image(value: object) -> bool:
    """Return True for an image of torchio, MONAI or SimpleITK, and for a torchio.Subject."""
    return reader_of(value) is not None or is_subject(value)


def is_bare_array(value: object) -> bool:
    """Return True for a NumPy array or a torch tensor, which have no position in space."""
    return isinstance(value, np.ndarray) or _is_of(value, "torch", "Tensor")


def is_subject(value: object) -> bool:
    """Return True for a torchio.Subject."""
    return _is_of(value, "torchio", "Subject")


def image_of_subject(
    subject: Any, name: str | None = None, *, labels: bool = False
) -> Any:
    """Return the image with this name in a torchio.Subject, or the only image if `name` is None.

    Without a name, only images of the class ScalarImage are considered, or with `labels` of the
    class LabelMap. Raises TypeError if `subject` is no torchio.Subject. Raises FormatError, with
    the names of the images, if there is no image of that name, or not exactly one image of the
    class.
    """
    if not is_subject(subject):
        raise TypeError(
            f"image={name!r} names an image of a torchio.Subject,"
            f" and this is a {_class_name(subject)}: leave out image="
        )
    images = subject.get_images_dict(intensity_only=False)
    names = ", ".join(images)
    if name is not None:
        if name not in images:
            raise FormatError(
                f"no image {name!r}", where="Subject", remedy=f"choose from {names}"
            )
        return images[name]
    wanted = "LabelMap" if labels else "ScalarImage"
    candidates = [
        image for image in images.values() if _is_of(image, "torchio", wanted)
    ]
    if len(candidates) != 1:
        raise FormatError(
            f"it has {len(candidates)} images of type {wanted}",
            where="Subject",
            remedy=f"name one with image=, of {names}",
        )
    return candidates[0]


def from_torchio(image: Any) -> PlacedArray:
    """Return voxels (X, Y, Z) and affine of a torchio.ScalarImage or LabelMap.

    Raises FormatError for several channels.
    """
    tensor = image.data
    channels = tensor.shape[0]
    if channels != 1:
        raise FormatError(
            f"{channels} channels",
            where=_class_name(image),
            remedy="give an image with one channel (1, X, Y, Z)",
        )
    return _array_of(tensor[0]), np.array(image.affine, np.float64)


def to_torchio(voxels: NDArray[Any], affine: NDArray[np.float64]) -> Any:
    """Return voxels (X, Y, Z), which are copied, as a torchio.LabelMap (1, X, Y, Z)."""
    import torchio

    return torchio.LabelMap(tensor=_tensor_of(voxels)[None], affine=affine)


def from_monai(image: Any) -> PlacedArray:
    """Return voxels and affine of a monai.data.MetaTensor, (1, X, Y, Z) or (X, Y, Z).

    The tensor's affine is read as RAS mm, unless `meta["space"]` is LPS. Raises FormatError for
    several channels, for a batch, and for an affine that is not (4, 4).
    """
    tensor = image.as_tensor()
    if tensor.ndim == 4 and tensor.shape[0] == 1:
        tensor = tensor[0]
    affine = _array_of(image.affine).astype(np.float64)
    if tensor.ndim != 3 or affine.shape != (4, 4):
        raise FormatError(
            f"shape {tuple(image.shape)} with an affine {affine.shape}",
            where=_class_name(image),
            remedy="give one image with one channel (1, X, Y, Z) and an affine (4, 4)",
        )
    if image.meta.get("space") == "LPS":
        affine = _RAS_TO_LPS @ affine
    return _array_of(tensor), affine


def to_monai(voxels: NDArray[Any], affine: NDArray[np.float64]) -> Any:
    """Return voxels (X, Y, Z), which are copied, as a monai.data.MetaTensor (1, X, Y, Z).

    Its affine is in RAS mm.
    """
    import torch
    from monai.data import MetaTensor

    to_ras = torch.tensor(affine, dtype=torch.float64)
    return MetaTensor(_tensor_of(voxels)[None], affine=to_ras)


def from_simpleitk(image: Any) -> PlacedArray:
    """Return voxels and affine of a 3D SimpleITK.Image with one component per voxel.

    Spacing, direction and origin are converted from ITK's LPS mm to RAS mm. Raises FormatError for
    other images.
    """
    axes = image.GetDimension()
    components = image.GetNumberOfComponentsPerPixel()
    if axes != 3 or components != 1:
        raise FormatError(
            f"{axes}D with {components} components a voxel",
            where="SimpleITK.Image",
            remedy="give a 3D image with one component",
        )
    import torchio

    return from_torchio(torchio.ScalarImage.from_sitk(image))


def to_simpleitk(voxels: NDArray[Any], affine: NDArray[np.float64]) -> Any:
    """Return voxels (X, Y, Z), which are copied, as a SimpleITK.Image."""
    return to_torchio(voxels, affine).as_sitk(force_3d=True)


# Module and name of each supported class of images, and the function that reads it.
_READERS = (
    ("torchio", "Image", from_torchio),
    ("monai.data", "MetaTensor", from_monai),
    ("SimpleITK", "Image", from_simpleitk),
)


def reader_of(value: object) -> Callable[[Any], PlacedArray] | None:
    """Return the function that reads an image of torchio, MONAI or SimpleITK; None for others.

    It returns voxels (X, Y, Z) and affine (4, 4), and raises FormatError for several channels and
    for a number of axes other than three.
    """
    for module, class_name, reader in _READERS:
        if _is_of(value, module, class_name):
            return reader
    return None


def _is_of(value: object, module: str, class_name: str) -> bool:
    """Return True if `value` is an instance of a module's class, without importing the module."""
    imported = sys.modules.get(module)
    known_class = getattr(imported, class_name, None)
    return known_class is not None and isinstance(value, known_class)


def _class_name(value: object) -> str:
    """Return the name of a value's class, for messages."""
    return type(value).__name__


def _array_of(tensor: Any) -> NDArray[Any]:
    """Return a tensor as an array; floating-point numbers become float32 or float64."""
    values = tensor.detach().cpu()
    # NumPy has no bfloat16.
    if values.is_floating_point() and values.element_size() < 4:
        values = values.float()
    return np.asarray(values.numpy())


def _tensor_of(voxels: NDArray[Any]) -> Any:
    """Return a copy of voxels as a tensor."""
    import torch

    return torch.from_numpy(np.array(voxels, order="C"))
