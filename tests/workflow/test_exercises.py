"""Numbers in the answers to the exercises, computed anew, in both languages."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from mfulab.core.formats import FORMATS
from mfulab.flops import formulas, memory
from mfulab.flops.count import count
from mfulab.lab.tables.seminar import recompute
from mfulab.measurements.split_model import SplitModelConfig
from mfulab.measurements.split_model.measure import bubble_percent
from mfulab.models.convolutional import SimpleCNN

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {"en": "seminar.ipynb", "ko": "seminar.ko.ipynb"}
ANSWERS = re.compile(r"<details><summary>(?:Answer|답)</summary>(.*?)</details>", re.DOTALL)


def statement(case: str) -> float:
    """Value of a row of the seminar's table."""
    return next(row["value"] for row in recompute() if row["case"] == case)


def training_flops(model: nn.Module, *shape: int) -> int:
    operations = count(
        model.to("meta"), lambda: model(torch.randn(shape, device="meta")).sum()
    ).operations
    return sum(operations.sum(part).flops for part in ("forward", "backward"))


def laptop() -> list[str]:
    peak = 8 * 3.2e9 * 2 * 8 * 2 / 1e12
    return [f"{peak:.2f}", f"{100 * 0.41 / peak:.0f}"]


def two_layers() -> list[str]:
    layers = nn.Sequential(nn.Linear(784, 128, bias=False), nn.Linear(128, 10, bias=False))
    return [f"{training_flops(layers, 1, 784):,}", f"{training_flops(layers, 64, 784):,}"]


def one_sm() -> list[str]:
    return [f"{100 * 0.9:.0f}", f"{100 * 0.9 / 132:.1f}"]


def lab_step() -> list[str]:
    flops = training_flops(SimpleCNN(), 32, 3, 224, 224)
    return [f"{100 * flops / 0.0231 / peak:.2f}" for peak in (19.5e12, 156e12)]


def steepest_rung() -> list[str]:
    rungs = [98, 97, 40, 12, 10, 10]
    return [str(max(before - after for before, after in pairwise(rungs)))]


def fp8_limits() -> list[str]:
    form = torch.finfo(getattr(torch, FORMATS["fp8"].operand))
    return [f"{form.max:.0f}", f"{form.eps}", f"{1 + form.eps}"]


def tf32_operand() -> list[str]:
    form = FORMATS["tf32"]
    kept = form.bits - 1 - form.exponent_bits
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(2, 400, 4096, dtype=torch.float64, generator=generator)
    scale = 2.0**kept
    powers = torch.exp2(torch.floor(torch.log2(terms.abs())))
    rounded = torch.round(terms / powers * scale) / scale * powers
    errors = (rounded[0] * rounded[1]).sum(1) - (terms[0] * terms[1]).sum(1)
    sums = (terms[0] * terms[1]).sum(1)
    relative = float(torch.linalg.vector_norm(errors) / torch.linalg.vector_norm(sums))
    return [f"{2.0 ** -(kept + 1) * 1e4:.1f}", f"{relative * 1e4:.0f}"]


def recorded_step() -> list[str]:
    flops = training_flops(SimpleCNN(), 32, 3, 224, 224)
    return [f"{100 * flops / 0.00154 / 66.9e12:.1f}"]


def tiles() -> list[str]:
    naive = 2 * 1024**3 * 4
    shared = naive / 32
    times = [f"{1e3 * size / 1555e9:.{digits}f}" for size, digits in ((naive, 1), (shared, 2))]
    return [f"{naive / 1e9:.1f}", f"{shared / 1e9:.2f}", *times]


def separable() -> list[str]:
    depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)
    cheap = nn.Sequential(depthwise, nn.Conv2d(64, 128, 1, bias=False)).to("meta")
    whole = nn.Conv2d(64, 128, 3, padding=1, bias=False).to("meta")
    images = torch.empty(1, 64, 8, 8, device="meta")
    shares = [
        count(each, lambda each=each: each(images), backward=False).operations.sum("forward").flops
        for each in (cheap, whole)
    ]
    return [f"{100 * shares[0] / shares[1]:.1f}"]


def kept_input() -> list[str]:
    return [f"{2048 * 4096 * torch.bfloat16.itemsize / 1e6:.1f}"]


