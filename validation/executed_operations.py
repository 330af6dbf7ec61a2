"""Operations that tensor cores executed, by Nsight Compute, beside those that mfulab counts: a matmul, attention, a
convolution. This is the check of HFU's numerator. Three more cases execute more than is counted: the check of what
mfulab reads of that in shapes and kernels' names.

    python validation/executed_operations.py [--out executed.json]

Needs `ncu` and the right to read counters (as root, or with NVreg_RestrictProfilingToAdminUsers=0).
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
# One count a source format and instruction; where the chip has none of these, one a source format.
BY_INSTRUCTION = re.compile(r"^sm__ops_path_tensor_op_\w+_src_(?!int)\w+_sparsity_off$")
BY_FORMAT = re.compile(r"^sm__ops_path_tensor_src_(bf16|fp16|tf32|fp8|fp64)(_dst_\w+)?$")
LIMIT_S = 120


class NotMeasurableError(Exception):
    """Nsight Compute gave no counts; the message says why."""


class Product(torch.nn.Linear):
    """[4096, 4096] · [4096, 4096]."""

    def __init__(self) -> None:
        super().__init__(4096, 4096, bias=False)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return (torch.randn(4096, 4096, **where),)


class Attention(torch.nn.Module):
    """8 × 16 heads over 2048 tokens of 128, all with all; its backward pass recomputes the
    scores."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(8, 16, 2048, 128, **where, requires_grad=True) for _ in range(3))


class Convolution(torch.nn.Conv2d):
    """3×3 over 64 images of 256 × 56 × 56."""

    def __init__(self) -> None:
        super().__init__(256, 256, 3, padding=1, bias=False)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return (
            torch.randn(64, 256, 56, 56, **where).contiguous(memory_format=torch.channels_last),
        )


class Patches(torch.nn.Conv2d):
    """ViT-B/16's convolution of 64 images: three channels, which the kernel pads."""

    def __init__(self) -> None:
        super().__init__(3, 768, 16, stride=16)

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return (torch.randn(64, 3, 224, 224, **where),)


class ShortAttention(Attention):
    """ViT-B/16's: 197 tokens, which the kernel pads to 256."""

    def inputs(self, **where: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(64, 12, 197, 64, **where) for _ in range(3))


class Head(torch.nn.Linear):
    """GPT-2's over 50,257 words: rows that no wide load may begin at."""

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
    """FLOPs that mfulab says are executed: forward, and backward where an input asks for
    gradients."""
    with torch.device("meta"):
        model = CASES[case]().to(FORMAT)
    model.requires_grad_(False)
    inputs = model.inputs(device="meta", dtype=FORMAT)
    operations = count(model, lambda: model(*inputs).sum()).operations
    return operations.sum("forward").executed_flops + operations.sum("backward").executed_flops


def step_of(case: str) -> Callable[[], None]:
    """The case on the GPU: forward, and backward where an input asks for gradients."""
    model = CASES[case]().to(
        "cuda", FORMAT, memory_format=torch.channels_last if case == "convolution" else None
    )
    model.requires_grad_(False)
    inputs = model.inputs(device="cuda", dtype=FORMAT)

    def step() -> None:
        output = model(*inputs)
        if output.requires_grad:
            output.backward(torch.ones_like(output))

    return step


def run_once(case: str) -> None:
    """The case between the marks that Nsight Compute profiles from and to; once before them."""
    step = step_of(case)
    for profiled in (False, True):
        torch.cuda.synchronize()
        if profiled:
            torch.cuda.profiler.start()
        step()
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def told_ratio(case: str) -> float:
    """Operations executed ÷ counted, as mfulab reads it in a trace; 1 without a GPU or where no
    name tells."""
    if not torch.cuda.is_available():
        return 1.0
    return (
        trace_steps(step_of(case), torch.device("cuda"), 1).analysis.ratios()["executed_ratio"]
        or 1.0
    )


def tensor_metrics(listing: str) -> list[str]:
    """Metrics of `ncu --query-metrics` that together count each operation of the tensor cores
    once."""
    names = {
        line.split()[0] for line in listing.splitlines() if line.startswith("sm__ops_path_tensor")
    }
    chosen = [name for name in names if BY_INSTRUCTION.match(name)] or [
        name for name in names if BY_FORMAT.match(name)
    ]
    return sorted(f"{name}.sum" for name in chosen)


def summed(report: str, metrics: Sequence[str]) -> int:
    """The sum of `metrics` over all kernels of a raw CSV report, whose second line holds the
    units."""
    lines = [line for line in report.splitlines() if line and not line.startswith("==")]
    kernels = list(csv.DictReader(lines))[1:]
    if not kernels:
        raise NotMeasurableError(
            f"ncu profiled no kernel: {report.strip().splitlines()[-1] if report.strip() else ''}"
        )
    cells = [
        kernel[metric].replace(",", "")
        for kernel in kernels
        for metric in metrics
        if kernel.get(metric)
    ]
    if not cells:
        raise NotMeasurableError(f"ncu reported none of {', '.join(metrics)}")
    return round(sum(float(cell) for cell in cells))


def executed_operations(case: str) -> int:
    """Operations of the tensor cores as the hardware counted them (a multiply-add is two).
    NotMeasurableError."""
    ncu = find_ncu()
    metrics = tensor_metrics(_output([ncu, "--query-metrics"]))
    if not metrics:
        raise NotMeasurableError("ncu knows no metric of tensor operations for this GPU")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "report.csv"
        command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
        command += [
            "--profile-from-start",
            "off",
            "--clock-control",
            "none",
            "--metrics",
            ",".join(metrics),
        ]
        _output([*command, sys.executable, __file__, "--run", case])
        return summed(log.read_text(), metrics)


def find_ncu() -> str:
    """Path of Nsight Compute: on the PATH or in its installer's folder. Raises
    NotMeasurableError."""
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
        errors = [
            line for line in text.splitlines() if "==ERROR==" in line
        ] or text.strip().splitlines()[-1:]
        raise NotMeasurableError(
            " ".join(errors) or f"{command[0]} ended with status {done.returncode}"
        )
    return text


def compare(case: str) -> dict[str, Any]:
    """One case: FLOPs counted, operations executed, and why these are not known."""
    row = {
        "case": case,
        "counted_flops": counted_flops(case),
        "executed_operations": None,
        "reason": "",
    }
    row["executed_ratio"] = told_ratio(case)
    try:
        row["executed_operations"] = executed_operations(case)
    except (
        NotMeasurableError,
        OSError,
        ValueError,
    ) as error:  # no report, or one with words for numbers
        row["reason"] = str(error)
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one line a case; with --run it is the program that Nsight Compute looks at."""
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
        said = row["reason"]
        if executed is not None:
            said = f"{executed:.6g} ({executed / row['counted_flops']:.4f} of it, {row['executed_ratio']:.4f} told)"
        print(f"{row['case']:15} counted {row['counted_flops']:.6g} executed {said}")
        rows.append(row)
        if options.out:  # after each: what is cut off leaves what it has
            options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
