"""Linear layers in fewer bits: integer matmuls, or weights alone; their bytes, and how far their output lies off."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.ao.quantization.observer import MinMaxObserver

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ExecutionConfig, PrecisionConfig
from mfulab.models.build import Batch, first_tensor

Ranges = tuple[MinMaxObserver, MinMaxObserver]
GROUP = 32  # weights that share a scale in 4 bits
LEVELS = 127  # of a signed byte, to either side


class QuantisedLinear(nn.Module):
    """A linear layer whose matmul `multiply` computes from [rows, in]; `weight_bytes` is what its weights take."""

    def __init__(self, linear: nn.Linear, multiply: Callable[[torch.Tensor], torch.Tensor], weight_bytes: int) -> None:
        super().__init__()
        self.out_features, self._multiply, self.weight_bytes = linear.out_features, multiply, weight_bytes

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        product = self._multiply(inputs.reshape(-1, inputs.shape[-1]).contiguous())
        return product.reshape(*inputs.shape[:-1], self.out_features)


def quantise(
    model: nn.Module, batch: Batch, execution: ExecutionConfig, precision: PrecisionConfig
) -> tuple[nn.Module, dict[str, float]]:
    """The model with its linear layers quantised, in place; `weight_bytes`, and `output_error` against before.

    The error is relative: the norm of the logits' difference ÷ the norm of the logits, for one batch. Static
    quantisation takes its ranges from that batch, too.

    Raises:
        UnsupportedError: the model has no linear layer, or this device or precision has no such matmul.
    """
    kind = execution.quantisation
    if batch.inputs.is_cuda:
        model, exact = _by_torchao(model, batch, kind)
    else:
        if "weight" not in kind and precision.dtype != "float32":
            raise UnsupportedError(f"execution.quantisation={kind}: integer matmuls on a CPU start from fp32")
        exact = _replaced(model, batch, kind)
    with torch.no_grad():
        difference = first_tensor(model(batch.inputs)).float() - exact
    return model, {"weight_bytes": weight_bytes(model), "output_error": float(difference.norm() / exact.norm())}


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all weights that a pass reads: each once, without those that are looked up in tables alone."""
    sizes: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, QuantisedLinear):
            sizes[id(module)] = module.weight_bytes
        elif not isinstance(module, nn.Embedding):
            sizes |= {id(each): _stored(each) for each in module.parameters(recurse=False)}
    return sum(sizes.values())


