"""Verdict on a run, as keys and numbers: the rung at which its ladder drops, and the cause of the largest part of the
time that it loses. Thresholds are rules of thumb; every sentence carries the numbers that it rests on."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mfulab.core import columns as columns_of
from mfulab.core.said import Numbers, Said, packed, packed_all
from mfulab.mfu import headroom
from mfulab.mfu.ladder import TENSOR_PRECISIONS, Drop, Facts, largest_drop

AS_LARGE = 0.9  # of the largest part: which of two such parts is named, the more telling cause decides
WASTED = 20.0  # % from which padding, or a clock that was held back, is worth naming
BUSY = 80.0  # % of the time from which a device counts as occupied
DRAM_BUSY = 55.0  # % of DRAM's cycles; about 80 is the most that real kernels reach
PIPE_IDLE = 10.0  # % below which a pipe does nothing that matters
PIPE_BUSY = 30.0  # % from which the FP32 pipe carries the work
FEW_WARPS = 20.0  # % of resident warps below which latency is hard to hide
OTHERS = 15.0  # points of CPU that other processes may use unnoticed
NEAR_CEILING = 70.0  # % of the measured ceiling: what large, well-shaped models reach
ABOVE_PEAK = 100.0001  # % from which a share is above its peak, and not rounded there
SLOWER = 1.05  # × the time in fp32 from which emulating is worth naming
MEASURING = 2.0  # % of a step that measuring may take on the host
MANY_STEPS = 50  # of which most are timed without hooks
CROSS_CHECK = 1.15  # times as much as the issued instructions, or HFU, the tensor pipe may say, or as little
LEAST_CHECKED = 1.0  # % of either, below which their ratio says nothing
STOLEN = 5.0  # % of the CPU's time from which what the hypervisor took is named
Lost = Mapping[str, float]  # parts of `lost_parts`


@dataclass(frozen=True)
class Verdict:
    """`cause` by its key, `reason` with numbers, the `drop` where most is lost, and `flags` to look at."""

    cause: str
    reason: Said
    drop: Drop | None = None
    expected_mfu_percent: float | None = None
    flags: tuple[Said, ...] = ()


def judge(row: Mapping[str, object]) -> Verdict:
    """The verdict on one row of the profile table (`peak_clock_mhz` and `ceiling_gb_s` joined from the ceilings)."""
    facts = Facts(row)
    expected, lost = expected_mfu(facts), lost_parts(facts)
    beside = largest_drop(row), expected, flags_of(facts, expected)
    useful = facts["mfu_percent"] is not None
    least = AS_LARGE * max(lost.values(), default=0.0)
    large = {part for part, share in lost.items() if share >= least and share > 0}
    for cause, (parts, because) in CAUSES.items():
        if (useful or cause in WITHOUT_MFU) and (not parts or large & {*parts}) and (reason := because(facts, lost)):
            return Verdict(cause, reason, *beside)
    if not useful:
        return Verdict("no_mfu", Said("no_mfu" if facts["mfu_spec_percent"] is None else "no_ceiling"), *beside)
    share = _first(facts["mfu_measured_percent"], facts["mfu_percent"])
    return Verdict("not_explained", Said("not_explained", {"share": share}), *beside)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _reached(key: str, facts: Facts, column: str, least: float, name: str = "share") -> Said | None:
    """The sentence for a column that is at least `least`, with its number; None below the threshold."""
    return Said(key, {name: facts[column]}) if facts.at_least(column, least) else None


def lost_parts(facts: Facts) -> Lost:
    """Parts of the time that do not serve the model, in percent of the step: of its headroom, else of the shares that
    were read, where `busy` is time of which nothing more is known. Beside them `padding`, the share of the useful part
    that serves no token, and `unused`, what a CPU's cores idle."""
    mfu, useful, used = facts["mfu_percent"], facts["useful_mfu_percent"], facts["utilization_percent"]
    beside = {"padding": mfu - useful} if mfu is not None and useful is not None else {}
    if used is not None and _on_cpu(facts):
        beside["unused"] = 100 - used
    time = facts["time_s"]
    parts_ms = {part: facts[f"{part}_ms"] for part in headroom.PARTS if part != "useful"}
    if time and any(parts_ms.values()):
        return beside | {part: ms / time / 10 for part, ms in parts_ms.items() if ms is not None}
    waited, copied, sent = (facts[f"{name}_percent"] or 0.0 for name in ("input_wait", "copy", "communication"))
    if parts := _attributed(facts):
        below_best = parts["matmuls"] * (1 - parts["speed"] / 100)  # of the step, as in the headroom
        idle, rest = parts["outside"], {"other_operators": parts["others"], "matmuls_below_best": below_best}
    else:
        busy = _first(facts["kernel_busy_percent"], used)
        busy = 100.0 if busy is None else busy  # nothing says that the device waits
        share = _first(facts["mfu_measured_percent"], mfu) or 0.0
        idle, rest = max(0.0, 100 - busy - copied), {"busy": busy - sent - share}
    waited = min(waited, idle)
    return beside | {"input_wait": waited, "copies": copied, "communication": sent, "idle": idle - waited} | rest


