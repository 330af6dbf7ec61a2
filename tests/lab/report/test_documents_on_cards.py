"""Each number that the documents give of a card, from its rows or its log."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cache
from itertools import chain
from statistics import mean

import pytest
from support.workflow_copy import ROOT

from mfulab.core.language import verdicts

LOGS = ROOT / "validation/logs/nvidia-h200"
H100, H200 = "nvidia-h100-80gb-hbm3", "nvidia-h200"
GPU, KERNELS, README = "docs/gpu.md", "docs/kernels.md", "README.md"
TUNED = ("triton_autotuned", "torch_compiled")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS = (*NUMBERS, "eleven", "twelve")
THREADS = 2048  # of an SM
TENSOR_FORMATS = ("tf32", "bf16", "fp16", "fp8")
LEAST_ACTIVE = 20.0  # percent, as in validation/gpu_validity.py
# The seminar's kernels, and the documents' words for their times.
SEMINAR = (
    ("numba_cuda_seminar", "naive {:.0f} ms"),
    ("numba_cuda_seminar_transposed", "transposed {:.0f} ms"),
    ("numba_cuda_shared", "shared memory {:.1f} ms"),
    ("cuda_vectorised", "vectorised CUDA C {:.1f} ms"),
    ("torch", "torch {:.2f} ms"),
)

Row = dict[str, str]
Claims = Iterator[tuple[str, str]]


@cache
def table(hardware: str, name: str) -> list[Row]:
    path = ROOT / f"results/reference/{hardware}/{name}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["status"] == "ok"]


@cache
def recording(hardware: str) -> dict[str, object]:
    path = ROOT / f"results/reference/{hardware}/recording.json"
    return json.loads(path.read_text(encoding="utf-8"))


def short(version: object) -> str:
    """The first two parts of a version."""
    return ".".join(str(version).split(".")[:2])


@cache
def document(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


@cache
def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def rows(hardware: str, name: str, **asked: object) -> list[Row]:
    """The rows that were asked for, at least one."""
    texts = {key: str(value) for key, value in asked.items()}
    found = [row for row in table(hardware, name) if texts.items() <= row.items()]
    assert found, (hardware, name, asked)
    return found


def column(name: str, of_rows: Iterable[Row]) -> list[float]:
    return [float(row[name]) for row in of_rows if row[name]]


def of(hardware: str, name: str, column_name: str, **asked: object) -> list[float]:
    """Values of a column in the rows that were asked for."""
    return column(column_name, rows(hardware, name, **asked))


def matmul(name: str, hardware: str = H200, size: object = 4096, **asked: object) -> list[float]:
    return of(hardware, "matmul", name, size=size, **asked)


def first(name: str, experiment: str = "kernels", **asked: object) -> float:
    return matmul(name, experiment=experiment, **asked)[0]


def step(model: str, batch: int, hardware: str = H200, **asked: object) -> Row:
    """A model's step in bf16 and inference, unless others are asked for: the last one."""
    usual = {"precision": "bf16", "workload": "inference", **asked}
    return rows(hardware, "profile", model=model, batch_size=batch, **usual)[-1]


def share(**asked: object) -> str:
    return f"{first('share_of_reference_percent', **asked):.1f}"


def speed(**asked: object) -> str:
    return f"{first('tflop_s', **asked):,.0f}"


def between(values: Iterable[float], form: str = ".0f") -> str:
    """The least and the greatest, as a document gives a range."""
    known = list(values)
    return f"{min(known):{form}} to {max(known):{form}}"


def apart(values: Iterable[float]) -> float:
    """Percent by which the greatest is above the least."""
    known = list(values)
    return 100 * (max(known) / min(known) - 1)


def tenths(value: float) -> str:
    """With one decimal, or one digit of what is below a tenth."""
    if value >= 0.1:
        return f"{value:.1f}"
    return f"{Decimal(f'{value:.0e}'):f}"


def rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else tenths(value)


def at_the_peaks_clock(row: Row) -> float:
    """Percent that the tensor cores are active × clock ÷ the clock of their peak."""
    clocks = float(row["clock_mhz"]) / float(row["peak_clock_mhz"])
    return float(row["tensor_active_percent"]) * clocks


def rungs(precision: str, *kernels: str, experiment: str = "kernels") -> tuple[str, str]:
    """Their shares of torch in the same run, and their speeds, as the document lists them."""
    asked = [
        {"kernel": kernel, "precision": precision, "experiment": experiment} for kernel in kernels
    ]
    return ", ".join(share(**each) for each in asked), ", ".join(speed(**each) for each in asked)


