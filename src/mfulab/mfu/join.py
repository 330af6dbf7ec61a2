"""The join that the project exists for: FLOPs that were counted ÷ time that was measured ÷ peak that is known. Pure
functions over numbers, in base units (seconds, FLOP, bytes, joules) but for ceilings, in TFLOP/s as in their rows. None
is "not measured" and makes every value that would need it None; no ratio is ever clipped."""

import json
from collections.abc import Mapping
from typing import Any

from mfulab.core.formats import BY_DTYPE, FORMATS
from mfulab.core.said import Said, packed_all
from mfulab.device import is_gpu
from mfulab.device.datasheets import UnknownDeviceError, find
from mfulab.device.peaks import peak
from mfulab.flops.formulas import seconds_at_peaks, weighted_peak_flop_s
from mfulab.flops.memory import inference_peak_bytes, training_peak_bytes
from mfulab.mfu import headroom, verdict
from mfulab.mfu.utilization import TERA, default_basis, of_peak, percent, product, ratio, tflop_s, total, utilization

MOST_UNCOUNTED = 50.0  # % of a trace's matmuls' time: beyond it MFU would say more of what is not known
BYTES_COUNTED_PER_ELEMENT = 4  # count_flops gives bytes for float32 operands
TIMES = {"cold": "cold_time_s", "burst": "burst_time_s", "end_to_end": "end_to_end_s"}  # of a matmul
Values = Mapping[str, Any]
Known = float | None


def _size(row: Values) -> tuple[str, int, int]:
    """Mode of a step, its micro-batches, which are training's alone, and its processes."""
    mode = row.get("mode") or "training"
    return mode, (row.get("gradient_accumulation") or 1) if mode == "training" else 1, row.get("processes") or 1


def _counted(flops: Values, mode: str, what: str) -> float | None:
    """A count of a mode's passes: `flops`, `causal_flops` or `bytes`; inference is in evaluation mode if counted."""
    if mode == "training":
        return total(flops.get(f"forward_{what}"), flops.get(f"backward_{what}"))
    if mode in ("prefill", "decoding"):
        return flops.get(f"{mode}_{what}")
    evaluated = flops.get(f"inference_{what}")
    return flops.get(f"forward_{what}") if evaluated is None else evaluated


def counted_flops(row: Values, flops: Values) -> dict[str, Any]:
    """FLOPs of a step, all its processes: what the model needs (MFU: Chowdhery et al. 2022, PaLM, appendix B), with
    causal attention halved, and what runs, recomputation and a teacher's pass included."""
    mode, micro_batches, processes = _size(row)
    needed = executed = _counted(flops, mode, "flops")
    # A decoded token attends to all before it: nothing to halve.
    causal = needed if mode == "decoding" else _counted(flops, mode, "causal_flops")
    if mode == "training":
        recomputed = flops.get("recomputed_flops") if row.get("checkpointing") else 0
        executed = total(flops.get("forward_flops"), flops.get("executed_backward_flops"), recomputed)
    if row.get("teacher") == "online":
        executed = total(executed, _counted(flops, "inference", "flops"))
    counted = {"flops": needed, "causal_flops": causal, "executed_flops": executed}
    return {name: product(processes, micro_batches, value) for name, value in counted.items()}


def _moved(row: Values, flops: Values) -> tuple[Known, Known, Known]:
    """(moved, read, cache) bytes of a step, in the precision's own format. `moved` is what counted operators read and
    write. `read` is what inference must read: parameters but embedding tables and experts that no token chose; of
    decoding also the `cache` of keys and values. Quantised or packed weights are fewer bytes."""
    mode, micro_batches, processes = _size(row)
    element_bytes = _element_bytes(row.get("dtype"))
    scale = ratio(element_bytes, BYTES_COUNTED_PER_ELEMENT)
    not_read = (flops.get("looked_up_parameters") or 0) + (row.get("unread_parameters") or 0)
    weights = product(total(flops.get("parameters"), -not_read), 4 if row.get("autocast") else element_bytes)
    saved = weights - row["weight_bytes"] if weights and row.get("weight_bytes") else 0
    cache = product(flops.get("key_value_cache_bytes"), scale) if mode in ("prefill", "decoding") else None
    read = None if mode == "training" else total(weights, -saved, cache if mode == "decoding" else 0)
    return product(processes, total(product(micro_batches, _counted(flops, mode, "bytes"), scale), -saved)), read, cache


