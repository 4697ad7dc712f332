"""`python -m flare`: the command line without its console script."""

import sys

from flare.cli import main

if __name__ == "__main__":
    sys.exit(main())
