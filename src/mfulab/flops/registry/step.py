"""Requests of a step, as serving engines write them into the name of its range.

Shapes of paged attention show neither lengths nor the number of requests, but these sums do. A
query is a token that the step computes; a key is one that it attends to, from the cache or of the
step. Supported are AMD's detailed annotations: vLLM's
`execute_64_context_0(sq…)_generation_64(sq…)`, SGLang's `step[EXTEND bs=2 … c_sqsk=… c_sqsq=…]` and
ATOM's `decode[bs=32 … sqsk=…]`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from mfulab.flops.cost import Pairs


@dataclass(frozen=True)
class Requests:
    """Sums over the requests of a step."""

    queries: int = 0
    keys: int = 0
    squares: int = 0  # sum of queries² of each request
    products: int = 0  # sum of queries · keys of each request

    @property
    def pairs(self) -> Pairs:
        """Query-key pairs of causal attention, whose last query sees all keys."""
        return Pairs(self.products, self.products - self.squares / 2, self.products)


@dataclass(frozen=True)
class StepWork:
    """Requests of a step: those in prefill (context), and those that decode (generation)."""

    context: Requests
    generation: Requests

    @property
    def all(self) -> Requests:
        """Sums over both kinds of requests."""
        both = zip(vars(self.context).values(), vars(self.generation).values(), strict=True)
        return Requests(*map(sum, both))


NO_STEP = StepWork(Requests(), Requests())
_SUMS = r"\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
_VLLM = re.compile(rf"execute_\d+_context_\d+{_SUMS}_generation_\d+{_SUMS}")
_STEP = re.compile(r"(?:step|prefill|decode)\[.*\]")
_FIELD = re.compile(r"\b(\w+)=(\d+)")


@functools.cache
def step_work(name: str) -> StepWork | None:
    """Reads a step's requests from the name of its range. None if the name lacks their lengths."""
    vllm = _VLLM.fullmatch(name)
    if vllm:
        numbers = list(map(int, vllm.groups()))
        return StepWork(Requests(*numbers[:4]), Requests(*numbers[4:]))
    if not _STEP.fullmatch(name):
        return None
    fields = {key: int(number) for key, number in _FIELD.findall(name)}
    if "sqsk" in fields:
        atom = Requests(fields.get("tok", 0), fields.get("sk", 0), fields["sqsq"], fields["sqsk"])
        if name.startswith("prefill"):
            return StepWork(atom, Requests())
        return StepWork(Requests(), atom)
    if "c_sqsk" not in fields and "g_sqsk" not in fields:
        return None
    context = _sglang(fields, "c", fields.get("toks", 0))
    return StepWork(context, _sglang(fields, "g", fields.get("bs", 0)))


def _sglang(fields: dict[str, int], part: str, tokens: int) -> Requests:
    if f"{part}_sqsk" not in fields:
        return Requests()
    queries = fields.get(f"{part}_sq", tokens)
    return Requests(queries, *(fields.get(f"{part}_{name}", 0) for name in ("sk", "sqsq", "sqsk")))
