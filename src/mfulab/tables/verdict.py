"""Why a run does not use its device's arithmetic: the rung at which the ladder drops, and the likely cause.

A pure function of one joined row of the profile table. Its thresholds are rules of thumb, and every sentence carries
the numbers that it rests on, so that a reader can disagree. The sentences stand in the catalogues, under `verdict`.
"""

import itertools
import json
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mfulab.language import Texts
from mfulab.schema.formats import FORMATS

# The rungs in falling order; occupancy is not one of them, since good matmuls run at low occupancy.
RUNGS = (
    ("utilization_percent", "utilization"),
    ("kernel_busy_percent", "kernel-busy"),
    ("product_percent", "in products"),
    ("sm_active_percent", "SM active"),
    ("tensor_active_percent", "tensor pipe active"),
    ("hfu_percent", "HFU"),
    ("mfu_percent", "MFU"),
)
TENSOR_PRECISIONS = tuple(form.name for form in FORMATS.values() if form.on_tensor_cores)

NEAR_CEILING = 70.0  # % of the measured ceiling: what large, well-shaped models reach
WASTED = 20.0  # % of the step in which waiting for one thing is worth naming it
BUSY = 80.0  # % of the time from which a device counts as occupied
DRAM_BUSY = 55.0  # % of DRAM's cycles; about 80 is the most that real kernels reach
PIPE_IDLE = 10.0  # % below which a pipe does nothing that matters
PIPE_BUSY = 30.0  # % from which the FP32 pipe carries the work
FEW_WARPS = 20.0  # % of resident warps below which latency is hard to hide
OTHERS = 15.0  # points of CPU that other processes may use unnoticed
CROSS_CHECK = 5.0  # points by which HFU and the tensor pipe may differ


@dataclass(frozen=True)
class Verdict:
    """`cause` in a word or two, `reason` in a sentence with numbers, `rung` where most is lost, `flags` to look at."""

    cause: str
    reason: str
    rung: str | None = None
    expected_mfu_percent: float | None = None
    flags: tuple[str, ...] = ()


class Facts:
    """A row that answers None for what is absent, empty or not a number; `say` has the words for it."""

    def __init__(self, row: Mapping[str, object], language: str = "en") -> None:
        self._row = row
        self.say = Texts(language, "verdict")

    def __getitem__(self, name: str) -> float | None:
        value = self._row.get(name)
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            return None
        return float(value)

    def at_least(self, name: str, threshold: float) -> bool:
        value = self[name]
        return value is not None and value >= threshold

    def below(self, name: str, threshold: float) -> bool:
        value = self[name]
        return value is not None and value < threshold

    def text(self, name: str) -> str:
        value = self._row.get(name)
        return value if isinstance(value, str) else ""


def judge(row: Mapping[str, object], language: str = "en") -> Verdict:
    """The verdict on one row of the profile table (`peak_clock_mhz` and `ceiling_gb_s` joined from the ceilings)."""
    facts = Facts(row, language)
    expected = expected_mfu(facts)
    flags = tuple(flags_of(facts, expected))
    useful = facts["mfu_percent"] is not None
    for cause, judged in CAUSES if useful else WITHOUT_MFU:
        reason = judged(facts)
        if reason:
            return Verdict(cause, reason, drop(facts), expected, flags)
    if not useful:
        return Verdict("no MFU", facts.say("no_mfu"), drop(facts), expected, flags)
    return Verdict("not explained", _unexplained(facts), drop(facts), expected, flags)


COLUMNS = ("verdict", "verdict_reason", "verdict_rung", "expected_mfu_percent", "verdict_flags")


def columns(row: Mapping[str, object], language: str = "en") -> dict[str, str | float | None]:
    """The verdict on `row` as columns of the profile table; empty where the run has no time."""
    if Facts(row)["time_s"] is None:
        return dict.fromkeys(COLUMNS)
    verdict = judge(row, language)
    flags = "; ".join(verdict.flags) or None
    found = (
        Texts(language).name("cause", verdict.cause),
        verdict.reason,
        verdict.rung,
        verdict.expected_mfu_percent,
        flags,
    )
    return dict(zip(COLUMNS, found, strict=True))


def matmul_flags(row: Mapping[str, object], language: str = "en") -> str | None:
    """The same of a row of the matmul table, which has no ladder to judge."""
    return computed_beside(Facts(row, language)) or None


def note(row: Mapping[str, object], uncounted: str | None = None, language: str = "en") -> str | None:
    """Why MFU is empty, or why it should be doubted; None where there is nothing to say.

    `uncounted` is what the count of the model's FLOPs says of itself.
    """
    facts = Facts(row, language)
    if facts.text("status") != "ok":
        return None
    if facts["mfu_percent"] is None:
        if facts["flops"] is None:
            return facts.say("uncounted_because", message=uncounted) if uncounted else facts.say("uncounted")
        if facts["time_s"] is None:
            return facts.say("untimed")
        return facts.say("no_peak", precision=facts.text("effective_precision") or facts.text("precision"))
    return facts.say("over_peak", basis=facts.text("mfu_basis")) if facts["mfu_percent"] > 100 else None


