"""Columns joined to a row read from a trace: its account, peaks by number format, and the roofline
of its operators."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Row
from mfulab.core.said import Said, packed_all
from mfulab.device.datasheets import UnknownDeviceError, find
from mfulab.device.peaks import peak
from mfulab.flops.formulas import weighted_peak_flop_s
from mfulab.mfu import headroom
from mfulab.mfu.account import Account, account
from mfulab.mfu.join import module_times
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
)
from mfulab.mfu.utilization import TERA, percent, product, ratio, tflop_s, weights

# % of a trace's matmuls' time: if matmuls of unknown FLOPs take more, it has no MFU.
MOST_UNCOUNTED = 50.0
Bests = Mapping[headroom.Matmul, float]  # TFLOP/s


@dataclass(frozen=True)
class _Counts:
    """FLOPs of a step by number format, each format's peak, and the reason why the first format
    without a peak has none."""

    needed: Mapping[str, float]
    executed: Mapping[str, float]
    peaks_tflop_s: Mapping[str, float]
    missing: Said | None

    def weighted_tflop_s(self, flops: Mapping[str, float]) -> Known:
        """FLOP-weighted harmonic mean of the peaks in TFLOP/s; None if one is unknown."""
        peaks = {name: TERA * value for name, value in self.peaks_tflop_s.items()}
        return ratio(weighted_peak_flop_s(flops, peaks), TERA)


def trace_columns(row: Row, measured: Bests | None = None) -> dict[str, Cell]:
    """Joined columns of one row read from a trace. MFU is the share of the step that the FLOPs
    would take at the peaks of their formats: the peak is the FLOP-weighted harmonic mean.
    `measured` are the best matmuls of this device."""
    steps = row.get("steps") or 1
    counts = _counts(row)
    bandwidth_gb_s = _bandwidth_gb_s(row)
    best_ratio, best_basis = headroom.best_time(_cell(row, "products", []), measured or {})
    facts = _facts(row, counts, bandwidth_gb_s, best_ratio)
    step = account(facts)
    time_s = facts.time.time_s
    operators = []
    if time_s:
        operators = _cell(row, "operators", [])
    roofs = headroom.of_operators(operators, counts.peaks_tflop_s, bandwidth_gb_s, steps)
    best_s = headroom.attainable_s(roofs, row.get("executed_ratio"))
    mfu = step.shares.mfu_percent
    reason = _without_mfu(row, step, counts)
    return {
        "attainable_mfu_percent": product(mfu, ratio(time_s, best_s)),
        "tflop_s": step.shares.tflop_s,
        "peak_tflop_s": facts.peaks.peak_tflop_s,
        "peak_weights": weights(counts.needed),
        "mfu_spec_percent": mfu,
        "mfu_percent": mfu,
        "mfu_basis": None if mfu is None else step.shares.mfu_basis,
        "hfu_percent": step.shares.hfu_percent,
        "arithmetic_intensity": ratio(facts.work.flops, row.get("bytes_moved")),
        **step.budget_columns(),
        "best_basis": best_basis if "useful" in step.budget_ms else None,
        "peak_gb_s": bandwidth_gb_s,
        "operator_roofline": json.dumps(roofs, ensure_ascii=False) if roofs else None,
        "module_times": module_times(row.get("modules"), None, facts.peaks.peak_tflop_s, steps),
        **step.executed_columns(),
        "mfu_note": step.note if row.get("status") == "ok" else None,
        "mfu_reason": packed_all([reason]) if reason else None,
        **step.verdict_columns(),
    }


def _facts(row: Row, counts: _Counts, bandwidth_gb_s: Known, best_ratio: Known) -> StepFacts:
    is_ok = row.get("status") == "ok"
    weighted = counts.weighted_tflop_s(counts.needed)
    work = replace(
        group(StepWork, row),
        executed_flops=sum(counts.executed.values()) or None,
        mostly_uncounted=(row.get("uncounted_percent") or 0) > MOST_UNCOUNTED,
        of_model=False,
    )
    peaks = StepPeaks(
        basis="spec",
        effective_precision=row.get("effective_precision") or "",
        peak_tflop_s=weighted,
        executed_tflop_s=counts.weighted_tflop_s(counts.executed),
        peak_gb_s=bandwidth_gb_s,
    )
    return StepFacts(
        time=StepTime(row.get("time_s") if is_ok else None),
        work=work,
        peaks=peaks,
        counters=group(Counters, row),
        traced=replace(traced(row), best_matmul_ratio=best_ratio),
    )


def _counts(row: Row) -> _Counts:
    needed = _cell(row, "flops_by_format", {})
    executed = _cell(row, "executed_by_format", {})
    given = _cell(row, "given_peaks", {})
    peaks_tflop_s = {}
    missing = None
    for name in {**needed, **executed}:
        value, reason = _peak(row, name, given)
        if value is not None:
            peaks_tflop_s[name] = value
        missing = missing or reason
    return _Counts(needed, executed, peaks_tflop_s, missing)


def _cell(row: Row, name: str, empty: object) -> Any:
    return parse_json(row.get(name) or json.dumps(empty))


def _bandwidth_gb_s(row: Row) -> Known:
    device = row.get("device")
    if device:
        return peak(device, "fp32", row.get("units")).memory_gb_s
    return None


def _peak(row: Row, precision: str, given: Mapping[str, float]) -> tuple[float | None, Said | None]:
    """Peak of a format in TFLOP/s, or the reason why it is unknown."""
    device = row.get("device")
    units = row.get("units")
    if precision in given:
        return given[precision], None
    if not device:
        return None, Said("unnamed_device", precision=precision)
    known = peak(device, precision, units).spec
    if known is not None:
        return known, None
    why = "no_peak_in"
    try:
        find(device, units)
    except UnknownDeviceError:
        why = "unknown_device"
    return None, Said(why, device=device, precision=precision)


def _without_mfu(row: Row, step: Account, counts: _Counts) -> Said | None:
    """Reason why a trace has no MFU; None if it has one, or if the trace was not read."""
    if row.get("status") != "ok" or step.shares.mfu_percent is not None:
        return None
    if row.get("flops") is None:
        reason = _cell(row, "reasons", {}).get("flops")
        if isinstance(reason, dict) and reason:
            return Said(*next(iter(reason.items())))
        return Said("uncounted")
    if counts.missing:
        return counts.missing
    known = percent(tflop_s(row["flops"], row.get("time_s")), step.facts.peaks.peak_tflop_s)
    return Said("mostly_uncounted", share=row["uncounted_percent"], least=known)
