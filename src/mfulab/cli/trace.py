"""`mfulab trace`: MFU beside utilization from profiler traces that are there already, in
seconds."""

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
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent
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

Filling = Callable[[Row], Record]
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
@click.argument("given", nargs=-1, metavar="FILE…", required=True)
@AS_JSON
@click.option(
    "--html", type=FILE, metavar="PAGE", help="Also write a page of these traces, one HTML file."
)
@click.option(
    "--peak",
    "peaks",
    metavar="FORMAT=TFLOP/s",
    multiple=True,
    help="A dense peak: --peak bf16=1307.",
)
@click.option(
    "--perfetto",
    type=FILE,
    metavar="FILE",
    help="Also write the trace with tracks: budget, idle gaps and causes, MFU, verdict.",
)
@click.option("--steps", type=COUNT, help="Number of steps in a trace without ProfilerStep spans.")
@click.option(
    "--compare",
    is_flag=True,
    help="Show where a step of the second of two traces takes more or less than one of the first.",
)
@click.option(
    "--gate",
    type=SHARE,
    help="With --compare: the status is 1 where the second is slower by more, 5% or 0.05.",
)
@click.option(
    "--jobs",
    type=COUNT,
    help="Read the ranks of a job in so many processes, and tell which rank the others wait for.",
)
@click.option(
    "--capture",
    type=PATH,
    metavar="FILE",
    help="The trace of the capture of CUDA or HIP graphs that are replayed.",
)
@click.option(
    "--model", type=MODEL, help="The model of a trace without shapes: a name in config/model/."
)
@click.option("--batch-size", type=COUNT, help="Samples a step, with --model.")
@TOKENS
@click.option(
    "--precision", help="The number format of the model's matmuls, with --model: bf16, tf32, …"
)
@click.option(
    "--all", "whole", is_flag=True, help="Also the longest operators, modules, kernels and gaps."
)
@LANGUAGE
def run(**options: Any) -> int:
    """Reads, joins and shows; the status is 1 where a file could not be read, or a gate was not
    passed."""
    asked = Asked(**options)
    if asked.jobs:
        return _ranks(asked)
    if asked.compare or asked.gate:
        return _compared(asked)
    return _read_all(asked)


@dataclass(frozen=True)
class Asked:
    """The command's options."""

    given: Sequence[str]
    as_json: bool
    html: Path | None
    peaks: Sequence[str]
    perfetto: Path | None
    steps: int | None
    compare: bool
    gate: float | None
    jobs: int | None
    capture: Path | None
    model: str | None
    batch_size: int | None
    sequence_length: int | None
    precision: str | None
    whole: bool
    language: str

    @property
    def of_model(self) -> Record:
        """Options that are of a counted model alone."""
        names = ("batch_size", "sequence_length", "precision")
        return {name: getattr(self, name) for name in names}

    @property
    def of_single_traces(self) -> list[str]:
        """Names of the given options that ranks by the hundred have not."""
        names = ("html", "perfetto", "compare", "gate", "capture", "model")
        return [name for name in names if getattr(self, name)]

    @property
    def reading(self) -> Record:
        """Options by which every file is read."""
        return {"steps": self.steps, "peaks": _stated_peaks(self.peaks)}


def _ranks(asked: Asked) -> int:
    """The ranks of a job, each read by one of several processes."""
    from mfulab.cli import trace_ranks

    for name in asked.of_single_traces:
        raise ConfigurationError(Said("of_single_traces", {"option": f"--{name}"}))
    count = asked.jobs or 1
    return trace_ranks.run(asked.given, count, asked.as_json, asked.language, **asked.reading)


def _compared(asked: Asked) -> int:
    """The difference of two traces, in the order in which they are given: the old one first."""
    from mfulab.cli import trace_compare

    paths = []
    for word in asked.given:
        paths.extend(files([word]))
    reading = {**asked.reading, "capture": asked.capture}
    return trace_compare.compare(paths, asked.gate, asked.as_json, asked.language, **reading)


def _read_all(asked: Asked) -> int:
    paths = files(asked.given)
    if asked.perfetto and len(paths) != 1:
        tracks = Said("tracks_for_one", {"count": len(paths)})
        raise ConfigurationError(of_source(f"--perfetto {asked.perfetto}", tracks))
    fill = _model_of(asked)
    reading = asked.reading
    reads = []
    for path in paths:
        reads.extend(_read(path, capture=asked.capture, **reading))
    rows = [_joined(read, fill) for read in reads]
    ranks.joined(rows)
    pairs = list(zip(reads, rows, strict=True))
    if asked.perfetto:
        _write_tracks(pairs, asked.perfetto, asked.language)
    if asked.html:
        _write_page(rows, asked.html, asked.language)
    if asked.as_json:
        _print_json(rows)
    else:
        from mfulab.cli.trace_text import show

        show(pairs, asked.language, whole=asked.whole)
    return int(any(row["status"] != "ok" for row in rows))


def _joined(read: Read, fill: Filling | None) -> Record:
    """A read row with its joined columns, and a counted model's FLOPs where it has none."""
    row = {**read.row.model_dump(), "recorded": False}
    if fill and row["status"] == "ok" and row["flops"] is None:
        row |= fill(row)
    return row | trace_columns(row)


