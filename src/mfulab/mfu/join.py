"""The join that the project exists for: counted FLOPs ÷ measured time ÷ known peak. Pure functions
over numbers in base units (seconds, FLOP, bytes, joules), except ceilings, which are in TFLOP/s as
in their rows. None is "not measured" and makes every value that needs it None; no ratio is ever
clipped."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from mfulab.core.formats import BY_DTYPE, FORMATS
from mfulab.core.json_text import parse_json
from mfulab.core.parts import Values, pick_present
from mfulab.core.said import Said
from mfulab.device import is_gpu
from mfulab.flops.memory import Optimizer, inference_peak_bytes, training_peak_bytes
from mfulab.mfu.account import account, shares_of
from mfulab.mfu.flags import matmul_flags
from mfulab.mfu.step import (
    Cell,
    Counters,
    Known,
    StepFacts,
    StepPeaks,
    StepTime,
    StepWork,
    group,
    traced,
    without_hidden_matmuls,
)
from mfulab.mfu.utilization import (
    GIGA,
    TERA,
    default_basis,
    of_peak,
    percent,
    product,
    ratio,
    roof,
    tflop_s,
    total,
)

BYTES_COUNTED_PER_ELEMENT = 4  # count_flops counts bytes of float32 operands
# Columns of a step's peaks, except those of its format.
OF_PEAKS = (
    "peak_tflop_s",
    "peak_clock_mhz",
    "peak_gb_s",
    "ceiling_tflop_s",
    "ceiling_gb_s",
    "ceiling_raised_percent",
    "ceiling_slowdown",
    "slower_than_fp32",
)
# Kinds of a matmul's time, and their columns.
TIMES = {"cold": "cold_time_s", "burst": "burst_time_s", "end_to_end": "end_to_end_s"}


@dataclass(frozen=True)
class Setting:
    """Config of a step, as far as its work and memory depend on it; None where a row lacks it."""

    mode: str | None = None
    dtype: str | None = None
    autocast: bool | None = None
    batch_size: int | None = None
    sequence_length: int | None = None
    processes: int | None = None
    gradient_accumulation: int | None = None
    checkpointing: bool | None = None
    teacher: str | None = None
    optimizer: Optimizer | None = None
    optimizer_implementation: str | None = None
    attention: str | None = None
    autograd: str | None = None
    weight_bytes: Known = None
    unread_parameters: Known = None

    @property
    def kind(self) -> str:
        """Mode of the step; training if the row has none."""
        return self.mode or "training"

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches, which only training has."""
        if self.kind == "training":
            return self.gradient_accumulation or 1
        return 1

    @property
    def calls(self) -> int:
        """Number of micro-batches over all processes."""
        return self.micro_batches * (self.processes or 1)

    @property
    def is_taught(self) -> bool:
        """True if a teacher's pass belongs to the training."""
        return self.teacher not in (None, "none")

    @property
    def element_bytes(self) -> int | None:
        """Bytes of a number; None for an unknown format."""
        form = BY_DTYPE.get(self.dtype or "")
        if form:
            return form.bytes
        return None


SETTING = tuple(field.name for field in fields(Setting))


def setting_of(row: Values) -> Setting:
    """Reads the setting from a row that includes its config."""
    return Setting(**pick_present(row, SETTING))


@dataclass(frozen=True)
class MeasuredCeilings:
    """Row of the table of ceilings: the limits of one number format, or of the memory."""

    format: str | None = None
    raised_by: str | None = None
    emulates: str | None = None
    computed_tflop_s: Known = None
    max_clock_tflop_s: Known = None
    measured_tflop_s: Known = None
    measured_ci_low_tflop_s: Known = None
    measured_ci_high_tflop_s: Known = None
    swept_tflop_s: Known = None
    computed_clock_mhz: Known = None
    computed_gb_s: Known = None
    measured_gb_s: Known = None
    slowdown: Known = None
    replicates: Known = None
    disturbed_replicates: Known = None

    @property
    def is_disturbed(self) -> bool:
        """True if all processes that count met a slow machine."""
        return (self.disturbed_replicates or 0) >= (self.replicates or 1)


CEILING = tuple(field.name for field in fields(MeasuredCeilings))


def ceiling_of(row: Values, devices: Known = None) -> MeasuredCeilings:
    """Reads a ceiling from its row, with the rates of several devices together."""
    values = pick_present(row, CEILING)
    for name, value in values.items():
        if value and name.endswith(("_tflop_s", "_gb_s")):
            values[name] = (devices or 1) * value
    return MeasuredCeilings(**values)