def drop(facts: Facts) -> str | None:
    """The step of the ladder that loses most, as `from → to`; None with fewer than two rungs known."""
    known = [(name, value) for column, name in RUNGS if (value := facts[column]) is not None]
    if facts.text("effective_precision") not in TENSOR_PRECISIONS:
        known = [(name, value) for name, value in known if name != "tensor pipe active"]
    if facts["sm_active_percent"] is not None:  # other operators keep SMs active too: neither is below the other
        known = [(name, value) for name, value in known if name != "in products"]
    falls = [(above[1] - below[1], f"{above[0]} → {below[0]}") for above, below in itertools.pairwise(known)]
    return max(falls)[1] if falls and max(falls)[0] > 0 else None


def expected_mfu(facts: Facts) -> float | None:
    """MFU as the hardware saw it: tensor pipe active × mean SM clock ÷ the clock in the spec peak, percent.

    None without GPM, or where products do not run on tensor cores.
    """
    active, clock, spec = facts["tensor_active_percent"], facts["clock_mhz"], facts["peak_clock_mhz"]
    if facts.text("effective_precision") not in TENSOR_PRECISIONS or active is None or clock is None or not spec:
        return None
    return active * clock / spec


def flags_of(facts: Facts, expected: float | None) -> list[str]:
    """What makes the row itself worth a second look."""
    flags = []
    executed = facts["hfu_percent"] if facts["hfu_percent"] is not None else facts["mfu_percent"]
    if expected is not None and executed is not None and abs(expected - executed) > CROSS_CHECK:
        flags.append(facts.say("cross_check", expected=expected, executed=executed))
    if facts.at_least("mfu_percent", 100.0001):
        flags.append(facts.say("above_peak", mfu=facts["mfu_percent"]))
    if facts.at_least("other_processes", 1):
        flags.append(facts.say("other_processes", count=facts["other_processes"]))
    if others := computed_beside(facts):
        flags.append(others)
    if facts.at_least("throttled_percent", PIPE_IDLE):
        flags.append(facts.say("held_back", share=facts["throttled_percent"]))
    if facts.at_least("steal_percent", CROSS_CHECK):
        flags.append(facts.say("stolen", share=facts["steal_percent"]))
    return flags


def _compute_bound(facts: Facts) -> str:
    if not facts.at_least("mfu_measured_percent", NEAR_CEILING):
        return ""
    return facts.say("compute_bound", share=facts["mfu_measured_percent"])


def _input_bound(facts: Facts) -> str:
    # The host waits; kernels that were queued before may keep a GPU busy meanwhile.
    if facts.at_least("input_wait_percent", WASTED) and not facts.at_least("kernel_busy_percent", BUSY):
        return facts.say("input_wait", share=facts["input_wait_percent"])
    if facts.at_least("copy_percent", WASTED):
        return facts.say("copies", share=facts["copy_percent"])
    return ""


def _communication_bound(facts: Facts) -> str:
    if not facts.at_least("communication_percent", WASTED):
        return ""
    return facts.say("communication", share=facts["communication_percent"])


def _launch_bound(facts: Facts) -> str:
    if not facts.below("kernel_busy_percent", 100 - WASTED):
        return ""
    gaps, gap = facts["launch_gaps_per_step"], facts["launch_gap_s"]
    idle = 100 - _known(facts, "kernel_busy_percent")
    if gaps and gap:
        return facts.say("launch_gaps", idle=idle, gaps=gaps, gap_us=1e6 * gap)
    return facts.say("idle", idle=idle)


def _memory_bound(facts: Facts) -> str:
    if facts.at_least("dram_active_percent", DRAM_BUSY):
        return facts.say("dram_active", share=facts["dram_active_percent"])
    moved, time_s, ceiling = facts["bytes_moved"], facts["time_s"], facts["ceiling_gb_s"]
    if facts["dram_active_percent"] is None and moved and time_s and ceiling:
        share = 100 * moved / time_s / 1e9 / ceiling
        if share >= DRAM_BUSY:
            return facts.say("bandwidth", share=share)
    return ""


def _wrong_precision(facts: Facts) -> str:
    idle_tensor = facts.below("tensor_active_percent", PIPE_IDLE)
    if not (idle_tensor and facts.at_least("fp32_active_percent", PIPE_BUSY)):
        return ""
    return facts.say("wrong_precision", fp32=facts["fp32_active_percent"], tensor=facts["tensor_active_percent"])