def line_of_h200(name: str, row: Row) -> str:
    """Of the table of models."""
    cells = [
        f"{float(row['utilization_percent']):.0f}",
        tenths(float(row["mfu_percent"])),
        rounded(float(row["sm_active_percent"])),
        tenths(at_the_peaks_clock(row)),
        tenths(float(row["issued_percent"])),
    ]
    return f"| {name} | {' % | '.join(cells)} % |"


def line_of_h100(name: str, row: Row, because: str) -> str:
    """Of the table of models, where `because` is what takes the time."""
    cells = [
        f"{float(row['utilization_percent']):.1f}",
        rounded(float(row["mfu_percent"])),
        rounded(float(row["sm_active_percent"])),
        rounded(float(row["tensor_active_percent"])),
    ]
    return f"| {name} | {' % | '.join(cells)} % | {because} |"


def module_percent(row: Row, *path: str) -> float:
    """The share of a step's kernels that run in a module."""
    modules = {tuple(each["path"]): each["time_ns"] for each in json.loads(row["modules"])}
    return 100 * modules[path] / modules[()]


def spent_percent(row: Row, part: str) -> float:
    spent = json.loads(row["spent"])
    return 100 * spent[part] / sum(spent.values())


def loops() -> dict[str, dict[str, object]]:
    found = (re.fullmatch(r"## (\w+) (\{.*\})", line) for line in log("plain_loops").splitlines())
    return {match[1]: json.loads(match[2]) for match in found if match}


def of_plain(key: str) -> float:
    """A measured loop's time ÷ the plain loop's."""
    told = loops()[key]
    return 1e3 * told["time_s"] / mean(told["plain_ms"])


def plain_loop(key: str) -> str:
    told = loops()[key]
    before, after = told["plain_ms"]
    shares = f"{told['hand_mfu']:.3f} % | {told['mfu_percent']:.3f} %"
    return f"| {before:.2f}, {after:.2f} ms | {of_plain(key):.4f} | {shares} |"


def executed(case: str) -> tuple[float, float]:
    """Of a case of the log: operations executed ÷ counted, and the tensor cores' cycles ÷ ideal."""
    line = (
        rf"^{case}.*: executed ÷ counted ([\d.]+); "
        r"sm__pipe_tensor_cycles_active\.sum: active ÷ ideal ([\d.]+)"
    )
    found = re.search(line, log("executed_operations"), re.MULTILINE)
    assert found, case
    return float(found[1]), float(found[2])


def times_as_slow(case: str) -> float:
    """Cycles that an executed operation takes ÷ those that it takes in a plain linear layer."""
    operations, cycles = executed(case)
    usual_operations, usual_cycles = executed("linear")
    return (cycles / operations) / (usual_cycles / usual_operations)


def torch_of_itself(*precisions: str) -> list[Row]:
    """The H200's products by torch, whose reference is torch."""
    kernels = ("torch", "torch_scaled")
    own = [row for row in table(H200, "matmul") if row["kernel"] in kernels]
    return [row for row in own if row["precision"] in precisions]


def tuned(row: Row) -> bool:
    return row["kernel"] in TUNED


def of_a_first_look() -> Claims:
    """(document, what it must say)."""
    copies = of(H100, "ceilings", "measured_gb_s", ceiling="memory")[0]
    yield GPU, f"copied {copies:,.0f} GB/s inside the device (read plus written)"
    yield GPU, f"| copies inside the device | 3,000 GB/s | {copies:,.0f} |"
    squares = rows(H100, "matmul", kernel="torch", size=8192)
    bf16, tf32, fp32 = (
        matmul("tflop_s", H100, 8192, kernel="torch", precision=precision)
        for precision in ("bf16", "tf32", "fp32")
    )
    yield GPU, f"at 8192³ had {between(bf16)} TFLOP/s in bf16, {between(tf32)} in tf32"
    clocks = between(column("clock_mhz", squares), ",.0f")
    yield GPU, f"and {max(fp32):.1f} in fp32, at {clocks} MHz"
    yield GPU, f"| {between(tf32)}, {max(fp32):.1f} |"
    steps = of(H100, "profile", "tflop_s", model="large_product", precision="bf16")
    yield GPU, f"| {between(bf16)}; as a model's step {between(steps)} |"