def _counted(flops: Values, mode: str, count: str) -> Known:
    """Count of a mode's passes: `flops`, `causal_flops` or `bytes`. Inference has a count of its
    own, else that of the forward pass."""
    if mode == "training":
        return total(flops.get(f"forward_{count}"), flops.get(f"backward_{count}"))
    if mode in ("prefill", "decoding"):
        return flops.get(f"{mode}_{count}")
    evaluated = flops.get(f"inference_{count}")
    if evaluated is None:
        return flops.get(f"forward_{count}")
    return evaluated


def counted_flops(row: Values, flops: Values) -> dict[str, Known]:
    """FLOPs of a step over all its processes. `flops` are those that the model needs (MFU:
    Chowdhery et al. 2022, PaLM, appendix B), `causal_flops` the same with causal attention halved.
    `executed_flops` are those that run, with recomputation and a teacher's pass."""
    setting = setting_of(row)
    mode = setting.kind
    needed = executed = _counted(flops, mode, "flops")
    # A decoded token attends to all tokens before it: there is nothing to halve.
    causal = needed if mode == "decoding" else _counted(flops, mode, "causal_flops")
    if mode == "training":
        recomputed: Known = 0
        if setting.checkpointing:
            recomputed = flops.get("recomputed_flops")
        executed = total(
            flops.get("forward_flops"), flops.get("executed_backward_flops"), recomputed
        )
    if setting.teacher == "online":
        executed = total(executed, _counted(flops, "inference", "flops"))
    counted = {"flops": needed, "causal_flops": causal, "executed_flops": executed}
    return {name: product(setting.calls, value) for name, value in counted.items()}


@dataclass(frozen=True)
class Moved:
    """Bytes of a step, in the precision's own format."""

    moved: Known  # that counted operators read and write
    # that inference must read: parameters except embedding tables and experts that no token chose;
    # in decoding also the cache
    read: Known
    cache: Known  # of keys and values


def _moved(setting: Setting, flops: Values) -> Moved:
    """Bytes that a step moves. Quantised or packed weights are fewer bytes."""
    scale = ratio(setting.element_bytes, BYTES_COUNTED_PER_ELEMENT)
    not_read = (flops.get("looked_up_parameters") or 0) + (setting.unread_parameters or 0)
    weight_bytes = 4 if setting.autocast else setting.element_bytes
    weights = product(total(flops.get("parameters"), -not_read), weight_bytes)
    saved: float = 0
    if weights and setting.weight_bytes:
        saved = weights - setting.weight_bytes
    cache = None
    if setting.kind in ("prefill", "decoding"):
        cache = product(flops.get("key_value_cache_bytes"), scale)
    read = None
    if setting.kind != "training":
        read = total(weights, -saved, cache if setting.kind == "decoding" else 0)
    counted = product(setting.micro_batches, _counted(flops, setting.kind, "bytes"), scale)
    return Moved(product(setting.processes or 1, total(counted, -saved)), read, cache)


def _roofline_times(setting: Setting, flops: Values, peaks: StepPeaks) -> dict[str, Known]:
    """Least time of a step by the measured roofline, of matmuls alone and with every other operator
    reading and writing memory. None if its parts are unknown, as with checkpointing, quantised
    weights or a teacher."""
    counted: Mapping[str, list[tuple[int, int]]] = parse_json(flops.get("intensities") or "{}")
    passes: tuple[str, ...] = (setting.kind,)
    if setting.kind == "training":
        passes = ("forward", "backward")
    is_unknown = setting.checkpointing or setting.weight_bytes or setting.is_taught
    is_partial = is_unknown or not counted.keys() >= {*passes}
    tflop_s, gb_s, element_bytes = peaks.ceiling_tflop_s, peaks.ceiling_gb_s, setting.element_bytes
    if is_partial or not (tflop_s and gb_s and element_bytes):
        return {"roofline_time_s": None, "unfused_roofline_time_s": None}
    fused = unfused = 0.0
    for direction in passes:
        for operations, size in counted[direction]:
            moved = size * element_bytes / BYTES_COUNTED_PER_ELEMENT
            bound = roof(operations, TERA * tflop_s, moved, GIGA * gb_s)
            least_s = setting.calls * bound.seconds
            unfused += least_s
            if operations:
                fused += least_s
    return {"roofline_time_s": fused, "unfused_roofline_time_s": unfused}


