"""`python -m mfulab` and the `mfulab` command."""

import sys

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
