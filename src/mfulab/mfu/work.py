"""The counted work of one step of a model in the parts that conventions differ in."""

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, Literal

from mfulab.core.errors import ConfigurationError
from mfulab.core.groups import ModelConfig

Mode = Literal["training", "inference", "decoding"]

# Architectures whose blocks are all alike: the argument that holds their number. Work is then affine in it, and two
# counts of one and two blocks give that of any number, exactly and in a moment.
ALIKE = {"GPT2LMHeadModel": "n_layer"}
ALIKE |= dict.fromkeys(("LlamaForCausalLM", "MixtralForCausalLM", "OPTForCausalLM"), "num_hidden_layers")
LATENT = (
    "Latent attention: counted as transformers runs it, which expands the latents of all earlier tokens in each step; "
    "one that absorbs the projections multiplies less."
)


@dataclass(frozen=True)
class Operation:
    """Calls of one operator in alike layers of one pass, summed. FLOPs of 2 a multiply-add; elements, not bytes."""

    layer: str
    operator: str
    direction: str
    flops: float
    causal_flops: float
    executed_flops: float
    elements: float
    other_elements: float


@dataclass(frozen=True)
class Work:
    """One step of `batch_size` samples."""

    mode: Mode
    tokens: float  # of the step, its samples where the input is none of tokens; decoding makes one a sample
    batch_size: int
    parameters: float
    trainable: float  # those with a gradient
    looked_up: float  # of embedding tables that nothing multiplies by
    unmultiplied: float  # of norms and biases
    inactive: float  # of experts that a token does not pass through
    saved_elements: float | None  # kept for the backward pass; None where matmuls and attention alone are known
    cache_elements: float  # keys and values of all tokens; 0 if the model keeps none
    operations: tuple[Operation, ...]
    message: str = ""  # how it was counted where not on the meta device, and what others may do otherwise

    def flops(self, kind: Literal["products", "attention"], how: str = "flops") -> float:
        """FLOPs of matmuls and convolutions, or of attention: `flops`, `causal_flops` or `executed_flops`."""
        return sum(
            getattr(each, how)
            for each in self.operations
            if each.direction != "recomputed" and ("attention" in each.operator) == (kind == "attention")
        )

    @property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass, attention full."""
        return sum(each.flops for each in self.operations if each.direction == "forward")


def work(config: ModelConfig, sequence_length: int | None = None, batch_size: int = 1, mode: Mode = "training") -> Work:
    """Counts one step. Raises ConfigurationError with the counter's message where it cannot be built or counted."""
    argument = ALIKE.get(str(config.arguments.get("architecture")), "")
    layers = config.arguments.get(argument)
    try:
        if layers is None or layers <= 2:
            return _counted(config, sequence_length, batch_size, mode, alike=False)
        shorter = (config.model_copy(update={"arguments": config.arguments | {argument: few}}) for few in (1, 2))
        one, two = (_counted(each, sequence_length, batch_size, mode) for each in shorter)
    except Exception as error:
        raise ConfigurationError(" ".join(str(error).split())) from error
    return _extended(one, two, layers)


def _extended(one: Work, two: Work, layers: int) -> Work:
    """Work of `layers` blocks from that of one and of two: one + (layers − 1) · (two − one)."""

    def affine(first: Any, second: Any) -> Any:
        numbers = {name: value for name, value in vars(second).items() if isinstance(value, int | float)}
        firsts = {name: getattr(first, name) if first else 0 for name in numbers}
        sums = {name: firsts[name] + (layers - 1) * (value - firsts[name]) for name, value in numbers.items()}
        return replace(second, **sums)

    before = {(each.layer, each.operator, each.direction): each for each in one.operations}
    operations = (affine(before.get((each.layer, each.operator, each.direction)), each) for each in two.operations)
    return replace(affine(one, two), operations=tuple(operations))


def _counted(config: ModelConfig, sequence_length: int | None, batch_size: int, mode: Mode, alike: bool = True) -> Work:
    """Counts the whole model; `alike` sums over blocks that differ in their number alone."""
    from mfulab.flops.compare import looked_up_parameters, transformer_shape
    from mfulab.flops.experts import active_parameters
    from mfulab.models.counted import count_model

    length = (sequence_length or config.sequence_length) if config.vocabulary_size else None
    counted = count_model(config, batch_size, length, mode=mode)
    shape = transformer_shape(counted.model) if length else None
    parameters = list(counted.model.parameters())
    held = sum(each.numel() for each in parameters)
    return Work(
        mode=mode,
        tokens=batch_size * (1 if mode == "decoding" else length or 1),
        batch_size=batch_size,
        parameters=held,
        trainable=sum(each.numel() for each in parameters if each.requires_grad),
        looked_up=looked_up_parameters(counted.model),
        unmultiplied=sum(each.numel() for each in parameters if each.ndim < 2),
        inactive=held - active_parameters(counted.model),
        saved_elements=counted.count.saved.elements,
        cache_elements=shape.cache_elements(batch_size * length) if shape and length else 0,
        operations=tuple(_operations(counted.count.operations, alike)),
        message=LATENT if mode == "decoding" and shape and shape.latent_width else counted.message,
    )


def _operations(operations: Any, alike: bool) -> list[Operation]:
    sums = defaultdict[tuple[str, str, str], list[float]](lambda: [0] * 5)
    for key, total in operations.totals.items():
        where = (re.sub(r"\b\d+\b", "*", key.layer) if alike else key.layer, key.operator, key.direction)
        values = total.flops, total.causal_flops, total.executed_flops, total.elements, total.other_elements
        sums[where] = [before + value for before, value in zip(sums[where], values, strict=True)]
    return [Operation(*key, *values) for key, values in sums.items()]