def predicted_memory(row: Values, flops: Values, device: str | None) -> Known:
    """Bytes that a step needs at its peak, without rounding, workspaces and interpreter; None if it
    was not counted."""
    setting = setting_of(row)
    element_bytes = setting.element_bytes
    parameters = flops.get("parameters")
    peak = flops.get(f"{_counted_peak(setting)}_peak_bytes")
    if element_bytes is None or parameters is None or peak is None or _holds_more(setting):
        return None
    if setting.mode != "training":
        return inference_peak_bytes(
            parameters,
            peak,
            flops.get("inference_peak_fixed_bytes") or 0,
            element_bytes=element_bytes,
            autocast=bool(setting.autocast),
        )
    lstm, lstm_fixed = _lstm_workspace(setting, flops, device)
    return training_peak_bytes(
        parameters,
        flops.get("trainable_parameters") or 0,
        peak + lstm,
        (flops.get("step_peak_fixed_bytes") or 0) + lstm_fixed,
        element_bytes=element_bytes,
        autocast=bool(setting.autocast),
        optimizer=setting.optimizer or "sgd",
        accumulated=setting.micro_batches > 1,
        optimizer_copies=_optimizer_copies(setting, device),
    )


def _counted_peak(setting: Setting) -> str:
    """Prefix of the counted peak that applies to a step."""
    if setting.mode != "training":
        return "inference"
    if setting.checkpointing:
        return "checkpointed"
    return "step"


def _holds_more(setting: Setting) -> bool:
    """True if a step holds memory that no count includes: scores of eager attention, a teacher,
    buckets and gathered weights, a cache, or graphs of inference."""
    return (
        setting.attention == "math"
        or setting.is_taught
        or (setting.processes or 1) > 1
        or setting.mode in ("prefill", "decoding")
        or setting.autograd in ("recorded", "leaked")
    )


def _lstm_workspace(setting: Setting, flops: Values, device: str | None) -> tuple[int, int]:
    """oneDNN's workspace of LSTMs on a CPU: bytes that depend on the format, and fixed bytes."""
    is_plain = setting.dtype == "float32" and not setting.autocast
    if device != "cpu" or not is_plain or setting.checkpointing:
        return 0, 0
    return flops.get("cpu_lstm_bytes") or 0, flops.get("cpu_lstm_fixed_bytes") or 0


def _optimizer_copies(setting: Setting, device: str | None) -> int:
    """Number of temporaries of the size of all gradients. torch's default on a GPU is foreach,
    which updates all parameters at once and holds one temporary for each."""
    if (setting.optimizer or "sgd") == "sgd":
        return 0
    implementation = setting.optimizer_implementation or "default"
    is_foreach = implementation == "foreach" or (implementation == "default" and is_gpu(device))
    return int(is_foreach)


def profile_facts(
    row: Values,
    flops: Values,
    compute: Values,
    memory: Values,
    device: str | None,
    fp32_time_s: Known = None,
) -> StepFacts:
    """Facts of one profile_step row that includes its config. `flops`, `compute` and `memory` are
    rows of count_flops and ceilings, or empty. `fp32_time_s` is the time of the same step in fp32,
    if measured."""
    is_ok = row.get("status") == "ok"
    time = group(StepTime, row)
    if not is_ok:
        time = StepTime(time_ci_low_s=time.time_ci_low_s, time_ci_high_s=time.time_ci_high_s)
    return StepFacts(
        time=time,
        work=_work(row, flops),
        peaks=_peaks(row, compute, memory, device, ratio(time.time_s, fp32_time_s)),
        counters=group(Counters, row),
        traced=without_hidden_matmuls(traced(row)),
    )


def _work(row: Values, flops: Values) -> StepWork:
    moved = _moved(setting_of(row), flops)
    useful_percent = flops.get("useful_percent")
    if row.get("mode") == "decoding":  # there is no padding next to a decoded token
        useful_percent = None
    counted = counted_flops(row, flops)
    return StepWork(
        flops=counted["flops"],
        executed_flops=counted["executed_flops"],
        useful_ratio=ratio(useful_percent, 100),
        read_bytes=moved.read,
        bytes_moved=moved.moved,
        executed_ratio=row.get("executed_ratio"),
        issued_ratio=row.get("issued_ratio"),
    )


