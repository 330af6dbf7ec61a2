"""Invented rows of invented machines, for tests of the report."""

import csv
import hashlib
import json
import math
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from mfulab.cli.main import main
from mfulab.core.files import write_csv
from mfulab.core.rows import Row
from mfulab.measurements.bench_matmul import MatmulRow
from mfulab.measurements.ceilings import CeilingRow
from mfulab.measurements.compare_counters import CounterRow
from mfulab.measurements.count_flops import FlopsRow
from mfulab.measurements.environment import EnvironmentRow
from mfulab.measurements.number_formats import NumberFormatsRow
from mfulab.measurements.probe_memory import MemoryRow
from mfulab.measurements.profile_step import ProfileRow
from mfulab.measurements.published import PublishedRow
from mfulab.measurements.quality import Compression, QualityRow
from mfulab.measurements.read_trace import TraceRow
from mfulab.measurements.read_utilization import ReadingRow
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.measurements.serve_requests import ServingRow
from mfulab.measurements.split_model import SplitRow

CPU, GPU = "invented-cpu-4c", "invented-gpu-80gb"
PEAKS = {  # (measured, computed) TFLOP/s
    CPU: {"fp32": (0.55, 0.48), "bf16": (0.11, 0.48)},
    GPU: {"fp32": (52.0, 67.0), "bf16": (789.0, 989.4)},
}
BANDWIDTH = {CPU: (24.0, None), GPU: (3020.0, 3350.0)}
DTYPE = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
DTYPE |= {"fp8": "float8_e4m3fn", "int8": "int8"}
MODELS = {  # forward FLOPs per sample, parameters, tokens per sample
    "simple_cnn": (29_704_192, 4_015_000, None),
    "resnet18": (3_628_146_688, 11_689_512, None),
    "gpt2": (36_500_000_000, 124_439_808, 128),
}
# Texts that would run as code if the page did not escape them. A run's name has no slash.
EVIL = '<script>alert("x")</script>'
EVIL_NAME = """<img src=x onerror="document.title='broken'">"""
PHASES = {"forward": 0.3, "backward": 0.45, "optimiser": 0.2, "other": 0.05}
KERNELS = {  # share of the reference, by hardware
    CPU: {"python": 1e-6, "numba_naive": 0.004, "numba_reordered": 0.11, "numba_parallel": 0.35},
    GPU: {"numba_naive": 0.013, "numba_shared": 0.128, "cuda_register_tile_2d": 0.687},
}
KERNELS[CPU] |= {"numpy": 0.99}
KERNELS[GPU] |= {"triton": 0.93, "cublas": 1.0}


