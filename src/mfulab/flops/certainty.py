"""Certainty of a count: the kinds of formulas behind its FLOPs, and a second count by layers
instead of operators."""

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from mfulab.flops.attention import ATTENTION
from mfulab.flops.counter import Operations
from mfulab.flops.elementwise import has_other_formula
from mfulab.flops.operators import formula_of
from mfulab.flops.registry.entry import Registered

Kind = Literal["matmul", "convolution", "attention", "recurrent", "registered"]


@dataclass(frozen=True)
class Certainty:
    """Evidence for and against a count."""

    shares: dict[Kind, float]  # share of forward and backward FLOPs by kind of formula
    bound_share: float  # share that is an upper bound: attention whose mask or lengths had no data
    uncounted: dict[str, int]  # calls of operators without a formula, which may hide FLOPs
    second_share: float  # share of the forward FLOPs in layers that the second count knows
    # relative deviation of the second count, over layers in both; None if there are none
    deviation: float | None
    worst_layer: str  # layer with the largest deviation; empty if the counts agree
    unused: tuple[str, ...] = ()  # modules with weights that did not run and cost nothing


def certainty(
    operations: Operations, by_layers: dict[str, int], unused: tuple[str, ...] = ()
) -> Certainty:
    """Compares a count with the second one, `LayerCount.flops`, and adds the modules that did not
    run."""
    flops: dict[Kind, int] = dict.fromkeys(get_args(Kind), 0)
    of_layers = dict.fromkeys(by_layers, 0)
    bound = 0
    for key, totals in operations.totals.items():
        if key.direction in ("forward", "backward"):
            flops[_kind(key.operator)] += totals.flops
            if totals.bounds:
                bound += totals.flops
        if key.direction == "forward" and key.layer in of_layers:
            of_layers[key.layer] += totals.flops
    shares: dict[Kind, float] = {}
    bound_share = 0.0
    total = operations.model_flops
    if total:
        shares = {kind: count / total for kind, count in flops.items()}
        bound_share = bound / total
    counted_twice = sum(of_layers.values())
    second_share = 0.0
    forward = operations.sum("forward").flops
    if forward:
        second_share = counted_twice / forward
    differences = {layer: by_layers[layer] - counted for layer, counted in of_layers.items()}
    deviation = None
    if counted_twice:
        deviation = sum(differences.values()) / counted_twice
    worst = max(differences, key=lambda layer: abs(differences[layer]), default="")
    if not differences.get(worst):
        worst = ""
    return Certainty(
        shares, bound_share, dict(operations.uncounted), second_share, deviation, worst, unused
    )


def _kind(operator: str) -> Kind:
    if operator in ATTENTION:
        return "attention"
    if "conv" in operator:
        return "convolution"
    if any(word in operator for word in ("rnn", "lstm", "gru")):
        return "recurrent"
    libraries = ("aten::", "mfulab::", "transformers::", "torch_attn::", "flash_attn::")
    if operator.startswith(libraries):
        return "matmul"
    return "registered"


def is_product(name: str) -> bool:
    """True if an operator of a trace counts towards MFU, together with everything that runs inside
    it."""
    formula = formula_of(name)
    if isinstance(formula, Registered) and formula.uncounted:
        return False
    return formula is not None or _packet(name) in flop_registry


def _packet(name: str) -> Any:
    """The `torch.ops` overload packet of this name, or None."""
    namespace, separator, operator = name.partition("::")
    if separator and namespace.isidentifier():
        return getattr(getattr(torch.ops, namespace), operator, None)
    return None


def has_formula(name: str) -> bool:
    """True if an operator of a trace, such as `aten::mm`, or its decomposition has a formula. Also
    True for names that are not torch operators."""
    packet = _packet(name)
    if packet is None or is_product(name) or has_other_formula(packet):
        return True
    for overload in packet.overloads():
        with suppress(RuntimeError):  # an overload that only TorchScript has
            if getattr(packet, overload).has_kernel_for_dispatch_key("CompositeImplicitAutograd"):
                return True
    return False


class LayerCount(ExitStack):
    """Counts a forward pass a second time, from the shapes of linear, convolution and recurrent
    layers. `flops` holds FLOPs by layer name. Calls during the backward pass are recomputation, and
    are left out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.flops: dict[str, int] = {}
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self.callback(module.register_forward_hook(partial(self._note, name)).remove)

    def _note(
        self, name: str, module: nn.Module, inputs: tuple[object, ...], output: object
    ) -> None:
        if torch._C._current_autograd_node() is not None:
            return
        if inputs and isinstance(inputs[0], torch.Tensor):
            flops = _layer_flops(module, inputs[0], output)
            if flops is not None:
                self.flops[name] = self.flops.get(name, 0) + flops


def _layer_flops(module: Any, inputs: torch.Tensor, output: Any) -> int | None:
    """Forward FLOPs of a layer from its shapes, or None for other kinds of modules."""
    if isinstance(module, nn.Linear):
        return 2 * inputs.numel() * module.out_features
    if type(module).__name__ == "Conv1D" and hasattr(module, "nx"):  # GPT-2's linear layer
        return 2 * inputs.numel() * int(module.nf)
    if isinstance(module, nn.modules.conv._ConvNd):
        channels, elements = module.in_channels, output.numel()
        if module.transposed:
            channels, elements = module.out_channels, inputs.numel()
        return 2 * elements * (channels // module.groups) * prod(module.kernel_size)
    if isinstance(module, nn.RNNBase):
        tokens = inputs.numel() // module.input_size
        matrices = [weight for weight in module.parameters() if weight.ndim == 2]
        return 2 * tokens * sum(weight.numel() for weight in matrices)
    return None