def _taught(row: Values) -> bool:
    return row.get("teacher") not in (None, "none")


def roofline_times(row: Values, flops: Values, ceiling_tflop_s: Known, ceiling_gb_s: Known) -> dict[str, Known]:
    """The least time that the measured roofline allows forward and backward, of matmuls alone and with every other
    operator reading and writing memory. Empty with checkpointing and quantised weights, whose parts are not known."""
    counted: Mapping[str, list[tuple[int, int]]] = json.loads(flops.get("intensities") or "{}")
    (mode, micro_batches, processes), element_bytes = _size(row), _element_bytes(row.get("dtype"))
    passes = ("forward", "backward") if mode == "training" else (mode,)
    is_partial = row.get("checkpointing") or row.get("weight_bytes") or _taught(row) or {*passes} - {*counted}
    if is_partial or not (ceiling_tflop_s and ceiling_gb_s and element_bytes):
        return {"roofline_time_s": None, "unfused_roofline_time_s": None}
    fused = unfused = 0.0
    for operations, size in (work for direction in passes for work in counted[direction]):
        moving = size * element_bytes / BYTES_COUNTED_PER_ELEMENT / ceiling_gb_s / 1e9
        least = micro_batches * processes * max(operations / ceiling_tflop_s / TERA, moving)
        unfused += least
        fused += least if operations else 0.0
    return {"roofline_time_s": fused, "unfused_roofline_time_s": unfused}


def predicted_memory(row: Values, flops: Values, device: str | None) -> float | None:
    """Bytes that a step needs at its peak, without rounding, workspaces and interpreter; None if it was not counted."""
    element_bytes, parameters = _element_bytes(row.get("dtype")), flops.get("parameters")
    training, again = row.get("mode") == "training", bool(row.get("checkpointing"))
    # Scores of eager attention, a teacher, buckets and gathered weights, a cache, or graphs of inference come on top.
    is_uncounted = row.get("attention") == "math" or _taught(row) or (row.get("processes") or 1) > 1
    is_uncounted |= row.get("mode") in ("prefill", "decoding") or row.get("autograd") in ("recorded", "leaked")
    which = "inference" if not training else "checkpointed" if again else "step"
    peak = flops.get(f"{which}_peak_bytes")
    if is_uncounted or element_bytes is None or parameters is None or peak is None:
        return None
    autocast = bool(row.get("autocast"))
    if not training:
        fixed = flops.get("inference_peak_fixed_bytes") or 0
        return inference_peak_bytes(parameters, peak, fixed, element_bytes=element_bytes, autocast=autocast)
    optimizer: Any = row.get("optimizer") or "sgd"
    implementation = row.get("optimizer_implementation") or "default"
    # torch's default on a GPU is foreach: it updates all parameters at once, and holds a temporary for each.
    foreach = implementation == "foreach" or (implementation == "default" and is_gpu(device))
    fixed = flops.get("step_peak_fixed_bytes") or 0
    if device == "cpu" and row.get("dtype") == "float32" and not autocast and not again:
        peak += flops.get("cpu_lstm_bytes") or 0
        fixed += flops.get("cpu_lstm_fixed_bytes") or 0
    copies, accumulated = int(foreach and optimizer != "sgd"), (row.get("gradient_accumulation") or 1) > 1
    counted = parameters, flops.get("trainable_parameters") or 0, peak, fixed
    about = {"element_bytes": element_bytes, "autocast": autocast, "optimizer": optimizer, "accumulated": accumulated}
    return training_peak_bytes(*counted, **about, optimizer_copies=copies)


