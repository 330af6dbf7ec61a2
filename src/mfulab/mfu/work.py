"""The counted work of one step of a model in the parts that conventions differ in."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["training", "inference", "decoding"]


@dataclass(frozen=True)
class Operation:
    """Calls of one operator in alike layers of one pass, summed. FLOPs of 2 a multiply-add;
    elements, not bytes."""

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
    # of the step, its samples where the input is none of tokens; decoding makes one a sample
    tokens: float
    batch_size: int
    parameters: float
    trainable: float  # those with a gradient
    looked_up: float  # of embedding tables that nothing multiplies by
    unmultiplied: float  # of norms and biases
    inactive: float  # of experts that a token does not pass through
    saved_elements: (
        float | None
    )  # kept for the backward pass; None where matmuls and attention alone are known
    cache_elements: float  # keys and values of all tokens; 0 if the model keeps none
    operations: tuple[Operation, ...]
    # of training, as Hugging Face's Trainer logs it: 6·elements of the input·N
    total_flos: float = 0
    # how it was counted where not on the meta device, and what others may do otherwise
    message: str = ""

    def flops(self, kind: Literal["products", "attention"], how: str = "flops") -> float:
        """FLOPs of matmuls and convolutions, or of attention: `flops`, `causal_flops` or
        `executed_flops`."""
        return sum(
            getattr(operation, how)
            for operation in self.operations
            if operation.direction != "recomputed"
            and ("attention" in operation.operator) == (kind == "attention")
        )

    @property
    def forward_flops(self) -> float:
        """FLOPs of the forward pass, attention full."""
        return sum(
            operation.flops for operation in self.operations if operation.direction == "forward"
        )