def _model_of(asked: Asked) -> Filling | None:
    """Counted work that gives rows a model's FLOPs; None without a model. Raises ConfigurationError
    for its options without it."""
    if asked.model is not None:
        return counted_model(asked.model, **asked.of_model)
    for name, value in asked.of_model.items():
        if value is not None:
            option = name.replace("_", "-")
            raise ConfigurationError(Said("of_counted_model", {"option": f"--{option}"}))
    return None


def _stated_peaks(peaks: Sequence[str]) -> dict[str, float]:
    """Peaks in TFLOP/s by number format, of words like `bf16=1307`. Raises ConfigurationError for
    any other word."""
    stated = dict[str, float]()
    for text in peaks:
        name, _, figure = text.partition("=")
        with suppress(ValueError):
            stated[name] = float(figure)
        if name not in UNITS or not 0 < stated.get(name, 0) < 1e7:
            formats = Said("give_peak_of", {"formats": ", ".join(UNITS)})
            raise ConfigurationError(of_source(f"--peak {text}", formats))
    return stated


def _read(path: Path, **options: Any) -> list[Read]:
    """Rows of a file's traces; one that cannot be read is a failed row, and is told on stderr at
    once."""
    try:
        return read_file(path, **options)
    except TraceError as error:
        say(f"mfulab trace: {error_in_words(error)}", file=sys.stderr)
        return [failed(path, error)]


def _print_json(rows: Sequence[Row]) -> None:
    """Prints a line of JSON a row, with its sentences."""
    for row in rows:
        words = verdicts.columns(row)
        columns = leave_out(row, _LEFT_OUT)
        nested = {}
        for name, cell in columns.items():
            if isinstance(cell, str) and cell[:1] in ("{", "["):
                nested[name] = cell
        for name, cell in nested.items():
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
    """Reason why a row has no MFU; None where it has one."""
    reason = parse_json(row["mfu_reason"] or "{}")
    for key, numbers in reason.items():
        return Said(key, numbers)
    return None


def counted_model(
    model: str, batch_size: int | None, sequence_length: int | None, precision: str | None
) -> Filling:
    """Counts a step of a model, its products in `precision`, and gives what fills a trace's row
    with these FLOPs. Raises ConfigurationError if the model is unknown or cannot be counted."""
    from mfulab.flops.count import CountError
    from mfulab.models.build import ModelError
    from mfulab.models.counted import count_model

    if batch_size is None or precision not in UNITS:
        raise ConfigurationError(Said("counted_model_needs", {"formats": ", ".join(UNITS)}))
    try:
        operations = count_model(
            model_config(model, {}), batch_size, sequence_length
        ).count.operations
    except (ModelError, CountError) as error:
        raise ConfigurationError(of_source(f"--model {model}", said_by(error))) from error
    forward = operations.sum("forward")
    backward = operations.sum("backward")
    again = operations.sum("recomputed")

    def fill(row: Row) -> Record:
        trains = row["mode"] == "training"
        flops = forward.flops + (backward.flops if trains else 0)
        executed = forward.flops + (backward.executed_flops + again.executed_flops if trains else 0)
        spent = parse_json(row["spent"])
        spent |= {
            "products": spent["products"] + spent["uncounted"],
            "uncounted": 0,
        }  # the model has them all
        return {
            "flops": flops,
            "flops_by_format": json.dumps({precision: flops}),
            "executed_flops": executed,
            "executed_by_format": json.dumps({precision: executed}),
            "causal_flops": forward.causal_flops + (backward.causal_flops if trains else 0),
            **dict.fromkeys(
                ("executed_ratio", "issued_ratio", "products", "bytes_moved", "uncounted_percent")
            ),
            **dict.fromkeys(("precision", "effective_precision"), precision),
            "flops_source": cell_of(Said("counted_of", {"model": model, "batch_size": batch_size})),
            "spent": json.dumps(spent),
        }

    return fill


def _write_tracks(pairs: Sequence[tuple[Read, Record]], out: Path, language: str) -> None:
    from mfulab.mfu.headroom import KINDS
    from mfulab.tracing import timeline
    from mfulab.tracing.device_time import CAUSES, DeviceTime
    from mfulab.tracing.shares import SPENT

    text = Texts(language, "trace")
    added = list[str]()
    names = {kind: text(KINDS.get(kind, kind)) for kind in (*SPENT, *CAUSES)}
    drawn = []
    for one, row in pairs:
        if one.analysis and isinstance(one.analysis.told, DeviceTime):
            drawn.append((one.analysis.told, one.analysis.call_flops, row))
    if not drawn:
        raise ConfigurationError(of_source(f"--perfetto {out}", Said("no_time_to_draw")))
    for number, (time, flops, row) in enumerate(drawn):
        peak = row["peak_tflop_s"]
        mfu = row["mfu_percent"]
        columns = verdicts.columns(row, language=language)
        verdict = f"{columns['verdict']}: {columns['verdict_reason']}"
        sentence = verdict if mfu is None else f"MFU {percent(mfu)} %. {verdict}"
        added += timeline.tracks(number, time, flops, peak and 1e12 * peak, sentence, names)
    timeline.write(out, list({id(time.trace): time.trace for time, *_ in drawn}.values()), added)
    say(f"{out}: for https://ui.perfetto.dev", file=sys.stderr)


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
