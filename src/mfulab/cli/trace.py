"""`mfulab trace`: MFU next to utilization, from existing profiler traces, in seconds."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from mfulab.cli.options import AS_JSON, COUNT, FILE, LANGUAGE, MODEL, PATH, SHARE, TOKENS, command
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import scratch, write_text
from mfulab.core.json_text import parse_json
from mfulab.core.language import verdicts
from mfulab.core.parts import Record, Row, leave_out
from mfulab.core.printing import say
from mfulab.core.said import Said, cell_of, of_source, said_by
from mfulab.core.terminal_language import error_in_words
from mfulab.device.peaks import UNITS
from mfulab.measurements.read_trace import ranks
from mfulab.measurements.read_trace.reader import Read, failed, files, read_file
from mfulab.mfu.account import read
from mfulab.mfu.models import model_config
from mfulab.mfu.traced import trace_columns
from mfulab.tracing.chrome import TraceError

Filling = Callable[[Row], Record]  # columns to add to a row
_LEFT_OUT = {
    "collectives",
    "collective_sizes",
    "operators",
    "modules",
    "timeline",
    "hardware",
    "run",
    "commit",
    "started_at",
    "process_s",
    "measured_s",
    "recorded",
}


@command(
    "trace",
    "trace runs/step.json.gz --peak bf16=1307",
    more=(
        "FILE is *.json, *.json.gz, *.sqlite or *.xplane.pb, a folder of them, or a glob; ranks "
        "of one job are joined."
    ),
)
@click.argument("words", nargs=-1, metavar="FILE…", required=True)
@AS_JSON
@click.option(
    "--html", type=FILE, metavar="PAGE", help="Also write a page about these traces, one HTML file."
)
@click.option(
    "--peak",
    "peaks",
    metavar="FORMAT=TFLOP/s",
    multiple=True,
    help="Dense peak of a number format, in TFLOP/s: --peak bf16=1307.",
)
@click.option("--steps", type=COUNT, help="Number of steps in a trace without ProfilerStep spans.")
@click.option(
    "--compare",
    is_flag=True,
    help="Show in which parts a step of the second trace takes more or less time than one of the first.",
)
@click.option(
    "--gate",
    type=SHARE,
    help="With --compare: exit with status 1 if the second is slower by more than this: 5% or 0.05.",
)
@click.option(
    "--jobs",
    type=COUNT,
    help="Read the ranks of a job in this many processes, and name the rank that the others wait for.",
)
@click.option(
    "--capture",
    type=PATH,
    metavar="FILE",
    help="Trace recorded while the replayed CUDA or HIP graphs were captured.",
)
@click.option(
    "--model", type=MODEL, help="Model behind a trace that has no shapes: a name in config/model/."
)
@click.option("--batch-size", type=COUNT, help="With --model: samples per step.")
@TOKENS
@click.option("--precision", help="With --model: the number format of its matmuls: bf16, tf32, …")
@click.option(
    "--all",
    "all_tables",
    is_flag=True,
    help="Also show the longest operators, modules, kernels and gaps.",
)
@LANGUAGE
def run(**values: Any) -> int:
    """Reads traces, joins the ranks of a job and prints the result. Returns 1 if a file could not
    be read or a gate failed, else 0."""
    options = TraceOptions(**values)
    if options.jobs:
        return _ranks(options)
    if options.compare or options.gate:
        return _compared(options)
    return _read_all(options)


@dataclass(frozen=True)
class TraceOptions:
    """The command's options."""

    words: Sequence[str]
    as_json: bool
    html: Path | None
    peaks: Sequence[str]
    steps: int | None
    compare: bool
    gate: float | None
    jobs: int | None
    capture: Path | None
    model: str | None
    batch_size: int | None
    sequence_length: int | None
    precision: str | None
    all_tables: bool
    language: str

    @property
    def model_options(self) -> Record:
        """Options that only `--model` uses."""
        names = ("batch_size", "sequence_length", "precision")
        return {name: getattr(self, name) for name in names}

    @property
    def refused_with_jobs(self) -> list[str]:
        """Names of the given options that `--jobs` does not support."""
        names = ("html", "compare", "gate", "capture", "model")
        return [name for name in names if getattr(self, name)]

    @property
    def reading(self) -> Record:
        """Options for reading each file."""
        return {"steps": self.steps, "peaks": _stated_peaks(self.peaks)}


def _ranks(options: TraceOptions) -> int:
    """Reads the ranks of a job in several processes and prints its verdict. Returns the exit
    status."""
    from mfulab.cli import trace_ranks

    for name in options.refused_with_jobs:
        raise ConfigurationError(Said("of_single_traces", option=f"--{name}"))
    count = options.jobs or 1
    return trace_ranks.run(
        options.words, count, options.as_json, options.language, **options.reading
    )


def _compared(options: TraceOptions) -> int:
    """Prints the difference of two traces, the old one given first. Returns the exit status."""
    from mfulab.cli import trace_compare

    paths = []
    for word in options.words:
        paths.extend(files([word]))
    return trace_compare.compare(
        paths,
        options.gate,
        options.as_json,
        options.language,
        **options.reading,
        capture=options.capture,
    )


def _read_all(options: TraceOptions) -> int:
    paths = files(options.words)
    fill = _model_of(options)
    reading = options.reading
    reads = []
    for path in paths:
        reads.extend(_read(path, capture=options.capture, **reading))
    rows = [_joined(read, fill) for read in reads]
    ranks.joined(rows)
    pairs = list(zip(reads, rows, strict=True))
    if options.html:
        _write_page(rows, options.html, options.language)
    if options.as_json:
        _print_json(rows)
    else:
        from mfulab.cli.trace_text import show

        show(pairs, options.language, all_tables=options.all_tables)
    return int(any(row["status"] != "ok" for row in rows))