def small_batch() -> list[str]:
    flops = formulas.matmul_flops(16, 4096, 4096)
    moved = 2 * (2 * 16 * 4096 + 4096**2)
    speed = flops / moved * 3350e9
    found = [flops / 1e6, 989e12 / 3350e9, speed / 1e12]
    return [f"{moved / 1e6:.1f}", f"{flops / moved:.1f}", *(f"{each:.0f}" for each in found),
            f"{100 * speed / 989e12:.1f}"]  # fmt: skip


def sharded() -> list[str]:
    whole = memory.training_memory(7_000_000_000, element_bytes=2, master_copy=True).total
    plain = memory.training_memory(7_000_000_000, element_bytes=2).total
    return [f"{whole / 8 / 1e9:.0f}", f"{whole / 1e9:.0f}", f"{plain / 1e9:.0f}"]


def accumulated() -> list[str]:
    parameters = sum(each.numel() for each in SimpleCNN().parameters())
    return [f"{parameters:,}", f"{parameters * 16 / 1e6:.1f}", f"{parameters * 4 / 1e6:.1f}"]


def micro_batches() -> list[str]:
    needed = 1
    while _bubble(needed, stages=8) > 10:
        needed += 1
    return [str(needed)]


def _bubble(count: int, stages: int) -> float:
    config = SplitModelConfig.model_construct(split="pipeline", micro_batches=count)
    return bubble_percent(config, stages)


def tokens() -> list[str]:
    """From the recorded GPU's rows, which the question quotes."""
    rows = pd.read_csv(ROOT / "results/reference/nvidia-h200/profile.csv", low_memory=False)
    rows = rows.query("model == 'gpt2' and workload == 'decoding' and status == 'ok'")
    found = []
    for batch, digits in ((1, 1), (64, 0)):
        row = rows[rows["batch_size"] == batch].iloc[0]
        found.append(f"{batch / row['time_s'] / row['power_w']:.{digits}f}")
    return found


def joules() -> list[str]:
    return [f"{400 / 700:.2f}", f"{(700 + 120) / 2:.0f}", f"{200 / 410:.2f}"]


def token_parts() -> list[str]:
    weights = 12 * 768**2
    attention = 4 * 1024 * 768
    head = 2 * 768 * 50_257
    layers = 12 * (2 * weights + attention)
    assert layers + head == statement("GPT-2 small, forward, a token")
    parts = [f"{each / 1e6:.2f}" for each in (weights, 2 * weights)]
    return [*parts, *(f"{each / 1e6:.1f}" for each in (attention, layers, head, layers + head))]


COMPUTED: dict[str, Callable[[], list[str]]] = {
    "cell-08": laptop,
    "cell-10": two_layers,
    "cell-12": one_sm,
    "cell-14": lab_step,
    "ladder-exercise": steepest_rung,
    "formats-exercise": fp8_limits,
    "tf32-exercise": tf32_operand,
    "gpu-exercise": recorded_step,
    "matmul-exercise": tiles,
    "cell-43": separable,
    "graph-exercise": kept_input,
    "roofline-exercise": small_batch,
    "cell-36": sharded,
    "gradient-memory-exercise": accumulated,
    "model-parallel-exercise": micro_batches,
    "tokens-exercise": tokens,
    "energy-exercise": joules,
    "errata-exercise": token_parts,
}


def answers(language: str) -> dict[str, str]:
    """The answers of each cell that has an exercise, with numbers as Python writes them."""
    cells = json.loads((ROOT / "notebooks" / NOTEBOOKS[language]).read_text(encoding="utf-8"))[
        "cells"
    ]
    found = {}
    for cell in cells:
        if told := ANSWERS.findall("".join(cell["source"])):
            found[cell["id"]] = " ".join(told).replace("{,}", ",")
    return found


@pytest.mark.parametrize("language", NOTEBOOKS)
def test_each_exercise_has_an_answer_that_is_computed_here(language):
    assert {cell for cell in answers(language) if cell != "cell-22"} == set(COMPUTED)


@pytest.mark.parametrize("cell", COMPUTED)
def test_the_answer_holds_the_computed_numbers(cell):
    numbers = COMPUTED[cell]()
    assert numbers
    for language in NOTEBOOKS:
        told = answers(language)[cell]
        for number in numbers:
            assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", told), (
                number,
                told,
            )
