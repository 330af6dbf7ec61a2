"""Compares loops on this device with FLOPs by hand. Times each plainly, under `mfulab.measure`, and
plainly again.

    python validation/plain_loops.py --out loops.json
    python validation/plain_loops.py --device cpu --small          a rehearsal

`ratio` is the measured mean step ÷ the mean of both plain ones, which is the effect of measuring on
the loop. MFU by hand uses the faster plain one. `flops_ratio` is counted ÷ by hand. FLOPs of GPT-2
by hand follow appendix B of the PaLM paper (arXiv:2204.02311): 6 N + 12 L H T FLOPs per token, with
N without positions.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import nn

import mfulab

SHOWN = (
    *(
        "mfu_percent",
        "hfu_percent",
        "time_s",
        "median_time_s",
        "measuring_percent",
        "counted_steps",
    ),
    *("utilization_percent", "sm_active_percent", "tensor_active_percent", "power_w", "clock_mhz"),
    *("flops", "peak_tflop_s", "peak_clock_mhz", "reasons"),
)


def linear(device: str, rows: int, width: int) -> tuple[nn.Module, Callable[[], object], float]:
    """Model, step and FLOPs of two layers without gradients. The step is as short as the host can
    launch it."""
    model = nn.Sequential(
        nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False)
    ).to(device)
    x = torch.randn(rows, width, device=device)

    def step():
        with torch.no_grad():
            model(x)

    return model, step, 2 * 2 * rows * width**2


def gpt2(
    device: str, rows: int, length: int, layers: int, *, compiled: bool = False
) -> tuple[nn.Module, Callable[[], object], float]:
    """Model, step and FLOPs of training GPT-2 under bf16 autocast with fused AdamW."""
    config = transformers.GPT2Config(n_layer=layers, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    plain = transformers.GPT2LMHeadModel(config).to(device)
    parameters = sum(weight.numel() for weight in plain.parameters())
    without_positions = parameters - config.n_positions * config.n_embd
    flops = rows * length * (6 * without_positions + 12 * layers * config.n_embd * length)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, config.vocab_size, (rows, length), device=device)
    model: nn.Module = torch.compile(plain) if compiled else plain  # type: ignore[assignment]

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step, flops


LOOPS = {  # by name: (full size, its steps, small size, its steps)
    "linear_inference": (lambda d: linear(d, 8, 4096), 8000, lambda d: linear(d, 8, 256), 500),
    "gpt2_short": (lambda d: gpt2(d, 4, 256, 12), 150, lambda d: gpt2(d, 1, 16, 1), 8),
    "gpt2": (lambda d: gpt2(d, 16, 1024, 12), 40, lambda d: gpt2(d, 2, 16, 1), 8),
    "gpt2_compiled": (
        lambda d: gpt2(d, 16, 1024, 12, compiled=True),
        100,
        lambda d: gpt2(d, 2, 16, 1, compiled=True),
        8,
    ),
}


def plainly(step: Callable[[], object], steps: int, device: str) -> float:
    """Mean seconds of a step without mfulab."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    _wait(device)
    return (time.perf_counter() - began) / steps


def compared(name: str, device: str, *, small: bool) -> dict[str, object]:
    """Plain and measured times of one loop, and its MFU by hand next to the row's."""
    full, full_steps, little, little_steps = LOOPS[name]
    model, step, flops = (little if small else full)(device)
    steps = little_steps if small else full_steps
    for _ in range(5):
        step()
    before = plainly(step, steps, device)
    _wait(device)
    began = time.perf_counter()
    with mfulab.measure(model, ceiling_s=0, quiet=True) as window:
        for _ in range(steps):
            step()
            window.step()
        _wait(device)
        within = (time.perf_counter() - began) / steps
    after = plainly(step, steps, device)
    row = window.row
    comparison: dict[str, object] = {
        "plain_ms": [before * 1e3, after * 1e3],
        "whole_loop_ms": within * 1e3,
        **dict.fromkeys(("ratio", "mfu_by_hand_percent", "flops_ratio", "cause")),
        "flags": [],
    }
    if row.get("time_s"):
        comparison["ratio"] = float(row["time_s"]) / statistics.mean([before, after])
    if row.get("peak_tflop_s"):
        flop_s = flops / min(before, after)
        comparison["mfu_by_hand_percent"] = 100 * flop_s / (float(row["peak_tflop_s"]) * 1e12)
    if row.get("flops"):
        comparison["flops_ratio"] = float(row["flops"]) / flops
    if window.verdict:
        comparison["cause"] = window.verdict.cause
        comparison["flags"] = [str(flag) for flag in window.verdict.flags]
    return comparison | {column: row.get(column) for column in SHOWN}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Prints a line per loop and writes all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(LOOPS), choices=list(LOOPS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {}
    for name in options.only:
        rows[name] = compared(name, options.device, small=options.small)
        print(name, json.dumps(rows[name], default=str), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1, default=str))


if __name__ == "__main__":
    main()
