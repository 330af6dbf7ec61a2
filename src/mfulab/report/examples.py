"""The seminar's printed numbers beside those that this project computes, as a table for the page."""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> None:
    """`python scripts/examples.py --out results/tables/examples.csv`; takes seconds and no device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/tables/examples.csv"))
    options = parser.parse_args(arguments)
    from mfulab.flops.seminar import Recomputed, recompute

    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Recomputed)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(example) for example in recompute())
