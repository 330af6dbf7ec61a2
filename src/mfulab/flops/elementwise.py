"""FLOPs of everything that does not count towards MFU: norms, activations, softmax, sums; and what costs none.

An addition, a multiplication, a comparison and an elementary function (exponential, root, tanh, erf) are one FLOP each.
"""

from functools import cache
from math import log2, prod
from typing import Any

import torch

from mfulab.flops.optimizers import FLOPS_PER_PARAMETER

# FLOPs for each element of the largest tensor that the operator reads or writes.
_BY_FLOPS: dict[int, str] = {
    # One for reductions, and for others that torch does not tag as pointwise; of bitsandbytes each weight by its scale.
    1: """
    sum mean amax amin max min prod cumsum cumprod argmax argmin any all norm linalg_vector_norm rsub floor_divide
    remainder glu glu_backward hardtanh_backward leaky_relu_backward elu_backward huber_loss_backward mse_loss_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward avg_pool2d_backward max_pool2d_with_indices_backward
    embedding_dense_backward index_add index_put _index_put_impl index_reduce scatter_add
    upsample_nearest2d_backward dequantize_4bit dequantize_blockwise
    """,
    # Dropout: a product with the mask and with the scale. Norms by statistics that were measured before: scale, shift.
    2: """
    native_dropout native_dropout_backward logsumexp _native_batch_norm_legit_no_training _batch_norm_no_update
    """,
    # Sigmoid: exponential, sum, reciprocal. Softmax: exponential, sum, division; its maximum is not counted.
    3: """
    sigmoid softplus tanh_backward sigmoid_backward hardswish_backward _softmax _safe_softmax _log_softmax lerp addcmul
    addcdiv var var_mean
    """,
    # Polar: sine and cosine, each times the size. A root-mean-square norm: square, sum, two products.
    4: """
    silu hardswish softplus_backward polar _softmax_backward_data _log_softmax_backward_data _fused_rms_norm std
    """,
    5: "gelu _thnn_fused_lstm_cell _thnn_fused_gru_cell",  # gelu: x/2·(1 + erf(x/√2))
    7: "upsample_bilinear2d upsample_bilinear2d_backward silu_backward",  # four weighted neighbours
    # Norms: mean (1), variance (3), normalise (2), scale and shift (2).
    8: """
    native_layer_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update cudnn_batch_norm
    native_group_norm _fused_rms_norm_backward
    """,
    10: "gelu_backward _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward",
    # Their backward: normalise (2), two weighted sums (4), the gradient (5).
    11: """
    native_layer_norm_backward native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward
    native_group_norm_backward
    """,
}
PER_ELEMENT = {name: flops for flops, names in _BY_FLOPS.items() for name in names.split()}

# FLOPs for each trained parameter, all lists in one kernel: as `mfulab.flops.optimizers`.
FUSED_OPTIMIZERS = {f"_fused_{name}_": flops for name, flops in FLOPS_PER_PARAMETER.items()} | {"_fused_adagrad_": 6}

# Communication and what copies for it. The sums of a reduction are the network's.
FREE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "profiler", "_dtensor"})

# Moving, making, choosing and looking up: no arithmetic on floats.
FREE = frozenset(
    """
    _unsafe_index device complex
    embedding clone copy copy_ _to_copy detach detach_ cat stack where masked_fill masked_fill_ fill fill_ zero_ zeros
    zeros_like ones ones_like full full_like empty empty_like empty_strided empty_permuted new_empty new_zeros new_ones
    new_full new_empty_strided scalar_tensor arange linspace eye tril triu tril_indices triu_indices rand rand_like
    randn randn_like randint randint_like randperm bernoulli bernoulli_ normal_ uniform_ index index_select gather
    scatter scatter_ slice_scatter select_scatter select_backward slice_backward as_strided as_strided_ _unsafe_view
    _reshape_alias view expand contiguous constant_pad_nd pad repeat flip roll sort topk histc bincount nonzero unique2
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward one_hot _local_scalar_dense lift_fresh
    lift_fresh_copy set_ resize_ result_type is_same_size _has_compatible_shallow_copy_type split split_with_sizes
    unsafe_split unsafe_split_with_sizes searchsorted bucketize reflection_pad2d replication_pad2d channel_shuffle
    pixel_shuffle im2col col2im unfold_backward diagonal_backward masked_select isin equal
    reflection_pad1d reflection_pad1d_backward diag_embed sparse_dim _to_dense sparse_mask _linalg_check_errors
    diff _has_same_storage_numel _efficientzerotensor _to_sparse _unsafe_index
    _is_all_true _is_any_true masked_scatter masked_scatter_backward upsample_nearest2d upsample_nearest1d
    _nested_tensor_from_tensor_list _nested_tensor_size _nested_tensor_storage_offsets _nested_tensor_strides
    _nested_view_from_buffer to_padded_tensor _nested_from_padded
    """.split()  # noqa: SIM905
)


