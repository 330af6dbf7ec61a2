"""Counts FLOPs, bytes and activations of one step of a model. Needs no device."""

import contextlib
import json
from pathlib import Path
from typing import Any

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import write_csv
from mfulab.core.measurement import Measured
from mfulab.core.said import Said, cell_of, with_sentence
from mfulab.flops.compare import compare_formulas, looked_up_parameters, transformer_shape
from mfulab.flops.count import CountError
from mfulab.flops.counter import Operations, layer_rows
from mfulab.flops.elementwise import OPTIMIZERS
from mfulab.measurements.count_flops import CountFlopsConfig, FlopsRow
from mfulab.models.counted import Mode, ModelCount, count_model

MOST_LAYERS = 60  # most layers that a row lists
BYTES = 4
"""Bytes per element in every `bytes` column. For another format, scale by its element size ÷ 4."""

Intensities = list[tuple[int, int]]
# an operator's columns in samples.csv
COUNTS = ("calls", "flops", "causal_flops", "executed_flops", "other_flops")


def measure(config: CountFlopsConfig, folder: Path) -> Measured:
    """Counts the model and returns a row, with one sample per operator and pass. Writes layers.csv,
    and for a transformer over tokens formulas.csv, which compares formulas of the field. Raises
    ModelError, or CountError if a pass fails."""
    counted = count_model(config.model, config.batch_size, config.sequence_length)
    row = _row(config, counted)
    intensities = {
        name: _intensities(counted.count.operations, name) for name in ("forward", "backward")
    }
    _add_pass(row, config, "inference", intensities)
    with contextlib.suppress(UnsupportedError):  # the model has no blocks to recompute
        checkpointed = count_model(
            config.model, config.batch_size, config.sequence_length, checkpointing=True
        ).count
        row.recomputed_flops = checkpointed.operations.sum("recomputed").executed_flops
        row.checkpointed_activation_bytes = BYTES * checkpointed.saved.elements
        row.checkpointed_peak_bytes = BYTES * checkpointed.peak.elements
    write_csv(folder / "layers.csv", layer_rows(counted.model, counted.count.operations))
    shape = transformer_shape(counted.model)
    if shape and config.sequence_length:
        size = config.batch_size
        length = config.sequence_length
        if shape.causal:
            row.key_value_cache_bytes = BYTES * shape.cache_elements(size * length)
            with contextlib.suppress(UnsupportedError):  # the model keeps no cache
                _add_generation(row, config, intensities)
        rows = compare_formulas(counted.model, counted.count, size, length)
        write_csv(folder / "formulas.csv", rows)
    row.intensities = json.dumps(intensities)
    row.layers = json.dumps(_layers(counted.count.operations))
    nodes = []
    for node, forward, backward in counted.count.graph:
        nodes.append((node.name, node.shape, node.saved, node.parameters, forward, backward))
    row.graph = json.dumps(nodes) if nodes else None
    return Measured(row, _operator_rows(counted.count.operations))


def _layers(operations: Operations) -> list[tuple[str, int]]:
    """Forward FLOPs of each layer that calls operators. Only the MOST_LAYERS largest, in the
    model's order."""
    flops: dict[str, int] = {}
    for key, totals in operations.totals.items():
        if key.direction == "forward" and totals.flops:
            flops[key.layer] = flops.get(key.layer, 0) + totals.flops
    largest = sorted(flops, key=lambda layer: -flops[layer])[:MOST_LAYERS]
    return [(layer, value) for layer, value in flops.items() if layer in largest]


