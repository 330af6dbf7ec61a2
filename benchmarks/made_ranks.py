"""Generates traces of a job with one known straggler and reads them. Checks that the straggler is
identified; prints time and memory.

    python benchmarks/made_ranks.py --ranks 512 --jobs 2

Each rank has its own clock. In every layer of a step each rank multiplies, then all ranks of a
group reduce. The straggler's kernels take longer, so that the others wait inside the reduction.
"""

import argparse
import gzip
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from traces import timed

SIDE = 1024  # of the matmuls
DEVICE = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}
DEVICE |= {"numSms": 132}


@dataclass(frozen=True)
class Made:
    """Parameters of a generated job; times are in µs."""

    ranks: int = 512
    slow: Sequence[int] = (137,)
    slower: float = 1.5  # kernels of the slow ranks, or of their host with `idle`
    idle: bool = False  # the slow ranks' devices wait for their hosts
    steps: int = 3
    layers: int = 40
    kernel_us: float = 200.0
    sending_us: float = 50.0
    group: int = 0  # ranks that reduce together; 0 for all
    jitter_us: float = 2.0

    @property
    def members(self) -> int:
        """Number of ranks in a group."""
        return self.group or self.ranks


def write(made: Made, folder: Path) -> list[Path]:
    """Writes one trace per rank."""
    random = np.random.default_rng(7)
    events = [_Events(made, rank, float(random.uniform(0, 1e9))) for rank in range(made.ranks)]
    now = np.full(made.ranks, 1000.0)
    slow = np.isin(np.arange(made.ranks), made.slow)
    for step in range(made.steps):
        began = now.copy()
        for _ in range(made.layers):
            jitter = random.uniform(0, made.jitter_us, made.ranks)
            extra = np.where(slow, (made.slower - 1) * made.kernel_us, 0.0)
            begins = now + jitter
            lengths = np.full(made.ranks, made.kernel_us)
            if made.idle:
                begins += extra
            else:
                lengths += extra
            arrived = begins + lengths
            ended = arrived.reshape(-1, made.members).max(axis=1) + made.sending_us
            ended = np.repeat(ended, made.members)
            for rank, writer in enumerate(events):
                times = (begins[rank], lengths[rank], arrived[rank], ended[rank])
                writer.layer(*map(float, times))
            now = ended
        for rank, writer in enumerate(events):
            writer.step(step, float(began[rank]), float(now[rank]))
    return [writer.save(folder) for writer in events]


class _Events:
    def __init__(self, made: Made, rank: int, clock_us: float) -> None:
        self.made = made
        self.rank = rank
        self.clock = clock_us
        self.events = list[dict[str, Any]]()
        self.number = 0
        first = rank // made.members * made.members
        self.group = str(list(range(first, first + made.members))[:30])

    def add(self, category: str, name: str, begin: float, length: float, **args: Any) -> None:
        track = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 100, "tid": 100}
        times = {"ts": round(self.clock + begin, 3), "dur": round(length, 3)}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, **track, **times, "args": args}
        )

    def launched(self, name: str, begin: float, length: float, stream: int, **args: Any) -> None:
        self.number += 1
        self.add("cuda_runtime", "cudaLaunchKernel", begin - 9, 1, correlation=self.number)
        where = {"device": 0, "stream": stream, "correlation": self.number}
        self.add("kernel", name, begin, length, **where, **args)

    def layer(self, begin: float, length: float, arrived: float, ended: float) -> None:
        sides = [[SIDE, SIDE], [SIDE, SIDE]]
        types = ["c10::BFloat16", "c10::BFloat16"]
        self.add("cpu_op", "aten::mm", begin - 10, 3, **{"Input Dims": sides, "Input type": types})
        self.launched("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", begin, length, 7)
        collective = {
            "Collective name": "allreduce",
            "dtype": "BFloat16",
            "In msg nelems": SIDE * SIDE,
        }
        collective |= {"Out msg nelems": SIDE * SIDE, "Group size": self.made.members}
        collective["Process Group Ranks"] = self.group
        self.launched(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", arrived, ended - arrived, 20, **collective
        )

    def step(self, number: int, begin: float, end: float) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", begin - 20, end - begin)

    def save(self, folder: Path) -> Path:
        job = {"backend": "nccl", "rank": self.rank, "world_size": self.made.ranks}
        content = {"deviceProperties": [DEVICE], "distributedInfo": job}
        text = json.dumps({**content, "traceEvents": self.events})
        path = folder / f"rank{self.rank}.json.gz"
        path.write_bytes(gzip.compress(text.encode(), 1))
        return path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    failures = 0
    print("ranks  straggler  named      s  CPU s  peak MB")
    for ranks in (options.ranks // 8, options.ranks):
        straggler = ranks // 3
        with tempfile.TemporaryDirectory() as folder:
            made = Made(ranks=ranks, slow=(straggler,))
            # In a new process: the memory of this one would count for `mfulab trace`.
            writer = multiprocessing.get_context("spawn").Process(
                target=write, args=(made, Path(folder))
            )
            writer.start()
            writer.join()
            command = [sys.executable, "-m", "mfulab", "trace", folder, "--json"]
            cost, output, succeeded = timed([*command, "--jobs", str(options.jobs)])
        seconds, cpu, peak = cost
        named = json.loads(output)["slowest"] if succeeded else None
        failures += named != str(straggler)
        print(f"{ranks:5}  {straggler:9}  {named!s:5}  {seconds:5.1f}  {cpu:5.1f}  {peak:7.0f}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