def other_flops(packet: Any, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """FLOPs of one call of an operator that does not count towards MFU; None if there is no formula.

    Args:
        packet: the operator, a `torch.ops` overload packet.
        tensors: all that it reads and writes.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    name = getattr(packet, "__name__", "")
    if name in FUSED_OPTIMIZERS or name.startswith("_foreach_"):
        # On a list of tensors what the plain operator costs on each.
        plain = getattr(torch.ops.aten, name.removeprefix("_foreach_").removesuffix("_"), None)
        of_each = FUSED_OPTIMIZERS.get(name, _flops_per_element(plain) if plain else None)
        return None if of_each is None else of_each * sum(tensor.numel() for tensor in args[0])
    if name.startswith("_fft_"):  # 5·n·log₂n for each transform of n values, half if real (Cooley and Tukey 1965)
        size = prod(args[0].shape[dimension] for dimension in args[1])
        return round(5 * args[0].numel() * log2(max(size, 1)) / (1 if name == "_fft_c2c" else 2))
    if name in _DISTANCES:
        return _DISTANCES[name] * tensors[-1 if name == "_cdist_forward" else 0].numel() * args[1].shape[-1]
    if name in _BAGS:
        return args[1].numel() * args[0].shape[-1]
    per_element = _flops_per_element(packet)
    if per_element is None and name in _POOLINGS:  # windows cost their size for each input element that they step over
        x, kernel, stride = args[0], args[1], (args[2] if len(args) > 2 and args[2] else args[1])
        return x.numel() * prod(kernel) // prod(stride)
    if per_element is None:
        return None
    if not per_element or not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        return 0
    scaled = kwargs.get("alpha", 1) != 1
    return (per_element + scaled) * max(tensor.numel() for tensor in tensors)


def has_other_formula(packet: Any) -> bool:
    """Says whether `other_flops` knows an operator, a `torch.ops` overload packet."""
    name = getattr(packet, "__name__", "")
    known = (*FUSED_OPTIMIZERS, *_POOLINGS, *_DISTANCES, *_BAGS)
    return name in known or name.startswith(("_foreach_", "_fft_")) or _flops_per_element(packet) is not None


# Of each pair of vectors and each of their elements: difference, its size or square, sum; a gradient one more.
_DISTANCES = {"_cdist_forward": 3, "_cdist_backward": 4}

# Each looked-up vector is added to its bag, and its bag's gradient to the vector's.
_BAGS = ("_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_backward", "_embedding_bag_dense_backward")

_POOLINGS = ("max_pool2d_with_indices", "avg_pool2d")


@cache
def _flops_per_element(packet: Any) -> int | None:
    name = getattr(packet, "__name__", "")
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    namespace = packet._qualified_op_name.partition("::")[0]
    if name in FREE or namespace in FREE_NAMESPACES:
        return 0
    if namespace == "prims":
        packet = getattr(torch.ops.aten, name, packet)
    for known in (name, name.removesuffix("_")):
        if known in PER_ELEMENT:
            return PER_ELEMENT[known]
    overload = getattr(packet, packet.overloads()[0])
    if overload.is_view or torch.Tag.inplace_view in overload.tags or torch.Tag.view_copy in overload.tags:
        return 0
    # Of the new tag for reductions older versions know nothing: those that matter are in the table.
    return 1 if torch.Tag.pointwise in overload.tags else None
