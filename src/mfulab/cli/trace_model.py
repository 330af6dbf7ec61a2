"""FLOPs of a named model in place of those that a trace without shapes does not tell."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.flops.count import CountError
from mfulab.mfu.models import model_config
from mfulab.models.build import ModelError
from mfulab.models.counted import count_model


def count(
    model: str, batch_size: int, sequence_length: int | None, precision: str
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Counts a step of a model, its products in `precision`, and gives what fills a trace's row with these FLOPs.

    Raises ConfigurationError if the model is unknown or cannot be counted.
    """
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
            "flops": flops,
            "causal_flops": forward.causal_flops + (backward.causal_flops if trains else 0),
            "executed_flops": executed,
            "flops_by_format": json.dumps({precision: flops}),
            "executed_by_format": json.dumps({precision: executed}),
            "executed_ratio": None,
            "issued_ratio": None,
            "products": None,
            "bytes_moved": None,
            "precision": precision,
            "effective_precision": precision,
            "uncounted_percent": None,
            "flops_source": f"counted: {model}, {batch_size} samples a step",
            "spent": json.dumps(spent),
        }

    return fill
