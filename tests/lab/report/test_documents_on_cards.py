"""Each number that the documents give of a card, from its rows or its log."""

import csv
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.workflow_copy import ROOT

from mfulab.core.language import verdicts

LOGS = ROOT / "validation/logs/nvidia-h200"
H100, H200 = "nvidia-h100-80gb-hbm3", "nvidia-h200"


@cache
def table(hardware: str, name: str) -> list[dict[str, str]]:
    path = ROOT / f"results/reference/{hardware}/{name}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["status"] == "ok"]


@cache
def document(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def of(hardware: str, name: str, column: str, **asked: object) -> list[float]:
    """Values of a column in the rows that were asked for, at least one."""
    texts = {key: str(value) for key, value in asked.items()}
    rows = [row for row in table(hardware, name) if texts.items() <= row.items()]
    assert rows, (hardware, name, asked)
    return [float(row[column]) for row in rows if row[column]]


def matmul(column: str, hardware: str = H200, size: object = 4096, **asked: object) -> list[float]:
    return of(hardware, "matmul", column, size=size, **asked)


def first(column: str, experiment: str = "kernels", **asked: object) -> float:
    return matmul(column, experiment=experiment, **asked)[0]


def share(**asked: object) -> str:
    return f"{first('share_of_reference_percent', **asked):.1f}"


def speed(**asked: object) -> str:
    return f"{first('tflop_s', **asked):,.0f}"


def rungs(precision: str, *kernels: str, experiment: str = "kernels") -> tuple[str, str]:
    """Their shares of torch in the same run, and their speeds, as the document lists them."""
    asked = [
        {"kernel": kernel, "precision": precision, "experiment": experiment} for kernel in kernels
    ]
    return ", ".join(share(**each) for each in asked), ", ".join(speed(**each) for each in asked)


def ladder(model: str, batch: int, name: str, hardware: str = H200) -> str:
    """The beginning of a line of the table of models."""
    asked = {"model": model, "batch_size": batch, "precision": "bf16", "workload": "inference"}
    return f"| {name} | {of(hardware, 'profile', 'utilization_percent', **asked)[0]:.0f} % |"


def loops() -> dict[str, dict[str, object]]:
    lines = (LOGS / "plain_loops.log").read_text(encoding="utf-8").splitlines()
    found = (re.fullmatch(r"## (\w+) (\{.*\})", line) for line in lines)
    return {match[1]: json.loads(match[2]) for match in found if match}


def plain_loop(key: str) -> str:
    told = loops()[key]
    before, after = told["plain_ms"]
    ratio = 1e3 * told["time_s"] / ((before + after) / 2)
    return f"| {before:.2f}, {after:.2f} ms | {ratio:.4f} | {told['hand_mfu']:.3f} % | {told['mfu_percent']:.3f} % |"


def claims() -> Iterator[tuple[str, str]]:
    """(document, what it must say)."""
    gpu = "docs/gpu.md"
    quickstart = [row for row in table(H200, "profile") if row["experiment"] == "quickstart_gpu"]
    matmuls = [row for row in table(H200, "matmul") if row["experiment"] == "quickstart_gpu"]
    yield gpu, f"{len(quickstart)} of 14 steps and {len(matmuls)} of 24 matmuls"
    yield "README.md", f"{len(quickstart)} of 14 steps and all {len(matmuls)} matmuls"
    for key in ("gpt2_train_bf16_16x1024", "resnet50_cl_bf16_256"):
        yield gpu, plain_loop(key)
    low = loops()
    yield (
        gpu,
        f"({low['gpt2_train_compiled']['mfu_percent']:.1f} % for {low['gpt2_train_compiled']['hand_mfu']:.1f} by hand",
    )
    small = low["mlp_fp32_b8_inference"]
    yield gpu, f"({small['mfu_percent']:.2f} for {small['hand_mfu']:.2f} %"
    for model, batch, name in (
        ("resnet50", 64, "ResNet-50, inference, batch 64"),
        ("gpt2", 16, "GPT-2, inference, 16 × 1,024"),
        ("vit_b_16", 64, "ViT-B/16, inference, batch 64"),
        ("wide_linear", 2048, "two wide linear layers, 2,048 rows"),
        ("tiny_kernels", 2048, "many small kernels (`tiny_kernels`)"),
    ):
        yield gpu, ladder(model, batch, name)
    fp32 = rungs("fp32", "cuda_grouped", "triton_plain", "cuda_warp_tile", "numba_cuda_unrolled")
    yield gpu, f"{fp32[0]} % |"
    tf32 = rungs("tf32", "triton_plain", "triton_persistent")
    yield gpu, f"{tf32[0]} % ({tf32[1].replace(', ', ' and ')} TFLOP/s)"
    bf16 = rungs("bf16", "triton_persistent", "cuda_hopper", "cuda_hopper_hilbert")
    yield gpu, f"{bf16[0]} % ({' and '.join(bf16[1].rsplit(', ', 1))} TFLOP/s)"
    fp8 = rungs(
        "fp8",
        "cublaslt",
        "cuda_hopper_fp8",
        "torch_scaled",
        "triton_plain",
        experiment="matmul_precision",
    )
    yield gpu, f"{fp8[1]} TFLOP/s; of torch's product with the same sums {fp8[0]} %"
    wide = {"kernel": "cuda_wide", "precision": "fp32"}
    yield gpu, f"{share(**wide)} % ({first('tflop_s', **wide):.1f} TFLOP/s"
    yield "docs/kernels.md", f"reaches {share(**wide)} % of torch's product"
    core = {"kernel": "numba_cuda_tensor_core", "precision": "tf32"}
    yield gpu, f"| {speed(**core)} TFLOP/s, {share(**core)} % |"
    int8 = [
        first("tflop_s", "matmul_precision", kernel=kernel, precision="int8")
        for kernel in ("torch", "triton_plain")
    ]
    yield gpu, f"**{int8[0]:.0f} and {round(int8[1], -1):,.0f} TOPS**"
    odd, even = (1e3 * matmul("time_s", size=f"8192x{side}x768")[0] for side in (50257, 50304))
    yield gpu, f"8,192×768→50,257 takes {odd:.2f} ms, 50,304 {even:.2f} ms"
    yield (
        gpu,
        f"on an H200 {odd:.2f} ms where 50,304 columns take {even:.2f} ms, {odd / even:.1f} times as long",
    )
    squares = [matmul("tflop_s", size=side, experiment="alignment")[0] for side in (4097, 4096)]
    yield gpu, f"4,097³ runs at {squares[0]:.0f} TFLOP/s, 4,096³ at {squares[1]:.0f}"
    of_itself = [
        value
        for precision in ("bf16", "tf32", "fp8")
        for kernel in ("torch", "torch_scaled")
        for value in of_torch(kernel, precision)
    ]
    yield gpu, f"torch against itself reads {min(of_itself):.0f} to {max(of_itself):.0f} %"
    still = [value for value in of_torch("torch", "fp32") if value]
    yield gpu, f"it reads {min(still):.1f} to {max(still):.1f} %"
    stored = {"hardware": H100, "precision": "bf16"}
    hopper = first("tflop_s", "kernels", kernel="cuda_hopper_stores", **stored)
    paired = first("share_of_reference_percent", "kernels", kernel="cuda_hopper_stores", **stored)
    yield gpu, f"| {hopper:.0f}; {paired:.0f} % of its pair, which reads too high"
    tf32_h100 = matmul("tflop_s", H100, 8192, kernel="torch", precision="tf32")
    fp32_h100 = matmul("tflop_s", H100, 8192, kernel="torch", precision="fp32")
    yield gpu, f"| {min(tf32_h100):.0f} to {max(tf32_h100):.0f}, {max(fp32_h100):.1f} |"
    copies = of(H100, "ceilings", "measured_gb_s", ceiling="memory")[0]
    yield gpu, f"| copies inside the device | 3,000 GB/s | {copies:,.0f} |"
    counts = [
        sum(len(table(each, name)) for each in (H100, H200)) for name in ("profile", "matmul")
    ]
    yield "CHANGELOG.md", f"{counts[0]} steps and {counts[1]} matmuls"


def of_kernels() -> Iterator[tuple[str, str]]:
    """(document, what it must say of single kernels)."""
    before, after = (
        matmul("registers", hardware, kernel="numba_cuda_tensor_core")[0]
        for hardware in (H100, H200)
    )
    yield (
        "docs/gpu.md",
        f"{before:.0f} registers and one block an SM; now it has none, {after:.0f} and two",
    )
    asked = {"model": "gpt2", "workload": "inference", "batch_size": "16", "precision": "bf16"}
    [step] = [row for row in table(H200, "profile") if asked.items() <= row.items()]
    yield "docs/traces.md", verdicts.misaligned(step)


def of_torch(kernel: str, precision: str) -> list[float]:
    """Shares that torch has of itself, the reference's own product, of at least a millisecond's
    thousandth."""
    return [
        float(row["share_of_reference_percent"])
        for row in table(H200, "matmul")
        if (row["kernel"], row["precision"]) == (kernel, precision)
    ]


@pytest.mark.parametrize(("name", "says"), [*claims(), *of_kernels()], ids=lambda value: value[:60])
def test_a_document_says_what_the_rows_say(name, says):
    assert says in document(name)


def test_each_variant_of_the_fp32_kernel_stands_in_its_log():
    log = (LOGS / "sgemm.log").read_text(encoding="utf-8")
    found = re.findall(
        r"^ (4096|8192) (.*?) {2,}([\d.]+) TFLOP/s .* ([\d.]+) % of the first$", log, re.MULTILINE
    )
    share = {(side, variant): percent for side, variant, _, percent in found}
    best = "async 128x256x16 w64x64 t8x16 s3 lanes snake"
    told = document("docs/kernels.md")
    assert f"**{share['4096', best]} %** | **{share['8192', best]} %**" in told
    for variant in {variant for _, variant in share if variant.startswith("async")} - {best}:
        assert f"| {share['4096', variant]} % | {share['8192', variant]} % |" in told
    tma = [
        [float(share[side, name]) for _, name in share if name.startswith("tma")]
        for side in ("4096", "8192")
    ]
    for percents in tma:
        assert f"{min(percents)} to {max(percents)} %" in told
    speeds = {side: speed for side, variant, speed, _ in found if variant == "cublas"}
    assert f"cuBLAS's {float(speeds['4096']):.1f} and {float(speeds['8192']):.1f} TFLOP/s" in told


def test_a_log_bears_no_path_of_a_machine():
    for path in Path(LOGS).iterdir():
        assert not re.search(r"/(home|root|tmp|work)/", path.read_text(encoding="utf-8")), path
