"""FLOPs layer by layer: as rows of a table, and as a tree for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

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


def render(rows: list[dict[str, object]], depth: int = 3, smallest_percent: float = 0.1) -> Tree:
    """Draws `layer_rows` as a tree of shares, `depth` levels below the model.

    Layers with less than `smallest_percent` of the FLOPs are left out.
    """
    drawn = {"": Tree(_label(rows[0], str(rows[0]["module"])))}
    for row in rows[1:]:
        name, share = str(row["layer"]), row["share_percent"]
        parent, _, own = name.rpartition(".")
        if name.count(".") < depth and parent in drawn and isinstance(share, float) and share >= smallest_percent:
            drawn[name] = drawn[parent].add(_label(row, f"{own}: {row['module']}".removesuffix(": ")))
    return drawn[""]


def _label(row: dict[str, object], title: str) -> Text:
    share, forward, backward = row["share_percent"], row["forward_flops"], row["backward_flops"]
    text = Text.assemble((title, "bold"))
    if isinstance(share, float):
        text.append(f"  {share:.1f} %", style="cyan")
    return text.append(f"  forward {quantity(forward)}FLOP  backward {quantity(backward)}FLOP", style="dim")


def quantity(value: object) -> str:
    """A number with three significant digits and its SI prefix: `1.81 G`."""
    number = float(str(value))
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g} {prefix}"
    return f"{number:.3g} "
