"""Generates a trace of several gigabytes and reads it. Checks that MFU equals that of a short trace
of the same steps, and that memory stays flat.

    python benchmarks/large_trace.py --gigabytes 4

The compressed file is generated each time and removed afterwards. All its steps have the same
matmuls, operators and kernels.
"""

import argparse
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from traces import timed

SIDE = 1024
LAYERS = 400  # per step, each with a matmul and another operator
KERNEL_US, STEP_US = 20, 10_000
HEAD = '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3",'
HEAD += ' "computeMajor": 9, "computeMinor": 0, "numSms": 132}], "traceEvents": [\n'
FEW = 20  # steps in the small file
MOST_MB = 300


def step_text(number: int) -> str:
    """Trace events of one step as JSON, each followed by a comma."""
    begin = 10**6 + number * STEP_US
    lines = [_event("user_annotation", f"ProfilerStep#{number}", begin, STEP_US - 10, 1, {})]
    for layer in range(LAYERS):
        at = begin + layer * 24
        linked = number * 2 * LAYERS + 2 * layer + 1
        sides = [[SIDE, SIDE], [SIDE, SIDE]]
        args = {"External id": linked, "Input Dims": sides, "Input type": ["c10::BFloat16"] * 2}
        args |= {"Ev Idx": linked, "Record function id": 0, "Concrete Inputs": ["", ""]}
        lines.append(_event("cpu_op", "aten::mm", at, 5, 1, args))
        lines += _launched("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", at + 1, KERNEL_US, linked)
        args = {"External id": linked + 1, "Ev Idx": linked + 1, "Record function id": 0}
        lines.append(_event("cpu_op", "aten::add", at + 6, 5, 1, args))
        name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>"
        lines += _launched(name, at + 7, 2, linked + 1)
    return ",\n".join(lines) + ",\n"


def _launched(name: str, at: int, length: int, linked: int) -> list[str]:
    call = {"cbid": 211, "correlation": linked}
    args = {"device": 0, "context": 1, "stream": 7, "correlation": linked, "grid": [128, 1, 1]}
    args |= {"block": [384, 1, 1], "registers per thread": 168, "shared memory": 213_504}
    return [
        _event("cuda_runtime", "cudaLaunchKernel", at, 1, 1, call),
        _event("kernel", name, at + 3, length, 7, args),
    ]


def _event(kind: str, name: str, at: int, length: int, thread: int, args: dict[str, Any]) -> str:
    begin = {"ph": "X", "cat": kind, "name": name, "pid": 0 if kind == "kernel" else 100}
    return json.dumps({**begin, "tid": thread, "ts": at, "dur": length, "args": args})


def write(path: Path, size: int, steps: int | None = None) -> int:
    """Writes `steps` steps, or by default steps until the JSON has `size` bytes. Returns the number
    of steps."""
    written = number = 0
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(HEAD)
        while number < steps if steps else written < size:
            written += file.write(step_text(number))
            number += 1
        file.write('{"ph": "M", "name": "end"}]}')
    return number


def _read(path: Path) -> tuple[tuple[float, float, float], dict[str, Any]]:
    cost, output, succeeded = timed([sys.executable, "-m", "mfulab", "trace", str(path), "--json"])
    if not succeeded:
        raise SystemExit(f"{path} was not read")
    return cost, json.loads(output)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.json.gz", Path(folder) / "large.json.gz"
        write(small, 0, FEW)
        steps = write(large, int(options.gigabytes * 1e9))
        _, expected = _read(small)
        (seconds, cpu, peak), row = _read(large)
    print(f"steps in the file {steps:,}; read {row['steps']}; events {row['events']:,}")
    print(f"{seconds:.1f} s, {cpu:.1f} CPU s, {peak:.0f} MB")
    print(f"MFU {row['mfu_percent']:.4f} %, of the small file {expected['mfu_percent']:.4f} %")
    apart = abs(row["mfu_percent"] / expected["mfu_percent"] - 1)
    return int(apart > 0.001 or peak > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