def of_seconds() -> Claims:
    steps = of(H100, "profile", "process_s")
    matmuls = rows(H100, "matmul")
    plain = mean(column("process_s", [row for row in matmuls if not tuned(row)]))
    ceilings = mean(of(H100, "ceilings", "process_s"))
    counts = mean(of(H100, "flops", "process_s"))
    yield GPU, f"recorded H100: {mean(steps):.0f} s a profiled step ({between(steps)})"
    yield GPU, f"{plain:.0f} s a matmul, {ceilings:.0f} s a ceiling, {counts:.0f} s a FLOP count"
    tuning = column("process_s", [row for row in matmuls if tuned(row)])
    yield GPU, f"took {between(tuning)} s instead of {plain:.0f}."
    asked = {"experiment": "quickstart_gpu"}
    profiled = mean(of(H200, "profile", "process_s", **asked))
    product = mean(of(H200, "matmul", "process_s", **asked))
    measuring = mean(of(H200, "matmul", "measured_s", **asked))
    ceilings = mean(of(H200, "ceilings", "process_s"))
    part = f"{product:.0f} s a matmul ({measuring:.1f} of them measuring)"
    yield GPU, f"took {profiled:.0f} s a step, {part} and {ceilings:.0f} s a ceiling"
    counted = sum(of(H200, "flops", "process_s", **asked))
    yield GPU, f"FLOPs took {counted:.0f} s of the H200's first sweep"


def of_the_recordings() -> Claims:
    for hardware, named in ((H100, "26 November 2026"), (H200, "27 November")):
        told = recording(hardware)
        day = str(told["first_started_at"])[:10]
        assert day == f"2026-11-{named[:2]}"
        yield GPU, f"an {told['device_name']} on {named}"
        packages = {name: short(version) for name, version in told["packages"].items()}
        driver, python = short(told["driver"]), short(told["python"])
        yield GPU, f"driver {driver}, torch {packages['torch']} of CUDA {told['cuda']}"
        yield GPU, f"Triton {packages['triton']} and Python {python}."
    [limit] = {gpu["power_limit_w"] for gpu in recording(H100)["gpus"]}
    yield GPU, f"**The power limit** of {limit:.0f} W"
    steps = rows(H200, "profile", experiment="quickstart_gpu")
    matmuls = rows(H200, "matmul", experiment="quickstart_gpu")
    yield GPU, f"{len(steps)} of 14 steps and {len(matmuls)} of 24 matmuls"
    yield README, f"{len(steps)} of 14 steps and all {len(matmuls)} matmuls"
    [commit] = recording(H200)["commits"]
    assert commit.endswith("-dirty")
    yield GPU, "Its commit ends with `-dirty`"
    counts = [
        sum(len(table(each, name)) for each in (H100, H200)) for name in ("profile", "matmul")
    ]
    yield "CHANGELOG.md", f"{counts[0]} steps and {counts[1]} matmuls"


def of_loops() -> Claims:
    keys = ("gpt2_train_bf16_16x1024", "resnet50_cl_bf16_256")
    for key in keys:
        yield GPU, plain_loop(key)
    by_hand = loops()["gpt2_train_bf16_16x1024"]["ratio_flops"]
    assert abs(by_hand - 0.9991) < 1e-4
    yield GPU, "FLOPs are 0.9991 of those by hand"
    ratios = sorted(of_plain(key) for key in keys)
    yield "docs/loops.md", f"two loops took {ratios[0]:.4f} and {ratios[1]:.4f} of their plain time"
    traced = re.findall(r"^## trace \w+ \{'mfu_percent': ([\d.]+)", log("plain_loops"), re.M)
    eager, compiled = map(float, traced)
    yield GPU, f"plain and compiled, reads {eager:.2f} and {compiled:.2f} %"
    anew = loops()["gpt2_train_compiled"]
    yield GPU, f"({anew['mfu_percent']:.1f} % for {anew['hand_mfu']:.1f} by hand"
    small = loops()["mlp_fp32_b8_inference"]
    yield GPU, f"({small['mfu_percent']:.2f} for {small['hand_mfu']:.2f} %"


def of_models_on_an_h200() -> Claims:
    busy = {
        "one thread in a loop (`spinning`)": step("spinning", 2048),
        "many small kernels (`tiny_kernels`)": step("tiny_kernels", 2048),
        "Llama 3.2 1B, decoding, 64 sequences": step("llama_3_2_1b", 64, workload="decoding"),
    }
    useful = {
        "ResNet-50, inference, batch 64": step("resnet50", 64),
        "GPT-2, inference, 16 × 1,024": step("gpt2", 16),
        "ViT-B/16, inference, batch 64": step("vit_b_16", 64),
        "two wide linear layers, 2,048 rows": step("wide_linear", 2048),
    }
    for name, row in {**busy, **useful}.items():
        yield GPU, line_of_h200(name, row)
    furthest = max(
        apart((at_the_peaks_clock(row), float(row["issued_percent"]))) for row in useful.values()
    )
    yield GPU, f"They agree within {math.ceil(furthest)} % where matmuls matter"