def _throttled(facts: Facts) -> str:
    if not (facts.at_least("throttled_percent", WASTED) and facts.at_least("sm_active_percent", BUSY)):
        return ""
    if facts["clock_mhz"]:
        return facts.say("throttled_to", share=facts["throttled_percent"], clock=facts["clock_mhz"])
    return facts.say("throttled", share=facts["throttled_percent"])


def _shape(facts: Facts) -> str:
    busy, active = facts["kernel_busy_percent"], facts["sm_active_percent"]
    if busy is not None and active is not None and busy - active >= WASTED:
        return facts.say("tiles", busy=busy, active=active)
    expected, counted = expected_mfu(facts), facts["mfu_percent"]
    if expected is not None and counted is not None and expected - counted > CROSS_CHECK:
        return facts.say("padding", expected=expected, counted=counted)
    return ""


def _low_occupancy(facts: Facts) -> str:
    if not (facts.at_least("sm_active_percent", BUSY) and facts.below("occupancy_percent", FEW_WARPS)):
        return ""
    return facts.say("low_occupancy", share=facts["occupancy_percent"])


def computed_beside(facts: Facts) -> str:
    """What other processes did to a CPU; empty where they left it alone."""
    if not facts.at_least("others_percent", OTHERS):
        return ""
    return facts.say("beside", share=facts["others_percent"])


def _shared(facts: Facts) -> str:
    others = computed_beside(facts)
    return f"{others}." if others and facts.below("utilization_percent", BUSY) else ""


def _cpu_idle(facts: Facts) -> str:
    if facts["kernel_busy_percent"] is not None or facts["sm_active_percent"] is not None:
        return ""
    if not facts.below("utilization_percent", BUSY):
        return ""
    return facts.say("under_used", share=facts["utilization_percent"])


def _products(facts: Facts) -> dict[str, Any] | None:
    """MFU taken apart, percent: the time in products, in other operators, outside of any; the products' own MFU.

    Their MFU is against the best product measured, and against the datasheet where none was.
    """
    products, others, mfu = facts["product_percent"], facts["other_operators_percent"], facts["mfu_measured_percent"]
    against = "measured" if mfu is not None else "spec"
    mfu = facts["mfu_percent"] if mfu is None else mfu
    if not products or others is None or mfu is None:
        return None
    counted = products * (1 - (facts["uncounted_percent"] or 0) / 100)
    return {
        "products": products,
        "others": others,
        "outside": 100 - products - others,
        "speed": 100 * mfu / counted,
        "against": facts.say(f"against_{against}"),
    }


def _other_operators(facts: Facts) -> str:
    parts = _products(facts)
    if not parts or parts["products"] > parts["speed"] or parts["others"] < parts["outside"]:
        return ""
    longest = json.loads(facts.text("top_other_operators") or "{}")
    if not longest:
        return facts.say("other_operators", **parts)
    name, share = next(iter(longest.items()))
    return facts.say("other_operators_most", name=name, share=share, **parts)


def _overhead(facts: Facts) -> str:
    parts = _products(facts)
    if not parts or parts["products"] > parts["speed"]:
        return ""
    return facts.say("overhead", **parts)


def _slow_products(facts: Facts) -> str:
    parts = _products(facts)
    return facts.say("slow_products", **parts) if parts else ""


def _busy_not_useful(facts: Facts) -> str:
    if not (facts.at_least("utilization_percent", BUSY) and facts.below("mfu_percent", WASTED)):
        return ""
    return facts.say("busy_not_useful", busy=facts["utilization_percent"], mfu=facts["mfu_percent"])


# Asked in this order: the first that can show its numbers wins.
CAUSES: tuple[tuple[str, Callable[[Facts], str]], ...] = (
    ("compute-bound", _compute_bound),
    ("input-bound", _input_bound),
    ("communication-bound", _communication_bound),
    ("launch-bound", _launch_bound),
    ("memory-bound", _memory_bound),
    ("wrong precision", _wrong_precision),
    ("throttled", _throttled),
    ("shape", _shape),
    ("low occupancy", _low_occupancy),
    ("shared", _shared),
    ("under-used", _cpu_idle),
    ("other operators", _other_operators),
    ("overhead", _overhead),
    ("slow products", _slow_products),
    ("busy, not useful", _busy_not_useful),
)
# What a trace can tell without knowing FLOPs or a peak.
WITHOUT_MFU = CAUSES[1:4]


def _unexplained(facts: Facts) -> str:
    share = facts["mfu_measured_percent"] if facts["mfu_measured_percent"] is not None else facts["mfu_percent"]
    return facts.say("not_explained", share=share)


def _known(facts: Facts, name: str) -> float:
    value = facts[name]
    assert value is not None
    return value
