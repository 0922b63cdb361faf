"""Files of torch.save are read; any other action of a pickle is not executed."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.refusals import refusal
from torch import nn

from trinat.segmentation.errors import ModelError
from trinat.segmentation.models import unpickling
from trinat.segmentation.models.unpickling import Stub, read_torch_file

Save = Callable[[Any], Path]


@pytest.fixture(params=["zip", "legacy"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Save:
    def write(content: Any) -> Path:
        path = tmp_path / "file.pth"
        torch.save(content, path, _use_new_zipfile_serialization=request.param == "zip")
        return path

    return write


def zipped(tmp_path: Path, program: bytes, **members: bytes) -> Path:
    """Write a torch.save file with a handwritten pickle."""
    path = tmp_path / "file.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        for name, data in members.items():
            archive.writestr(f"archive/data/{name.strip('_')}", data)
    return path


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int64,
        torch.bool,
    ],
)
def test_tensors_come_back(save: Save, dtype: torch.dtype) -> None:
    tensors = {
        "plain": torch.arange(6).view(2, 3).to(dtype),
        "transposed": torch.arange(6).view(2, 3).to(dtype).T,
        "part": torch.arange(10).to(dtype)[3:7:2],
        "scalar": torch.tensor(3).to(dtype),
        "empty": torch.empty(0, 3, dtype=dtype),
    }
    got = read_torch_file(save(tensors))
    assert got.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(got[name], tensor, rtol=0, atol=0)


def test_containers_and_numbers_come_back(save: Save) -> None:
    content = {"epoch": 3, "names": ["a", ("b", None)], "rate": 0.5, "set": {1, 2}}
    content["size"] = torch.Size([1, 2])
    assert read_torch_file(save(content)) == content


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_a_module_becomes_a_stub_with_its_state(save: Save) -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.25))
    got = read_torch_file(save(module))
    assert isinstance(got, Stub)
    assert got.name == "torch.nn.modules.container.Sequential"
    convolution, dropout = got.state["_modules"].values()
    torch.testing.assert_close(
        convolution.state["_parameters"]["weight"], module[0].weight.data
    )
    assert dropout.state["p"] == 0.25


class Canary:
    """Executes something when it is unpickled as usual."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.mark.parametrize("place", ["alone", "in a state dict", "behind tensors"])
def test_a_canary_does_not_run(save: Save, canary: Path, place: str) -> None:
    bad = Canary(os.system, f"touch {canary}")
    content = {
        "alone": bad,
        "in a state dict": {"weight": torch.zeros(2), "bias": bad},
        "behind tensors": [torch.zeros(2), {"deep": [bad]}],
    }[place]
    path = save(content)
    with refusal(ModelError, path):
        read_torch_file(path)
    assert not canary.exists()
    # The same file does execute when nothing restricts it, so the canary works.
    torch.load(path, weights_only=False)
    assert canary.exists()


@pytest.mark.parametrize(
    "program",
    [
        b'cbuiltins\neval\n(S\'open("CANARY", "w")\'\ntR.',
        b'(S\'open("CANARY", "w")\'\nibuiltins\neval\n.',
        b'(cbuiltins\neval\nS\'open("CANARY", "w")\'\no.',
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x13open('CANARY', 'w') \x85R.",
        b'\x80\x02cbuiltins\neval\n(S\'open("CANARY", "w")\'\nt\x81.',
        b"ctorch\nload\n(S'CANARY'\ntR.",
        b"ccopyreg\n_reconstructor\n(cbuiltins\nobject\ncbuiltins\nobject\nNtR.",
        # Change a function that will be called later.
        b"ctorch._utils\n_rebuild_tensor_v2\n}S'_make'\ncbuiltins\neval\nsb.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(N}S'_make'\ncbuiltins\neval\nstb.",
        b"cos\nsystem\n(N}S'name'\nS'x'\nstb.",
        b"(S'file'\nS'CANARY'\ntQ.",
        b"\x82\x01.",
    ],
)
def test_a_program_written_by_hand_does_not_run(
    tmp_path: Path, canary: Path, program: bytes
) -> None:
    path = zipped(tmp_path, program.replace(b"CANARY", str(canary).encode()))
    try:
        content = read_torch_file(path)
    except ModelError:
        pass
    else:
        # NEWOBJ makes an empty stand-in, and nothing else happens.
        assert isinstance(content, Stub)
        assert content.state is None
    assert not canary.exists()


def test_nothing_named_in_a_pickle_is_imported(tmp_path: Path) -> None:
    (tmp_path / "evil_on_import.py").write_text("raise SystemExit('imported')")
    got = read_torch_file(zipped(tmp_path, b"cevil_on_import\nThing\n."))
    assert got.name == "evil_on_import.Thing"


def persistent(key: str, count: int, dtype: str = "FloatStorage") -> bytes:
    """Return the opcodes of a torch storage."""
    return (
        f"(S'storage'\nctorch\n{dtype}\nS'{key}'\nS'cpu'\nI{count}\nt".encode() + b"Q"
    )


def tensor(storage: bytes, offset: int, shape: str, strides: str) -> bytes:
    start = b"ctorch._utils\n_rebuild_tensor_v2\n("
    return start + storage + f"I{offset}\n({shape}t({strides}tI00\nN".encode() + b"tR."


