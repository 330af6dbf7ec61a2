"""FLOPs of all operators that do not count towards MFU, such as norms, activations, softmax and
sums; some cost none. An addition, a multiplication, a comparison and an elementary function
(exponential, root, tanh, erf) are one FLOP each."""

from functools import cache
from math import log2, prod
from pathlib import Path
from typing import Any

import torch

from mfulab.core.data import data

# Operator → FLOPs per element of the largest tensor; the file's comments explain them.
_TABLE = data(Path(__file__).with_name("elementwise.yaml"))
PER_ELEMENT = dict[str, int]()
for _flops, _names in _TABLE["flops"].items():
    PER_ELEMENT |= dict.fromkeys(_names.split(), _flops)

OPTIMIZERS: dict[str, int] = _TABLE["optimizers"]  # FLOPs for each trained parameter
# One kernel for lists of tensors; FLOPs for each trained parameter.
FUSED_OPTIMIZERS = {f"_fused_{name}_": flops for name, flops in OPTIMIZERS.items()}

# Communication and its copies. Sums of a reduction count as work of the network.
FREE_NAMESPACES = frozenset(
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "profiler", "_dtensor"}
)
# FLOPs per element of each pair of vectors: difference, magnitude or square, and sum; a gradient
# has one more.
_DISTANCES = {"_cdist_forward": 3, "_cdist_backward": 4}
# Each looked-up vector is added to its bag; backward adds the bag's gradient to the vector's.
_BAGS = (
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_embedding_bag_backward",
    "_embedding_bag_dense_backward",
)
_POOLINGS = (
    "max_pool2d_with_indices",
    "avg_pool2d",
    "max_pool3d_with_indices",
    "avg_pool3d",
)
_BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})


def other_flops(
    packet: Any, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int | None:
    """FLOPs of a call that does not count towards MFU, from its `torch.ops` packet and all tensors
    that it reads and writes. None if unknown."""
    name = getattr(packet, "__name__", "")
    is_scaled = kwargs.get("alpha", 1) != 1
    if name in FUSED_OPTIMIZERS or name.startswith("_foreach_"):
        return _of_a_list(name, args[0], is_scaled)
    if name.startswith("_fft_"):
        return _of_transforms(name, args[0], args[1])
    if name in _DISTANCES:
        pairs = tensors[-1] if name == "_cdist_forward" else tensors[0]
        return _DISTANCES[name] * pairs.numel() * args[1].shape[-1]
    if name in _BAGS:
        return args[1].numel() * args[0].shape[-1]
    per_element = _flops_per_element(packet)
    # With running statistics (`training` is False), inputs are only is_scaled and shifted.
    if name in _BATCH_NORMS and not args[5]:
        per_element = PER_ELEMENT["_native_batch_norm_legit_no_training"]
    if per_element is None:
        if name in _POOLINGS:
            return _of_pooling(args)
        return None
    if per_element == 0 or not any(map(_has_fractions, tensors)):
        return 0
    return (per_element + is_scaled) * max(tensor.numel() for tensor in tensors)


def _of_a_list(name: str, tensors: list[torch.Tensor], is_scaled: bool) -> int | None:
    """FLOPs of one kernel on a list of tensors: the plain operator's for each. None if unknown."""
    per_element = FUSED_OPTIMIZERS.get(name)
    if per_element is None:
        plain = getattr(torch.ops.aten, name.removeprefix("_foreach_").removesuffix("_"), None)
        if plain:
            per_element = _flops_per_element(plain)
    if per_element is None:
        return None
    return (per_element + is_scaled) * sum(tensor.numel() for tensor in tensors)


def _of_transforms(name: str, x: torch.Tensor, dimensions: list[int]) -> int:
    """FLOPs of Fourier transforms over `dimensions`: 5·n·log₂n for n values, half if real (Cooley
    and Tukey 1965)."""
    size = prod(x.shape[dimension] for dimension in dimensions)
    flops = 5 * x.numel() * log2(max(size, 1))
    return round(flops if name == "_fft_c2c" else flops / 2)


def _of_pooling(args: tuple[Any, ...]) -> int:
    """FLOPs of a pooling: each input element costs the window's size ÷ the stride."""
    x: torch.Tensor = args[0]
    kernel: list[int] = args[1]
    stride = args[2] if len(args) > 2 and args[2] else kernel
    return x.numel() * prod(kernel) // prod(stride)


def _has_fractions(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def has_other_formula(packet: object) -> bool:
    """True if `other_flops` has a formula for an operator, given as a `torch.ops` overload
    packet."""
    name = getattr(packet, "__name__", "")
    with_formulas = (*FUSED_OPTIMIZERS, *_POOLINGS, *_DISTANCES, *_BAGS)
    return (
        name in with_formulas
        or name.startswith(("_foreach_", "_fft_"))
        or _flops_per_element(packet) is not None
    )


@cache
def _flops_per_element(packet: Any) -> int | None:
    """FLOPs per element of the largest tensor, or None for an unknown operator."""
    name = getattr(packet, "__name__", "")
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    namespace = packet._qualified_op_name.partition("::")[0]
    if namespace in FREE_NAMESPACES:
        return 0
    if namespace == "prims":
        packet = getattr(torch.ops.aten, name, packet)
    for spelling in (name, name.removesuffix("_")):
        if spelling in PER_ELEMENT:
            return PER_ELEMENT[spelling]
    overload = getattr(packet, packet.overloads()[0])
    if (
        overload.is_view
        or torch.Tag.inplace_view in overload.tags
        or torch.Tag.view_copy in overload.tags
    ):
        return 0
    # Older versions of torch have no tag for reductions; those that matter are in the table.
    if torch.Tag.pointwise in overload.tags:
        return 1
    return None
