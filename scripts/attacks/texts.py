"""Attacks on all other input files: tables, settings, ledgers, archives of numbers."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from faults.test_not_regular import READERS
from pydantic import TypeAdapter

from attacks.workshop import READ_S, Try, time_limit
from trinat.pipelines.study.entry import Entry
from trinat.segmentation.labels.scheme import load_scheme


@functools.cache
def _sound_texts(sound: Path) -> dict[str, bytes]:
    """Return a sound file for each reader that has one."""
    entry = Entry(
        "a", "done", "a.nii.gz", model="m", outputs={"a_dseg.nii.gz": "0" * 64}
    )
    ledger = TypeAdapter(Entry).dump_json(entry) + b"\n"
    table = "participant_id\tage\tsex\na\t70\tF\nb\t71\tM\n"
    scheme = (
        Path(load_scheme.__code__.co_filename).parents[2]
        / "configs/labels/quicknat33.tsv"
    )
    return {
        "participants.tsv": table.encode(),
        "recipe.yaml": (sound / "tiny.yaml").read_bytes(),
        "run.jsonl": ledger * 3,
        "split.json": json.dumps({"store": "x", "seed": 0, "train": ["a"]}).encode(),
        "model.yaml": (sound / "model/model.yaml").read_bytes(),
        "scheme.tsv": scheme.read_bytes(),
        "heads.npz": (sound / "heads.npz").read_bytes(),
    }


_TOKENS = (
    b"\0", b"\xff\xfe", b"\xc3\x28", b"\t", b"\n", b"\r\n", b'"', b"'", b",", b": ", b"=1+1",
    b"nan", b"1e999", b"-1", b"9" * 400, b"null", b"true", b"[]", b"{}", b"[" * 5000, b"{" * 3000,
    b"&a [*a,*a]\n", b"!!python/object/apply:os.system [true]\n", b"\x1b[31m", b"<script>",
    b"../../x", b"\xe2\x80\xae",
)  # fmt: skip


def texts(attempt: Try) -> None:
    """Damage tables, settings, ledgers and archives of numbers.

    Each is read or refused in one line.
    """
    sound = _sound_texts(attempt.sound)
    chance = attempt.chance
    name = sorted(sound)[attempt.number % len(sound)]
    content = bytearray(sound[name])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(content) + 1)
        way = chance.random()
        if way < 0.4:
            content[at:at] = chance.choice(_TOKENS)
        elif way < 0.6:
            del content[at : at + chance.choice((1, 2, 30, 500))]
        elif way < 0.8 and content:
            content[at % len(content)] ^= 1 << chance.randrange(8)
        else:
            end = min(len(content), at + chance.randrange(1, 60))
            content[at:at] = content[at:end] * chance.choice((1, 2, 50))
    path = attempt.folder / name
    path.write_bytes(content)
    with time_limit(READ_S):
        READERS[name](path)


ATTACKS = {"tables, settings, ledgers": texts}