def profile_columns(
    row: Values, flops: Values, compute: Values, memory: Values, device: str | None, fp32_time_s: float | None = None
) -> dict[str, Any]:
    """Joined columns of one profile_step row with its config's. `flops`, `compute` and `memory` are rows of count_flops
    and ceilings, or empty; `fp32_time_s` is the time of that step in fp32, where measured."""
    counted, is_ok = counted_flops(row, flops), row.get("status") == "ok"
    compute, memory = (_of_devices(ceiling, row.get("devices")) for ceiling in (compute, memory))
    bytes_moved, read_bytes, cache_bytes = _moved(row, flops)
    time, interval_s = row.get("time_s") if is_ok else None, (row.get("time_ci_low_s"), row.get("time_ci_high_s"))
    about: Any = {"interval_s": interval_s, "clock_mhz": row.get("clock_mhz"), "read_bytes": read_bytes}
    shares = utilization(time, device=device, **counted, **about, compute=compute, memory=memory)
    # A decoded token has no padding beside it.
    useful = None if row.get("mode") == "decoding" else ratio(flops.get("useful_percent"), 100)
    joined = {
        **counted,
        **shares,
        "useful_mfu_percent": product(shares["mfu_percent"], useful),
        **_rates(row, time, row.get("energy_j") if is_ok else None, counted["flops"]),
        "key_value_cache_bytes": cache_bytes,
        "bytes_moved": bytes_moved,
        "arithmetic_intensity": ratio(counted["flops"], bytes_moved),
        **_ceilings(row, compute, memory),
        "slower_than_fp32": ratio(time, fp32_time_s) if compute.get("emulates") else None,
        "predicted_memory_bytes": predicted_memory(row, flops, device),
    }
    joined |= roofline_times(row, flops, compute.get("measured_tflop_s"), memory.get("measured_gb_s"))
    joined |= headroom.of_step({**row, **joined, "time_s": time}) | headroom.rungs({**row, **joined})
    joined["mfu_note"] = verdict.note({**row, **joined})
    best = compute.get("measured_tflop_s" if joined["mfu_basis"] == "measured" else "computed_tflop_s")
    # Where a GPU's trace held no kernels, what it tells of modules is the host's time.
    told = row.get("modules") if not is_gpu(device) or row.get("kernel_busy_percent") is not None else None
    joined["module_times"] = module_times(told, None if is_gpu(device) else time, best)
    return joined | verdict.columns({**row, **joined, "time_s": time})


def _rates(row: Values, time: Known, energy: Known, flops: Known) -> dict[str, Known]:
    """Samples and tokens a second, samples and FLOPs a joule."""
    mode, micro_batches, processes = _size(row)
    samples = product(processes * micro_batches, row.get("batch_size"))
    tokens = product(samples, 1 if mode == "decoding" else row.get("sequence_length"))
    per_joule = {"samples_per_j": ratio(samples, energy), "flops_per_j": ratio(flops, energy)}
    return {"samples_per_s": ratio(samples, time), "tokens_per_s": ratio(tokens, time), **per_joule}


def _ceilings(row: Values, compute: Values, memory: Values) -> dict[str, Any]:
    """Measured and computed peaks under a step, and what makes the measured one doubtful."""
    swept_tflop_s = compute.get("swept_tflop_s") if compute.get("raised_by") == row.get("run") else None
    is_disturbed = (compute.get("disturbed_replicates") or 0) >= (compute.get("replicates") or 1)
    return {
        "peak_precision": compute.get("format"),
        "ceiling_raised_percent": percent(compute.get("measured_tflop_s"), swept_tflop_s),
        "ceiling_slowdown": compute.get("slowdown") if is_disturbed else None,
        "ceiling_tflop_s": compute.get("measured_tflop_s"),
        "peak_tflop_s": compute.get("computed_tflop_s"),
        "peak_clock_mhz": compute.get("computed_clock_mhz"),
        "ceiling_gb_s": memory.get("measured_gb_s"),
        "peak_gb_s": memory.get("computed_gb_s"),
    }


def module_times(modules: str | None, step_s: float | None, best_tflop_s: float | None, steps: int = 1) -> str | None:
    """JSON: modules of a step with their depth, each below what it lies in; 0 is the step. MFU is of a module's own
    time. `step_s` is a CPU's step without a trace, which its modules share; a GPU's are kernels' time."""
    traced = json.loads(modules or "[]")
    ms = 1e3 * step_s / traced[0]["time_ns"] if traced and step_s and traced[0]["time_ns"] else 1e-6 / steps
    told = []
    for module in traced:
        time, flops, path = module["time_ns"] * ms, module["flops"] / steps, module["path"]
        mfu = of_peak(flops or None, time / 1e3, best_tflop_s)
        numbers = {"ms": time, "flops": flops, **({} if mfu is None else {"mfu_percent": mfu})}
        rounded = {name: float(f"{value:.6g}") for name, value in numbers.items()}
        told.append({"depth": len(path), "name": "".join(path[-1:]), "calls": module["calls"], **rounded})
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")) if told else None


def _of_devices(ceiling: Values, devices: float | None) -> Values:
    many, rates = devices or 1, ("_tflop_s", "_gb_s")
    return {name: many * value if value and name.endswith(rates) else value for name, value in ceiling.items()}


