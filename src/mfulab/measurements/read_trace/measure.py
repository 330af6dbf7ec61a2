"""Reads a profiler trace: how its steps spent their time, and how many FLOPs they ran."""

import json
from pathlib import Path

from mfulab.core.files import write_csv, write_text
from mfulab.core.json_text import parse_json
from mfulab.core.measurement import Measured
from mfulab.core.said import Said
from mfulab.measurements.read_trace import ReadTraceConfig, ranks
from mfulab.measurements.read_trace.reader import read_file
from mfulab.tracing.chrome import TraceError
from mfulab.tracing.operators import KERNEL_COLUMNS

PRODUCT_COLUMNS = (
    *("operator", "input_shapes", "format", "recomputed", "calls", "time_s", "flops", "tile"),
    *("executed_ratio", "slowdown", "kernel", "reason"),
)


def measure(config: ReadTraceConfig, folder: Path) -> Measured:
    """Returns the row of one range of consecutive steps. Writes kernels.csv, products.csv and a
    summary of the rank to `folder`. Raises TraceError if the trace cannot be read or has no such
    range."""
    path = Path(config.trace.path)
    windows = read_file(
        path, steps=config.trace_steps, peaks=config.trace_peaks, label=config.trace.name
    )
    number = config.trace_range or 0
    if number >= len(windows):
        raise TraceError(path, Said("no_such_range", asked=number, count=len(windows)))
    read = windows[number]
    if len(windows) > 1:
        others = {"one_of_several": {"count": len(windows), "last": len(windows) - 1}}
        read.row.notes = json.dumps(parse_json(read.row.notes or "{}") | others)
    if read.analysis is not None:
        summary = ranks.summary(read)
        if summary is not None:
            write_text(folder / ranks.SUMMARY, summary.text())
        write_csv(folder / "kernels.csv", read.analysis.kernels, KERNEL_COLUMNS)
        products = [
            {
                "operator": product.name,
                "input_shapes": product.shapes,
                "format": product.format,
                "recomputed": product.recomputed,
                "calls": product.calls,
                "time_s": product.time_ns / 1e9,
                "flops": None if product.reason else product.flops,
                "tile": "x".join(map(str, product.tile[:2])) if product.tile else None,
                "executed_ratio": product.executed_ratio,
                "slowdown": product.slowdown,
                "kernel": product.kernel,
                "reason": product.reason.key if product.reason else None,
            }
            for product in read.analysis.products
        ]
        write_csv(folder / "products.csv", products, PRODUCT_COLUMNS)
    return Measured(read.row)
