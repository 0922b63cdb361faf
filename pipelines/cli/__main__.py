"""python -m pipelines.cli: the `trinat` command, for torchrun."""

from pipelines.cli import main

if __name__ == "__main__":
    main()
