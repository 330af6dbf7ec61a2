"""Linear layers in fewer bits: as integer matmuls, or with only the weights quantised; their bytes
and their output error."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.ao.quantization.observer import MinMaxObserver

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ExecutionConfig, PrecisionConfig
from mfulab.core.said import Said
from mfulab.models.build import Batch, first_tensor

Ranges = tuple[MinMaxObserver, MinMaxObserver]  # of inputs and outputs
Multiply = Callable[[torch.Tensor], torch.Tensor]
GROUP = 32  # weights that share a scale in 4 bits
LEVELS = 127  # largest value of a signed byte, used in both directions


class QuantisedLinear(nn.Module):
    """A linear layer whose matmul `multiply` computes from rows [rows, in]. `weight_bytes` is the
    size of its weights."""

    def __init__(self, linear: nn.Linear, multiply: Multiply, weight_bytes: int) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self._multiply = multiply
        self.weight_bytes = weight_bytes

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        product = self._multiply(inputs.reshape(-1, inputs.shape[-1]).contiguous())
        return product.reshape(*inputs.shape[:-1], self.out_features)


def quantise(
    model: nn.Module, batch: Batch, execution: ExecutionConfig, precision: PrecisionConfig
) -> tuple[nn.Module, dict[str, float]]:
    """Quantises linear layers in place. Returns the model, and the columns `weight_bytes` and
    `output_error`: ‖difference of logits‖ ÷ ‖logits‖ on `batch`. Ranges of static quantisation come
    from this batch, too. Raises UnsupportedError if there is no linear layer, or no such matmul
    here."""
    kind = execution.quantisation
    on_gpu = batch.inputs.is_cuda
    multiplies_integers = "weight" not in kind
    if multiplies_integers and not on_gpu and precision.dtype != "float32":
        raise UnsupportedError(Said("integers_from_fp32", kind=kind))
    layers = list(_linear_layers(model))
    by_torchao = None
    if on_gpu:
        by_torchao = _torchao(kind)
    if not layers:
        raise UnsupportedError(Said("quantised_no_linear", kind=kind))
    ranges = {layer: (MinMaxObserver(), MinMaxObserver()) for _, _, layer in layers}

    def widen_ranges(
        layer: nn.Linear, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        """Widens the ranges of a layer's inputs and outputs."""
        of_inputs, of_outputs = ranges[layer]
        of_inputs(inputs[0])
        of_outputs(output)

    for parent, name, layer in layers:
        setattr(parent, name, layer)
        if kind == "static_int8":
            layer.register_forward_hook(widen_ranges)
    with torch.no_grad():
        exact = first_tensor(model(batch.inputs)).float()
        if by_torchao is not None:
            by_torchao(model)
        else:
            for parent, name, layer in layers:
                setattr(parent, name, _quantised(layer, kind, ranges[layer]))
        difference = first_tensor(model(batch.inputs)).float() - exact
    error = float(difference.norm() / exact.norm())
    return model, {"weight_bytes": weight_bytes(model), "output_error": error}


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all weights that a forward pass reads, each counted once. Embedding tables that are
    only looked up do not count."""
    sizes: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, QuantisedLinear):
            sizes[id(module)] = module.weight_bytes
        elif not isinstance(module, nn.Embedding):
            for parameter in module.parameters(recurse=False):
                sizes[id(parameter)] = _stored(parameter)
    return sum(sizes.values())


def _stored(tensor: torch.Tensor) -> int:
    """Bytes that a tensor takes, including scales of a quantised one."""
    if hasattr(tensor, "__tensor_flatten__"):
        return sum(_stored(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return tensor.numel() * tensor.element_size()


def _linear_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yields parent, name and layer of each linear layer. transformers' Conv1D is converted to one."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                yield parent, name, child
            elif type(child).__name__ == "Conv1D" and isinstance(child.weight, torch.Tensor):
                # transformers: [in, out]
                inputs, outputs = child.weight.shape
                plain = nn.Linear(inputs, outputs, device="meta")
                plain.weight = nn.Parameter(child.weight.t(), requires_grad=False)
                plain.bias = child.bias  # type: ignore[assignment]
                yield parent, name, plain


def _quantised(layer: nn.Linear, kind: str, ranges: Ranges) -> QuantisedLinear:
    """Quantises one layer for a CPU."""
    weight = layer.weight.detach().contiguous()
    bias = layer.bias
    if kind in ("dynamic_int8", "static_int8"):
        multiply = _integer_product(weight, bias, kind, ranges)
        return QuantisedLinear(layer, multiply, weight.numel() + 4 * len(weight))
    product = _four_bits(weight) if kind == "weight_int4" else _eight_bits(weight)
    multiply, size = product
    if bias is None:
        return QuantisedLinear(layer, multiply, size)
    return QuantisedLinear(layer, lambda rows: multiply(rows) + bias, size + _stored(bias))


def _eight_bits(weight: torch.Tensor) -> tuple[Multiply, int]:
    """Returns a matmul with weights in 8 bits and a scale per output, and the bytes of these
    weights."""
    exact = weight.float()  # in 16 bits, the quotient might round up to 128
    exact_scales = exact.abs().amax(1).clamp(min=1e-12) / LEVELS
    integers = (exact / exact_scales[:, None]).round().to(torch.int8)
    scales = exact_scales.to(weight.dtype)
    multiply = partial(torch._weight_int8pack_mm, mat2=integers, scales=scales)
    return multiply, _stored(integers) + _stored(scales)


def _four_bits(weight: torch.Tensor) -> tuple[Multiply, int]:
    """Returns a matmul with weights in 4 bits, and the bytes of these weights. Raises
    UnsupportedError if inputs do not divide into groups."""
    outputs, features = weight.shape
    if features % GROUP:
        raise UnsupportedError(Said("int4_no_groups", inputs=features, group=GROUP))
    # the matmul needs a multiple of 16 outputs
    weight = nn.functional.pad(weight, (0, 0, 0, -outputs % 16))
    out = len(weight)
    groups = weight.float().reshape(out, -1, GROUP)
    low = groups.amin(2)
    high = groups.amax(2)
    scale = (high - low).clamp(min=1e-12) / 15
    above_low = groups - low[..., None]
    levels = (above_low / scale[..., None]).round().clamp(0, 15)
    integers = levels.to(torch.int32).reshape(out, features)
    packed = torch._ops.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
    middle = low + 8 * scale
    scales = torch.stack([scale, middle], -1).transpose(0, 1).contiguous().to(weight.dtype)
    product = torch._ops.ops.aten._weight_int4pack_mm_for_cpu
    size = packed.numel() + _stored(scales)
    return lambda rows: product(rows, packed, GROUP, scales)[:, :outputs], size


def _integer_product(
    weight: torch.Tensor, bias: torch.Tensor | None, kind: str, ranges: Ranges
) -> Multiply:
    """Returns a matmul with weights and activations in 8 bits. The range of activations is found in
    each call (dynamic), or beforehand (static)."""
    scales = weight.abs().amax(1).clamp(min=1e-12) / LEVELS
    with warnings.catch_warnings():
        # torch deprecates its quantised tensors, but torchao has none for CPUs
        warnings.simplefilter("ignore")
        zero_points = torch.zeros(len(weight), dtype=torch.long)
        integers = torch.quantize_per_channel(weight, scales, zero_points, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(integers, bias)
    if kind == "dynamic_int8":
        return lambda rows: torch.ops.quantized.linear_dynamic(rows, packed, reduce_range=True)
    of_inputs, of_outputs = ranges
    scale, zero = _seven_bits(of_inputs)
    out_scale, out_zero = _seven_bits(of_outputs)

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        quantised = torch.quantize_per_tensor(rows, scale, zero, torch.quint8)
        return torch.ops.quantized.linear(quantised, packed, out_scale, out_zero).dequantize()

    return multiply


def _seven_bits(observer: MinMaxObserver) -> tuple[float, int]:
    """Scale and zero point of activations in 7 bits, since a CPU without VNNI adds pairs of
    products in 16 bits."""
    low = min(0.0, float(observer.min_val))
    high = max(0.0, float(observer.max_val))
    scale = max(high - low, 1e-12) / LEVELS
    zero_point = round(-low / scale)
    return scale, min(LEVELS, max(0, zero_point))


def _torchao(kind: str) -> Callable[[nn.Module], object]:
    """Returns a function that quantises a model in place with torchao. Raises UnsupportedError
    without torchao or such a scheme."""
    try:
        from torchao import quantization as ao
    except ImportError as error:
        raise UnsupportedError(Said("torchao_missing", kind=kind)) from error
    names = {
        "dynamic_int8": "Int8DynamicActivationInt8WeightConfig",
        "weight_int8": "Int8WeightOnlyConfig",
        "weight_int4": "Int4WeightOnlyConfig",
    }
    if kind not in names:
        raise UnsupportedError(Said("torchao_no_scheme", kind=kind))
    return lambda model: ao.quantize_(model, getattr(ao, names[kind])())
