"""Causes of a verdict that compare a run with its ceiling: an emulated format, a ceiling in doubt, the limit itself."""

from mfulab.core.said import Numbers, Said
from mfulab.mfu.ladder import Facts

NEAR_CEILING = 70.0  # % of the measured ceiling: what large, well-shaped models reach
ABOVE_PEAK = 100.0001  # % from which a share is above its peak, and not rounded there
SLOWER = 1.05  # × the time in fp32 from which emulating is worth naming


def emulated_format(facts: Facts) -> Said | None:
    """A format that the device emulates, so that fp32's ceiling stands under MFU; with the same step's time in fp32."""
    used, peak, slower = facts.text("effective_precision"), facts.text("peak_precision"), facts["slower_than_fp32"]
    if not peak or used == peak or (slower is not None and slower < SLOWER):
        return None
    numbers: Numbers = {"precision": used, "cpu": int(facts.text("mfu_basis") == "measured")}
    return Said("emulated", numbers) if slower is None else Said("emulated_slower", {**numbers, "ratio": slower})


def doubtful_ceiling(facts: Facts) -> Said | None:
    """Names what keeps a run near its ceiling from being compute-bound: that ceiling cannot be relied on."""
    share, raised = facts["mfu_measured_percent"], facts["ceiling_raised_percent"]
    if share is None or share < NEAR_CEILING:
        return None
    if raised is not None:
        return Said("sets_ceiling", {"share": raised})
    if (highest := max(share, facts["mfu_percent"] or 0.0)) > ABOVE_PEAK:
        return Said("above_ceiling", {"share": highest})
    if facts["ceiling_slowdown"] is not None or facts["ceiling_other_processes_percent"] is not None:
        return Said("disturbed_ceiling", {"share": share})
    return None


def compute_bound(facts: Facts) -> Said | None:
    """A run near a ceiling that can be relied on."""
    if not facts.at_least("mfu_measured_percent", NEAR_CEILING):
        return None
    return Said("compute_bound", {"share": facts["mfu_measured_percent"]})
