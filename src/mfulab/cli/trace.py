"""`mfulab trace`: MFU beside utilization from profiler traces that are there already, in seconds."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mfulab.tables import jobs
from mfulab.tables.join import trace_columns
from mfulab.tracing.chrome import TraceError
from mfulab.tracing.reader import Read, failed, files, read_file

FORMATS = ("text", "json")
# Columns that hold JSON in a table and are plain objects here.
_NESTED = (
    *("flops_by_format", "executed_by_format", "padding_by_format", "uncounted_operators", "spent", "top_kernels"),
    *("top_other_operators", "given_peaks", "reasons", "peak_weights"),
)
_LEFT_OUT = ("collectives", "hardware", "run", "commit", "started_at", "process_s", "measured_s")
_PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")


def main(arguments: Sequence[str]) -> int:
    """Reads, joins and shows; returns 0, 1 where a file could not be read, 2 for a mistake in the command."""
    options = _parser().parse_args(arguments)
    try:
        peaks = dict(map(_peak, options.peak))
        paths = files(options.files)
        counted = _counted(options)
    except (TraceError, ValueError) as error:
        print(f"mfulab trace: {error}", file=sys.stderr)
        return 2
    found: list[Read] = []
    for path in paths:
        try:
            found += read_file(path, steps=options.steps, peaks=peaks)
        except TraceError as error:
            print(f"mfulab trace: {error}", file=sys.stderr)
            found.append(failed(path, error))
    rows = [{**one.row.model_dump(), "recorded": False} for one in found]
    for row in rows:
        if counted and row["status"] == "ok" and row["flops"] is None:
            row |= counted(row)
        row |= trace_columns(row)
    jobs.joined(rows)
    if options.html:
        _write_page(rows, Path(options.html), options.language)
    if options.format == "json":
        for row in rows:
            print(json.dumps(_plain(row), ensure_ascii=False))
    else:
        from mfulab.cli.trace_text import show

        show(list(zip(found, rows, strict=True)), options.language)
    return int(any(row["status"] != "ok" for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mfulab trace", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="*.json or *.json.gz, folders of them, or globs")
    parser.add_argument("--format", choices=FORMATS, default="text", help="json prints one object a file and line")
    parser.add_argument("--html", metavar="PAGE", help="also write the page of these traces")
    parser.add_argument(
        "--peak", action="append", default=[], metavar="FORMAT=TFLOP/s", help="a dense peak: --peak bf16=1307"
    )
    parser.add_argument("--steps", type=int, help="how many steps a trace without ProfilerStep spans holds")
    parser.add_argument("--model", help="whose FLOPs a trace without shapes did: a name in config/model/")
    parser.add_argument("--batch-size", type=int, help="samples a step, with --model")
    parser.add_argument("--sequence-length", type=int, help="tokens a sample, with --model")
    parser.add_argument("--language", choices=("en", "ko"), default="en")
    return parser


def _peak(text: str) -> tuple[str, float]:
    name, _, figure = text.partition("=")
    try:
        value = float(figure)
    except ValueError:
        value = 0.0
    if name not in _PRECISIONS or not 0 < value < 1e7:
        raise ValueError(f"--peak {text}: give a format ({', '.join(_PRECISIONS)}) and TFLOP/s, as in bf16=1307")
    return name, value


def _counted(options: argparse.Namespace) -> Any:
    """A function that gives a row the FLOPs of the model that was named; None where none was."""
    if not options.model:
        return None
    if not options.batch_size:
        raise ValueError("--model needs --batch-size, the samples of one step")
    from mfulab.tracing.model_flops import count

    return count(options.model, options.batch_size, options.sequence_length)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name not in _LEFT_OUT and name != "recorded"}
    return kept | {name: json.loads(kept[name]) for name in _NESTED if kept.get(name)}


def _write_page(rows: list[dict[str, Any]], page: Path, language: str) -> None:
    import tempfile

    from mfulab.report.page.document import build
    from mfulab.tables import build as tables
    from mfulab.tables.records import Collected

    with tempfile.TemporaryDirectory() as folder:
        collected = Collected()
        for row in rows:
            collected.records["traces"].append({**row, "experiment": "", "run": row["model"]})
        tables.joined(collected.records)
        tables.write(collected, Path(folder))
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(build(Path(folder), None, language), encoding="utf-8")
    print(f"{page}", file=sys.stderr)
