"""Sends requests to a model at random times, answers waiting ones in batches, and times each from
arrival to answer."""

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mfulab.core.measurement import Measured
from mfulab.device import is_gpu
from mfulab.device.compute import prepare
from mfulab.measurements.serve_requests import ServeRequestsConfig, ServingRow
from mfulab.models.build import LogitsOnly, build, make_batch
from mfulab.timing.others import Others
from mfulab.timing.statistics import Stats

TRIED = 9  # batches of each size that are timed before requests arrive
WARM_UP = 3


@dataclass(frozen=True)
class Batching:
    """Rule for starting a batch: once it holds `largest` requests, or its first request has waited
    `longest_wait_s`."""

    largest: int
    longest_wait_s: float

    def start_s(self, arrivals: Sequence[float], first: int) -> float:
        """Earliest time in seconds at which an idle device may start the batch whose first request
        has the index `first`."""
        last = first + self.largest - 1
        deadline = arrivals[first] + self.longest_wait_s
        if last < len(arrivals):
            return min(arrivals[last], deadline)
        return deadline


@dataclass(frozen=True)
class Answered:
    """Times of one request, in seconds since the start: its arrival, and start and end of its
    batch. `batch` is the batch's size."""

    arrived_s: float
    started_s: float
    answered_s: float
    batch: int


def measure(config: ServeRequestsConfig, folder: Path) -> Measured:
    """Returns one row for one load and one way to form batches, and one sample per request."""
    device, _ = prepare(config.device)
    torch.manual_seed(config.seed)
    model = LogitsOnly(build(config.model)).to(device).eval()
    inputs = make_batch(
        config.model, config.largest_batch, config.sequence_length, device=device
    ).inputs

    def answer(count: int) -> None:
        model(inputs[:count])
        if is_gpu(device):
            torch.cuda.synchronize(device)

    batching = Batching(config.largest_batch, config.longest_wait_ms / 1e3)
    with torch.inference_mode():
        largest_s = batch_time_s(answer, config.largest_batch)
        alone_s = batch_time_s(answer, 1)
        arrived_s = arrivals(config.offered_load / alone_s, config.requests, config.seed)
        others = Others()
        answers = serve(answer, arrived_s, batching)
    row = ServingRow.of(
        config,
        requests=len(answers),
        alone_s=alone_s,
        largest_s=largest_s,
        other_processes_percent=None if is_gpu(device) else others.percent(),
        **serving_columns(answers),
    )
    return Measured(row, [vars(request) for request in answers])


def batch_time_s(answer: Callable[[int], None], count: int) -> float:
    """Median time of a batch of `count` requests, in seconds."""
    times = []
    for turn in range(WARM_UP + TRIED):
        began = time.perf_counter()
        answer(count)
        if turn >= WARM_UP:
            times.append(time.perf_counter() - began)
    return Stats(times).median


def arrivals(per_s: float, count: int, seed: int) -> list[float]:
    """Ascending arrival times in seconds of independent requests (a Poisson process with `per_s`
    requests per second)."""
    gaps = np.random.default_rng(seed).exponential(1 / per_s, count)
    return [float(arrived_s) for arrived_s in np.cumsum(gaps)]


def serve(
    answer: Callable[[int], None], arrived_s: Sequence[float], batching: Batching
) -> list[Answered]:
    """Answers each request after its arrival. Requests arrive at their times even if the model
    cannot keep up (open loop)."""
    answers: list[Answered] = []
    began = time.perf_counter()
    while len(answers) < len(arrived_s):
        first = len(answers)
        _sleep_until(began + batching.start_s(arrived_s, first))
        started = time.perf_counter() - began
        waiting = bisect.bisect_right(arrived_s, started) - first
        size = min(waiting, batching.largest)
        answer(size)
        ended = time.perf_counter() - began
        for moment in arrived_s[first : first + size]:
            answers.append(Answered(moment, started, ended, size))
    return answers


def _sleep_until(moment: float) -> None:
    """Sleeps until `perf_counter` reaches `moment`; returns at once if that has passed."""
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


def serving_columns(answers: Sequence[Answered]) -> dict[str, float | int]:
    """Columns of latency and throughput."""
    latencies = Stats([request.answered_s - request.arrived_s for request in answers])
    # start of each batch → its time
    batches = {request.started_s: request.answered_s - request.started_s for request in answers}
    ended_s = answers[-1].answered_s
    length_s = ended_s - answers[0].arrived_s
    return {
        "answered_per_s": len(answers) / length_s,
        "latency_p50_s": latencies.median,
        "latency_p95_s": latencies.percentile(95),
        "mean_batch": len(answers) / len(batches),
        "batches": len(batches),
        "serving_percent": 100 * sum(batches.values()) / length_s,
        "measured_s": ended_s,
    }
