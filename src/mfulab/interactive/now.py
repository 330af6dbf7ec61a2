"""State of the thread that decides how it computes: its modes, autograd's numbers, and what is compiled."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mfulab.flops.useful import RealTokens, real_tokens
from mfulab.interactive.counting import LoopCounter, modes_of_loop
from mfulab.interactive.structure import nodes_of


def state(counter: LoopCounter | None) -> tuple[Any, ...]:
    """State that decides how the thread computes: gradients, inference, autocast, the loop's own dispatch modes."""
    modes = tuple(type(mode) for mode in modes_of_loop(counter)) if torch._C._len_torch_dispatch_stack() else ()
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._is_any_autocast_enabled(), modes


def vmapped() -> tuple[int, ...]:
    """Sizes that `torch.vmap` hides from the shapes inside it."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    of_vmap = (each for each in stack if each.key() == torch._C._functorch.TransformType.Vmap)
    return tuple(torch._C._functorch.CVmapInterpreterPtr(each).batchSize() for each in of_vmap)


def real_tokens_of(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> RealTokens | None:
    """Real tokens of a counted call; looking at the batch is no part of what is counted, nor may it fail."""
    try:
        with _disable_current_modes():
            return real_tokens(arguments, keywords)
    except Exception:
        return None


def sequence_number() -> int:
    """Number of the node that autograd makes next in this thread."""
    return torch._C._autograd._get_sequence_nr()


def number(outputs: Any) -> int:
    """Number of the newest node that a backward pass starts from; -1 for a leaf and for what has none."""
    numbers = []
    for output in outputs if isinstance(outputs, Sequence) else [outputs]:
        node = getattr(output, "grad_fn", None)
        number = node._sequence_nr() if node is not None else -1
        numbers.append(number if number < 2**63 else -1)
    return max(numbers, default=-1)


def holds_compiled(outputs: Any) -> bool:
    """Says whether compiled code made a node of the graph of a backward pass."""
    return any(node.name().startswith("CompiledFunction") for node in nodes_of(outputs))


def graphs_compiled() -> int:
    """Number of graphs that torch.compile has made in this process; asking imports nothing."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else dynamo.counters["stats"].get("unique_graphs", 0)


def is_compiled(module: torch.nn.Module) -> bool:
    """Says whether a module, or its forward, is compiled."""
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or hasattr(module, "_orig_mod") or hasattr(module.forward, "_torchdynamo_orig_callable")
