"""The field's conventions for the FLOPs under an MFU, each as a few choices; what one choice adds
is exact."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from mfulab.core.data import data
from mfulab.mfu.work import Work

Attention = Literal["full", "half", "none"]
Recomputation = Literal["none", "attention", "blocks", "everything"]


@dataclass(frozen=True)
class Choices:
    """Choices of a convention that decide an MFU. The defaults are this project's."""

    # experts of a mixture that count: those that a token passes through, or all
    experts: Literal["active", "total"] = "active"
    frozen: bool = False  # count gradients of frozen weights, which nobody computes
    unmultiplied: bool = False  # count 2 FLOPs per token and pass for norms and biases, as 6·N does
    looked_up: bool = False  # count the same for embeddings that are only looked up
    # scores and their product with the values: in full, the causal half, or left out
    attention: Attention = "full"
    # What the backward pass computes again: nothing, attention's scores (fused attention), every
    # block (by the rule of four forward passes for three), or both, as the device executes it.
    recomputation: Recomputation = "none"
    multiply_add: Literal[2, 1] = 2  # FLOPs of a multiply-add; 1 if multiply-adds are called FLOPs
    # instead of all this, 6·N for each element of the input, with N without embedding tables
    elements: bool = False


OURS = Choices()
# Order in which a waterfall changes choices.
ORDER = tuple(choice.name for choice in fields(Choices))
_HINTS = get_type_hints(Choices).items()
POSSIBLE: dict[str, tuple[object, ...]] = {
    name: get_args(kind) or (False, True) for name, kind in _HINTS
}


@dataclass(frozen=True)
class Convention:
    """One convention of the field: its users, its choices, and where it is written down."""

    name: str
    choices: Choices
    source: str


BY_KEY = {
    key: Convention(entry["name"], Choices(**entry.get("choices", {})), entry["source"])
    for key, entry in data(Path(__file__).with_name("conventions.yaml")).items()
}
CONVENTIONS = tuple(BY_KEY.values())


def flops(work: Work, choices: Choices) -> float:
    """FLOPs of a step by a convention. A parameter costs 2 per token and pass, in training 6·N
    (arXiv:2001.08361)."""
    if choices.elements:
        return work.total_flos
    passes = 3 if work.mode == "training" else 1
    token_flops = 2 * passes * work.tokens
    frozen = choices.frozen and work.mode == "training"
    products = work.flops("products") + token_flops * work.inactive * (choices.experts == "total")
    products += 2 * work.tokens * (work.parameters - work.trainable) * frozen
    products += token_flops * work.unmultiplied * choices.unmultiplied
    products += token_flops * work.looked_up * choices.looked_up
    how = "flops" if choices.attention == "full" else "causal_flops"
    attention = 0.0
    if choices.attention != "none":
        attention = work.flops("attention", how)
    total = products + attention + _recomputed(work, choices, products, attention)
    return total * choices.multiply_add / 2


def _recomputed(work: Work, choices: Choices, products: float, attention: float) -> float:
    """FLOPs that a training step executes beyond what the model needs; 0 in inference."""
    if choices.recomputation == "none" or work.mode != "training":
        return 0.0
    if choices.recomputation == "blocks":
        return (products + attention) / 3
    counted = work.flops("attention")
    scores = 0.0
    if counted:
        scores = attention / counted * (work.flops("attention", "executed_flops") - counted)
    if choices.recomputation == "attention":
        return scores
    return scores + (products + attention) / 3
