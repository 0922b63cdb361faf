"""Attacks by models from others: pickles in place of weights, folders with false metadata."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import zipfile
from typing import Any

import yaml

from attacks.verdicts import executed, wrong
from attacks.workshop import Try, copy, happens, time_limit
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.unpickling import read_torch_file


class _Canary:
    def __init__(self, made: Any) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return self.made


_PROGRAMS = (
    b'cos\nsystem\n(S"touch CANARY"\ntR.',
    b'cbuiltins\neval\n(S\'open("CANARY","w")\'\ntR.',
    b'(S\'open("CANARY","w")\'\nibuiltins\neval\n.',
    b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x12open('CANARY','w') \x85R.",
    b"ctorch\nload\n(S'CANARY'\ntR.",
    b"cnumpy\nload\n(S'CANARY'\ntR.",
    b"csubprocess\nPopen\n((lS'touch'\naS'CANARY'\natR.",
    b"cpathlib\nPosixPath\n(S'CANARY'\ntRp0\n0g0\n.",
    b"ccollections\nOrderedDict\n(tR(S'a'\ncbuiltins\nprint\nd.",
    b"c__main__\nx\n.",
    b"cimportlib\nimport_module\n(S'antigravity'\ntR.",
    b"ctorch._utils\n_rebuild_tensor_v2\n}S'_make'\ncbuiltins\neval\nsb.",
)


def pickles(attempt: Try) -> None:
    """Offer programs in place of weights, whole or mutated: none may run."""
    import torch

    chance = attempt.chance
    canary = attempt.folder / "ran"
    path = attempt.folder / "weights.pth"
    program = chance.choice(_PROGRAMS)
    program = program.replace(b"CANARY", str(canary).encode())
    if program.startswith(b"\x80\x04"):
        code = f"open({str(canary)!r},'w')".encode()
        program = (
            b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c"
            + bytes([len(code)])
            + code
            + b"\x85R."
        )
    kind = chance.randrange(4)
    if kind == 0:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", program)
            file.writestr("archive/version", b"3\n")
            file.writestr("archive/data/0", bytes(64))
    elif kind == 1:
        path.write_bytes(program)
    else:
        made = chance.choice(
            (
                (os.system, (f"touch {canary}",)),
                (open, (str(canary), "w")),
                (subprocess.call, (["touch", str(canary)],)),
                (eval, (f"open({str(canary)!r}, 'w')",)),
            )
        )
        content = {
            "state_dict": {"w": torch.zeros(3)},
            "x": [_Canary(made)] * chance.randint(1, 3),
        }
        torch.save(content, path, _use_new_zipfile_serialization=kind == 2)
    if happens(chance, 0.5):
        broken = bytearray(path.read_bytes())
        for _ in range(chance.randint(1, 5)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        path.write_bytes(broken)
    try:
        with time_limit(20):
            read_torch_file(path)
    finally:
        if canary.exists():
            raise executed("a pickle ran")


def models(attempt: Try) -> None:
    """Damage and falsify model folders: refused, or loaded exactly as saved."""
    chance = attempt.chance
    folder = copy(attempt.sound / "model", attempt.folder / "model")
    weights, told = next(folder.glob("*.safetensors")), folder / "model.yaml"
    kind = chance.randrange(7)
    if kind == 0:
        broken = bytearray(weights.read_bytes())
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        weights.write_bytes(broken)
    elif kind == 1:
        content = weights.read_bytes()
        weights.write_bytes(content[: chance.randrange(len(content))])
    elif kind == 2:
        weights.write_bytes(
            pickle.dumps(_Canary((os.mkdir, (str(attempt.folder / "ran"),))))
        )
    elif kind == 3:
        facts = yaml.safe_load(told.read_text())
        _lie(facts, chance)
        told.write_text(yaml.safe_dump(facts))
    elif kind == 4:
        facts = yaml.safe_load(told.read_text())
        facts["files"] = {
            f"../{n}" if happens(chance, 0.5) else "/etc/passwd": d
            for n, d in facts["files"].items()
        }
        told.write_text(yaml.safe_dump(facts))
    elif kind == 5:
        lines = told.read_text().splitlines()
        lines.insert(chance.randrange(len(lines)), chance.choice(lines))
        told.write_text("\n".join(lines))
    else:
        victim = chance.choice((weights, told))
        victim.unlink()
        if happens(chance, 0.5):
            victim.symlink_to(
                chance.choice(("/dev/zero", "/dev/random", victim.name, "/etc/passwd"))
            )
        elif happens(chance, 0.5):
            os.mkfifo(victim)
    try:
        with time_limit(30):
            model = load_model(folder)
    finally:
        if (attempt.folder / "ran").exists():
            raise executed("a model folder ran something")
    sound = load_model(attempt.sound / "model")
    for view, network in model.networks.items():
        for name, tensor in network.state_dict().items():
            if not tensor.equal(sound.networks[view].state_dict()[name]):
                raise wrong(f"{name} has other weights")


_LIES = (
    *(
        None,
        True,
        -1,
        0,
        1e309,
        float("nan"),
        2**70,
        "",
        "x" * 1000,
        [],
        {},
        [[[]]],
        {"a": {}},
    ),
    *(
        "../../x",
        "<script>",
        "!!python/name:os.system",
        [1, 0],
        {"coronal": -1.0},
        10**6,
    ),
)


def _lie(node: Any, chance: random.Random) -> None:
    """Change one value, key or entry somewhere in a tree."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    if not keys:
        return
    key = chance.choice(keys)
    if isinstance(node[key], dict | list) and node[key] and happens(chance, 0.6):
        _lie(node[key], chance)
    elif isinstance(node, dict) and happens(chance, 0.2):
        node[f"{key}x"] = node.pop(key)
    elif happens(chance, 0.15):
        del node[key]
    else:
        node[key] = chance.choice(_LIES)


ATTACKS = {"pickles": pickles, "model folders": models}
