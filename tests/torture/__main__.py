"""`python -m torture` runs the attacks; `python -m torture mutate` mutates our own code."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["mutate"]:
        from torture.mutate import main
    else:
        from torture.suite import main  # type: ignore[assignment]
    sys.exit(main(sys.argv[2:] if sys.argv[1:2] == ["mutate"] else None))