def of_models_on_an_h100() -> Claims:
    yield (
        GPU,
        line_of_h100(
            "one thread in a loop (`spinning`)", step("spinning", 2048, H100), "nothing useful"
        ),
    )
    yield (
        GPU,
        line_of_h100(
            "many small kernels (`tiny_kernels`)",
            step("tiny_kernels", 2048, H100),
            "gaps between launches",
        ),
    )
    resnet = step("resnet50", 64, H100, workload="training")
    others = json.loads(resnet["top_other_operators"]).items()
    norms = sum(percent for name, percent in others if "batch_norm" in name)
    because = f"batch normalisation: {norms:.0f} % of the step"
    yield GPU, line_of_h100("ResNet-50, training, batch 64", resnet, because)
    gpt2 = step("gpt2", 64, H100)
    head = module_percent(gpt2, "GPT2LMHeadModel", "Linear")
    because = f"the head over 50,257 words: {head:.0f} % of the step"
    yield GPU, line_of_h100("GPT-2, inference, batch 64", gpt2, because)
    busy, mfu = float(gpt2["utilization_percent"]), float(gpt2["mfu_percent"])
    yield README, f"On an H100 GPT-2 reads {busy:.0f} % busy at {mfu:.0f} % of the peak"
    because = "normalisation, GELU and sums beside the matmuls"
    vit = step("vit_b_16", 64, H100)
    yield GPU, line_of_h100("ViT-B/16, inference, batch 64", vit, because)
    llama = step("llama_3_2_1b", 64, H100)
    matmuls, others = spent_percent(llama, "products"), spent_percent(llama, "others")
    because = f"matmuls {matmuls:.0f} %, element-wise operators {others:.0f} %"
    yield GPU, line_of_h100("Llama 3.2 1B, inference, batch 64", llama, because)
    product = step("large_product", 8192, H100)
    clock, peak = float(product["clock_mhz"]), float(product["peak_clock_mhz"])
    because = f"the power limit: {clock:,.0f} of {peak:,.0f} MHz"
    yield GPU, line_of_h100("one product, 8192³", product, because)


def of_matmuls_on_an_h200() -> Claims:
    wide = {"kernel": "cuda_wide", "precision": "fp32"}
    clock = first("clock_mhz", **wide)
    fast = f"{first('tflop_s', **wide):.1f} TFLOP/s, at {clock:,.0f} MHz"
    yield GPU, f"| {share(**wide)} % ({fast}) |"
    grouped = share(kernel="cuda_grouped", precision="fp32")
    yield KERNELS, f"reaches {share(**wide)} % of torch's product, and `cuda_grouped` {grouped} %"
    fp32 = rungs("fp32", "cuda_grouped", "triton_plain", "cuda_warp_tile", "numba_cuda_unrolled")
    yield GPU, f"{fp32[0]} % |"
    tf32 = rungs("tf32", "triton_plain", "triton_persistent")
    yield GPU, f"{tf32[0]} % ({tf32[1].replace(', ', ' and ')} TFLOP/s)"
    core = {"kernel": "numba_cuda_tensor_core", "precision": "tf32"}
    yield GPU, f"| {speed(**core)} TFLOP/s, {share(**core)} % |"
    bf16 = rungs("bf16", "triton_persistent", "cuda_hopper", "cuda_hopper_hilbert")
    yield GPU, f"{bf16[0]} % ({' and '.join(bf16[1].rsplit(', ', 1))} TFLOP/s)"
    eight = ("cublaslt", "cuda_hopper_fp8", "torch_scaled", "triton_plain")
    fp8 = rungs("fp8", *eight, experiment="matmul_precision")
    yield GPU, f"{fp8[1]} TFLOP/s; of torch's product with the same sums {fp8[0]} %"
    slow, fast = (
        rows(H200, "matmul", kernel=kernel, precision="int8")[0]
        for kernel in ("torch", "triton_plain")
    )
    rates = [float(row["tflop_s"]) for row in (slow, fast)]
    yield GPU, f"**{rates[0]:.0f} and {round(rates[1], -1):,.0f} TOPS**"
    assert round(rates[1] / rates[0]) == 8
    yield GPU, "take a kernel at an eighth of the rate"
    yield KERNELS, "they take a kernel at an eighth of the rate"
    yield GPU, f"Triton reads {float(fast['share_of_reference_percent']):.0f} % of torch"