def _row(config: CountFlopsConfig, counted: ModelCount) -> FlopsRow:
    parameters = list(counted.model.parameters())
    total = counted.count
    trainable = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    operations = total.operations
    is_partial = total.saved_in_part
    forward = operations.sum("forward")
    backward = operations.sum("backward")
    recomputed = operations.sum("recomputed")
    uncounted = None
    if operations.uncounted:
        uncounted = json.dumps(dict(operations.uncounted))
    return FlopsRow.of(
        config,
        message=cell_of(counted.message),
        counted_on=counted.means,
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable_parameters=trainable,
        looked_up_parameters=looked_up_parameters(counted.model),
        forward_flops=forward.flops,
        backward_flops=backward.flops,
        forward_macs=forward.flops // 2,
        attention_flops=forward.attention_flops,
        forward_causal_flops=forward.causal_flops,
        backward_causal_flops=backward.causal_flops,
        # What the model recomputes by itself is executed even without checkpointing.
        executed_backward_flops=backward.executed_flops + recomputed.executed_flops,
        useful_percent=total.useful_percent,
        optimizer_flops=OPTIMIZERS["adam"] * trainable,
        other_flops=forward.other_flops,
        other_backward_flops=backward.other_flops,
        uncounted_operators=uncounted,
        unused_modules=", ".join(total.unused) or None,
        forward_bytes=BYTES * forward.elements,
        backward_bytes=BYTES * backward.elements,
        activation_bytes=None if is_partial else BYTES * total.saved.elements,
        activation_fixed_bytes=None if is_partial else total.saved.fixed_bytes,
        cpu_lstm_bytes=BYTES * total.more_on_cpu.elements,
        cpu_lstm_fixed_bytes=total.more_on_cpu.fixed_bytes,
        step_peak_bytes=BYTES * total.peak.elements,
        step_peak_fixed_bytes=total.peak.fixed_bytes,
    )


def _add_pass(
    row: FlopsRow, config: CountFlopsConfig, mode: Mode, intensities: dict[str, Intensities]
) -> None:
    """Counts the model again in evaluation mode, without dropout and without saved tensors, and
    fills the columns of `mode`."""
    counted = count_model(config.model, config.batch_size, config.sequence_length, mode=mode)
    total = counted.count.operations.sum("forward")
    peak = counted.count.peak
    columns = {
        "flops": total.flops,
        "causal_flops": total.causal_flops,
        "bytes": BYTES * total.elements,
        "peak_bytes": BYTES * peak.elements,
        "peak_fixed_bytes": peak.fixed_bytes,
    }
    for name, value in columns.items():
        column = f"{mode}_{name}"
        if column in FlopsRow.model_fields:
            setattr(row, column, value)
    intensities[mode] = _intensities(counted.count.operations, "forward")


def _add_generation(
    row: FlopsRow, config: CountFlopsConfig, intensities: dict[str, Intensities]
) -> None:
    """Adds columns of prefill and decoding. A pass that cannot be counted leaves its columns empty,
    with a message."""
    mode: Mode
    for mode in ("prefill", "decoding"):
        try:
            _add_pass(row, config, mode, intensities)
        except CountError as error:
            uncounted = Said("mode_not_counted", mode=mode, error=error.said)
            row.message = with_sentence(row.message, uncounted)


def _intensities(operations: Operations, direction: str) -> Intensities:
    """Executed FLOPs and bytes of one pass. Operators whose ratio of the two agrees to 4 digits are
    summed."""
    sums: dict[str, list[int]] = {}
    for key, total in operations.totals.items():
        if key.direction != direction:
            continue
        for flops, elements in ((total.executed_flops, total.elements), (0, total.other_elements)):
            if elements:
                of_ratio = sums.setdefault(f"{flops / elements:.3e}", [0, 0])
                of_ratio[0] += flops
                of_ratio[1] += BYTES * elements
    return [(flops, size) for flops, size in sums.values()]


def _operator_rows(operations: Operations) -> list[dict[str, Any]]:
    """One row per operator and pass, those with most FLOPs first."""
    rows = []
    for operator, direction in sorted({(key.operator, key.direction) for key in operations.totals}):
        total = operations.sum(direction, operator=operator)
        counts = {name: getattr(total, name) for name in COUNTS}
        size = BYTES * (total.elements + total.other_elements)
        columns = {"bytes": size, "counted": operator not in operations.uncounted}
        rows.append({"operator": operator, "pass": direction, **counts, **columns})
    return sorted(rows, key=lambda row: (-row["flops"], -row["other_flops"]))
