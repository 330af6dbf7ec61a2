"""`mfulab trace`: MFU beside utilization from profiler traces that are there already, in seconds."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
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
from mfulab.mfu.join import trace_columns
from mfulab.mfu.models import model_config
from mfulab.tracing.chrome import TraceError

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
    language: str,
    **of_model: Any,
) -> int:
    """Reads, joins and shows; the status is 1 where a file could not be read, or a gate was not passed."""
    stated = _stated_peaks(peaks)
    if compare or gate:
        from mfulab.cli import trace_text

        paths = [path for word in given for path in files([word])]  # in their order: the old one, the new one
        return trace_text.compare(paths, gate, as_json, language, steps=steps, capture=capture)
    paths = files(given)
    if perfetto and len(paths) != 1:
        raise ConfigurationError(f"--perfetto {perfetto}: tracks are added to one trace, and {len(paths)} are given")
    if model is None and (alone := [name.replace("_", "-") for name, value in of_model.items() if value is not None]):
        raise ConfigurationError(f"--{alone[0]}: is of a model that is counted; give --model too")
    counted = None if model is None else counted_model(model, **of_model)  # gives a row the model's FLOPs
    reads = [read for path in paths for read in _read(path, steps=steps, peaks=stated, capture=capture)]
    rows = [{**read.row.model_dump(), "recorded": False} for read in reads]
    for row in rows:
        if counted and row["status"] == "ok" and row["flops"] is None:
            row |= counted(row)
        row |= trace_columns(row)
    jobs.joined(rows)
    pairs = list(zip(reads, rows, strict=True))
    if perfetto:
        _write_tracks(pairs, perfetto, language)
    if html:
        _write_page(rows, html, language)
    if as_json:
        _print_json(rows)
    else:
        from mfulab.cli.trace_text import show

        show(pairs, language)
    return int(any(row["status"] != "ok" for row in rows))


def _stated_peaks(peaks: Sequence[str]) -> dict[str, float]:
    """Peaks in TFLOP/s by number format, of words like `bf16=1307`. Raises ConfigurationError for any other word."""
    stated = dict[str, float]()
    for text in peaks:
        name, _, figure = text.partition("=")
        with suppress(ValueError):
            stated[name] = float(figure)
        if name not in UNITS or not 0 < stated.get(name, 0) < 1e7:
            raise ConfigurationError(f"--peak {text}: give {', '.join(UNITS)} and TFLOP/s, as in bf16=1307")
    return stated


def _read(path: Path, **options: Any) -> list[Read]:
    """Rows of a file's traces; one that cannot be read is a failed row, and is told on stderr at once."""
    try:
        return read_file(path, **options)
    except TraceError as error:
        print(f"mfulab trace: {error}", file=sys.stderr)
        return [failed(path, error)]


def _print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints a line of JSON a row, with its sentences."""
    for row in rows:
        words = verdicts.columns(row)
        columns = {name: value for name, value in row.items() if name not in _LEFT_OUT}
        nested = {name: cell for name, cell in columns.items() if isinstance(cell, str) and cell[:1] in ("{", "[")}
        columns |= {name: json.loads(cell) for name, cell in nested.items()}
        columns |= {"verdict_sentence": words["verdict_reason"], "verdict_flags": words["verdict_flags"] or None}
        print(json.dumps({**columns, "mfu_sentence": words["mfu_reason"] or None}, ensure_ascii=False))


def counted_model(
    model: str, batch_size: int | None, sequence_length: int | None, precision: str | None
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Counts a step of a model, its products in `precision`, and gives what fills a trace's row with these FLOPs.
    Raises ConfigurationError if the model is unknown or cannot be counted."""
    from mfulab.flops.count import CountError
    from mfulab.models.build import ModelError
    from mfulab.models.counted import count_model

    if batch_size is None or precision not in UNITS:
        raise ConfigurationError(f"--model needs --batch-size, a step's samples, and --precision: {', '.join(UNITS)}")
    try:
        operations = count_model(model_config(model, {}), batch_size, sequence_length).count.operations
    except (ModelError, CountError) as error:
        raise ConfigurationError(f"--model {model}: {error}") from error
    forward, backward, again = (operations.sum(direction) for direction in ("forward", "backward", "recomputed"))

    def fill(row: Mapping[str, Any]) -> dict[str, Any]:
        trains = row["mode"] == "training"
        flops = forward.flops + (backward.flops if trains else 0)
        executed = forward.flops + (backward.executed_flops + again.executed_flops if trains else 0)
        spent = json.loads(row["spent"])
        spent |= {"products": spent["products"] + spent["uncounted"], "uncounted": 0}  # the model has them all
        return {
            **{"flops": flops, "flops_by_format": json.dumps({precision: flops})},
            **{"executed_flops": executed, "executed_by_format": json.dumps({precision: executed})},
            "causal_flops": forward.causal_flops + (backward.causal_flops if trains else 0),
            **dict.fromkeys(("executed_ratio", "issued_ratio", "products", "bytes_moved", "uncounted_percent")),
            **dict.fromkeys(("precision", "effective_precision"), precision),
            "flops_source": f"counted: {model}, {batch_size} samples a step",
            "spent": json.dumps(spent),
        }

    return fill


def _write_tracks(pairs: Sequence[tuple[Read, dict[str, Any]]], out: Path, language: str) -> None:
    from mfulab.cli.trace_text import KINDS
    from mfulab.tracing import timeline
    from mfulab.tracing.device_time import DeviceTime

    text, added = Texts(language, "trace"), list[str]()
    names = {kind: text(KINDS.get(kind, kind)) for kind in (*timeline.SPENT, *timeline.CAUSES)}
    times = [(read.analysis.told, read.analysis.call_flops, row) for read, row in pairs if read.analysis]
    drawn = [(time, flops, row) for time, flops, row in times if isinstance(time, DeviceTime)]
    if not drawn:
        raise ConfigurationError(f"--perfetto {out}: the trace holds no device's time to draw")
    for number, (time, flops, row) in enumerate(drawn):
        peak, mfu = row["peak_tflop_s"], row["mfu_percent"]
        words = verdicts.columns(row, language=language)
        verdict = f"{words['verdict']}: {words['verdict_reason']}"
        sentence = verdict if mfu is None else f"MFU {percent(mfu)} %. {verdict}"
        added += timeline.tracks(number, time, flops, peak and 1e12 * peak, sentence, names)
    timeline.write(out, list({id(time.trace): time.trace for time, *_ in drawn}.values()), added)
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
