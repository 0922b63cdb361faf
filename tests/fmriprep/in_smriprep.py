"""Print what sMRIPrep's own code collects from a dataset of derivatives; run by its own Python.

    python in_smriprep.py DERIVATIVES PARTICIPANT SCAN

The output is JSON: the collected files, and the shapes and affines of the conformed scan and of
the images that are overlaid on it. It writes to the working folder.
"""

from __future__ import annotations

import json
import sys

import nibabel as nib
from nipype.interfaces.base import File, InputMultiObject, TraitedSpec
from niworkflows.interfaces.images import Conform, TemplateDimensions
from niworkflows.interfaces.nibabel import ApplyMask
from smriprep.utils.bids import collect_derivatives


class Precomputed(TraitedSpec):
    """Nipype's types for passing such files between nodes."""

    t1w_mask = File(exists=True)
    t1w_dseg = File(exists=True)
    t1w_tpms = InputMultiObject(File(exists=True))


def main() -> None:
    derivatives, participant, scan = sys.argv[1:]
    found = collect_derivatives(derivatives, participant, [])
    given = Precomputed(
        t1w_mask=found["t1w_mask"],
        t1w_dseg=found["t1w_dseg"],
        t1w_tpms=found["t1w_tpms"],
    )
    sizes = TemplateDimensions(anat_list=[scan]).run().outputs
    conformed = Conform(
        in_file=scan,
        target_zooms=sizes.target_zooms,
        target_shape=sizes.target_shape,
    ).run()
    reference = conformed.outputs.out_file
    masked = ApplyMask(in_file=reference, in_mask=given.t1w_mask).run()
    grids = {}
    for path in (reference, given.t1w_dseg, *given.t1w_tpms):
        image = nib.load(path)
        grids[path] = [image.shape, image.affine.tolist()]
    inside = nib.load(masked.outputs.out_file).get_fdata() != 0
    content = {"found": found, "grids": grids, "inside": int(inside.sum())}
    print(json.dumps(content))


if __name__ == "__main__":
    main()