def matmul_columns(row: Values, compute: Values, device: str | None) -> dict[str, Any]:
    """Joined columns of one matmul; `compute` is the ceilings row of its precision, empty without one."""
    time = row.get("time_s") if row.get("status") == "ok" else None
    speed = tflop_s(row.get("flops"), time)
    peak, ceiling = compute.get("computed_tflop_s"), compute.get("measured_tflop_s")
    return {
        "tflop_s": speed,
        **{
            f"{kind}_tflop_s": tflop_s(row.get("flops"), row.get(name) if time else None)
            for kind, name in TIMES.items()
        },
        "share_of_spec_percent": percent(speed, peak),
        "share_of_measured_percent": percent(speed, ceiling),
        "share_of_reference_percent": percent(row.get("reference_time_s"), time),
        "arithmetic_intensity": ratio(row.get("flops"), row.get("bytes_moved")),
        "ceiling_tflop_s": ceiling,
        "peak_tflop_s": peak,
        "basis": default_basis(device),
        "peak_precision": compute.get("format"),
        "verdict_flags": verdict.matmul_flags(row),
    }


def reading_columns(row: Values, compute: Values, device: str | None) -> dict[str, Any]:
    """Joined columns of a load with known utilization; `compute` is the ceilings row of its precision, or empty."""
    # FLOPs of padding are no model's: they do not count towards MFU.
    flops, time = row.get("useful_flops"), row.get("window_s") if row.get("status") == "ok" else None
    shares = utilization(time, device=device, flops=flops, compute=compute, memory={})
    return {name: shares[name] for name in ("tflop_s", "mfu_percent", "mfu_basis")}


def trace_columns(row: Values, measured: Mapping[Any, float] | None = None) -> dict[str, Any]:
    """Joined columns of one row read from a trace. MFU is the share of the step that the FLOPs would take at their own
    peaks: the peak is the FLOP-weighted harmonic mean."""
    given: Values = json.loads(row.get("given_peaks") or "{}")
    device, units, steps = row.get("device") or "", row.get("units"), row.get("steps") or 1
    time = row.get("time_s") if row.get("status") == "ok" else None
    flops, executed = (json.loads(row.get(f"{name}_by_format") or "{}") for name in ("flops", "executed"))
    peaks = {name: _trace_peak(device, name, units, given) for name in {**flops, **executed}}
    missing = next((reason for value, reason in peaks.values() if value is None), None)
    tflop_s_of = {name: value for name, (value, _) in peaks.items() if value is not None}
    peak_flop_s = {name: TERA * value for name, value in tflop_s_of.items()}
    total_flops = row.get("flops")
    useful = seconds_at_peaks(flops, peak_flop_s) if total_flops else None
    is_counted = bool(total_flops) and (row.get("uncounted_percent") or 0) <= MOST_UNCOUNTED
    weighted, ran = (ratio(weighted_peak_flop_s(counts, peak_flop_s), TERA) for counts in (flops, executed))
    weights = {name: round(count / total_flops, 4) for name, count in flops.items()} if total_flops else {}
    needed, done = (sum(counts.values()) if is_counted else None for counts in (flops, executed))
    mfu = of_peak(needed, time, weighted)
    bandwidth = peak(device, "fp32", units).memory_gb_s if device else None
    roofs = headroom.of_operators(
        json.loads(row.get("operators") or "[]") if time else [], tflop_s_of, bandwidth, steps
    )
    joined = {
        "attainable_mfu_percent": product(mfu, ratio(time, headroom.attainable_s(roofs, row.get("executed_ratio")))),
        "tflop_s": tflop_s(total_flops, time),
        "peak_tflop_s": weighted,
        "peak_weights": json.dumps(weights) if weights else None,
        **dict.fromkeys(("mfu_spec_percent", "mfu_percent"), mfu),
        "mfu_basis": "spec" if mfu is not None else None,
        "mfu_causal_percent": product(mfu, ratio(row.get("causal_flops"), total_flops)),
        "hfu_percent": of_peak(done, time, ran),
        "arithmetic_intensity": ratio(total_flops, row.get("bytes_moved")),
        **_trace_headroom(row, time, useful, measured or {}),
        "peak_gb_s": bandwidth,
        "operator_roofline": json.dumps(roofs, ensure_ascii=False) if roofs else None,
        "module_times": module_times(row.get("modules"), None, weighted, steps),
    }
    joined |= headroom.rungs({**row, **joined})
    joined["mfu_note"] = verdict.note({**row, **joined})
    reason = _without_mfu(row, joined, missing, percent(useful, time))
    joined["mfu_reason"] = packed_all([reason]) if reason else None
    return joined | verdict.columns({**row, **joined, "time_s": time})