def _peaks(
    row: Values,
    compute_row: Values,
    memory_row: Values,
    device: str | None,
    slower_than_fp32: Known = None,
) -> StepPeaks:
    """Peaks and ceilings of a step's devices, and what makes the measured ones doubtful."""
    compute = ceiling_of(compute_row, row.get("devices"))
    memory = ceiling_of(memory_row, row.get("devices"))
    swept_tflop_s = None
    if compute.raised_by == row.get("run"):
        swept_tflop_s = compute.swept_tflop_s
    peaks = StepPeaks(
        basis=default_basis(device),
        effective_precision=row.get("effective_precision") or "",
        peak_precision=compute.format or "",
        peak_tflop_s=compute.computed_tflop_s,
        max_clock_tflop_s=compute.max_clock_tflop_s,
        ceiling_tflop_s=compute.measured_tflop_s,
        ceiling_ci_low_tflop_s=compute.measured_ci_low_tflop_s,
        ceiling_ci_high_tflop_s=compute.measured_ci_high_tflop_s,
        peak_clock_mhz=compute.computed_clock_mhz,
        peak_gb_s=memory.computed_gb_s,
        ceiling_gb_s=memory.measured_gb_s,
        ceiling_raised_percent=percent(compute.measured_tflop_s, swept_tflop_s),
        ceiling_slowdown=compute.slowdown if compute.is_disturbed else None,
        slower_than_fp32=slower_than_fp32 if compute.emulates else None,
    )
    return replace(peaks, executed_tflop_s=peaks.tflop_s)


def profile_columns(
    row: Values,
    flops: Values,
    compute: Values,
    memory: Values,
    device: str | None,
    fp32_time_s: Known = None,
) -> dict[str, Cell]:
    """Joined columns of one profile_step row; the arguments are those of `profile_facts`."""
    facts = profile_facts(row, flops, compute, memory, device, fp32_time_s)
    step = account(facts)
    is_ok = row.get("status") == "ok"
    time_s = facts.time.time_s
    peaks = facts.peaks
    setting = setting_of(row)
    on_gpu = is_gpu(device)
    # Modules in a GPU's trace without kernels have the host's time.
    modules = row.get("modules")
    if on_gpu and row.get("kernel_busy_percent") is None:
        modules = None
    best_tflop_s = peaks.peak_tflop_s
    if step.shares.mfu_basis == "measured":
        best_tflop_s = peaks.ceiling_tflop_s
    return {
        **counted_flops(row, flops),
        **vars(step.shares),
        **_rates(setting, time_s, row.get("energy_j") if is_ok else None, facts.work.flops),
        "key_value_cache_bytes": _moved(setting, flops).cache,
        "bytes_moved": facts.work.bytes_moved,
        "arithmetic_intensity": ratio(facts.work.flops, facts.work.bytes_moved),
        **{name: getattr(peaks, name) for name in OF_PEAKS},
        "peak_precision": peaks.peak_precision or None,
        "predicted_memory_bytes": predicted_memory(row, flops, device),
        **_roofline_times(setting, flops, peaks),
        **step.budget_columns(),
        "mfu_note": step.note if is_ok else None,
        "module_times": module_times(modules, None if on_gpu else time_s, best_tflop_s),
        **step.verdict_columns(),
    }


def _rates(setting: Setting, time: Known, energy: Known, flops: Known) -> dict[str, Known]:
    """Samples and tokens per second, samples and FLOPs per joule."""
    samples = product(setting.calls, setting.batch_size)
    tokens = samples
    if setting.kind != "decoding":
        tokens = product(samples, setting.sequence_length)
    return {
        "samples_per_s": ratio(samples, time),
        "tokens_per_s": ratio(tokens, time),
        "samples_per_j": ratio(samples, energy),
        "flops_per_j": ratio(flops, energy),
    }


