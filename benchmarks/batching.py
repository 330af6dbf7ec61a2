"""Real batching under load, compared with the simulation of `benchmarks/simulated_serving.py` from
step times.

    python benchmarks/batching.py [--layers 12] [--places 8] [--prompt 64] [--tokens 16] [--requests 60]

GPT-2 with random weights answers requests that arrive at random, whether or not it keeps up (open
loop), in static and in continuous batches. The simulation gets the same requests and the step times
of that very run, so that other load on the machine affects both alike. Goodput is the number of
requests per second that were answered within `--target` times the latency of a single request.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from simulated_serving import Policy, Request, Server, latencies, requests
from transformers.cache_utils import Cache, CacheLayerMixin

from mfulab.timing.statistics import Stats

LOADS = (0.3, 0.6, 0.9)


class Places(CacheLayerMixin):
    """Keys and values of one layer for several slots, each with its own sequence length."""

    def __init__(self, rows: torch.Tensor, positions: torch.Tensor, most: int) -> None:
        super().__init__()
        self.rows, self.positions, self.most = rows, positions, most

    def lazy_initialization(self, keys: torch.Tensor, values: torch.Tensor | None = None) -> None:
        shape = (self.most, keys.shape[1], 1024, keys.shape[3])
        self.keys, self.values, self.is_initialized = (
            keys.new_zeros(shape),
            keys.new_zeros(shape),
            True,
        )

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys)
        slot, length = self.rows[:, None], int(self.positions.max()) + 1
        self.keys[slot, :, self.positions] = keys.transpose(1, 2)
        self.values[slot, :, self.positions] = values.transpose(1, 2)
        return self.keys[self.rows, :, :length], self.values[self.rows, :, :length]

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return 1024

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return int(self.positions.max()) + 1, 0


class Engine:
    """Model with `most` slots, each of which holds a sequence of its own length."""

    def __init__(self, model: Any, most: int, prompt: int) -> None:
        self.model, self.prompt, self.lengths = model, prompt, torch.zeros(most, dtype=torch.long)
        empty = torch.zeros(0, dtype=torch.long)
        self.layers = [Places(empty, empty, most) for _ in range(model.config.n_layer)]
        self.cache = Cache(layers=self.layers)

    def _forward(
        self, rows: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        for layer in self.layers:
            layer.rows, layer.positions = rows, positions
        seen = torch.arange(int(positions.max()) + 1)[None, None, :] <= positions[:, :, None]
        hidden = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[:, None]
        inputs = {
            "attention_mask": hidden,
            "position_ids": positions,
            "past_key_values": self.cache,
        }
        with torch.inference_mode():
            return self.model(token_ids, **inputs, logits_to_keep=1).logits

    def check(self) -> None:
        """Raises AssertionError unless slots of different lengths return what the model returns for
        each sequence alone."""
        token_ids = torch.randint(9, 999, (2, 12))
        for row, length in ((0, 11), (1, 5)):
            self._forward(
                torch.tensor([row]), token_ids[row : row + 1, :length], torch.arange(length)[None]
            )
        found = self._forward(
            torch.tensor([0, 1]), token_ids[[0, 1], [11, 5]][:, None], torch.tensor([[11], [5]])
        )
        with torch.inference_mode():
            alone = [
                self.model(token_ids[row : row + 1, :length]).logits[:, -1]
                for row, length in ((0, 12), (1, 6))
            ]
        torch.testing.assert_close(found[:, 0], torch.cat(alone), rtol=1e-4, atol=1e-4)

    def prefill(self, rows: Sequence[int]) -> None:
        """Processes a prompt in each of these slots."""
        places = torch.tensor(rows)
        self._forward(
            places,
            torch.randint(9, 999, (len(rows), self.prompt)),
            torch.arange(self.prompt).expand(len(rows), -1),
        )
        self.lengths[places] = self.prompt

    def decode(self, rows: Sequence[int]) -> None:
        """Generates one more token in each of these slots."""
        places = torch.tensor(rows)
        self._forward(places, torch.randint(9, 999, (len(rows), 1)), self.lengths[places][:, None])
        self.lengths[places] += 1


def seconds(work: Callable[[], None], times: int = 3) -> float:
    """Median seconds of a call, after one call that is not counted."""
    work()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return Stats(found).median


def measured(engine: Engine, most: int, tokens: int) -> Server:
    """Step times by batch size, for sequences half way through their answers."""
    prefill, decode = {}, {}
    powers = {2**power for power in range(10) if 2**power < most}
    for size in sorted(powers | {most}):
        rows = range(size)
        prefill[size] = seconds(partial(engine.prefill, rows))

        def step(rows: Sequence[int] = rows) -> None:
            engine.lengths[:] = engine.prompt + tokens // 2
            engine.decode(rows)

        decode[size] = seconds(step)
    return Server(prefill, decode)


def served(
    engine: Engine, arrivals: Sequence[Request], policy: Policy, most: int
) -> tuple[list[float], Server]:
    """Latencies of requests that the model answers as they arrive, and the mean times of its steps
    meanwhile."""
    times: dict[str, dict[int, list[float]]] = {"prefill": {}, "decode": {}}

    def timed(kind: str, rows: Sequence[int]) -> None:
        before = time.perf_counter()
        getattr(engine, kind)(rows)
        times[kind].setdefault(len(rows), []).append(time.perf_counter() - before)

    began, waiting, found = time.perf_counter(), list(arrivals), []
    running: dict[int, list[Any]] = {}  # by slot: request, tokens left
    while waiting or running:
        now = time.perf_counter() - began
        if not running and waiting[0].arrival_s > now:
            time.sleep(waiting[0].arrival_s - now)
            continue
        free = [row for row in range(most) if row not in running]
        if running and policy == "static":
            free = []
        joining = {}
        while free and waiting and waiting[0].arrival_s <= now:
            joining[free.pop(0)] = [waiting[0], waiting.pop(0).tokens]
        if joining:
            timed("prefill", list(joining))
            running |= joining
        elif running:
            timed("decode", list(running))
        for slot in list(joining or running):
            running[slot][1] -= 1
        done = [slot for slot, (_, left) in running.items() if left <= 0]
        if policy == "static" and len(done) < len(running):
            continue  # a batch ends with its longest answer
        now = time.perf_counter() - began
        found += [now - running.pop(slot)[0].arrival_s for slot in done]
    means = (
        {size: sum(samples) / len(samples) for size, samples in sizes.items()}
        for sizes in times.values()
    )
    return found, Server(*means)


def main() -> None:
    """Prints latency and goodput by load, measured and simulated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("layers", 12),
        ("places", 8),
        ("prompt", 64),
        ("tokens", 16),
        ("requests", 60),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--target", type=float, default=2.0)
    options = parser.parse_args()
    config = transformers.GPT2Config(n_layer=options.layers, attn_implementation="eager")
    engine = Engine(transformers.GPT2LMHeadModel(config).eval(), options.places, options.prompt)
    engine.check()
    server = measured(engine, options.places, options.tokens)
    alone = server.prefill(1) + (options.tokens - 1) * server.decode(1)
    most = server.most_requests_per_s(options.tokens)
    print(
        f"prefill s: {server.prefill_s}\ndecode s: {server.decode_s}\nmost: {most:.2f} requests/s, alone {alone:.2f} s"
    )
    print("load  policy      measured: median  p95  goodput/s   simulated: median  p95  goodput/s")
    policies: tuple[Policy, ...] = ("static", "continuous")
    for load in LOADS:
        arrivals = requests(load * most, options.requests, options.tokens)
        for policy in policies:
            cells = []
            real, server_meanwhile = served(engine, arrivals, policy, options.places)
            decode_s = server_meanwhile.decode_s
            decode_s = {options.places: max(decode_s.values()), **decode_s}
            simulated = latencies(replace(server_meanwhile, decode_s=decode_s), arrivals, policy)
            for latencies_s in (real, simulated):
                in_time = [latency <= options.target * alone for latency in latencies_s]
                good = sum(in_time) / len(in_time) * load * most
                stats = Stats(latencies_s)
                cells.append(f"{stats.median:8.2f} {stats.percentile(95):7.2f} {good:8.2f}")
            print(f"{load:4.1f}  {policy:11} {cells[0]}   {cells[1]}", flush=True)


if __name__ == "__main__":
    main()
