"""Holds an installed library's table of peaks against ours: `python scripts/peaks_audit.py library=torch_inductor`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("peaks_audit")
