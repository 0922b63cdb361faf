"""`python -m benches SUBJECT`: run one benchmark, or list them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benches
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.jobs.process import prepare_process


def main(arguments: list[str]) -> int:
    # Modules that start with an underscore are shared tools.
    subjects = sorted(
        module.name
        for module in pkgutil.iter_modules(benches.__path__)
        if not module.name.startswith("_")
    )
    if not arguments or arguments[0] not in subjects:
        print(f"usage: scripts/bench {'|'.join(subjects)}", file=sys.stderr)
        return Exit.USAGE
    prepare_process()
    importlib.import_module(f"benches.{arguments[0]}").run(*arguments[1:])
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