def module_times(
    modules: str | None, step_s: Known, best_tflop_s: Known, steps: int = 1
) -> str | None:
    """JSON of a step's modules with their depth, each below the module that contains it; 0 is the
    step. MFU is by a module's own time. `step_s` is the time of a CPU's step without a trace, to
    which its modules' times are scaled. A GPU's are times of kernels."""
    traced = parse_json(modules or "[]")
    if not traced:
        return None
    ms_per_ns = 1e-6 / steps
    if step_s and traced[0]["time_ns"]:
        ms_per_ns = 1e3 * step_s / traced[0]["time_ns"]
    rows = list[dict[str, object]]()
    for module in traced:
        time_ms = module["time_ns"] * ms_per_ns
        flops = module["flops"] / steps
        numbers = {"ms": time_ms, "flops": flops}
        mfu = of_peak(flops or None, time_ms / 1e3, best_tflop_s)
        if mfu is not None:
            numbers["mfu_percent"] = mfu
        rounded = {name: float(f"{value:.6g}") for name, value in numbers.items()}
        path = module["path"]
        name = "".join(path[-1:])
        rows.append({"depth": len(path), "name": name, "calls": module["calls"], **rounded})
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def matmul_columns(row: Values, compute: Values, device: str | None) -> dict[str, Cell]:
    """Joined columns of one matmul; `compute` is the ceilings row of its precision, or empty."""
    time = None
    if row.get("status") == "ok":
        time = row.get("time_s")
    speed = tflop_s(row.get("flops"), time)
    peak = compute.get("computed_tflop_s")
    ceiling = compute.get("measured_tflop_s")
    speeds = dict[str, Cell]()
    for kind, name in TIMES.items():
        speeds[f"{kind}_tflop_s"] = tflop_s(row.get("flops"), row.get(name)) if time else None
    return {
        "tflop_s": speed,
        **speeds,
        "share_of_spec_percent": percent(speed, peak),
        "share_of_measured_percent": percent(speed, ceiling),
        "share_of_reference_percent": percent(row.get("reference_time_s"), time),
        "arithmetic_intensity": ratio(row.get("flops"), row.get("bytes_moved")),
        "ceiling_tflop_s": ceiling,
        "peak_tflop_s": peak,
        "basis": default_basis(device),
        "peak_precision": compute.get("format"),
        "verdict_flags": matmul_flags(row, _peaks({}, compute, {}, device)),
    }


def reading_columns(row: Values, compute: Values, device: str | None) -> dict[str, Cell]:
    """Joined columns of a load with known utilization; `compute` is the ceilings row of its
    precision, or empty."""
    # FLOPs of padding serve no model, and do not count for MFU.
    flops = row.get("useful_flops")
    time = None
    if row.get("status") == "ok":
        time = row.get("window_s")
    peaks = _peaks({}, compute, {}, device)
    shares = shares_of(StepFacts(StepTime(time), StepWork(flops), peaks))
    return {
        "tflop_s": shares.tflop_s,
        "mfu_percent": shares.mfu_percent,
        "mfu_basis": shares.mfu_basis,
    }


def raised_ceiling(ceiling: Values, row: Values, flops: Known) -> dict[str, Cell]:
    """New values of a measured ceiling, the best of its format, if a run with `flops` per step
    exceeds it; else empty."""
    devices = row.get("devices") or 1
    ends = (row.get("time_s"), row.get("time_ci_high_s"), row.get("time_ci_low_s"))
    speed, low, high = (ratio(tflop_s(flops, end), devices) for end in ends)
    before = ceiling.get("measured_tflop_s")
    if row.get("status") != "ok" or speed is None or not speed > (before or 0):
        return {}
    shape = None
    if row.get("m"):
        shape = f"{row['m']}x{row['n']}x{row['k']}"
    return {
        "measured_tflop_s": speed,
        "measured_ci_low_tflop_s": low,
        "measured_ci_high_tflop_s": high,
        "measured_with": row.get("kernel") or row.get("model"),
        "measured_shape": shape,
        "swept_tflop_s": ceiling.get("swept_tflop_s") or before,
        "raised_by": row.get("run"),
    }


def faster_than_possible(
    row: Values, compute: Values, memory: Values, device: str | None
) -> Said | None:
    """Reason why no time of a GPU's matmul can be as short; None if it can, or if the limits are
    unknown. The limits are the peak at the highest clock, and reading A and B at the memory's
    bandwidth after a flush of the caches."""
    if row.get("status") != "ok" or not is_gpu(device):
        return None
    speed = tflop_s(row.get("flops"), row.get("time_s"))
    limit = compute.get("max_clock_tflop_s")
    if speed is not None and limit is not None and speed > limit:
        return Said("above_highest_clock", speed=speed, limit=limit)
    form = FORMATS.get(row.get("precision") or "")
    sides = row.get("batch"), row.get("k"), total(row.get("m"), row.get("n"))
    operand_bytes = product(*sides, form.bytes if form else None)
    read = ratio(ratio(operand_bytes, row.get("cold_time_s")), 1e9)
    limit = memory.get("computed_gb_s")
    if read is not None and limit is not None and read > limit:
        return Said("above_bandwidth", speed=read, limit=limit)
    return None
