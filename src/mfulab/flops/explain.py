"""Explains another tool's number: the kinds of layers that it must have left out, or counted twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations

import torch

from mfulab.core.language.quantities import quantity
from mfulab.flops.counter import Operations


@dataclass(frozen=True)
class Explanation:
    """Explanation of a difference."""

    left_out: Mapping[str, int]  # kinds of layers, each with its FLOPs, whose absence explains the number
    other_flops: float  # what remains beside them: elementwise operators that the tool counts too
    holds: bool  # whether the rest is small enough to be elementwise operators
    twice: Mapping[str, int] = field(default_factory=dict)  # in a layer and again in its function, or on another rank

    def __str__(self) -> str:
        if not self.holds:
            return "explained by no set of layers left out or counted twice"
        parts = [
            f"{what} " + " and ".join(f"{name} ({quantity(flops, 'FLOP', 4)})" for name, flops in kinds.items())
            for what, kinds in (("leaves out", self.left_out), ("counts twice", self.twice))
            if kinds
        ]
        if self.other_flops:
            parts.append(f"counts {quantity(self.other_flops, 'FLOP')} of biases and elementwise operators")
        return "; ".join(parts) or "counts the same"


MOST_DOUBTED = 2
"""Kinds that an explanation may name where one of them is counted twice: with more, any number has some explanation."""


def kinds_of_layers(model: torch.nn.Module, operations: Operations) -> dict[str, int]:
    """Forward FLOPs by kind of layer: its class, and attention apart from the projections around it."""
    classes = {name: type(module).__name__ for name, module in model.named_modules()}
    kinds: dict[str, int] = {}
    for key, total in operations.totals.items():
        if key.direction == "forward" and total.flops:
            kind = "attention" if "attention" in key.operator else classes[key.layer]
            kinds[kind] = kinds.get(kind, 0) + total.flops
    return kinds


def explain(counted: float, kinds: Mapping[str, int], other_flops: int) -> Explanation:
    """Finds the fewest kinds of layers, left out or counted twice, that leave only what elementwise operators explain.

    `counted` are the tool's FLOPs, `kinds` ours by kind of layer. Up to eight times `other_flops` are taken for
    elementwise operators: conventions differ by a few FLOPs an element, and MACs have all of it doubled.
    """
    whole = sum(kinds.values())
    for size in range(len(kinds) + 1):
        for names in combinations(kinds, size):
            # None first: what is left out needs no second thought.
            sizes = range(size + 1 if size <= MOST_DOUBTED else 1)
            for doubled in chain.from_iterable(combinations(names, some) for some in sizes):
                twice = {name: kinds[name] for name in doubled}
                missing = {name: kinds[name] for name in names if name not in twice}
                rest = counted - (whole - sum(missing.values()) + sum(twice.values()))
                if -1e-6 * whole <= rest <= 8 * other_flops:
                    return Explanation(missing, max(rest, 0.0), True, twice)
    return Explanation({}, counted - whole, False)
