"""Counts FLOPs of the models in a collection of public runs, and computes each run's MFU against
every peak that may apply."""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from mfulab.core.errors import ConfigurationError, UnknownChoiceError
from mfulab.core.json_text import parse_json
from mfulab.core.measurement import Measured
from mfulab.core.said import Said, as_told, cell_of, joined, of_source
from mfulab.device.datasheets import UnknownDeviceError, find
from mfulab.device.peaks import peak
from mfulab.measurements.published import PUBLISHED, PublishedConfig, PublishedRow
from mfulab.mfu.conventions import BY_KEY, OURS, flops
from mfulab.mfu.explain import Denominator, change
from mfulab.mfu.models import model_config
from mfulab.mfu.utilization import TERA, of_peak
from mfulab.mfu.work import Work
from mfulab.models.work import work

TRAINED_IN = ("bf16", "fp8", "fp4")
"""Number formats of public training runs, the slowest first."""


def measure(config: PublishedConfig, folder: Path) -> Measured:
    """Returns one row per line of `results/reference/published/<published>.csv`, with MFU from the
    published speed and our FLOPs. The row of the run itself only summarizes them."""
    with (PUBLISHED / f"{config.published}.csv").open(newline="", encoding="utf-8") as file:
        lines = [
            {key: value or None for key, value in line.items()} for line in csv.DictReader(file)
        ]
    rows = [_row(config.published, line) for line in lines]
    count = sum(row.mfu_percent is not None for row in rows)
    message = cell_of(Said("mfu_of_runs", count=count, total=len(rows)))
    summary = PublishedRow(published=config.published, message=message)
    return Measured(summary, [row.model_dump(exclude={"hardware", "run"}) for row in rows])


def _row(published: str, line: Mapping[str, str | None]) -> PublishedRow:
    """Makes the row of a published run: device, model, speed, and MFU by our count and by the
    publisher's convention."""
    row = PublishedRow.model_validate({**_printed(line), "published": published})
    problems = _name_device(row)
    counted: Work | None = None
    try:
        counted = _counted(row.model, line.get("model_arguments") or "{}", row.sequence_length)
    except UnknownChoiceError:
        problems.append(of_source(f"model={row.model}", Said("no_model_of_shapes")))
    except ConfigurationError as error:
        problems.append(as_told(error))
    if line.get("model_arguments") and row.system:
        row.model = row.system.partition(",")[0]  # these shapes are in no file in config/model/
    _add_speed(row, line, counted)
    if row.tflop_s_per_device is not None:
        _add_mfu(row)
        if counted is not None and row.convention:
            _add_convention(row, counted)
    elif counted is not None:
        problems.append(Said("no_published_speed"))
    row.message = cell_of(joined(problems))
    return row


def _printed(line: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the cells of a line that are columns of the row."""
    printed = {}
    for name, value in line.items():
        if value is not None and name in PublishedRow.model_fields:
            printed[name] = value
    return printed


def _name_device(row: PublishedRow) -> list[Said]:
    """Sets accelerator and architecture to the datasheet's names. Returns the problems: one if the
    device is unknown, else none."""
    try:
        sheet = find(row.accelerator or "")
    except UnknownDeviceError as error:
        return [as_told(error)]
    row.accelerator = sheet.device
    row.architecture = sheet.architecture or sheet.device
    return []


@cache
def _counted(model: str, arguments: str, sequence_length: int | None) -> Work:
    """Counts one training step of a model, with changed arguments (JSON), if any."""
    changes = parse_json(arguments)
    config = model_config(model)
    if changes:
        vocabulary = changes.get("vocab_size", config.vocabulary_size)
        config = config.model_copy(update={"arguments": changes, "vocabulary_size": vocabulary})
    return work(config, sequence_length)


def _add_speed(row: PublishedRow, line: Mapping[str, str | None], counted: Work | None) -> None:
    """Sets speeds per second and TFLOP/s per device, as far as the published numbers determine
    them."""
    tokens = row.sequence_length
    devices = row.accelerators
    time_s = float(line.get("time_s") or 0)
    if time_s and row.batch_size:
        row.samples_per_s = row.batch_size / time_s
    if devices and tokens:
        if row.samples_per_s:
            row.tokens_per_s_per_device = row.samples_per_s * tokens / devices
        elif row.tokens_per_s_per_device:
            row.samples_per_s = row.tokens_per_s_per_device * devices / tokens
    if counted is None:
        return
    row.parameters = round(counted.parameters)
    row.flops_per_sample = flops(counted, OURS) / counted.batch_size
    if row.tokens_per_s_per_device and tokens:
        row.tflop_s_per_device = row.flops_per_sample * row.tokens_per_s_per_device / tokens / 1e12
    elif row.samples_per_s and devices:
        row.tflop_s_per_device = row.flops_per_sample * row.samples_per_s / devices / 1e12


def _add_mfu(row: PublishedRow) -> None:
    """Sets MFU against the dense peak of each format, and the slowest format whose peak the speed
    does not exceed."""
    rate = row.tflop_s_per_device or 0.0
    device = row.accelerator or ""
    peaks = {name: peak(device, name).spec for name in TRAINED_IN}
    # devices that have both formats run them equally fast
    peaks["bf16"] = peaks["bf16"] or peak(device, "fp16").spec
    shares = {name: of_peak(TERA * rate, 1.0, peak) or 0.0 for name, peak in peaks.items() if peak}
    row.mfu_bf16_percent, row.mfu_fp8_percent, row.mfu_fp4_percent = (
        shares.get(name) for name in TRAINED_IN
    )
    # if the slowest format's peak is unknown, it may be the answer, so none is named
    if TRAINED_IN[0] in shares:
        row.slowest_format = next((name for name, share in shares.items() if share <= 100), None)
    number_format = {"fp16": "bf16", None: "bf16"}.get(row.precision, row.precision)
    if number_format in shares:
        row.mfu_percent = shares[number_format]
        row.mfu_format = number_format


def _add_convention(row: PublishedRow, counted: Work) -> None:
    """Sets MFU by the publisher's convention, its difference from the printed MFU, and the
    explanation in points."""
    convention = BY_KEY[row.convention or "ours"]
    row.convention = convention.name
    if row.mfu_percent is None or not row.tflop_s_per_device or not row.flops_per_sample:
        return
    dense = Denominator("dense", 100 * row.tflop_s_per_device / row.mfu_percent)
    per_sample = row.tflop_s_per_device * 1e12 / row.flops_per_sample
    changed = change(convention.name, convention.choices, dense, counted, per_sample, dense)
    row.convention_mfu_percent = changed.mfu_percent
    if row.printed_mfu_percent is not None:
        row.difference_points = row.printed_mfu_percent - changed.mfu_percent
    visible = {step: points for step, points in changed.steps.items() if abs(points) >= 0.05}
    row.explanation = ", ".join(f"{step} {points:+.1f}" for step, points in visible.items()) or None