def of_shapes_and_clocks() -> Claims:
    odd, even = (1e3 * matmul("time_s", size=f"8192x{side}x768")[0] for side in (50257, 50304))
    yield GPU, f"8,192×768→50,257 takes {odd:.2f} ms, 50,304 {even:.2f} ms"
    times = f"{odd:.2f} ms where 50,304 columns take {even:.2f} ms"
    yield GPU, f"on an H200 {times}, {odd / even:.1f} times as long"
    squares = [matmul("tflop_s", size=side, experiment="alignment")[0] for side in (4097, 4096)]
    yield GPU, f"4,097³ runs at {squares[0]:.0f} TFLOP/s, 4,096³ at {squares[1]:.0f}"
    own = torch_of_itself("bf16", "tf32", "fp8")
    shares = between(column("share_of_reference_percent", own))
    seconds = between(column("measured_s", own), ".1f")
    clocks = between(column("clock_mhz", own), ",.0f")
    yield GPU, f"measured for {seconds} s a matmul, at a clock anywhere from {clocks} MHz"
    yield GPU, f"So torch against itself reads {shares} %."
    still = torch_of_itself("fp32")
    [clock] = set(column("clock_mhz", still))
    shares = between(column("share_of_reference_percent", still), ".1f")
    yield GPU, f"where the clock stays at {clock:,.0f} MHz, it reads {shares} %"


def of_the_seminar() -> Claims:
    asked = {"size": 2704, "experiment": "seminar_gpu"}
    times = [form.format(1e3 * matmul("time_s", kernel=name, **asked)[0]) for name, form in SEMINAR]
    yield GPU, f"(`experiment=seminar_gpu`): {', '.join(times)}."
    calls = matmul("first_calls_mean_s", kernel="numba_cuda_seminar", **asked)[0]
    yield GPU, f"mean of ten first calls with Numba's compilation is {1e3 * calls:.0f} ms"
    dense, sparse = (step("perceptron", 64, pruning=pruning) for pruning in ("none", "two_of_four"))
    slow, fast = (1e3 * float(row["time_s"]) for row in (sparse, dense))
    yield GPU, f"**Two of four** took {slow:.1f} ms a step for {fast:.2f} dense"
    yield GPU, f"the device is busy for {float(sparse['kernel_busy_percent']):.1f} %"
    loaded = of(H200, "profile", "phases_percent", workload="training_loaded")
    phases = " and ".join(f"{percent:.0f}" for percent in loaded)
    yield GPU, f"The phases of {WORDS[len(loaded)]} recorded runs do not add up to a step"
    yield GPU, f"to a step ({phases} %)"


def of_matmuls_on_an_h100() -> Claims:
    asked = {"hardware": H100, "precision": "bf16"}
    stores = {"kernel": "cuda_hopper_stores", **asked}
    paired = first("share_of_reference_percent", **stores)
    yield GPU, f"| {speed(**stores)}; {paired:.0f} % of its pair, which reads too high"
    hilbert = {"kernel": "cuda_hopper_hilbert", "size": 8192, **asked}
    paired = first("share_of_reference_percent", **hilbert)
    yield GPU, f"| {speed(**hilbert)}; {paired:.0f} % of its pair |"
    fp32 = {"hardware": H100, "precision": "fp32"}
    shares = {
        first("share_of_reference_percent", kernel=kernel, **fp32)
        for kernel in ("cuda_prefetched", "cuda_grouped")
    }
    [both] = {f"{percent:.0f}" for percent in shares}
    yield GPU, f"(`cuda_prefetched`, `cuda_grouped`) | 83 to 93 % | {both} % each |"
    unrolled = first("share_of_reference_percent", kernel="numba_cuda_unrolled", **fp32)
    yield GPU, f"| `numba_cuda_unrolled` in fp32 | 60 to 80 % | {unrolled:.0f} % |"
    triton = [speed(kernel=kernel, **asked) for kernel in ("triton_plain", "triton_autotuned")]
    yield GPU, f"550 to 650, 600 to 700 TFLOP/s | {', '.join(triton)} |"
    wmma = speed(kernel="cuda_wmma", **asked)
    yield GPU, f"| `cuda_wmma` in bf16 | 150 to 250 TFLOP/s | {wmma} |"
    core = speed(kernel="numba_cuda_tensor_core", hardware=H100, precision="tf32")
    yield GPU, f"which then had branches | 60 to 100 TFLOP/s | {core} |"
    own = rows(H100, "matmul", kernel="torch")
    narrow = [row for row in own if row["precision"] in TENSOR_FORMATS]
    shares = column("share_of_reference_percent", narrow)
    yield GPU, f"is up to {max(shares) - 100:.0f} % too high"
    yield GPU, f"as torch against itself shows ({between(shares)} %)"
    ceiling = of(H100, "ceilings", "measured_tflop_s", ceiling="fp32")[0]
    yield GPU, f"**The fp32 ceiling**, {ceiling:.1f} TFLOP/s"
    tf32 = [row for row in rows(H100, "matmul", precision="tf32") if row["family"] == "Triton"]
    shares = between(column("share_of_reference_percent", tf32))
    yield GPU, f"Triton's tf32 ({shares} % of torch's product)"
    yield GPU, f"| above the H100's {shares} % |"


