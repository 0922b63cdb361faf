"""Input and output of a MONAI bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers.refusals import refusal

from trinat.segmentation.errors import OutputError
from trinat.segmentation.inference.bundle_network import ReadScand, WriteLabelsd
from trinat.segmentation.io.volume import Volume


def test_two_scans_of_one_name_do_not_write_one_label_map(tmp_path: Path) -> None:
    for number, ending in enumerate((".nii", ".nii.gz"), start=1):
        data = np.zeros((16, 16, 16), np.int16)
        data[4:8] = number
        Volume(data, np.eye(4)).write(tmp_path / f"a{ending}", labels=True)
    read = ReadScand("labels")
    write = WriteLabelsd("labels", tmp_path / "out")
    write(read({"labels": str(tmp_path / "a.nii")}))
    with refusal(OutputError, tmp_path / "a.nii.gz"):
        write(read({"labels": tmp_path / "a.nii.gz"}))
    assert Volume.read(tmp_path / "out/a_dseg.nii.gz", labels=True).data.max() == 1
