"""`python -m attacks` runs the attacks."""

import sys

from attacks.suite import main

if __name__ == "__main__":
    sys.exit(main())