def _trace_headroom(row: Values, time: Known, useful_s: Known, measured: Mapping[Any, float]) -> dict[str, Any]:
    """Parts of a traced step in ms, and who measured the best speeds; the window's, shared so that they sum to it."""
    share, basis = headroom.best_time(json.loads(row.get("products") or "[]"), measured)
    parts = None
    if row.get("spent") and time is not None:
        spent = headroom.shared(json.loads(row["spent"]), round(1e9 * time))
        ratios, best_ns = {name: row.get(name) for name in headroom.RATIOS}, product(share, spent.get("products"))
        parts = headroom.headroom(spent, product(useful_s, 1e9), **ratios, best_ns=best_ns)
    return {**headroom.columns(parts), "best_basis": basis if useful_s else None}


def _trace_peak(device: str, precision: str, units: int | None, given: Values) -> tuple[float | None, Said | None]:
    if precision in given:
        return given[precision], None
    if not device:
        return None, Said("unnamed_device", {"precision": precision})
    if (known_peak := peak(device, precision, units)).spec is not None:
        return known_peak.spec, None
    why = "no_peak_in"
    try:
        find(device, units)
    except UnknownDeviceError:
        why = "unknown_device"
    return None, Said(why, {"device": device, "precision": precision})


def _without_mfu(row: Values, joined: Values, missing: Said | None, at_least: float | None) -> Said | None:
    if row.get("status") != "ok" or joined["mfu_percent"] is not None:
        return None
    if row.get("flops") is None:
        reason = json.loads(row.get("reasons") or "{}").get("flops")
        return Said(*next(iter(reason.items()))) if isinstance(reason, dict) and reason else Said("uncounted")
    return missing or Said("mostly_uncounted", {"share": row["uncounted_percent"], "least": at_least})


def raised_ceiling(ceiling: Values, row: Values, flops: float | None) -> dict[str, Any]:
    """Changes to a measured ceiling, the best of its format, that a run with `flops` a step passed; none otherwise."""
    devices = row.get("devices") or 1
    ends = (row.get("time_s"), row.get("time_ci_high_s"), row.get("time_ci_low_s"))
    speed, low, high = (ratio(tflop_s(flops, end), devices) for end in ends)
    before = ceiling.get("measured_tflop_s")
    if row.get("status") != "ok" or speed is None or not speed > (before or 0):
        return {}
    return {
        "measured_tflop_s": speed,
        "measured_ci_low_tflop_s": low,
        "measured_ci_high_tflop_s": high,
        "measured_with": row.get("kernel") or row.get("model"),
        "measured_shape": "x".join(str(row[name]) for name in ("m", "n", "k")) if row.get("m") else None,
        "swept_tflop_s": ceiling.get("swept_tflop_s") or before,
        "raised_by": row.get("run"),
    }


def faster_than_possible(row: Values, compute: Values, memory: Values, device: str | None) -> str | None:
    """Says of a GPU's matmul that no time can be as short; None if it can, or where nobody knows. The floor is FLOPs at
    the peak of the highest clock, and after a flush of the caches A and B at the memory's bandwidth."""
    if row.get("status") != "ok" or not is_gpu(device):
        return None
    speed, limit = tflop_s(row.get("flops"), row.get("time_s")), compute.get("max_clock_tflop_s")
    if speed is not None and limit is not None and speed > limit:
        why = "this device at its highest clock, so not all was computed"
        return f"{speed:.4g} TFLOP/s: more than the {limit:.4g} of {why}"
    form = FORMATS.get(row.get("precision") or "")
    sides = row.get("batch"), row.get("k"), total(row.get("m"), row.get("n"))
    operand_bytes = product(*sides, form.bytes if form else None)
    read, limit = ratio(ratio(operand_bytes, row.get("cold_time_s")), 1e9), memory.get("computed_gb_s")
    if read is not None and limit is not None and read > limit:
        return f"{read:.4g} GB/s after a flush: more than the {limit:.4g} of this device's memory, so not all was read"
    return None


def _element_bytes(dtype: str | None) -> int | None:
    form = BY_DTYPE.get(dtype or "")
    return form.bytes if form else None