def _joined(read: Read, fill: Filling | None) -> Record:
    """The row of a trace with its joined columns, and with the model's FLOPs if the trace has
    none."""
    row = {**read.row.model_dump(), "recorded": False}
    if fill and row["status"] == "ok" and row["flops"] is None:
        row |= fill(row)
    return row | trace_columns(row)


def _model_of(options: TraceOptions) -> Filling | None:
    """Function that fills a row with the FLOPs of `--model`; None without that option. Raises
    ConfigurationError if its other options are given without it."""
    if options.model is not None:
        return counted_model(options.model, **options.model_options)
    for name, value in options.model_options.items():
        if value is not None:
            option = name.replace("_", "-")
            raise ConfigurationError(Said("of_counted_model", option=f"--{option}"))
    return None


def _stated_peaks(peaks: Sequence[str]) -> dict[str, float]:
    """Parses words like `bf16=1307` into peaks (TFLOP/s) by number format. Raises
    ConfigurationError for any other word."""
    stated = dict[str, float]()
    for text in peaks:
        name, _, figure = text.partition("=")
        with suppress(ValueError):
            stated[name] = float(figure)
        if name not in UNITS or not 0 < stated.get(name, 0) < 1e7:
            formats = Said("give_peak_of", formats=", ".join(UNITS))
            raise ConfigurationError(of_source(f"--peak {text}", formats))
    return stated


def _read(path: Path, **options: Any) -> list[Read]:
    """Reads the traces of a file. One that cannot be read becomes a failed row, and the reason is
    printed to stderr."""
    try:
        return read_file(path, **options)
    except TraceError as error:
        say(f"mfulab trace: {error_in_words(error)}", file=sys.stderr)
        return [failed(path, error)]


def _print_json(rows: Sequence[Row]) -> None:
    """Prints each row as a line of JSON, with its sentences in words."""
    for row in rows:
        words = verdicts.columns(row)
        columns = leave_out(row, _LEFT_OUT)
        for name, cell in columns.items():
            if isinstance(cell, str) and cell[:1] in ("{", "["):
                columns[name] = parse_json(cell)
        columns["answer"] = asdict(read(row).mfu(_reason(row)))
        columns |= {
            "verdict_sentence": words["verdict_reason"],
            "verdict_flags": words["verdict_flags"] or None,
            "mfu_sentence": words["mfu_reason"] or None,
            "message_sentence": verdicts.message(row["message"]) or None,
        }
        say(json.dumps(columns, ensure_ascii=False))


def _reason(row: Row) -> Said | None:
    """Reason why a row has no MFU; None if it has one."""
    reason = parse_json(row["mfu_reason"] or "{}")
    for key, numbers in reason.items():
        return Said(key, numbers)
    return None


def counted_model(
    model: str, batch_size: int | None, sequence_length: int | None, precision: str | None
) -> Filling:
    """Counts a step of a model, with matmuls in `precision`, and returns a function that fills a
    trace's row with these FLOPs. Raises ConfigurationError if the model is unknown or cannot be
    counted."""
    from mfulab.flops.count import CountError
    from mfulab.models.build import ModelError
    from mfulab.models.counted import count_model

    if batch_size is None or precision not in UNITS:
        raise ConfigurationError(Said("counted_model_needs", formats=", ".join(UNITS)))
    config = model_config(model, {})
    try:
        counted = count_model(config, batch_size, sequence_length)
    except (ModelError, CountError) as error:
        raise ConfigurationError(of_source(f"--model {model}", said_by(error))) from error
    operations = counted.count.operations
    forward = operations.sum("forward")
    backward = operations.sum("backward")
    recomputed = operations.sum("recomputed")
    source = Said("counted_of", model=model, batch_size=batch_size)
    unknown = ("executed_ratio", "issued_ratio", "products", "bytes_moved", "uncounted_percent")

    def fill(row: Row) -> Record:
        flops = forward.flops
        executed = forward.flops
        causal = forward.causal_flops
        if row["mode"] == "training":
            flops += backward.flops
            executed += backward.executed_flops + recomputed.executed_flops
            causal += backward.causal_flops
        spent = parse_json(row["spent"])
        spent["products"] += spent["uncounted"]  # the model's count covers all matmuls
        spent["uncounted"] = 0
        return {
            "flops": flops,
            "flops_by_format": json.dumps({precision: flops}),
            "executed_flops": executed,
            "executed_by_format": json.dumps({precision: executed}),
            "causal_flops": causal,
            **dict.fromkeys(unknown),
            **dict.fromkeys(("precision", "effective_precision"), precision),
            "flops_source": cell_of(source),
            "spent": json.dumps(spent),
        }

    return fill


def _write_page(rows: list[Record], page: Path, language: str) -> None:
    from mfulab.lab.report.page.document import build
    from mfulab.lab.tables import build as tables
    from mfulab.lab.tables.records import Collected

    with scratch() as folder:
        collected = Collected()
        collected.records["traces"] += [
            {**row, "experiment": "", "run": row["model"]} for row in rows
        ]
        tables.joined(collected.records)
        tables.write(collected, folder)
        write_text(page, build(folder, None, language))
    say(page, file=sys.stderr)