def of_power_and_tensor_cores() -> Claims:
    large = [row for row in table(H100, "profile") if row["batch_size"] == "64"]
    products = rows(H100, "profile", model="large_product")
    hungry = products + [row for row in large if row["model"] in ("llama_3_2_1b", "vit_b_16")]
    watts = between(column("power_w", hungry))
    clocks = between((clock / 1e3 for clock in column("clock_mhz", hungry)), ".1f")
    yield GPU, f"draw {watts} W at {clocks} GHz"
    others = [row for row in large if row["model"] in ("gpt2", "resnet50")]
    [clock] = set(column("clock_mhz", others))
    yield GPU, f"draw {between(column('power_w', others))} W at {clock:,.0f} MHz"
    tf32 = apart(matmul("tflop_s", H100, 8192, kernel="torch", precision="tf32"))
    bf16 = apart(of(H100, "profile", "tflop_s", model="large_product", precision="bf16"))
    yield GPU, f"a product's tf32 rows lie {tf32:.1f} % apart, its bf16 steps {bf16:.1f} %"
    unsteady = rows(H100, "profile", steady=False)
    yield GPU, f"{WORDS[len(unsteady)]} products are hollow because no steady time was reached"
    narrow = [row for row in table(H100, "profile") if row["effective_precision"] in TENSOR_FORMATS]
    active = [row for row in narrow if float(row["tensor_active_percent"]) >= LEAST_ACTIVE]
    off = [abs(at_the_peaks_clock(row) - float(row["hfu_percent"])) for row in active]
    near = sum(points <= 5 for points in off)
    few = f"in {near} of the {len(off)} rows whose tensor cores are active for {LEAST_ACTIVE:.0f} %"
    yield GPU, f"agree within 5 points {few} and more"
    trained, inferred, vit = (
        f"{at_the_peaks_clock(row):.1f} for {float(row['hfu_percent']):.1f}"
        for row in (
            step("gpt2", 64, H100, workload="training"),
            step("gpt2", 64, H100),
            step("vit_b_16", 64, H100),
        )
    )
    yield GPU, f"GPT-2 at batch 64 reads {trained} in training and {inferred} in inference"
    yield GPU, f"ViT at batch 64 reads {vit} in inference"
    assert round(times_as_slow("head 768 -> 50257"), 1) == 2.0
    yield GPU, "its head multiplies by instructions of half the rate"
    assert round(times_as_slow("patches"), 1) == 1.5
    patches, attention = executed("patches")[0], executed("attention of 197")[0]
    yield GPU, f"executes {patches:.2f} times its FLOPs, at two thirds of the rate"
    yield GPU, f"and its attention {attention:.2f} times"


def of_changed_kernels() -> Claims:
    before, after = (
        rows(hardware, "matmul", kernel="numba_cuda_tensor_core")[0] for hardware in (H100, H200)
    )
    had = f"{before['registers']} registers and {WORDS[blocks(before)]} block an SM"
    yield GPU, f"{had}; now it has none, {after['registers']} and {WORDS[blocks(after)]}"
    asked = {"hardware": H100, "precision": "bf16"}
    turns = speed(kernel="cuda_hopper_pingpong", **asked)
    shared = speed(kernel="cuda_hopper_stores", **asked)
    yield GPU, f"`cuda_hopper_pingpong` ({turns} TFLOP/s)"
    yield KERNELS, f"That reached {turns} TFLOP/s where 128×256 shared by both reached {shared}"
    [row] = rows(H100, "matmul", kernel="cuda_hopper_pingpong")
    [peak] = of(H100, "ceilings", "computed_clock_mhz", ceiling="bf16")
    at_its_clock = float(row["peak_tflop_s"]) * float(row["clock_mhz"]) / peak
    measured = 100 * float(row["tflop_s"]) / at_its_clock
    yield KERNELS, f"at most 80 % of the peak are possible, and {measured:.0f} % were measured"


