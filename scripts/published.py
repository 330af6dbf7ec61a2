"""Computes the MFU of public runs: `python scripts/published.py published=torchtitan`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("published")
