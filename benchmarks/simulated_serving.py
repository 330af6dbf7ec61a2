"""Simulates requests that arrive by chance and are answered in batches, from measured times of
steps.

A static batch takes what waits, and the next waits until its longest answer is finished. Continuous
batching fills a place as soon as an answer leaves it, before any decoding step (Yu et al. 2022,
"Orca", OSDI).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Policy = Literal["static", "continuous"]


@dataclass(frozen=True)
class Request:
    """Arrival in seconds, and the tokens of its answer: one or more, the first of which its prefill
    gives."""

    arrival_s: float
    tokens: int


@dataclass(frozen=True)
class Server:
    """Measured seconds of a step by batch size: `prefill_s` reads prompts, `decode_s` gives each
    sequence a token."""

    prefill_s: Mapping[int, float]
    decode_s: Mapping[int, float]

    @property
    def places(self) -> int:
        """Sequences that are decoded together: the largest measured batch."""
        return max(self.decode_s)

    def prefill(self, prompts: int) -> float:
        """Seconds to read so many prompts, in batches that were measured."""
        largest = max(self.prefill_s)
        whole, rest = divmod(prompts, largest)
        return whole * self.prefill_s[largest] + (between(self.prefill_s, rest) if rest else 0.0)

    def decode(self, sequences: int) -> float:
        """Seconds of a step that gives each of so many sequences a token."""
        return between(self.decode_s, sequences)

    def most_requests_per_s(self, tokens: float) -> float:
        """Requests a second with answers of so many tokens, if all places are always taken."""
        return self.places / (self.prefill(self.places) + (tokens - 1) * self.decode(self.places))


def between(times: Mapping[int, float], batch: int) -> float:
    """Seconds at a batch size, on the line between the two measured ones beside it; beyond them the
    nearest."""
    sizes = sorted(times)
    below = max((size for size in sizes if size <= batch), default=sizes[0])
    above = min((size for size in sizes if size >= batch), default=sizes[-1])
    if below >= above:
        return times[below]
    return times[below] + (times[above] - times[below]) * (batch - below) / (above - below)


def requests(rate: float, count: int, tokens: int, seed: int = 0) -> list[Request]:
    """Requests of a Poisson process, `rate` a second, whose answers have 1 … 2·tokens - 1 tokens,
    all as likely."""
    chance = np.random.default_rng(seed)
    arrivals = chance.exponential(1 / rate, count).cumsum()
    lengths = chance.integers(1, 2 * tokens, count)
    return [Request(float(at), int(length)) for at, length in zip(arrivals, lengths, strict=True)]


def latencies(server: Server, asked: Sequence[Request], policy: Policy) -> list[float]:
    """Seconds from each request's arrival to its last token, in the order in which they are
    finished."""
    return (_static if policy == "static" else _continuous)(
        server, sorted(asked, key=lambda one: one.arrival_s)
    )


def _static(server: Server, asked: Sequence[Request]) -> list[float]:
    now, begun, found = 0.0, 0, []
    while begun < len(asked):
        now = max(now, asked[begun].arrival_s)
        waiting = [one for one in asked[begun : begun + server.places] if one.arrival_s <= now]
        begun += len(waiting)
        steps = max(one.tokens for one in waiting) - 1
        now += server.prefill(len(waiting)) + steps * server.decode(len(waiting))
        found += [now - one.arrival_s for one in waiting]
    return found


def _continuous(server: Server, asked: Sequence[Request]) -> list[float]:
    now, begun, found = 0.0, 0, []
    running: list[list[float]] = []  # arrival, tokens left
    while begun < len(asked) or running:
        if not running:
            now = max(now, asked[begun].arrival_s)
        free = server.places - len(running)
        joining = [one for one in asked[begun : begun + free] if one.arrival_s <= now]
        begun += len(joining)
        now += server.prefill(len(joining))
        running += [[one.arrival_s, one.tokens - 1] for one in joining]
        found += [now - arrival for arrival, left in running if left == 0]
        running = [one for one in running if one[1]]
        if running:
            now += server.decode(len(running))
            running = [[arrival, left - 1] for arrival, left in running]
            found += [now - arrival for arrival, left in running if left == 0]
            running = [one for one in running if one[1]]
    return found
