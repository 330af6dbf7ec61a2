"""Compares the operations that tensor cores executed, by Nsight Compute, with those that mfulab
counts.

A matmul, attention and a convolution check the numerator of HFU. Three more cases execute more than
is counted; they check what mfulab derives of that from shapes and kernel names.

    python validation/executed_operations.py [--out executed.json]

Needs `ncu` and permission to read counters (as root, or with
NVreg_RestrictProfilingToAdminUsers=0).
"""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mfulab.flops.count import count
from mfulab.tracing.operators import trace_steps

FORMAT = torch.bfloat16
# Counters per source format and instruction; for chips without these, counters per source format.
BY_INSTRUCTION = re.compile(r"^sm__ops_path_tensor_op_\w+_src_(?!int)\w+_sparsity_off$")
BY_FORMAT = re.compile(r"^sm__ops_path_tensor_src_(bf16|fp16|tf32|fp8|fp64)(_dst_\w+)?$")
LIMIT_S = 120


class NotMeasurableError(Exception):
    """Raised if Nsight Compute returns no counts. The message says why."""


class Product(torch.nn.Linear):
    """Matmul of [4096, 4096] · [4096, 4096]."""

    def __init__(self) -> None:
        super().__init__(4096, 4096, bias=False)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return (torch.randn(4096, 4096, **where),)


