"""The anatomical prior of a model folder: sound files are read, all others refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.model_info import Template

TEMPLATE = {
    "shares": np.ones((5, 5, 5, 33), np.uint8),
    "affine": np.eye(4),
    "centroids": np.full((33, 3), np.nan),
}


def npz(**changes: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{**TEMPLATE, **changes})
    return buffer.getvalue()


def archive(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in TEMPLATE:
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy(header: str) -> bytes:
    return (
        b"\x93NUMPY\x01\x00"
        + (len(header) + 1).to_bytes(2, "little")
        + header.encode()
        + b"\n"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(b"abc"), "of other classes"),
        (archive(npy("(" * 9000)), "is no prior"),
        (archive(npy("__import__('os').getcwd()")), "is no prior"),
        (
            archive(
                npy(str({"descr": "|u1", "fortran_order": False, "shape": (10**15,)}))
            ),
            "is no prior",
        ),
        (npz(shares=np.array([{}], object)), "is no prior"),
        (npz(centroids=np.zeros((32, 3))), "of other classes"),
        (npz(shares=np.zeros((0, 5, 5, 33), np.uint8)), "without a place"),
        (npz(affine=np.zeros((4, 4))), "without a place"),
        (npz(affine=np.full((4, 4), np.nan)), "without a place"),
        (npz(affine=np.full((4, 4), "a")), "without a place"),
        (npz(centroids=np.full((33, 3), np.inf)), "without a place"),
    ],
)
def test_a_prior_that_is_none_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Template.from_bytes(data, 33, Path("prior.npz"))


def test_a_sound_prior_is_taken() -> None:
    assert Template.from_bytes(npz(), 33, Path("prior.npz")).shares.shape == (
        5,
        5,
        5,
        33,
    )