COLUMNS = tuple(name for name in columns_of.Verdict.model_fields if name != "mfu_note")


def columns(row: Mapping[str, object]) -> dict[str, str | float | None]:
    """The verdict on `row` as columns of the profile table; empty if the run has no time."""
    if Facts(row)["time_s"] is None:
        return dict.fromkeys(COLUMNS)
    verdict = judge(row)
    reason, drop = verdict.reason, verdict.drop
    rungs = (drop.below.column, drop.above.column) if drop else (None, None)
    values = (verdict.cause, reason.key, packed(reason.numbers), *rungs, verdict.expected_mfu_percent)
    values = (*values, corrected_ofu(Facts(row), verdict.expected_mfu_percent))
    return dict(zip(COLUMNS, (*values, packed_all(verdict.flags)), strict=True))


def matmul_flags(row: Mapping[str, object]) -> str | None:
    """The flags of a row of the matmul table, which has no ladder to judge, as `verdict_flags` of the profile table."""
    facts = Facts(row)
    return packed_all(filter(None, [_computed_beside(facts), _disturbed(facts)]))


def note(row: Mapping[str, object]) -> str | None:
    """Key of the sentence that says why MFU is empty or doubtful; None if there is nothing to say."""
    facts = Facts(row)
    if facts.text("status") != "ok":
        return None
    if facts["mfu_percent"] is None:
        if facts["flops"] is None:
            return "uncounted"
        return "untimed" if facts["time_s"] is None else "no_peak"
    if facts["mfu_percent"] <= ABOVE_PEAK:
        return None
    return "over_peak" if at_highest_clock(facts, "mfu_percent") > ABOVE_PEAK else "boosted"


def at_highest_clock(facts: Facts, name: str) -> float:
    """A share of the peak, or of that at the device's highest clock where it is higher; 0 if it is empty."""
    share, mfu, highest = facts[name] or 0.0, facts["mfu_percent"], facts["mfu_max_clock_percent"]
    return share if not mfu or highest is None else share * min(1.0, highest / mfu)


def expected_mfu(facts: Facts) -> float | None:
    """MFU as the hardware saw it, in %: tensor pipe active × SM clock ÷ the peak's; None without GPM or that pipe."""
    active, clock, spec = facts["tensor_active_percent"], facts["clock_mhz"], facts["peak_clock_mhz"]
    if facts.text("effective_precision") not in TENSOR_PRECISIONS or active is None or clock is None or not spec:
        return None
    return active * clock / spec


def corrected_ofu(facts: Facts, ofu: float | None) -> float | None:
    """OFU in % without padding to tiles and slow instructions, to hold against HFU; None where no kernel tells them.
    OFU, arXiv:2605.20799, counts what the tensor pipe does: it followed counted MFU at r = 0.78 over 608 jobs."""
    issued, hfu = facts["issued_percent"], facts["hfu_percent"]
    return ofu * hfu / issued if ofu is not None and hfu is not None and issued else None