def blocks(row: Row) -> int:
    """Blocks of a kernel that an SM holds at once."""
    threads = math.prod(json.loads(row["block"]))
    return round(float(row["occupancy_percent"]) / 100 * THREADS / threads)


def of_expected_kernels() -> Claims:
    """What stands beside an expectation."""
    tf32 = "share_of_reference_percent"
    core = speed(kernel="numba_cuda_tensor_core", precision="tf32")
    yield KERNELS, f"where `numba_cuda_tensor_core` gave {core}"
    unrolled, wide = (
        first(tf32, kernel=kernel, precision="fp32")
        for kernel in ("numba_cuda_unrolled", "cuda_wide")
    )
    yield KERNELS, f"`numba_cuda_unrolled` has {unrolled:.0f} and `cuda_wide` {wide:.0f}"
    before = first(tf32, kernel="triton_persistent", precision="tf32")
    yield KERNELS, f"of torch, {before:.0f} % before"
    [row] = rows(H100, "matmul", kernel="cuda_register_1d")
    [shared] = rows(H100, "matmul", kernel="cuda_shared")
    assert float(row["tflop_s"]) < float(shared["tflop_s"])
    registers, occupancy = float(row["registers"]), float(row["occupancy_percent"])
    yield KERNELS, f"registers for {registers:.0f}, 50 % occupancy for {occupancy:.0f} %"
    yield KERNELS, "faster than `cuda_shared`, which it was not"
    decoding = step("gpt2", 1, workload="decoding")
    gaps = json.loads(decoding["verdict_numbers"])["gaps"]
    step_ms = 1e3 * float(decoding["time_s"])
    busy_ms = step_ms * float(decoding["kernel_busy_percent"]) / 100
    took = f"took {step_ms:.1f} ms with {gaps:.0f} gaps, its kernels {busy_ms:.2f} ms"
    yield KERNELS, f"where a step on an H200 {took}"


def of_the_fp32_log() -> Claims:
    told = log("sgemm")
    speeds = dict(re.findall(r"^ (4096|8192) cublas {2,}([\d.]+) TFLOP/s", told, re.MULTILINE))
    both = f"{float(speeds['4096']):.1f} and {float(speeds['8192']):.1f}"
    yield KERNELS, f"as shares of cuBLAS's {both} TFLOP/s"
    sms = re.search(r"^NVIDIA H200, (\d+) SMs$", told, re.MULTILINE)[1]
    clock = re.findall(r"^NVIDIA H200, (\d+) MHz", told, re.MULTILINE)[-1]
    yield KERNELS, f"against float64 on an H200 ({sms} SMs, {int(clock):,} MHz)"


def of_traces() -> Claims:
    yield "docs/traces.md", verdicts.misaligned(step("gpt2", 16))


CLAIMS = (
    of_a_first_look,
    of_seconds,
    of_the_recordings,
    of_loops,
    of_models_on_an_h200,
    of_models_on_an_h100,
    of_matmuls_on_an_h200,
    of_shapes_and_clocks,
    of_the_seminar,
    of_matmuls_on_an_h100,
    of_power_and_tensor_cores,
    of_changed_kernels,
    of_expected_kernels,
    of_the_fp32_log,
    of_traces,
)


@pytest.mark.parametrize(
    ("name", "says"),
    list(chain.from_iterable(claims() for claims in CLAIMS)),
    ids=lambda value: value[:60],
)
def test_a_document_says_what_the_rows_say(name, says):
    assert says in document(name)


