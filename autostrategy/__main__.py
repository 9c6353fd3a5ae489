"""`python -m autostrategy` is the command `autostrategy`."""

import sys

from autostrategy.cli import main

if __name__ == "__main__":
    sys.exit(main())