def flags_of(facts: Facts, expected: float | None) -> tuple[Said, ...]:
    """Reasons to look at a row again before believing it."""
    executed = _first(facts["issued_percent"], facts["hfu_percent"], facts["mfu_percent"])
    differs = expected is not None and executed is not None and max(expected, executed) >= LEAST_CHECKED
    differs = differs and not 1 / CROSS_CHECK <= (expected or 0.0) / max(executed or 0.0, 1e-9) <= CROSS_CHECK
    highest = max(at_highest_clock(facts, name) for name in ("mfu_percent", "hfu_percent"))
    flags = (
        Said("cross_check", {"expected": expected, "executed": executed}) if differs else None,
        Said("above_peak", {"mfu": highest}) if highest > ABOVE_PEAK else None,
        _reached("set_ceiling", facts, "ceiling_raised_percent", 0),
        _reached("other_processes", facts, "other_processes", 1, "count"),
        _computed_beside(facts),
        _held_back(facts),
        _reached("only_counted", facts, "only_counted", 1, "count"),
        _measuring(facts),
        _reached("stolen", facts, "steal_percent", STOLEN),
        _disturbed(facts),
    )
    return tuple(filter(None, flags))


def _padded(facts: Facts, lost: Lost) -> Said | None:
    mfu, useful = facts["mfu_percent"], facts["useful_mfu_percent"]
    share = 100 * (1 - useful / mfu) if mfu and useful is not None else 0.0
    return Said("padded", {"share": share, "useful": useful}) if share >= WASTED else None


def _input_bound(facts: Facts, lost: Lost) -> Said | None:
    # Kernels that were queued before may keep a GPU busy while the host waits: then the wait costs no time.
    longer = max("input_wait", "copies", key=lambda part: lost.get(part, 0.0))
    return Said(longer, {"share": lost[longer]}) if lost.get(longer) else None


def _launch_bound(facts: Facts, lost: Lost) -> Said | None:
    """Time in which a GPU has nothing to do, and not for want of input."""
    idle, gaps, gap, time = lost["idle"], facts["launch_gaps_per_step"], facts["launch_gap_s"], facts["time_s"]
    if facts["kernel_busy_percent"] is None:
        return None
    if not gaps or not gap:
        return Said("idle", {"idle": idle})
    launching = facts["launch_bound_percent"]
    if launching is None and time is not None:  # as if all gaps were as long as the median one, and for a launch
        launching = 100 * gaps * gap / time
    if launching is not None and launching < idle / 2:
        return None
    return Said("launch_gaps", {"idle": idle, "gaps": gaps, "gap_us": 1e6 * gap})


def _stalled(facts: Facts, lost: Lost) -> Said | None:
    gaps, gap = facts["launch_gaps_per_step"] or 0, facts["launch_gap_s"] or 0
    numbers = {"idle": lost["idle"], "gaps": gaps, "gap_us": 1e6 * gap}
    return None if facts["kernel_busy_percent"] is None else Said("stalled", numbers)


def _memory_bound(facts: Facts, lost: Lost) -> Said | None:
    moved, time_s, ceiling = facts["bytes_moved"], facts["time_s"], facts["ceiling_gb_s"]
    if facts["dram_active_percent"] is not None or not (moved and time_s and ceiling):
        return _reached("dram_active", facts, "dram_active_percent", DRAM_BUSY)
    share = 100 * moved / time_s / 1e9 / ceiling
    return Said("bandwidth", {"share": share}) if share >= DRAM_BUSY else None


def _wrong_precision(facts: Facts, lost: Lost) -> Said | None:
    if not (facts.below("tensor_active_percent", PIPE_IDLE) and facts.at_least("fp32_active_percent", PIPE_BUSY)):
        return None
    return Said("wrong_precision", {"fp32": facts["fp32_active_percent"], "tensor": facts["tensor_active_percent"]})


def _throttled(facts: Facts, lost: Lost) -> Said | None:
    clock, numbers = facts["clock_mhz"], {"share": facts["throttled_percent"]}
    if not facts.at_least("throttled_percent", WASTED):
        return None
    if _on_cpu(facts) and not clock:
        return Said("quota", numbers)
    if not facts.at_least("sm_active_percent", BUSY):
        return None
    return Said("throttled_to", {**numbers, "clock": clock}) if clock else Said("throttled", numbers)


