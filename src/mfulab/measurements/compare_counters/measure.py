"""Has one other tool count a model's forward pass, and says how far it is from ours and why."""

import json
from pathlib import Path

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.flops.explain import explain, kinds_of_layers
from mfulab.flops.other_counters import count_by, counter_version
from mfulab.measurements.compare_counters import CompareCountersConfig, CounterRow
from mfulab.models.build import LogitsOnly, build, make_batch
from mfulab.models.counted import count_model


def measure(config: CompareCountersConfig, folder: Path) -> Measured:
    """Counts the model by `config.counter` on the CPU in evaluation mode; samples: our FLOPs by kind of layer.
    Raises UnsupportedError where the tool is missing or cannot."""
    installed = counter_version(config.counter)
    if installed is None:
        raise UnsupportedError(f"counter={config.counter} is not installed: pip install {config.counter}")
    ours = count_model(config.model, config.batch_size, config.sequence_length, mode="inference")
    operations = ours.count.operations
    kinds = kinds_of_layers(ours.model, operations)
    forward = operations.sum("forward")
    # The tools hook, trace and patch: they get a model of their own, with data.
    model = LogitsOnly(build(config.model)).eval()
    inputs = make_batch(config.model, config.batch_size, config.sequence_length).inputs
    try:
        theirs = count_by(config.counter, model, inputs)
    except Exception as error:
        raise UnsupportedError(f"{config.counter} {installed} cannot count {config.model.name}: {error}") from error
    row = CounterRow.of(
        config,
        version=installed,
        printed=theirs.printed,
        printed_unit=theirs.unit,
        flops=theirs.flops,
        reference_flops=forward.flops,
        deviation_percent=100 * (theirs.flops / forward.flops - 1) if forward.flops else None,
        explanation=str(explain(theirs.flops, kinds, forward.other_flops)),
        uncounted_operators=json.dumps(theirs.uncounted) if theirs.uncounted else None,
    )
    return Measured(row, [{"kind": kind, "flops": flops} for kind, flops in kinds.items()])
