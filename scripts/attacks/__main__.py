"""`python -m attacks` runs the attacks; `python -m attacks mutate` mutates our own code."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["mutate"]:
        from attacks.mutate import main
    else:
        from attacks.suite import main  # type: ignore[assignment]
    sys.exit(main(sys.argv[2:] if sys.argv[1:2] == ["mutate"] else None))
