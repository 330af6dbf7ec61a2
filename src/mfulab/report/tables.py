"""Rows of many runs, on one machine or several, become the five tables that everything later reads."""

import argparse
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mfulab.report import join
from mfulab.report.columns import Record, Records, columns
from mfulab.report.sources import Collected, from_folder, from_manifest, from_recorded


def joined(records: Records) -> Records:
    """The same rows with the joined columns; every lookup stays within one machine, recorded apart from measured."""
    devices = {_machine(row): row.get("device") for row in records["environment"]}
    ceilings = {(*_machine(row), row["ceiling"]): row for row in records["ceilings"] if row["status"] == "ok"}
    # FLOP counts have no hardware: measured ones serve every machine, recorded ones those that were not counted here.
    flops = {row["run"]: row for row in sorted(records["flops"], key=lambda row: not row["recorded"])}

    def compute(row: Record) -> Record:
        # The precision that the products really used decides, where it was told: never the peak of another format.
        return ceilings.get((*_machine(row), row.get("effective_precision") or row.get("ceiling")), {})

    for row in records["profile"]:
        memory = ceilings.get((*_machine(row), "memory"), {})
        row |= join.profile_columns(
            row, flops.get(row["flops_run"], {}), compute(row), memory, devices.get(_machine(row))
        )
    for row in records["matmul"]:
        row |= join.matmul_columns(row, compute(row), devices.get(_machine(row)))
    return records


def _machine(row: Mapping[str, Any]) -> tuple[str, bool]:
    return row["hardware"], bool(row["recorded"])


def collect(
    manifests: Iterable[Path] = (), root: Path = Path(), results: Path | None = None, reference: Path | None = None
) -> Collected:
    """Everything to be reported: planned runs, folders of other machines under `results`, and recorded machines.

    A machine that was planned here is never read again as another machine's folder.
    """
    everything, planned = Collected(), {"plan", "tables", "reference", "count_flops"}
    for manifest in manifests:
        planned.add(json.loads(manifest.read_text(encoding="utf-8"))["hardware"])
        _extend(everything, from_manifest(manifest, root))
    if results is not None:
        for folder in sorted(path for path in results.iterdir() if path.is_dir() and path.name not in planned):
            _extend(everything, from_folder(results, folder.name))
    if reference is not None and reference.is_dir():
        for folder in sorted(path for path in reference.iterdir() if path.is_dir()):
            _extend(everything, from_recorded(folder))
    joined(everything.records)
    return everything


def _extend(everything: Collected, more: Collected) -> None:
    everything.problems.extend(more.problems)
    for table, rows in more.records.items():
        known = {(_machine(row), row["run"]) for row in everything.records[table]}
        everything.records[table].extend(row for row in rows if (_machine(row), row["run"]) not in known)


def write(records: Records, folder: Path) -> None:
    """Writes the five tables; a table without rows has its header alone, so that readers need no special case."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in records.items():
        partial = folder / f".{table}.csv"
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns(table), extrasaction="ignore", restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(folder / f"{table}.csv")


def main(arguments: Sequence[str] | None = None) -> None:
    """`python scripts/tables.py --manifest results/plan/quickstart.json --out results/tables`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, action="append", default=[], help="a planned experiment; repeatable")
    parser.add_argument("--root", type=Path, default=Path(), help="what the manifest's folders are relative to")
    parser.add_argument("--results", type=Path, help="also report other machines' folders found here")
    parser.add_argument("--reference", type=Path, help="also report the recorded machines found here")
    parser.add_argument("--out", type=Path, default=Path("results/tables"))
    options = parser.parse_args(arguments)
    collected = collect(options.manifest, options.root, options.results, options.reference)
    write(collected.records, options.out)
    (options.out / "problems.txt").write_text("".join(f"{line}\n" for line in collected.problems), encoding="utf-8")
