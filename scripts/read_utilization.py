"""Reads every counter of a load of known utilization: `python scripts/read_utilization.py load=spin_one`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("read_utilization")