def _shape(facts: Facts, lost: Lost) -> Said | None:
    told, time = json.loads(facts.text("misaligned") or "{}"), facts["time_s"]
    if told and time and (told["ms"] - told["best_ms"]) / time / 10 >= WASTED:
        return Said("misaligned", told)
    padding, slow = (lost.get(part, 0.0) for part in ("tile_padding", "slow_instructions"))
    if max(padding, slow) >= max(AS_LARGE * max(lost.values()), WASTED):
        return Said("executed", {"padding": padding, "slow": slow})
    busy, active = facts["kernel_busy_percent"], facts["sm_active_percent"]
    if busy is not None and active is not None and busy - active >= WASTED:
        return Said("tiles", {"busy": busy, "active": active})
    expected, counted = expected_mfu(facts), facts["mfu_percent"]
    if expected is not None and counted is not None and expected > max(CROSS_CHECK * counted, LEAST_CHECKED):
        return Said("padding", {"expected": expected, "counted": counted})
    return None


def _low_occupancy(facts: Facts, lost: Lost) -> Said | None:
    is_low = facts.at_least("sm_active_percent", BUSY) and facts.below("occupancy_percent", FEW_WARPS)
    return Said("low_occupancy", {"share": facts["occupancy_percent"]}) if is_low else None


def _computed_beside(facts: Facts) -> Said | None:
    return _reached("beside", facts, "other_processes_percent", OTHERS)


def _held_back(facts: Facts) -> Said | None:
    """Says how long heat, a brake or a quota held the device back. A GPU's power limit is its normal state."""
    heat = [facts[f"{name}_percent"] for name in ("software_thermal", "hardware_thermal", "power_brake")]
    share = max((percent for percent in heat if percent is not None), default=facts["throttled_percent"])
    return Said("held_back", {"share": share}) if share is not None and share >= PIPE_IDLE else None


def _measuring(facts: Facts) -> Said | None:
    # Steps with hooks on are timed where few others are there.
    is_brief = facts.below("steps", MANY_STEPS) and not facts["watched_steps"]
    return _reached("measuring_briefly" if is_brief else "measuring", facts, "measuring_percent", MEASURING)


def _disturbed(facts: Facts) -> Said | None:
    numbers = {"count": facts["disturbed_replicates"], "total": facts["replicates"], "slowdown": facts["slowdown"]}
    return Said("disturbed", numbers) if facts.at_least("disturbed_replicates", 1) else None


def _shared(facts: Facts, lost: Lost) -> Said | None:
    others = _computed_beside(facts)
    return Said("shared", others.numbers) if others and facts.below("utilization_percent", BUSY) else None


def _on_cpu(facts: Facts) -> bool:
    return facts["kernel_busy_percent"] is None and facts["sm_active_percent"] is None


def _attributed(facts: Facts) -> dict[str, float] | None:
    """MFU taken apart, percent: time in matmuls, other operators, outside of any; the MFU of the matmuls alone."""
    matmuls, others, measured = facts["matmul_percent"], facts["other_operators_percent"], facts["mfu_measured_percent"]
    mfu = _first(measured, facts["mfu_percent"])
    if not matmuls or others is None or mfu is None:
        return None
    counted = matmuls * (1 - (facts["uncounted_percent"] or 0) / 100)
    if counted < mfu <= 100 and matmuls < 100:  # the trace slowed what stands around matmuls
        whole = max(matmuls, mfu)
        others, matmuls, counted = others * (100 - whole) / (100 - matmuls), whole, mfu
    shares = {"matmuls": matmuls, "others": others, "outside": 100 - matmuls - others}
    return {**shares, "speed": 100 * mfu / counted, "measured": int(measured is not None)}


def _page_faults(facts: Facts, lost: Lost) -> Said | None:
    time_s, faults_per_s, kept_s = facts["time_s"], facts["page_faults_per_s"], facts["kept_memory_time_s"]
    if not time_s or faults_per_s is None:
        return None
    numbers = {"share": lost["page_faults"], "faults": faults_per_s * time_s}
    kept = {} if kept_s is None else {"kept": 100 * kept_s / time_s}
    return Said("page_faults_kept" if kept else "page_faults", numbers | kept)


def _other_operators(facts: Facts, lost: Lost) -> Said | None:
    if not (parts := _attributed(facts)):
        others = {"others": lost["other_operators"]}
        return None if facts["matmul_percent"] else Said("other_operators_alone", others)
    longest = next(iter(json.loads(facts.text("top_other_operators") or "{}").items()), None)
    most = {"name": longest[0], "share": longest[1]} if longest else {}
    return Said("other_operators_most" if most else "other_operators", most | parts)


