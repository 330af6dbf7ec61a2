"""FLOPs of an optimiser's step for each parameter that it trains."""

from typing import Literal

Optimizer = Literal["adam", "adamw", "sgd"]

# As torch.optim does it, one by one: Adam is lerp (3), product (1), addcmul (3), root, division and sum (3),
# addcdiv (3); AdamW first shrinks the parameter (1); SGD without momentum adds a multiple of the gradient (2).
FLOPS_PER_PARAMETER: dict[Optimizer, int] = {"sgd": 2, "adam": 13, "adamw": 14}


def optimizer_flops(optimizer: Optimizer, trainable_parameters: int) -> int:
    """FLOPs of one optimiser step. They do not count towards MFU: elementwise arithmetic at memory speed."""
    return FLOPS_PER_PARAMETER[optimizer] * trainable_parameters
