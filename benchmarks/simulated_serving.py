"""Simulates requests that arrive at random and are answered in batches, from measured step times.

A static batch takes all waiting requests; the next batch starts when the longest answer of the
current one is finished. Continuous batching refills a slot as soon as its answer is finished,
before the next decoding step (Yu et al. 2022, "Orca", OSDI).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Policy = Literal["static", "continuous"]


@dataclass(frozen=True)
class Request:
    """Arrival time in seconds, and the number of tokens in the answer. The prefill produces the
    first token."""

    arrival_s: float
    tokens: int


@dataclass(frozen=True)
class Server:
    """Measured seconds per step, by batch size. `prefill_s` is for processing prompts, `decode_s`
    for one token per sequence."""

    prefill_s: Mapping[int, float]
    decode_s: Mapping[int, float]

    @property
    def places(self) -> int:
        """Maximum number of sequences decoded together: the largest measured batch."""
        return max(self.decode_s)

    def prefill(self, prompts: int) -> float:
        """Seconds to process this many prompts, in batches of measured sizes."""
        largest = max(self.prefill_s)
        full_batches, remainder = divmod(prompts, largest)
        seconds = full_batches * self.prefill_s[largest]
        if remainder:
            seconds += between(self.prefill_s, remainder)
        return seconds

    def decode(self, sequences: int) -> float:
        """Seconds of a step that generates one token for each of this many sequences."""
        return between(self.decode_s, sequences)

    def most_requests_per_s(self, tokens: float) -> float:
        """Maximum requests per second with answers of `tokens` tokens, if all slots are always
        occupied."""
        return self.places / (self.prefill(self.places) + (tokens - 1) * self.decode(self.places))


def between(times: Mapping[int, float], batch: int) -> float:
    """Seconds at a batch size, interpolated linearly between measured sizes. Outside their range,
    the nearest one's."""
    sizes = sorted(times)
    below = max((size for size in sizes if size <= batch), default=sizes[0])
    above = min((size for size in sizes if size >= batch), default=sizes[-1])
    if below >= above:
        return times[below]
    return times[below] + (times[above] - times[below]) * (batch - below) / (above - below)


def requests(rate: float, count: int, tokens: int, seed: int = 0) -> list[Request]:
    """Requests of a Poisson process with `rate` per second. Lengths of answers are uniform over 1 …
    2·tokens - 1."""
    chance = np.random.default_rng(seed)
    arrivals = chance.exponential(1 / rate, count).cumsum()
    lengths = chance.integers(1, 2 * tokens, count)
    return [Request(float(at), int(length)) for at, length in zip(arrivals, lengths, strict=True)]


def latencies(server: Server, arrivals: Sequence[Request], policy: Policy) -> list[float]:
    """Seconds from each request's arrival to its last token, in order of completion."""
    answer = _static if policy == "static" else _continuous
    return answer(server, sorted(arrivals, key=lambda request: request.arrival_s))


def _static(server: Server, arrivals: Sequence[Request]) -> list[float]:
    now, begun, found = 0.0, 0, []
    while begun < len(arrivals):
        now = max(now, arrivals[begun].arrival_s)
        waiting = [
            request
            for request in arrivals[begun : begun + server.places]
            if request.arrival_s <= now
        ]
        begun += len(waiting)
        steps = max(request.tokens for request in waiting) - 1
        now += server.prefill(len(waiting)) + steps * server.decode(len(waiting))
        found += [now - request.arrival_s for request in waiting]
    return found


def _continuous(server: Server, arrivals: Sequence[Request]) -> list[float]:
    now, begun, found = 0.0, 0, []
    running: list[list[float]] = []  # arrival, tokens left
    while begun < len(arrivals) or running:
        if not running:
            now = max(now, arrivals[begun].arrival_s)
        free = server.places - len(running)
        joining = [
            request for request in arrivals[begun : begun + free] if request.arrival_s <= now
        ]
        begun += len(joining)
        now += server.prefill(len(joining))
        running += [[request.arrival_s, request.tokens - 1] for request in joining]
        found += [now - arrival for arrival, left in running if left == 0]
        running = [[arrival, left] for arrival, left in running if left]
        if running:
            now += server.decode(len(running))
            running = [[arrival, left - 1] for arrival, left in running]
            found += [now - arrival for arrival, left in running if left == 0]
            running = [[arrival, left] for arrival, left in running if left]
    return found
