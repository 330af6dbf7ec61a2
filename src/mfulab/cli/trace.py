"""`mfulab trace`: MFU beside utilization from profiler traces that are there already, in seconds."""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import scratch, write_text
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent
from mfulab.device.peaks import UNITS
from mfulab.measurements.read_trace.reader import Read, failed, files, read_file
from mfulab.mfu import job as jobs
from mfulab.mfu.trace_join import trace_columns
from mfulab.tracing.chrome import TraceError

# Columns that hold JSON in a table and are plain objects here.
_NESTED = (
    *("flops_by_format", "executed_by_format", "uncounted_operators", "spent", "idle_causes"),
    *("top_kernels", "top_other_operators", "given_peaks", "reasons", "peak_weights", "products", "notes"),
    *("window_source", "mfu_reason", "verdict_numbers", "operator_roofline", "module_times", "collective_bandwidth"),
)
_LEFT_OUT = (
    *("collectives", "collective_sizes", "operators", "modules", "timeline", "hardware", "run", "commit"),
    *("started_at", "process_s", "measured_s", "recorded"),
)


def run(
    given: Sequence[str],
    *,
    as_json: bool,
    html: Path | None,
    peaks: Sequence[str],
    steps: int | None,
    capture: Path | None,
    perfetto: Path | None,
    compare: bool,
    gate: float | None,
    model: str | None,
    batch_size: int | None,
    sequence_length: int | None,
    precision: str | None,
    language: str,
) -> int:
    """Reads, joins and shows; the status is 1 where a file could not be read, or a gate was not passed."""
    stated = dict[str, float]()
    for text in peaks:
        name, _, figure = text.partition("=")
        with suppress(ValueError):
            stated[name] = float(figure)
        if name not in UNITS or not 0 < stated.get(name, 0) < 1e7:
            raise ConfigurationError(f"--peak {text}: give {', '.join(UNITS)} and TFLOP/s, as in bf16=1307")
    if compare or gate:
        from mfulab.cli.trace_compare import compare as compared

        # Each word by itself, since their order tells the old one from the new one.
        paths = [path for word in given for path in files([word])]
        return compared(paths, gate, as_json, language, steps=steps, capture=capture)
    paths = files(given)
    if perfetto and len(paths) != 1:
        raise ConfigurationError(f"--perfetto {perfetto}: tracks are added to one trace, and {len(paths)} are given")
    counted = None  # gives a row the FLOPs of the model that was named
    if model is not None:
        from mfulab.cli.trace_model import count

        if batch_size is None or precision not in UNITS:
            formats = ", ".join(UNITS)
            raise ConfigurationError(f"--model needs --batch-size, the samples of one step, and --precision: {formats}")
        counted = count(model, batch_size, sequence_length, precision)
    found: list[Read] = []
    for path in paths:
        try:
            found += read_file(path, steps=steps, peaks=stated, capture=capture)
        except TraceError as error:
            print(f"mfulab trace: {error}", file=sys.stderr)
            found.append(failed(path, error))
    rows = [{**one.row.model_dump(), "recorded": False} for one in found]
    for row in rows:
        if counted and row["status"] == "ok" and row["flops"] is None:
            row |= counted(row)
        row |= trace_columns(row)
    jobs.joined(rows)
    if perfetto:
        _write_tracks(found, rows, perfetto, language)
    if html:
        _write_page(rows, html, language)
    if as_json:
        for row in rows:
            words = verdicts.columns(row)
            kept = {name: value for name, value in row.items() if name not in _LEFT_OUT}
            kept |= {name: json.loads(kept[name]) for name in _NESTED if kept.get(name)}
            kept |= {"verdict_sentence": words["verdict_reason"], "verdict_flags": words["verdict_flags"] or None}
            print(json.dumps({**kept, "mfu_sentence": words["mfu_reason"] or None}, ensure_ascii=False))
    else:
        from mfulab.cli.trace_text import show

        show(list(zip(found, rows, strict=True)), language)
    return int(any(row["status"] != "ok" for row in rows))


def _write_tracks(found: Sequence[Read], rows: Sequence[dict[str, Any]], out: Path, language: str) -> None:
    from mfulab.cli.trace_text import KINDS
    from mfulab.tracing import timeline
    from mfulab.tracing.device_time import DeviceTime

    text, added = Texts(language, "trace"), list[str]()
    names = {kind: text(KINDS.get(kind, kind)) for kind in (*timeline.SPENT, *timeline.CAUSES)}
    analyses = [(one.analysis, row) for one, row in zip(found, rows, strict=True) if one.analysis]
    told = [(one.told, one.call_flops, row) for one, row in analyses if isinstance(one.told, DeviceTime)]
    if not told:
        raise ConfigurationError(f"--perfetto {out}: the trace holds no device's time to draw")
    for number, (time, flops, row) in enumerate(told):
        peak, mfu = row["peak_tflop_s"], row["mfu_percent"]
        words = verdicts.columns(row, language=language)
        verdict = f"{words['verdict']}: {words['verdict_reason']}"
        said = verdict if mfu is None else f"MFU {percent(mfu)} %. {verdict}"
        added += timeline.tracks(number, time, flops, peak and 1e12 * peak, said, names)
    timeline.write(out, list({id(time.trace): time.trace for time, *_ in told}.values()), added)
    print(f"{out}: for https://ui.perfetto.dev", file=sys.stderr)


def _write_page(rows: list[dict[str, Any]], page: Path, language: str) -> None:
    from mfulab.lab.report.page.document import build
    from mfulab.lab.tables import build as tables
    from mfulab.lab.tables.records import Collected

    with scratch() as folder:
        collected = Collected()
        collected.records["traces"] += [{**row, "experiment": "", "run": row["model"]} for row in rows]
        tables.joined(collected.records)
        tables.write(collected, folder)
        write_text(page, build(folder, None, language))
    print(page, file=sys.stderr)
