"""Label tables for viewers, read by the rules of each program's documentation."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.segmentation.labels.scheme import Viewer, load_scheme, viewer_table

SCHEME = load_scheme("quicknat33")
# Number, name and colour in FreeSurfer's own table.
HIPPOCAMPUS = (17, "Left-Hippocampus", (220, 216, 20))


def read(
    viewer: Viewer, text: str
) -> dict[int, tuple[str, tuple[int, ...], list[str]]]:
    """Return name, colour of 0 to 255 and further cells by number, after each program's rules."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        number, *cells = shlex.split(line)
        if viewer in ("freesurfer", "slicer"):
            name, red, green, blue, *rest = cells
        elif viewer == "itksnap":
            red, green, blue, *rest, name = cells
        else:
            red, green, blue, name = cells
            red, green, blue = (
                str(round(float(part) * 255)) for part in (red, green, blue)
            )
            rest = []
        found[int(number)] = (name, (int(red), int(green), int(blue)), rest)
    return found


@pytest.mark.parametrize(
    ("viewer", "background", "others"),
    [
        ("freesurfer", ["0"], ["0"]),  # FreeView wants 0 everywhere
        (
            "itksnap",
            ["0", "0", "0"],
            ["1", "1", "1"],
        ),  # opacity, visible, visible as mesh
        ("slicer", ["0"], ["255"]),
        ("fsleyes", None, []),
    ],
)
def test_each_viewers_table_has_every_label(viewer, background, others) -> None:
    found = read(viewer, viewer_table(SCHEME, viewer))
    assert list(found) == sorted(found)
    assert found[17] == (*HIPPOCAMPUS[1:], others)
    assert set(found) | {0} == {label.fs_id for label in SCHEME.labels}
    assert found.get(0, ("", (), None))[2] == background
    assert list(read(viewer, viewer_table(SCHEME, viewer, by_index=True)))[-1] == 32


def test_what_programs_look_for_in_the_first_lines() -> None:
    assert viewer_table(SCHEME, "itksnap").startswith(
        "# ITK-SnAP Label Description File\n"
    )
    slicer = viewer_table(SCHEME, "slicer").splitlines()
    assert slicer[0].startswith("# Color table file")
    assert slicer[1] == "# 33 values"


def test_the_command_prints_or_writes(tmp_path) -> None:
    run = CliRunner()
    printed = run.invoke(app, ["labels", "--format", "slicer", "--labels", "tissue4"])
    assert printed.stdout == viewer_table(load_scheme("tissue4"), "slicer")
    path = tmp_path / "x.lut"
    assert (
        run.invoke(app, ["labels", "--format", "fsleyes", "-o", str(path)]).exit_code
        == 0
    )
    assert path.read_text() == viewer_table(SCHEME, "fsleyes")
    assert run.invoke(app, ["labels", "--format", "fslview"]).exit_code == 2