def _busy_not_useful(facts: Facts, lost: Lost) -> Said | None:
    numbers = {"busy": facts["utilization_percent"], "mfu": facts["mfu_percent"]}
    is_busy = facts.at_least("utilization_percent", BUSY) and facts.below("mfu_percent", WASTED)
    return Said("busy_not_useful", numbers) if is_busy else None


def _emulated_format(facts: Facts, lost: Lost) -> Said | None:
    """A format that the device emulates, so that fp32's ceiling stands under MFU; with the same step's time in fp32."""
    used, peak, slower = facts.text("effective_precision"), facts.text("peak_precision"), facts["slower_than_fp32"]
    if not peak or used == peak or (slower is not None and slower < SLOWER):
        return None
    numbers: Numbers = {"precision": used, "cpu": int(facts.text("mfu_basis") == "measured")}
    return Said("emulated", numbers) if slower is None else Said("emulated_slower", {**numbers, "ratio": slower})


def _doubtful_ceiling(facts: Facts, lost: Lost) -> Said | None:
    """Names what keeps a run near its ceiling from being compute-bound: that ceiling cannot be relied on."""
    share = facts["mfu_measured_percent"]
    if share is None or share < NEAR_CEILING:
        return None
    if facts["ceiling_raised_percent"] is not None:
        return Said("sets_ceiling", {"share": facts["ceiling_raised_percent"]})
    if (highest := max(share, at_highest_clock(facts, "mfu_percent"))) > ABOVE_PEAK:
        return Said("above_ceiling", {"share": highest})
    if facts["ceiling_slowdown"] is not None or facts["ceiling_other_processes_percent"] is not None:
        return Said("disturbed_ceiling", {"share": share})
    return None


def _of_operators(key: str, facts: Facts, below: float = math.inf) -> Said | None:
    """The sentence for a trace's operators, where matmuls reach a share of the peak `below` that."""
    parts = _attributed(facts)
    return Said(key, parts) if parts and parts["speed"] < below else None


_MATMULS = ("matmuls_below_best", "best_below_peak", "busy")

# Each cause with the parts that it is about, one of which must be as large as any; without parts it is always asked.
# The first that can show its numbers wins.
CAUSES: dict[str, tuple[tuple[str, ...], Callable[[Facts, Lost], Said | None]]] = {
    "emulated_format": ((), _emulated_format),
    "padded": (("padding",), _padded),
    "doubtful_ceiling": ((), _doubtful_ceiling),
    "compute_bound": ((), lambda facts, _: _reached("compute_bound", facts, "mfu_measured_percent", NEAR_CEILING)),
    "input_bound": (("input_wait", "copies"), _input_bound),
    "communication_bound": (("communication",), lambda _, of: Said("communication", {"share": of["communication"]})),
    "launch_bound": (("idle",), _launch_bound),
    "stalled": (("idle",), _stalled),
    "recomputed": (("recomputation",), lambda _, lost: Said("recomputed", {"share": lost["recomputation"]})),
    "memory_bound": (("other_operators", *_MATMULS), _memory_bound),
    "wrong_precision": (_MATMULS, _wrong_precision),
    "throttled": (("clock", "busy", "unused"), _throttled),
    "shape": (("tile_padding", "slow_instructions", *_MATMULS), _shape),
    "low_occupancy": (_MATMULS, _low_occupancy),
    "shared": (("idle", "unused"), _shared),
    "under_used": (("unused",), lambda facts, _: Said("under_used", {"share": facts["utilization_percent"]})),
    "page_faults": (("page_faults",), _page_faults),
    "other_operators": (("other_operators",), _other_operators),
    "overhead": (("idle",), lambda facts, _: _of_operators("overhead", facts) if _on_cpu(facts) else None),
    "slow_matmuls": (_MATMULS[:2], lambda facts, _: _of_operators("slow_matmuls", facts, NEAR_CEILING)),
    "busy_not_useful": (("busy",), _busy_not_useful),
}

# What shares of time tell without FLOPs or a peak.
WITHOUT_MFU = ("input_bound", "communication_bound", "launch_bound", "stalled", "page_faults")
