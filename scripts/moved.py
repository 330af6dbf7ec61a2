"""Runs what a script of an older name is now, and says so; the older names are links to this file."""

import sys
from pathlib import Path

from mfulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main([f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]]))
