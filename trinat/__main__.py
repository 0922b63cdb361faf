"""`python -m trinat` is the command line."""

from trinat.pipelines.cli import main

if __name__ == "__main__":
    main()
