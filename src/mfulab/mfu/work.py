"""Counted work of one step of a model, in the parts that conventions treat differently."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["training", "inference", "decoding"]


@dataclass(frozen=True)
class Operation:
    """Calls of one operator in equal layers of one pass, summed. A multiply-add is 2 FLOPs; sizes
    are in elements, not bytes."""

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
    """Work of one step of `batch_size` samples."""

    mode: Mode
    # tokens of the step, or samples if the input is no tokens; decoding makes one per sample
    tokens: float
    batch_size: int
    parameters: float
    trainable: float  # parameters with a gradient
    looked_up: float  # parameters of embedding tables that nothing multiplies by
    unmultiplied: float  # parameters of norms and biases
    inactive: float  # parameters of experts that a token does not pass through
    # elements kept for the backward pass; None if only matmuls and attention are known
    saved_elements: float | None
    cache_elements: float  # keys and values of all tokens; 0 if the model keeps none
    operations: tuple[Operation, ...]
    # FLOPs of training as Hugging Face's Trainer logs them: 6·elements of the input·N
    total_flos: float = 0
    # how it was counted, if not on the meta device, and how others may count
    message: str = ""

    def flops(self, kind: Literal["products", "attention"], how: str = "flops") -> float:
        """FLOPs of matmuls and convolutions, or of attention, without recomputation. `how` is
        `flops`, `causal_flops` or `executed_flops`."""
        flops: float = 0
        for operation in self.operations:
            is_attention = "attention" in operation.operator
            if operation.direction != "recomputed" and is_attention == (kind == "attention"):
                flops += getattr(operation, how)
        return flops

    @property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass, with full attention."""
        return sum(
            operation.flops for operation in self.operations if operation.direction == "forward"
        )
