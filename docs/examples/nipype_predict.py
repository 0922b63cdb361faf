"""
trinat in a nipype workflow
===========================

A nipype interface of ``trinat predict`` for one scan. Copy the two specifications and the class
into your workflow; ``pip install nipype``.
"""

from pathlib import Path

from nipype.interfaces.base import (
    CommandLine,
    CommandLineInputSpec,
    File,
    TraitedSpec,
    traits,
)


class TrinatInputSpec(CommandLineInputSpec):
    """The options of ``trinat predict`` that a workflow needs; others go to ``args``."""

    in_file = File(
        exists=True, mandatory=True, argstr="%s", position=0, desc="a T1-weighted scan"
    )
    out_dir = traits.Str(
        "trinat", usedefault=True, argstr="--out %s", desc="folder of the results"
    )
    model = traits.Str(argstr="--model %s", desc="a model's name or folder")
    device = traits.Str(
        "cpu", usedefault=True, argstr="--device %s", desc="cpu or cuda"
    )
    num_threads = traits.Int(
        1, usedefault=True, nohash=True, argstr="--threads %d", desc="threads"
    )
    clean = traits.Bool(argstr="--clean", desc="one component a structure, no holes")


class TrinatOutputSpec(TraitedSpec):
    """Files for the next nodes of a workflow."""

    labels = File(exists=True, desc="label map in the scan's own space")
    volumes = File(exists=True, desc="volumes of the structures in mm³")
    quality = File(exists=True, desc="grade and reasons")


class TrinatPredict(CommandLine):
    """Segments one scan: ``TrinatPredict(in_file="scan.nii.gz").run().outputs.labels``."""

    _cmd = "trinat predict"
    input_spec = TrinatInputSpec
    output_spec = TrinatOutputSpec

    def _list_outputs(self):
        folder = Path(self.inputs.out_dir).resolve()
        name = Path(self.inputs.in_file).name
        for ending in (".nii.gz", ".nii", ".mgz", ".mgh"):
            name = name.removesuffix(ending)
        return {
            "labels": str(folder / f"{name}_dseg.nii.gz"),
            "volumes": str(folder / "volumes.tsv"),
            "quality": str(folder / "qc.tsv"),
        }


# %%
# As a node, whose scan comes from another one:
#
# .. code-block:: python
#
#     from nipype import Node
#
#     segment = Node(TrinatPredict(model="fast"), name="segment")
#     workflow.connect(source, "scan", segment, "in_file")
