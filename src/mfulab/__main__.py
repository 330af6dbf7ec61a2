"""`python -m mfulab` and the `mfulab` command."""

import sys

if __name__ == "__main__" and not __package__:  # run as a file: its folder holds no modules
    sys.path.pop(0)

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