@pytest.mark.parametrize("dtype", ["FloatStorage", "nothing_of_the_kind"])
@pytest.mark.parametrize("kind", [b"storage", b"file"])
def test_only_storages_of_known_numbers_are_referred_to(
    tmp_path: Path, kind: bytes, dtype: str
) -> None:
    program = persistent("0", 1, dtype).replace(b"storage", kind) + b"."
    path = zipped(tmp_path, program, _0=bytes(4))
    if kind == b"storage" and dtype == "FloatStorage":
        assert read_torch_file(path).tolist() == [0]
    else:
        with refusal(ModelError, path):
            read_torch_file(path)


def test_a_tensor_written_by_hand_comes_back(tmp_path: Path) -> None:
    data = struct.pack("<4f", 1, 2, 3, 4)
    program = tensor(persistent("0", 4), 1, "I3\n", "I1\n")
    assert read_torch_file(zipped(tmp_path, program, _0=data)).tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("count", "offset", "shape", "strides"),
    [
        (4, 1, "I4\n", "I1\n"),  # beyond its end
        (4, -1, "I2\n", "I1\n"),  # before its start
        (4, 0, "I1000000\n", "I0\n"),  # one value, a million times
        (5, 0, "I4\n", "I1\n"),  # more than the file has
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(
    tmp_path: Path, count: int, offset: int, shape: str, strides: str
) -> None:
    program = tensor(persistent("0", count), offset, shape, strides)
    with pytest.raises(ModelError):
        read_torch_file(zipped(tmp_path, program, _0=struct.pack("<4f", 1, 2, 3, 4)))


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps("0" * 100_000, 2))
    with refusal(ModelError, path):
        read_torch_file(path)


def test_files_of_a_big_endian_machine_are_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path, b"N.")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/byteorder", "big")
    with pytest.raises(ModelError, match="big-endian"):
        read_torch_file(path)


def legacy(*programs: Any, little: bool = True) -> bytes:
    start = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": little})
    return b"".join(
        p if isinstance(p, bytes) else pickle.dumps(p, 2) for p in (*start, *programs)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (legacy(1, [], little=False), "big-endian"),
        (pickle.dumps({"a": 1}), "is not a file of torch.save"),
        (
            legacy(persistent("0", 1 << 40) + b".", ["0"]),
            "promises more data than it has",
        ),
        (
            legacy(persistent("0", 2) + b".", ["0"], struct.pack("<qf", 2, 1)),
            "ends before",
        ),
        (
            legacy(persistent("0", 2) + b".", ["0"], struct.pack("<q2f", 3, 1, 1)),
            "ends before",
        ),
        (legacy(persistent("0", 2) + b".", [], b"        "), "lacks data"),
        (
            legacy(
                b"(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI2\nS'view'\ntQ.",
                ["0"],
            ),
            "storages within storages",
        ),
    ],
)
def test_an_older_file_that_does_not_hold_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "file.pth"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_torch_file(path)


def test_cut_and_damaged_files_are_refused_in_one_line(save: Save) -> None:
    path = save({"weight": torch.arange(50.0), "name": "x"})
    whole = path.read_bytes()
    for end in range(0, len(whole) - 1, 37):
        path.write_bytes(whole[:end])
        with pytest.raises(ModelError) as caught:
            read_torch_file(path)
        assert str(path) in str(caught.value)


def test_random_bytes_do_no_harm(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    buffer = io.BytesIO()
    torch.save(
        {"weight": torch.arange(5.0)}, buffer, _use_new_zipfile_serialization=False
    )
    whole = buffer.getvalue()
    path = tmp_path / "file.pth"
    for _ in range(300):
        data = bytearray(whole)
        for place in torch.randint(0, len(data), (3,), generator=generator).tolist():
            data[place] = int(torch.randint(0, 256, (), generator=generator))
        path.write_bytes(data)
        # Any other exception fails the test.
        with contextlib.suppress(ModelError):
            read_torch_file(path)


def test_a_pickle_that_asks_for_a_huge_table_gets_none(tmp_path: Path) -> None:
    # LONG_BINPUT with an index of 2**32 - 1: the unpickler in C would fill 64 GB.
    got = read_torch_file(zipped(tmp_path, b"Nr\xff\xff\xff\xff."))
    assert got is None


def test_a_pickle_that_asks_for_a_huge_bytearray_gets_none(tmp_path: Path) -> None:
    path = tmp_path / "huge.pth"
    path.write_bytes(
        b"\x80\x05" + pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 30) + b"few."
    )
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="damaged"):
            read_torch_file(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pickle_of_more_than_names_and_shapes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zipped(tmp_path, pickle.dumps("0" * 1000, 2))
    assert read_torch_file(path) == "0" * 1000
    monkeypatch.setattr(unpickling, "_MAX_PICKLE_BYTES", 1000)
    with pytest.raises(ModelError):
        read_torch_file(path)


def test_a_missing_file_stays_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_torch_file(tmp_path / "none.pth")


def test_a_zip_whose_directory_points_elsewhere_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path, b"N.")
    assert read_torch_file(path) is None
    broken = bytearray(path.read_bytes())
    # The offset of the directory, in the record at the end: members are sought before the file.
    broken[-6:-2] = (int.from_bytes(broken[-6:-2], "little") + 2**20).to_bytes(
        4, "little"
    )
    path.write_bytes(broken)
    with refusal(ModelError, path):
        read_torch_file(path)
