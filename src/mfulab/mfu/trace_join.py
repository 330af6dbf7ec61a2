"""The join of a row that was read from a trace: its FLOPs ÷ its time ÷ the peaks of its device."""

import json
from collections.abc import Mapping
from typing import Any

from mfulab.core.said import Said, packed_all
from mfulab.device.datasheets import UnknownDeviceError, find
from mfulab.device.peaks import peak
from mfulab.flops.formulas import seconds_at_peaks, weighted_peak_flop_s
from mfulab.mfu import headroom, verdict
from mfulab.mfu.join import Values, module_times
from mfulab.mfu.utilization import TERA, of_peak, percent, product, ratio, tflop_s

MOST_UNCOUNTED = 50.0  # % of matmuls' time: beyond it MFU would say more of what is not known than of what is


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
    mfu = of_peak(sum(flops.values()) if is_counted else None, time, weighted)
    share, basis = headroom.best_time(json.loads(row.get("products") or "[]"), measured or {})
    parts = None
    if row.get("spent") and time is not None:  # the window's, shared among its steps so that the parts still sum to it
        spent = headroom.shared(json.loads(row["spent"]), round(1e9 * time))
        ratios, best_ns = {name: row.get(name) for name in headroom.RATIOS}, product(share, spent.get("products"))
        parts = headroom.headroom(spent, product(useful, 1e9), **ratios, best_ns=best_ns)
    bandwidth = peak(device, "fp32", units).memory_gb_s if device else None
    operators = json.loads(row.get("operators") or "[]") if time else []
    roofs = headroom.of_operators(operators, tflop_s_of, bandwidth, steps)
    attainable = product(mfu, ratio(time, headroom.attainable_s(roofs, row.get("executed_ratio"))))
    joined = {
        "attainable_mfu_percent": attainable,
        "tflop_s": tflop_s(total_flops, time),
        "peak_tflop_s": weighted,
        "peak_weights": json.dumps(weights) if weights else None,
        "mfu_spec_percent": mfu,
        "mfu_percent": mfu,
        "mfu_basis": "spec" if mfu is not None else None,
        "mfu_causal_percent": product(mfu, ratio(row.get("causal_flops"), total_flops)),
        "hfu_percent": of_peak(sum(executed.values()) if is_counted else None, time, ran),
        "arithmetic_intensity": ratio(total_flops, row.get("bytes_moved")),
        **headroom.columns(parts),
        "best_basis": basis if useful else None,
        "peak_gb_s": bandwidth,
        "operator_roofline": json.dumps(roofs, ensure_ascii=False) if roofs else None,
        "module_times": module_times(row.get("modules"), None, weighted, steps),
    }
    joined |= headroom.rungs({**row, **joined})
    joined["mfu_note"] = verdict.note({**row, **joined})
    reason = _without_mfu(row, joined, missing, percent(useful, time))
    joined["mfu_reason"] = packed_all([reason]) if reason else None
    return joined | verdict.columns({**row, **joined, "time_s": time})


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