def test_each_variant_of_the_fp32_kernel_stands_in_its_log():
    told = document(KERNELS)
    found = re.findall(
        r"^ (4096|8192) (.*?) {2,}([\d.]+) TFLOP/s .* ([\d.]+) % of the first$",
        log("sgemm"),
        re.MULTILINE,
    )
    shares = {(side, variant): percent for side, variant, _, percent in found}
    best = "async 128x256x16 w64x64 t8x16 s3 lanes snake"
    assert f"**{shares['4096', best]} %** | **{shares['8192', best]} %**" in told
    variants = {variant for _, variant in shares} - {"cublas"}
    tma = {variant for variant in variants if variant.startswith("tma")}
    for variant in variants - tma - {best}:
        assert f"| {shares['4096', variant]} % | {shares['8192', variant]} % |" in told
    sides = [
        [float(shares[side, variant]) for variant in tma if (side, variant) in shares]
        for side in ("4096", "8192")
    ]
    ranges = [f"{between(percents, '.1f')} %" for percents in sides]
    line = f"| {WORDS[len(tma)]} by the bulk copy engine (TMA), block 128×256×32 and others |"
    assert f"{line} {' | '.join(ranges)} |" in told
    assert f"One design, {WORDS[len(variants)]} variants" in told


def test_a_log_bears_no_path_of_a_machine():
    for path in LOGS.iterdir():
        assert not re.search(r"/(home|root|tmp|work)/", path.read_text(encoding="utf-8")), path


# Numbers that no row holds: of names, of what was run, and of what others say.
NAMED = r"`[^`]*`|\]\([^)]*\)|\b[HV]\d00\b|\b(?:bf|fp|tf|int)\d+\b|GPT-2|ResNet-50|\b(?:4096|8192|2,704)³"
ASKED = (
    "16 × 1,024",
    "256 images",
    "16-bit",
    "batch 64",
    "products of 8,192",
    "the text prints 540",
    "2,704 is not a multiple",
    "above the 52 that are published",
)


def test_what_is_said_of_a_recorded_card_is_in_a_row_or_log():
    """The other way round: no number of these two sections is outside of what is recomputed."""
    told = (ROOT / GPU).read_text(encoding="utf-8")
    begin, end = told.index("## What an H200 showed"), told.index("## Recording a machine")
    section = " ".join(told[begin:end].split())
    expected = [f"| {cell} |" for cell in expectations(told[begin:end].splitlines())]
    assert unclaimed(section, NAMED, (*claimed(GPU), *expected, *ASKED)) == []


def claimed(name: str) -> list[str]:
    """What a document must say, by all claims."""
    claims = chain.from_iterable(claims() for claims in CLAIMS)
    return [says for document_name, says in claims if document_name == name]


def unclaimed(text: str, named: str, known: Iterable[str]) -> list[str]:
    """Numbers of a text that lie in no name and in no known passage, each with what is around
    it."""
    spans = [match.span() for match in re.finditer(named, text)]
    for passage in known:
        spans += [match.span() for match in re.finditer(re.escape(passage), text)]
    unknown = []
    for number in re.finditer(r"\d[\d,.]*", text):
        index = number.start()
        if not any(first <= index < last for first, last in spans):
            unknown.append(text[max(0, index - 40) : index + 20])
    return unknown


# A statement is of a card if it names one that was recorded, or a measured speed or share.
OF_A_CARD = r"\bH[12]00\b|TFLOP/s|% of (?:torch|cuBLAS)"
SHAPED = rf"{NAMED}|\d+(?:×\d+)+"
# Targets, what others claim, and shared memory's width.
ASKED_ELSEWHERE = (
    "107 % of cuBLAS may be one",
    "target is the best Numba rung at 30 %",
    "128 B a clock",
)


@pytest.mark.parametrize("name", [KERNELS, "docs/loops.md", README])
def test_what_other_documents_say_of_a_card_is_in_a_row_or_log(name):
    told = (ROOT / name).read_text(encoding="utf-8")
    expected = [*expectations(told.splitlines())]
    unknown = []
    for statement in statements(told):
        if re.search(OF_A_CARD, statement):
            known = (*claimed(name), *expected, *ASKED_ELSEWHERE)
            unknown += unclaimed(statement, SHAPED, known)
    assert unknown == []


def statements(text: str) -> Iterator[str]:
    """Lines of tables without their first cell, which names a design, and sentences of everything
    else."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("|"):
            for line in paragraph.splitlines():
                yield line.removeprefix("|").partition(" |")[2]
        else:
            yield from re.split(r"(?<=[.:]) (?=[A-Z`*])", " ".join(paragraph.split()))


def expectations(lines: Iterable[str]) -> Iterator[str]:
    """The cells of the columns named `expected`, in all tables of a document."""
    index = None
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")]
        if not line.startswith("|"):
            index = None
        elif "expected" in cells:
            index = cells.index("expected")
        elif index is not None:
            yield cells[index]
