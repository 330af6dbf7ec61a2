"""Reasons to check a row again before believing it, as keys and numbers."""

from collections.abc import Mapping

from mfulab.core.parts import drop_none
from mfulab.core.said import Said, packed_all
from mfulab.mfu.causes import (
    ABOVE_PEAK,
    CROSS_CHECK,
    FAR_CEILING,
    LEAST_CHECKED,
    PIPE_IDLE,
    at_highest_clock,
    at_least,
    below,
    computed_beside,
    first_known,
    reached,
)
from mfulab.mfu.step import Counters, Shares, StepFacts, StepPeaks, StepTime, group, number

SAME_CLOCK = 0.02  # clocks of a matmul and its reference that differ by less count as equal
MEASURING = 2.0  # % of a step that measuring may take on the host
MANY_STEPS = 50  # in a window this long most steps are timed without hooks
STOLEN = 5.0  # % of the CPU's time taken by the hypervisor, from which it is mentioned


def flags_of(facts: StepFacts, shares: Shares) -> tuple[Said, ...]:
    """Flags of a step: reasons to check its row again."""
    counters = facts.counters
    flags = (
        _cross_check(shares),
        _above_peak(shares),
        reached("set_ceiling", facts.peaks.ceiling_raised_percent, 0),
        _far_ceiling(facts.peaks),
        reached("other_processes", counters.other_processes, 1, "count"),
        computed_beside(counters),
        _held_back(counters),
        reached("only_counted", facts.time.only_counted, 1, "count"),
        _measuring(facts.time),
        reached("stolen", counters.steal_percent, STOLEN),
        _disturbed(counters),
    )
    return tuple(filter(None, flags))


def matmul_flags(row: Mapping[str, object], peaks: StepPeaks | None = None) -> str | None:
    """Flags of a row of the matmul table, which has no ladder to judge, in the form of
    `verdict_flags` of the profile table. `peaks` are those of its number format."""
    counters = group(Counters, row)
    flags = (
        computed_beside(counters),
        _far_ceiling(peaks or StepPeaks()),
        _disturbed(counters),
        _unlike_clocks(row),
    )
    return packed_all(filter(None, flags))


def _unlike_clocks(row: Mapping[str, object]) -> Said | None:
    """Flag of a share of a reference that ran at another clock: a power limit moved between the
    two."""
    own_mhz = number(row.get("clock_mhz"))
    beside_mhz = number(row.get("reference_clock_mhz"))
    if not own_mhz or not beside_mhz or abs(own_mhz / beside_mhz - 1) <= SAME_CLOCK:
        return None
    return Said("unlike_clocks", own=own_mhz, beside=beside_mhz)


def _far_ceiling(peaks: StepPeaks) -> Said | None:
    """Flag of a share of a measured ceiling that is too far below the computed peak to be the
    device's: something held the matmul back."""
    if peaks.basis != "measured" or not peaks.peak_tflop_s or not peaks.ceiling_tflop_s:
        return None
    share = 100 * peaks.ceiling_tflop_s / peaks.peak_tflop_s
    if share >= FAR_CEILING:
        return None
    return Said("far_ceiling", share=share)


def _cross_check(shares: Shares) -> Said | None:
    """Compares the tensor pipe with what was counted: they differ by more than 15 % if FLOPs or
    peak are wrong."""
    expected = shares.expected_mfu_percent
    executed = first_known(shares.issued_percent, shares.hfu_percent, shares.mfu_percent)
    if expected is None or executed is None or max(expected, executed) < LEAST_CHECKED:
        return None
    if 1 / CROSS_CHECK <= expected / max(executed, 1e-9) <= CROSS_CHECK:
        return None
    return Said("cross_check", expected=expected, executed=executed)


def _above_peak(shares: Shares) -> Said | None:
    highest = max(
        at_highest_clock(shares.mfu_percent, shares), at_highest_clock(shares.hfu_percent, shares)
    )
    if highest > ABOVE_PEAK:
        return Said("above_peak", mfu=highest)
    return None


def _held_back(counters: Counters) -> Said | None:
    """Flag of the time in which heat, a power brake or a quota held the device back. A GPU's power
    limit is its normal state."""
    heat = (
        counters.software_thermal_percent,
        counters.hardware_thermal_percent,
        counters.power_brake_percent,
    )
    known = drop_none(heat)
    share = max(known) if known else counters.throttled_percent
    return reached("held_back", share, PIPE_IDLE)


def _measuring(time: StepTime) -> Said | None:
    # Steps with hooks on are timed only if there are few others.
    is_brief = below(time.steps, MANY_STEPS) and not time.watched_steps
    key = "measuring_briefly" if is_brief else "measuring"
    return reached(key, time.measuring_percent, MEASURING)


def _disturbed(counters: Counters) -> Said | None:
    if not at_least(counters.disturbed_replicates, 1):
        return None
    return Said(
        "disturbed",
        count=counters.disturbed_replicates,
        total=counters.replicates,
        slowdown=counters.slowdown,
    )