def write_run(root: Path, hardware: str, step: str, row: Row, config: dict[str, Any]) -> str:
    """Writes one run's files as the runner does. Returns its folder relative to `root`."""
    level = f"{hardware}/" if MEASUREMENTS[step].on_device else ""
    folder = f"results/{level}{step}/{row.run}"
    path = root / folder
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    values = row.model_dump()
    with (path / "row.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(values))
        writer.writeheader()
        writer.writerow(values)
    (path / "samples.csv").write_text(
        "window,step,time_s\n" + "".join(_samples(values.get("time_s")))
    )
    if step in ("profile_step", "read_utilization"):
        polled = [
            f"{second / 5 - 2:.3f},{0 <= second - 10 < 20},{60 + 30 * (0 <= second - 10 < 20)},1980\n"
            for second in range(40)
        ]
        (path / "series.csv").write_text(
            "time_s,in_window,utilization_percent,clock_mhz\n" + "".join(polled)
        )
    (path / "log").write_text(f"measuring {row.run}\ndone\n")
    return folder


def classroom(tables: dict[str, Any]) -> dict[str, Any]:
    """Same machines as measured by three participants, each slower than the one before."""
    changed = dict(tables)
    for name in ("profile", "matmul"):
        table = tables[name].dropna(subset=["time_s"])
        participants = [
            table.assign(
                hardware=table["hardware"] + f"--{who}",
                recorded=False,
                time_s=table["time_s"] * factor,
            )
            for who, factor in (("ann", 1.0), ("bob", 1.08), ("chen", 1.6))
        ]
        changed[name] = pd.concat(participants, ignore_index=True)
    return changed


SLOW_CARD = "GPU-00000003"


def cards(tables: dict[str, Any], slowed: float = 1.2, hardware: str = GPU) -> dict[str, Any]:
    """Same runs as measured by eight equal cards of a machine, of which SLOW_CARD is slower."""
    names = [f"GPU-{place:08x}-0000-0000-0000-00000000000{place}" for place in range(1, 9)]
    changed = dict(tables)
    for name in ("profile", "matmul"):
        table = tables[name].dropna(subset=["time_s"])
        table = table[table["hardware"] == hardware].assign(recorded=False)
        times = []
        for number, time_s in enumerate(table["time_s"]):
            times_of_run = []
            for place, card in enumerate(names):
                factor = slowed if card.startswith(SLOW_CARD) else 1.0
                times_of_run.append(
                    time_s * factor * (1 + 0.004 * math.sin(5 * number + 3 * place))
                )
            times.append(json.dumps(times_of_run))
        changed[name] = table.assign(
            device_uuid=" ".join(names), process_cards=json.dumps(names), process_times_s=times
        )
    return changed


def _samples(time: float | None) -> list[str]:
    if time is None:
        return []
    return [
        f"{window},{step},{time * (1 + 0.02 * math.sin(window * 7 + step)):.9g}\n"
        for window in range(5)
        for step in range(8)
    ]


def common(hardware: str, run: str, **more: Any) -> dict[str, Any]:
    ran = {"commit": "0123abc", "started_at": "2026-01-02T03:04:05+00:00"}
    ran |= {"process_s": 4.0, "measured_s": 2.5}
    return {"hardware": hardware, "run": run, **ran, **more}


def environment(hardware: str) -> EnvironmentRow:
    cpu, card = "Invented(R) Xeon CPU @ 2.0 GHz", "Invented GPU 80GB"
    device = {"device": "cpu", "device_name": cpu}
    if hardware == GPU:
        device = {"device": "cuda", "device_name": card, "driver": "580.1", "cuda": "13.0"}
        device |= {"gpus": json.dumps([{"name": card, "sms": 132}])}
    cores = {"cpu_physical_cores": 2, "cpu_logical_cores": 4, "cpu_machine_cores": 8}
    software = {"python": "3.11.9", "operating_system": "Linux 6.1"}
    return EnvironmentRow(
        **common(hardware, "environment", **device, **cores, **software),
        packages=json.dumps({"torch": "2.13.0", "numba": "0.62.0"}),
        cpu_name=cpu,
        cpu_mhz=2000.0,
        cpu_vector_flags="avx2 avx512_bf16 avx512f",
        memory_total_bytes=16 * 2**30,
        virtual_machine=True,
        blas_threads=json.dumps({"mkl": 4}),
    )


def ceilings(hardware: str) -> list[CeilingRow]:
    rows = [
        CeilingRow(
            **common(hardware, f"ceiling={precision}"),
            ceiling=precision,
            measured_tflop_s=measured,
            measured_shape="4096x4096x4096",
            computed_tflop_s=computed,
            computed_formula="units × FMA × 2 × clock",
            computed_source="invented",
        )
        for precision, (measured, computed) in PEAKS[hardware].items()
    ]
    measured, computed = BANDWIDTH[hardware]
    memory = CeilingRow(
        **common(hardware, "ceiling=memory"),
        ceiling="memory",
        measured_gb_s=measured,
        computed_gb_s=computed,
    )
    return [*rows, memory]


def flops(model: str, batch_size: int) -> FlopsRow:
    forward, parameters, tokens = MODELS.get(model, MODELS["resnet18"])
    work, causal = forward * batch_size, int(0.97 * forward) * batch_size
    read = 4 * parameters + forward // 40 * batch_size
    read_back = 8 * parameters + forward // 20 * batch_size
    wide, narrow, half = [batch_size, 64, 112, 112], [batch_size, 512], work // 2
    layers = [(f"encoder.stages.{n}.layers.{n}.convolution", work // 20) for n in range(20)]
    layers.append(("head", work - 20 * (work // 20) + work // 40))
    layers[0] = (layers[0][0], work // 20 - work // 40)  # all of them sum to the whole
    image = [("", [batch_size, 3, 224, 224])]
    graph = [
        ("ConvolutionBackward0", wide, image, ["stem.weight"], half, half),
        ("ReluBackward0", wide, [("", wide)], [], 0, 0),
        ("AddmmBackward0", [batch_size, 1000], [("", narrow)], ["head.bias"], half, 2 * half),
    ]
    intensities = {
        "forward": [(work, read), (0, forward // 20)],
        "backward": [(2 * work, read_back)],
        "inference": [(work, read)],
        "decoding": [(2 * parameters * batch_size, 4 * parameters)],
    }
    decoding = {}
    if tokens:
        decoding = {"key_value_cache_bytes": 73_728 * tokens * batch_size}
        decoding |= {"decoding_flops": 2 * parameters * batch_size}
        decoding |= {"decoding_bytes": 4 * parameters}
    return FlopsRow(
        **common("", f"model={model},batch_size={batch_size}"),
        model=model,
        batch_size=batch_size,
        sequence_length=tokens,
        parameters=parameters,
        trainable_parameters=parameters,
        forward_flops=work,
        backward_flops=2 * work,
        forward_macs=work // 2,
        layers=json.dumps(layers),
        graph=json.dumps(graph),
        forward_causal_flops=causal,
        backward_causal_flops=2 * causal,
        recomputed_flops=work,
        executed_backward_flops=int(2.1 * forward) * batch_size,
        other_flops=forward // 50 * batch_size,
        uncounted_operators="{}",
        forward_bytes=read,
        backward_bytes=read_back,
        activation_bytes=forward // 60 * batch_size,
        checkpointed_activation_bytes=forward // 600 * batch_size,
        step_peak_bytes=forward // 50 * batch_size + 4 * parameters,
        inference_peak_bytes=forward // 300 * batch_size,
        intensities=json.dumps(intensities),
        **decoding,
    )


def published() -> list[PublishedRow]:
    """Public runs of two models on 8 to 4,096 devices, one of them above the 16-bit peak."""
    rows = []
    for model, framework in (("gpt2", "papers"), ("llama", "torchtitan")):
        for place, devices in enumerate((8, 16, 64, 512, 4096)):
            for architecture, accelerator in (("9.0", "H100 SXM5 80GB"), ("10.0", "B200 HGX")):
                mfu = (104.0 if architecture == "10.0" else 52.0) * 0.9**place
                row = {"published": framework, "framework": framework, "submitter": "somebody"}
                row |= {"system": f"{model} on {devices}", "model": model, "accelerators": devices}
                row |= {"accelerator": accelerator, "architecture": architecture}
                row |= {"precision": "bf16", "mfu_format": "bf16", "source": "invented"}
                row |= {"mfu_bf16_percent": mfu, "mfu_percent": mfu}
                row |= {"printed_mfu_percent": mfu + 1.5, "convention": "6N of all parameters"}
                row |= {"convention_mfu_percent": mfu + 1.4 + 0.3 * (place == 2)}
                row |= {"difference_points": 0.1 - 0.3 * (place == 2)}
                rows.append(PublishedRow(**row))
    return rows


def traces() -> list[TraceRow]:
    """Three steps of invented length, busy between a tenth and nearly all of the time."""
    rows = []
    for place, (name, busy) in enumerate({"prefill": 92, "classifier": 40, "tiny_bert": 8}.items()):
        others, products = 1_000_000 * busy // 2, 1_000_000 * (busy - busy // 2)
        spent = {"products": products, "recomputed": 0, "uncounted": 0, "others": others}
        spent |= {"graph": 0, "communication": 0, "copies": 1_000_000, "input_wait": 0}
        spent |= {"idle": 99_000_000 - others - products}
        flops = 4e11 * products / 1e6
        each = {"shapes": "64×64", "calls": 9, "launch_ns": 900, "reason": None}
        matmul = {"flops": {"bf16": flops}, "bytes": flops / 900}
        matmul |= {"time_ns": products, "kernel_ns": products}
        other = {"flops": {}, "bytes": 4.0 * others, "time_ns": others, "kernel_ns": others}
        idle = {"flops": None, "bytes": None, "time_ns": 100_000_000 - others - products}
        idle |= {"kernel_ns": 0}
        operators = [
            {"kind": "products", "operator": "aten::mm", **each, **matmul},
            {"kind": "others", "operator": "aten::gelu", **each, **other},
            {"kind": "idle", "operator": "starved", **each, **idle},
        ]
        rows.append(
            TraceRow(
                **common("", f"trace={name}"),
                trace=f"{name}.json.gz", model=name, device="NVIDIA H100 80GB HBM3", units=132, mode="inference",
                precision="bf16", effective_precision="bf16", steps=1, window_s=0.1, time_s=0.1, flops=flops,
                bytes_moved=flops / 90,
                causal_flops=flops, executed_flops=flops, flops_by_format=json.dumps({"bf16": flops}),
                executed_by_format=json.dumps({"bf16": flops}), executed_ratio=1.02, issued_ratio=1.02,
                spent=json.dumps(spent), utilization_percent=busy, kernel_busy_percent=busy,
                matmul_percent=busy - busy // 2, other_operators_percent=busy // 2, idle_percent=99 - busy,
                copy_percent=1, communication_percent=0, launch_gap_s=2e-6, launch_gaps_per_step=100 * place,
                operators=json.dumps(operators),
            )
        )  # fmt: skip
    return rows


def number_formats() -> list[NumberFormatsRow]:
    parts = {"fp64": (11, 52), "fp32": (8, 23), "bf16": (8, 7), "fp16": (5, 10), "fp8": (4, 3)}
    return [
        NumberFormatsRow(
            **common("", f"precision={precision}"),
            precision=precision,
            bits=1 + exponent + mantissa,
            exponent_bits=exponent,
            mantissa_bits=mantissa,
            epsilon=2.0**-mantissa,
            sum_length=4096,
            naive_sum_error=40 * 2.0**-mantissa if precision != "fp8" else None,
            pairwise_sum_error=2 * 2.0**-mantissa if precision != "fp8" else None,
            kahan_sum_error=0.0 if precision == "fp64" else 2.0 ** -(mantissa + 1),
        )
        for precision, (exponent, mantissa) in parts.items()
    ]


def quality(hardware: str) -> list[QualityRow]:
    """Compressions of increasing speed and decreasing quality."""
    return [
        QualityRow(
            **common(hardware, f"compression={way}"),
            compression=way,
            accuracy_percent=98.0 - 0.4 * place,
            accuracy_half_points=0.3,
            whole_accuracy_percent=98.0,
            accuracy_change_points=-0.4 * place,
            change_half_points=0.5,
            **dict.fromkeys(("flops", "weight_bytes"), 1000000 - 70000 * place),
            **dict.fromkeys(("whole_flops", "whole_weight_bytes"), 1000000),
            time_s=1e-3 - 6e-5 * place,
            time_percent=100.0 - 6 * place,
            time_low_percent=98.0 - 6 * place,
            time_high_percent=102.0 - 6 * place,
        )
        for place, way in enumerate(get_args(Compression))
    ]


def serving(hardware: str) -> list[ServingRow]:
    """Serving where the queue grows above a load of 1 without batching. Batches keep up, but
    waiting costs latency."""
    rows = []
    for load in (0.5, 2.0, 4.0):
        for largest, wait_ms in ((1, 0.0), (16, 0.0), (16, 20.0)):
            latency_s = 0.004 + wait_ms / 1e3 + (load if largest == 1 and load > 1 else 0)
            axes = f"offered_load={load},largest_batch={largest},longest_wait_ms={wait_ms:g}"
            rows.append(
                ServingRow(
                    **common(hardware, f"model=perceptron,{axes}"),
                    model="perceptron",
                    offered_load=load,
                    largest_batch=largest,
                    longest_wait_ms=wait_ms,
                    requests=400,
                    answered_per_s=250 * (min(load, 1) if largest == 1 else load),
                    latency_p50_s=latency_s,
                    latency_p95_s=2 * latency_s,
                    mean_batch=1.0 if largest == 1 else 1 + 3 * load,
                )
            )
    return rows


def split(hardware: str) -> list[SplitRow]:
    """A pipeline that idles a tenth more than its bubble, and faster tensor parallelism."""
    rows = []
    for way, ranks, count in (
        ("none", 1, 1),
        ("tensor", 2, 1),
        *(("pipeline", 2, 1 << power) for power in range(5)),
    ):
        bubble = 100 / (count + 1)
        idle = {"none": 0.0, "tensor": 8.0}.get(way, bubble + 10)
        rows.append(
            SplitRow(
                **common(
                    hardware, f"model=perceptron,batch_size=512,split={way},micro_batches={count}"
                ),
                model="perceptron",
                batch_size=512,
                split=way,
                ranks=ranks,
                micro_batches=count,
                time_s=0.1 / ranks / (1 - idle / 100),
                speedup=ranks * (1 - idle / 100),
                idle_percent=idle,
                predicted_idle_percent=bubble if way == "pipeline" else None,
                predicted_sent_bytes={"none": 0, "tensor": 6e6}.get(way, 2e6),
            )
        )
    return rows


def memory(hardware: str) -> list[MemoryRow]:
    """Latencies that rise where invented caches end; columns cost four times as much as rows."""
    factor = {"random": 8.0, "strided": 3.0, "sequential": 1.0, "rows": 1.1, "columns": 4.4}
    return [
        MemoryRow(
            **common(hardware, f"pattern={pattern},working_set_bytes={4096 << step}"),
            pattern=pattern,
            working_set_bytes=4096 << step,
            level=("L1", "L2", "L3", "memory")[step // 5],
            caches=json.dumps({"L1": 48 << 10, "L2": 1 << 20, "L3": 32 << 20}),
            time_per_access_s=4e-10 * times * 1.5**step,
            accesses=1000,
        )
        for pattern, times in factor.items()
        for step in range(0, 20, 2)
    ]


def readings(hardware: str) -> list[ReadingRow]:
    """Loads of known utilization. The machine's counters also count a neighbour, and nvidia-smi
    takes a spinning thread for full use."""
    gpu = hardware == GPU
    truths = {"idle": 0.0, "copies": 25.0, "spin_one": 25.0}
    truths |= {"duty_50": 51.0, "bursty": 21.0, "steady": 99.5}
    return [
        ReadingRow(
            **common(hardware, f"load={load},polling_period_s={period:g},precision=fp32"),
            load=load,
            precision="fp32",
            polling_period_s=period,
            window_s=4.0,
            units=4,
            duty_percent=truth,
            truth_percent=truth,
            useful_flops=int(4e11 * truth),
            mfulab_percent=truth + 0.4,
            psutil_process_percent=None if gpu else truth + 0.6,
            psutil_machine_percent=None if gpu else truth / 2 + 9,
            proc_stat_percent=None if gpu else truth / 2 + 8,
            cgroup_percent=None if gpu else truth + 3,
            profiler_percent=0.0 if load in ("spin_one", "copies") else truth,
            nvml_percent=100.0 * (truth > 0) if gpu else None,
            sm_active_percent=truth if gpu else None,
            before_percent=1.0,
            during_percent=truth,
            after_percent=0.0,
            polls=19,
        )
        for load, truth in truths.items()
        for period in ((0.05, 0.2, 1.0) if load in ("steady", "bursty") else (0.2,))
    ]


def profile(
    hardware: str, model: str, workload: str, batch_size: int, precision: str, status: str = "ok"
) -> ProfileRow:
    """Step whose speed grows with batch size and saturates, as on real machines."""
    forward, parameters, tokens = MODELS.get(model, MODELS["resnet18"])
    work = forward * batch_size * (3 if workload == "training" else 1)
    measured, _ = PEAKS[hardware][precision]
    index = list(MODELS).index(model) if model in MODELS else len(model) % 7
    saturation = batch_size / (batch_size + (24 if hardware == GPU else 1.5))
    speed = measured * 1e12 * (0.12 + 0.22 * index) * saturation
    time = work / speed + (2e-4 if hardware == GPU else 5e-4)
    if workload == "decoding":
        time = (
            (4 if precision == "fp32" else 2)
            * parameters
            / (BANDWIDTH[hardware][0] * 0.7e9)
            * (1 + batch_size / 200)
        )
    axes = {"model": model, "workload": workload, "batch_size": batch_size, "precision": precision}
    run = ",".join(f"{axis}={value}" for axis, value in axes.items())
    lost = "CUDA out of memory: tried to allocate 2 GiB"
    told = common(hardware, run, status=status, message="" if status == "ok" else lost)
    gpu = hardware == GPU and status == "ok"
    source = {"utilization_source": "nvml" if gpu else "process CPU time"}
    source |= {"memory_source": "cuda allocator" if gpu else "peak RSS"}
    row = {**told, **axes, **source, "sequence_length": tokens, "execution": "eager"}
    if status != "ok":
        return ProfileRow(**row)
    busy = min(99.0, 62 + 3.1 * math.log2(batch_size) + 9 * index)
    times = {"time_s": time, "time_p5_s": time * 0.98, "time_p95_s": time * 1.06}
    times |= {"time_ci_low_s": time * 0.99, "time_ci_high_s": time * 1.02, **repeated(time)}
    times |= {"windows": 6, "steps": 40, "window_s": 40 * time}
    counters = {"utilization_percent": busy, "kernel_busy_percent": busy * 0.97}
    counters |= {"memory_bytes": int(2e8 + 6e7 * batch_size), "loss": 2.3}
    spent = {"products": 60, "others": 25, "copies": 3, "idle": 12}
    row |= {**times, **counters, "effective_precision": precision, "spent": json.dumps(spent)}
    if workload == "training":
        row |= {f"{phase}_ms": 1e3 * time * share for phase, share in PHASES.items()}
    if gpu:
        row |= {"energy_j": time * 420, "power_w": 420.0, "dram_active_percent": 31.0}
        row |= {"sm_active_percent": busy * 0.8, "occupancy_percent": busy * 0.4}
    if gpu and precision == "bf16":
        row |= {"tensor_active_percent": busy * 0.35 * saturation}
    return ProfileRow(**row)


def repeated(time: float) -> dict[str, Any]:
    """Columns of three processes and the probe for a time. For every seventh run they report a slow
    machine."""
    # the same each time
    drawn = int.from_bytes(hashlib.sha256(f"{time:.6e}".encode()).digest()[:2], "big") / 2**16
    slow = 2.1 if drawn > 6 / 7 else 1.0
    times_unix = [1.79e9 + 300 * drawn + 2 * number for number in range(3)]
    states = {"threads": 2, "at_s": times_unix, "product_s": [3e-4 * slow * (1 + 0.1 * drawn)] * 3}
    states |= {"copy_s": [1e-3] * 3}
    times = [time * (1 + drawn * shift) for shift in (-0.05, 0.0, 0.04)]
    columns = {"replicates": 3, "process_times_s": json.dumps(times), "probes": json.dumps(states)}
    return columns | {
        "probe_s": 0.02,
        "disturbed_replicates": 3 if slow > 1 else 0,
        "slowdown": slow,
    }


def matmul(
    hardware: str, kernel: str, size: str, precision: str = "fp32", status: str = "ok"
) -> MatmulRow:
    share = KERNELS[hardware].get(kernel, 0.5)
    measured, _ = PEAKS[hardware][precision]
    sides = [int(side) for side in size.split("x")] * (3 if "x" not in size else 1)
    m, n, k = sides
    work, shortest = 2 * m * n * k, min(sides)
    reference = (
        work / (measured * 1e12 * shortest / (shortest + 300)) * (1.3 if shortest % 2 else 1) + 4e-6
    )
    time = reference / share
    moved = (m * k + k * n + m * n) * 4
    axes = {"kernel": kernel, "size": size, "precision": precision}
    run = ",".join(f"{axis}={value}" for axis, value in axes.items())
    row = common(hardware, run, status=status, **axes)
    row |= {"family": kernel.partition("_")[0], "effective_precision": precision}
    row |= {"adds": "the framework's own matmul: MKL or oneDNN on a CPU, cuBLAS on a GPU"}
    row |= {"batch": 1, "m": m, "n": n, "k": k, "flops": work, "bytes_moved": moved}
    row |= {"first_calls": 10, "repetitions": 20, "max_absolute_error": 1.5e-4}
    row |= {"reference_name": "cublas" if hardware == GPU else "torch"}
    row |= {"tolerance": 3e-6 if precision == "fp32" else 1e-2}
    error = (3e-7 if precision == "fp32" else 1.7e-3) * math.sqrt(k / 1024)
    if status == "ok":
        row |= {"time_s": time, "hot_time_s": time, "cold_time_s": time * 1.2}
        row |= {"time_ci_low_s": time * 0.99, "time_ci_high_s": time * 1.01, **repeated(time)}
        row |= {"hot_iqr_s": time * 0.03, "first_call_s": time + 0.4}
        row |= {"first_calls_mean_s": time + 0.04, "allocation_s": 2e-5 + moved / 40e9}
        row |= {"end_to_end_s": time, "reference_time_s": reference}
    if status == "ok" and hardware == GPU:
        row |= {"host_to_device_s": 2 * moved / 3 / 12e9, "device_to_host_s": moved / 3 / 12e9}
        row |= {"end_to_end_s": time + moved / 12e9}
    return MatmulRow(**row, relative_error=error)


COUNTERS = {"torch": -13.3, "fvcore": 0.3, "thop": -72.8, "ptflops": 0.6}  # percent, invented


def counter(model: str, name: str) -> CounterRow:
    forward = MODELS.get(model, (1_000_000_000,))[0]
    return CounterRow(
        **common("", f"model={model},counter={name}"),
        model=model,
        batch_size=1,
        counter=name,
        version="1.0",
        flops=forward * (1 + COUNTERS[name] / 100),
        reference_flops=forward,
        deviation_percent=COUNTERS[name],
        explanation="leaves out attention (0.5 GFLOP)",
    )


def lay_out(
    root: Path,
    hardware: str = CPU,
    models: tuple[str, ...] = tuple(MODELS),
    sizes: tuple[int, ...] = (256, 512, 1024),
) -> Path:
    """Writes a complete measured experiment under `root`, with one row out of memory. Returns its
    manifest."""
    runs: list[dict[str, Any]] = []

    def links(precision: str) -> dict[str, str]:
        return {
            name: f"results/{hardware}/ceilings/ceiling={what}"
            for name, what in (("compute", precision), ("memory", "memory"))
        }

    def add(step: str, row: Row, config: dict[str, Any], **more: Any) -> str:
        folder = write_run(root, hardware, step, row, config)
        runs.append({"step": step, "run": row.run, "folder": folder, "config": config, **more})
        return folder

    add("environment", environment(hardware), {})
    row = MEASUREMENTS["published"].row(**common("", "published=papers"))
    samples = [line.model_dump(exclude={"hardware", "run"}) for line in published()]
    write_csv(
        root / add("published", row, {"published": "papers"}) / "samples.csv",
        samples,
        list(samples[0]),
    )
    for row in quality(hardware):
        add("quality", row, {"compression": row.compression})
    perceptron = {"model": {"name": "perceptron", "_target_": "perceptron", "input_shape": [1024]}}
    for row in serving(hardware):
        kept = ("offered_load", "largest_batch", "longest_wait_ms")
        add("serve_requests", row, perceptron | row.model_dump(include=set(kept)))
    for row in split(hardware):
        kept = ("batch_size", "split", "micro_batches")
        add("split_model", row, perceptron | row.model_dump(include=set(kept)))
    for row in memory(hardware):
        add(
            "probe_memory",
            row,
            {"pattern": row.pattern, "working_set_bytes": row.working_set_bytes},
        )
    for row in readings(hardware):
        config = {"load": row.load, "precision": {"name": "fp32", "dtype": DTYPE["fp32"]}}
        add("read_utilization", row, config, ceilings=links("fp32"))
    for row in number_formats():
        add(
            "number_formats",
            row,
            {"precision": {"name": row.precision, "dtype": DTYPE[row.precision]}},
        )
    for ceiling in ceilings(hardware):
        precision = (
            {"name": ceiling.ceiling, "dtype": DTYPE[ceiling.ceiling]}
            if ceiling.ceiling in DTYPE
            else None
        )
        add("ceilings", ceiling, {"ceiling": ceiling.ceiling, "precision": precision})
    for model in models:
        shape = (
            {"vocabulary_size": 50257, "sequence_length": MODELS[model][2]}
            if MODELS.get(model, (0, 0, None))[2]
            else {"input_shape": [3, 224, 224]}
        )
        known = {"name": model, "_target_": "invented.model", **shape}
        for name in COUNTERS:
            add(
                "compare_counters",
                counter(model, name),
                {"model": known, "batch_size": 1, "counter": name},
            )
        for batch_size in (1, 4, 16):
            what = {"model": known, "batch_size": batch_size}
            counted = write_run(root, hardware, "count_flops", flops(model, batch_size), what)
            for workload in (
                "training",
                "inference",
                *(("decoding",) if MODELS.get(model, MODELS["resnet18"])[2] else ()),
            ):
                for precision in PEAKS[hardware]:
                    last = (model, batch_size, workload) == ("gpt2", 16, "training")
                    row = profile(
                        hardware,
                        model,
                        workload,
                        batch_size,
                        precision,
                        "out_of_memory" if last else "ok",
                    )
                    config = {
                        **what,
                        "workload": {"name": workload, "mode": workload, "optimizer": "adam"},
                        "precision": {"name": precision, "dtype": DTYPE[precision]},
                        "execution": {"name": "eager"},
                    }
                    add(
                        "profile_step", row, config, flops_folder=counted, ceilings=links(precision)
                    )
    products = [(kernel, str(size), "fp32") for kernel in KERNELS[hardware] for size in sizes]
    products += [
        (list(KERNELS[hardware])[-1], size, "fp32")
        for size in ("1023", "1x1024x1024", "16x1024x1024")
    ]
    products += [(list(KERNELS[hardware])[-1], str(sizes[-1]), "bf16")]
    for kernel, size, precision in products:
        config = {
            "kernel": {"name": kernel, "_target_": "invented.kernel"},
            "size": size,
            "precision": {"name": precision, "dtype": DTYPE[precision]},
        }
        row = matmul(hardware, kernel, size, precision)
        add("bench_matmul", row, config, ceilings=links(precision))
    for x in (8, 16, 32):
        for y in (4, 8):
            row = matmul(hardware, list(KERNELS[hardware])[1], str(sizes[-1])).model_copy(
                update={"run": f"block={x}x{y}", "block": f"[{x}, {y}]"}
            )
            for name in ("time_s", "time_ci_low_s", "time_ci_high_s"):
                setattr(row, name, getattr(row, name) and getattr(row, name) * (1 + 8 / x + y / 30))
            add("bench_matmul", row, config, ceilings=links("fp32"))
    manifest = root / "results" / hardware / "plan/invented.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    excluded = [
        {
            "step": "bench_matmul",
            "run": "kernel=python,size=4096",
            "because": "a day of pure Python",
        }
    ]
    plan = {"experiment": "invented", "hardware": hardware, "overrides": ["timing.windows=9"]}
    manifest.write_text(json.dumps({**plan, "runs": runs, "excluded": excluded}))
    return manifest


def tabled(root: Path, *manifests: Path, reference: Path | None = None) -> Path:
    """Builds the tables of experiments written by `lay_out`, optionally with recorded ones. Returns
    their folder."""
    out = root / "tables"
    planned = ["--manifest", *map(str, manifests)]
    recorded = ["--reference", str(reference)] if reference else []
    main(["tables", "--root", str(root), "--out", str(out), *planned, *recorded])
    return out


def add_runs(manifest: Path, count: int) -> None:
    """Adds `count` profiled steps to an experiment, each in its own folder, that differ only in
    their seed."""
    root = manifest.parents[3]
    plan = json.loads(manifest.read_text())
    first = next(run for run in plan["runs"] if run["step"] == "profile_step")
    row = (root / first["folder"] / "row.csv").read_text()
    for number in range(1, count + 1):
        name = f"{first['run']},seed={number}"
        folder = f"{Path(first['folder']).parent}/{name}"
        config = {**first["config"], "seed": number}
        (root / folder).mkdir()
        (root / folder / "config.json").write_text(json.dumps(config))
        (root / folder / "row.csv").write_text(row.replace(first["run"], name))
        plan["runs"].append({**first, "run": name, "folder": folder, "config": config})
    manifest.write_text(json.dumps(plan))


def multiply(tables: Path, folder: Path, count: int, axis: str = "seed") -> None:
    """Copies tables to `folder` and extends the profile table to `count` rows. They differ in
    `axis`, which may be a column or not, and slightly in time."""
    folder.mkdir(parents=True)
    for path in tables.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with (tables / "profile.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    with (folder / "profile.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        for number in range(1, count + 1):
            line = dict(lines[number % len(lines)])
            line["run"] += f",{axis}={number}"
            if axis in line:
                line[axis] = str(number)
            if line["time_s"]:
                line["time_s"] = f"{float(line['time_s']) * (1 + number % 997 / 1e4):.9g}"
            writer.writerow(line)