def _stored(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, or of the tensors of which it is made."""
    if hasattr(tensor, "__tensor_flatten__"):
        return sum(_stored(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return tensor.numel() * tensor.element_size()


def _linear_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Each linear layer with its parent and its name there; a transposed one of GPT-2 as a plain one."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                yield parent, name, child
            elif type(child).__name__ == "Conv1D" and isinstance(child.weight, torch.Tensor):  # transformers: [in, out]
                inputs, outputs = child.weight.shape
                plain = nn.Linear(inputs, outputs, device="meta")
                plain.weight = nn.Parameter(child.weight.t(), requires_grad=False)
                plain.bias = child.bias  # type: ignore[assignment]
                yield parent, name, plain


def _replaced(model: nn.Module, batch: Batch, kind: str) -> torch.Tensor:
    """Replaces the layers of a model on a CPU; gives its logits from before."""
    layers = list(_linear_layers(model))
    if not layers:
        raise UnsupportedError(f"execution.quantisation={kind}: this model has no linear layer")
    ranges = [(MinMaxObserver(), MinMaxObserver()) for _ in layers]
    hooks = []
    for (parent, name, layer), seen in zip(layers, ranges, strict=True):
        setattr(parent, name, layer)
        if kind == "static_int8":
            hooks.append(layer.register_forward_hook(partial(_look, seen)))
    with torch.no_grad():
        exact = first_tensor(model(batch.inputs)).float()
        for (parent, name, layer), seen in zip(layers, ranges, strict=True):
            setattr(parent, name, _quantised(layer, kind, seen))
    for hook in hooks:
        hook.remove()
    return exact


def _look(seen: Ranges, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    """Widens the ranges of what goes into a layer and of what comes out of it."""
    seen[0](inputs[0])
    seen[1](output)


def _quantised(layer: nn.Linear, kind: str, seen: Ranges) -> QuantisedLinear:
    weight, bias = layer.weight.detach().contiguous(), layer.bias
    if kind.endswith("c_int8"):
        return QuantisedLinear(layer, _integer_product(weight, bias, kind, seen), weight.numel() + 4 * len(weight))
    multiply, size = (_four_bits if kind == "weight_int4" else _eight_bits)(weight)
    if bias is None:
        return QuantisedLinear(layer, multiply, size)
    return QuantisedLinear(layer, lambda rows: multiply(rows) + bias, size + bias.numel() * bias.element_size())


def _eight_bits(weight: torch.Tensor) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """Weights in 8 bits with a scale an output."""
    exact = weight.float()  # a quotient of 16-bit numbers may round up to 128
    exact_scales = exact.abs().amax(1).clamp(min=1e-12) / LEVELS
    whole, scales = (exact / exact_scales[:, None]).round().to(torch.int8), exact_scales.to(weight.dtype)
    size = whole.numel() + scales.numel() * scales.element_size()
    return lambda rows: torch._weight_int8pack_mm(rows, whole, scales), size


def _four_bits(weight: torch.Tensor) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """Groups of GROUP weights in 4 bits, each with a scale and a middle."""
    outputs, features = weight.shape
    if features % GROUP:
        raise UnsupportedError(
            f"execution.quantisation=weight_int4: {features} inputs of a layer are no groups of {GROUP}"
        )
    weight = nn.functional.pad(weight, (0, 0, 0, -outputs % 16))  # the matmul wants sixteens of outputs
    out = len(weight)
    groups = weight.float().reshape(out, -1, GROUP)
    low, high = groups.amin(2), groups.amax(2)
    scale = (high - low).clamp(min=1e-12) / 15
    whole = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.int32).reshape(out, features)
    packed = torch._ops.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
    scales = torch.stack([scale, low + 8 * scale], -1).transpose(0, 1).contiguous().to(weight.dtype)

    product = torch._ops.ops.aten._weight_int4pack_mm_for_cpu
    return lambda rows: product(rows, packed, GROUP, scales)[
        :, :outputs
    ], packed.numel() + scales.numel() * scales.element_size()


def _integer_product(
    weight: torch.Tensor, bias: torch.Tensor | None, kind: str, seen: Ranges
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Weights and activations in 8 bits; the activations' range found in each call (dynamic) or beforehand (static)."""
    scales = weight.abs().amax(1).clamp(min=1e-12) / LEVELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of its quantised tensors; torchao has none for CPUs
        whole = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(whole, bias)
    if kind == "dynamic_int8":
        return lambda rows: torch.ops.quantized.linear_dynamic(rows, packed, reduce_range=True)
    (scale, zero), (out_scale, out_zero) = map(_affine, seen)

    def multiply(rows: torch.Tensor) -> torch.Tensor:
        quantised = torch.quantize_per_tensor(rows, scale, zero, torch.quint8)
        return torch.ops.quantized.linear(quantised, packed, out_scale, out_zero).dequantize()

    return multiply


def _affine(seen: MinMaxObserver) -> tuple[float, int]:
    """Scale and zero point of a byte; 7 bits of inputs, as a CPU without VNNI adds pairs of products in 16 bits."""
    low, high = min(0.0, float(seen.min_val)), max(0.0, float(seen.max_val))
    scale = max(high - low, 1e-12) / LEVELS
    return scale, min(LEVELS, max(0, round(-low / scale)))


def _by_torchao(model: nn.Module, batch: Batch, kind: str) -> tuple[nn.Module, torch.Tensor]:
    """A model on a GPU, quantised by torchao, and its logits from before."""
    try:
        from torchao import quantization as ao
    except ImportError as error:
        raise UnsupportedError(
            f"execution.quantisation={kind}: on a GPU torchao does it; pip install torchao"
        ) from error
    names = {
        "dynamic_int8": "Int8DynamicActivationInt8WeightConfig",
        "weight_int8": "Int8WeightOnlyConfig",
        "weight_int4": "Int4WeightOnlyConfig",
    }
    if kind not in names:
        raise UnsupportedError(f"execution.quantisation={kind}: torchao has no such scheme for a GPU; dynamic_int8 has")
    for parent, name, layer in list(_linear_layers(model)):
        setattr(parent, name, layer)
    with torch.no_grad():
        exact = first_tensor(model(batch.inputs)).float()
    ao.quantize_(model, getattr(ao, names[kind])())
    return model, exact
