"""Cost of one call of an operator."""

from dataclasses import dataclass

FLOPS = ("flops", "causal_flops", "executed_flops", "attention_flops", "rectangle_flops", "padding_flops")


@dataclass(frozen=True)
class Cost:
    """FLOPs of one call.

    Attributes:
        flops: what the mathematics of the model needs, attention counted full. MFU.
        causal_flops: the same with attention counted by the pairs that it attends to.
        executed_flops: what the kernel does, flash attention's recomputation included. HFU.
        attention_flops: the part of `flops` that grows with pairs of tokens.
        rectangle_flops: that part if every query met every key, padding and other documents' included.
        padding_flops: of `attention_flops`, those that serve padding, as far as a mask shows it.
        side: of the square that a plain product makes or takes; it holds pairs of tokens if it is as wide as a row.
        bound: whether the true numbers may be smaller, since a mask or lengths had no data to look into.
    """

    flops: int
    causal_flops: int
    executed_flops: int
    attention_flops: int = 0
    rectangle_flops: int = 0
    padding_flops: int = 0
    bound: bool = False
    side: int = 0

    @classmethod
    def of(cls, flops: "int | Cost") -> "Cost":
        """The cost of FLOPs that are needed and executed alike; a cost itself."""
        return flops if isinstance(flops, Cost) else cls(int(flops), int(flops), int(flops))
