"""FLOPs layer by layer, as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from mfulab.flops.counter import Operations, Totals

ELEMENT_BYTES = 4


def layer_rows(model: torch.nn.Module, operations: Operations) -> list[dict[str, object]]:
    """One row a module, in the model's order, each including the modules inside it.

    Bytes are of 4-byte elements; `share_percent` is the part of the model's forward and backward FLOPs.
    """
    forward, backward = _by_layer(model, operations, "forward"), _by_layer(model, operations, "backward")
    whole = forward[""].flops + backward[""].flops
    return [
        {
            "layer": name,
            "module": type(module).__name__,
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "forward_flops": forward[name].flops,
            "backward_flops": backward[name].flops,
            "forward_causal_flops": forward[name].causal_flops,
            "other_flops": forward[name].other_flops,
            "other_backward_flops": backward[name].other_flops,
            "forward_bytes": ELEMENT_BYTES * (forward[name].elements + forward[name].other_elements),
            "backward_bytes": ELEMENT_BYTES * (backward[name].elements + backward[name].other_elements),
            "share_percent": round(100 * (forward[name].flops + backward[name].flops) / whole, 4) if whole else None,
        }
        for name, module in model.named_modules()
    ]


def _by_layer(model: torch.nn.Module, operations: Operations, direction: str) -> dict[str, Totals]:
    from mfulab.flops.counter import Totals

    sums = {name: Totals() for name, _ in model.named_modules()}
    for key, totals in operations.totals.items():
        if key.direction == direction:
            layer = key.layer
            sums[layer].add(totals)
            while layer:
                layer = layer.rpartition(".")[0]
                if layer in sums:
                    sums[layer].add(totals)
    return sums