class Attention(torch.nn.Module):
    """Attention of 8 × 16 heads over 2048 tokens of width 128, without mask. Its backward pass
    recomputes the scores."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(8, 16, 2048, 128, **where, requires_grad=True) for _ in range(3))


class Convolution(torch.nn.Conv2d):
    """3×3 convolution of 64 images of 256 × 56 × 56."""

    def __init__(self) -> None:
        super().__init__(256, 256, 3, padding=1, bias=False)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return (
            torch.randn(64, 256, 56, 56, **where).contiguous(memory_format=torch.channels_last),
        )


class Patches(torch.nn.Conv2d):
    """Patch embedding of ViT-B/16 for 64 images. The kernel pads its three channels."""

    def __init__(self) -> None:
        super().__init__(3, 768, 16, stride=16)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return (torch.randn(64, 3, 224, 224, **where),)


class ShortAttention(Attention):
    """Attention of ViT-B/16. The kernel pads its 197 tokens to 256."""

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(64, 12, 197, 64, **where) for _ in range(3))


class Head(torch.nn.Linear):
    """Output layer of GPT-2 over 50,257 words. Its rows are not aligned for wide loads."""

    def __init__(self) -> None:
        super().__init__(768, 50257, bias=False)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return (torch.randn(8192, 768, **where),)


CASES: dict[str, type[Any]] = {
    "product": Product,
    "attention": Attention,
    "convolution": Convolution,
}
CASES |= {"patches": Patches, "short_attention": ShortAttention, "head": Head}


def counted_flops(case: str) -> int:
    """Executed FLOPs according to mfulab: forward, and backward if an input requires gradients."""
    with torch.device("meta"):
        model = CASES[case]().to(FORMAT)
    model.requires_grad_(False)
    inputs = model.inputs(device="meta", dtype=FORMAT)
    operations = count(model, lambda: model(*inputs).sum()).operations
    return operations.sum("forward").executed_flops + operations.sum("backward").executed_flops


def step_of(case: str) -> Callable[[], None]:
    """Step of a case on the GPU: forward, and backward if an input requires gradients."""
    layout = torch.channels_last if case == "convolution" else None
    model = CASES[case]().to("cuda", FORMAT, memory_format=layout)
    model.requires_grad_(False)
    inputs = model.inputs(device="cuda", dtype=FORMAT)

    def step() -> None:
        output = model(*inputs)
        if output.requires_grad:
            output.backward(torch.ones_like(output))

    return step


def run_once(case: str) -> None:
    """Runs a case once to warm up, and once between the marks that Nsight Compute uses to start and
    stop."""
    step = step_of(case)
    for profiled in (False, True):
        torch.cuda.synchronize()
        if profiled:
            torch.cuda.profiler.start()
        step()
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def traced_ratio(case: str) -> float:
    """Executed ÷ counted operations according to mfulab's trace. 1 without a GPU, or if no kernel
    name determines it."""
    if not torch.cuda.is_available():
        return 1.0
    traced = trace_steps(step_of(case), torch.device("cuda"), 1)
    return traced.analysis.ratios()["executed_ratio"] or 1.0


def tensor_metrics(listing: str) -> list[str]:
    """Metrics in the output of `ncu --query-metrics` that together count each tensor core operation
    once."""
    lines = listing.splitlines()
    names = {line.split()[0] for line in lines if line.startswith("sm__ops_path_tensor")}
    chosen = list(filter(BY_INSTRUCTION.match, names))
    if not chosen:
        chosen = list(filter(BY_FORMAT.match, names))
    return sorted(f"{name}.sum" for name in chosen)


def summed(report: str, metrics: Sequence[str]) -> int:
    """Sum of `metrics` over all kernels in a raw CSV report, whose second line holds the units."""
    lines = [line for line in report.splitlines() if line and not line.startswith("==")]
    kernels = list(csv.DictReader(lines))[1:]
    if not kernels:
        last_line = "".join(report.strip().splitlines()[-1:])
        raise NotMeasurableError(f"ncu profiled no kernel: {last_line}")
    numbers: list[float] = []
    for kernel in kernels:
        cells = [kernel[metric] for metric in metrics if kernel.get(metric)]
        numbers += [float(cell.replace(",", "")) for cell in cells]
    if not numbers:
        raise NotMeasurableError(f"ncu reported none of {', '.join(metrics)}")
    return round(sum(numbers))


def executed_operations(case: str) -> int:
    """Tensor core operations counted by the hardware (a multiply-add is two). Raises
    NotMeasurableError."""
    ncu = find_ncu()
    metrics = tensor_metrics(_output([ncu, "--query-metrics"]))
    if not metrics:
        raise NotMeasurableError("ncu knows no metric of tensor operations for this GPU")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "report.csv"
        command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
        command += ["--profile-from-start", "off", "--clock-control", "none"]
        command += ["--metrics", ",".join(metrics)]
        _output([*command, sys.executable, __file__, "--run", case])
        return summed(log.read_text(), metrics)


def find_ncu() -> str:
    """Path of Nsight Compute, on the PATH or in its default folders. Raises NotMeasurableError if
    it is not installed."""
    places = [
        *Path("/opt/nvidia/nsight-compute").glob("*/ncu"),
        *Path("/usr/local").glob("cuda*/bin/ncu"),
    ]
    found = shutil.which("ncu") or next((str(path) for path in sorted(places, reverse=True)), None)
    if found is None:
        raise NotMeasurableError("ncu (Nsight Compute) is not installed")
    return found


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NotMeasurableError(f"{Path(command[0]).name} took longer than {LIMIT_S} s") from None
    text = done.stdout + done.stderr
    if done.returncode:
        errors = [line for line in text.splitlines() if "==ERROR==" in line]
        errors = errors or text.strip().splitlines()[-1:]
        message = " ".join(errors) or f"{command[0]} ended with status {done.returncode}"
        raise NotMeasurableError(message)
    return text


def compare(case: str) -> dict[str, Any]:
    """Row of one case: counted FLOPs, executed operations, and the reason if those are unknown."""
    row = {
        "case": case,
        "counted_flops": counted_flops(case),
        "executed_operations": None,
        "reason": "",
    }
    row["executed_ratio"] = traced_ratio(case)
    try:
        row["executed_operations"] = executed_operations(case)
    except (NotMeasurableError, OSError, ValueError) as error:
        # without a report, or if it has text in place of numbers
        row["reason"] = str(error)
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one line per case. With --run, runs one case, for Nsight Compute to profile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="also write JSON")
    options = parser.parse_args(arguments)
    if options.run:
        run_once(options.run)
        return
    rows = []
    for case in CASES:
        row = compare(case)
        executed = row["executed_operations"]
        result = row["reason"]
        if executed is not None:
            result = f"{executed:.6g} ({executed / row['counted_flops']:.4f} of it, {row['executed_ratio']:.4f} told)"
        print(f"{row['case']:15} counted {row['counted_flops']:.6g} executed {result}")
        rows.append(row)
        if options.out:  # after each case, so that an interruption keeps earlier results
            options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
