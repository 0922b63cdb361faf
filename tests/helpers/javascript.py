"""Calls functions of the page's JavaScript modules from Python, by deno."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

MODULES = Path(__file__).parents[2] / "pipelines" / "site" / "browser"
_RUNNER = Path(__file__).with_suffix(".js")
_LIMIT_S = 120


def call(module: str, function: str, *arguments: Any) -> Any:
    """Return the value of a module's function; raise RuntimeError with the message of its Error.

    Arrays (X, Y, Z) are passed with the first axis fastest, and come back flat.
    """
    asked = {
        "module": (MODULES / module).as_uri(),
        "function": function,
        "arguments": [_encoded(argument) for argument in arguments],
    }
    deno = Path(sys.executable).with_name("deno")
    run = subprocess.run(
        [deno, "run", "--quiet", "--no-remote", "--allow-read", _RUNNER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={"DENO_NO_UPDATE_CHECK": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return _decoded(answer["value"])


def file(path: Path) -> dict[str, Any]:
    """Return a file in the form of a browser's File."""
    return {"$file": path.read_bytes(), "name": path.name}


def volume(found: Any) -> dict[str, Any]:
    """Return a volume in the form of the JavaScript modules."""
    return {
        "data": found.data,
        "shape": list(found.shape),
        "affine": found.affine.ravel().tolist(),
    }


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        flat = value.ravel("F")
        return {"$array": flat.dtype.name, "bytes": base64.b64encode(flat).decode()}
    if isinstance(value, bytes):
        return {"$buffer": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _encoded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(inner) for inner in value]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and "$buffer" in value:
        return base64.b64decode(value["$buffer"])
    if isinstance(value, dict) and "$array" in value:
        return np.frombuffer(base64.b64decode(value["bytes"]), value["$array"])
    if isinstance(value, dict):
        return {key: _decoded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_decoded(inner) for inner in value]
    return value
