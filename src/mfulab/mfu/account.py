"""The account of one step: MFU from FLOPs to percent, the budget that sums to the step, and the
verdict. Sweeps, loops and traces provide the facts; terminal, page, notebook and JSON show the
account."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mfulab.core import columns as columns_of
from mfulab.core.answer import Answer
from mfulab.core.said import Said, packed, packed_all
from mfulab.mfu import headroom
from mfulab.mfu.causes import (
    ABOVE_PEAK,
    BY_KEY,
    FactsAndLosses,
    at_highest_clock,
    because,
    lost_parts,
)
from mfulab.mfu.flags import flags_of
from mfulab.mfu.ladder import TENSOR_PRECISIONS
from mfulab.mfu.step import Cell, Known, Row, Shares, StepFacts, facts_of, group, number
from mfulab.mfu.utilization import (
    GIGA,
    of_peak,
    percent,
    product,
    quotient_interval,
    ratio,
    tflop_s,
)


@dataclass(frozen=True)
class Judged:
    """Verdict on a step: the key of its `cause`, the `reason` with numbers, and `flags` to look
    at."""

    cause: str
    reason: Said
    flags: tuple[Said, ...] = ()

    @property
    def columns(self) -> dict[str, Cell]:
        """Columns of a table that hold the cause and the reason."""
        return {
            "verdict": self.cause,
            "verdict_reason": self.reason.key,
            "verdict_numbers": packed(self.reason.numbers),
        }


@dataclass(frozen=True)
class Loss:
    """Milliseconds of a step, and the points of MFU that they cost."""

    ms: float
    points: float


@dataclass(frozen=True)
class Account:
    """Account of one step's time. `budget_ms` holds each part once; their sum is the step. It is
    empty if no trace shows the parts."""

    facts: StepFacts
    shares: Shares
    budget_ms: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def verdict(self) -> Judged:
        """Cause of the largest part of the lost time."""
        lost = lost_parts(self.facts, self.shares, self.budget_ms)
        cause, reason = because(FactsAndLosses(self.facts, self.shares, lost))
        return Judged(cause.key, reason, flags_of(self.facts, self.shares))

    @property
    def losses(self) -> dict[str, Loss]:
        """Parts of the budget that take time, in its order."""
        time_s = self.facts.time.time_s
        if not time_s:
            return {}
        return {part: Loss(ms, ms / time_s / 10) for part, ms in self.budget_ms.items() if ms}

    def loss(self, key: str) -> Loss | None:
        """Time of the step that a cause takes; None if the budget is unknown or has none of the
        cause's parts."""
        cause = BY_KEY.get(key)
        costs = headroom.LOST
        if cause is not None and cause.costs is not None:
            costs = cause.costs
        elif cause is not None and cause.parts:
            costs = cause.parts
        losses = self.losses
        parts = [losses[part] for part in costs if part in losses]
        share = 1.0
        if key == "padded":
            share = self.shares.padding_ratio or 0.0
        points = share * sum(part.points for part in parts)
        if points <= 0:
            return None
        return Loss(share * sum(part.ms for part in parts), points)

    @property
    def note(self) -> str | None:
        """Key of the sentence on why MFU is missing or doubtful; None if there is nothing to
        say."""
        mfu = self.shares.mfu_percent
        if mfu is not None:
            if mfu <= ABOVE_PEAK:
                return None
            if at_highest_clock(mfu, self.shares) > ABOVE_PEAK:
                return "over_peak"
            return "boosted"
        if self.facts.work.flops is None:
            return "uncounted"
        if self.facts.time.time_s is None:
            return "untimed"
        return "no_peak"

    def mfu(self, reason: Said | None = None) -> Answer:
        """MFU as an answer. If MFU is missing, `reason` explains it instead of the account
        itself."""
        mfu = self.shares.mfu_percent
        why = None
        doubt = {flag.key: flag.numbers for flag in self.verdict.flags}
        if mfu is None:
            reason = reason or self._without_mfu
            why = {reason.key: reason.numbers}
        elif self.note is not None:
            doubt[self.note] = {}
        peaks = self.facts.peaks
        return Answer(mfu, "%", peaks.tflop_s, "TFLOP/s", self.shares.mfu_basis, why, doubt)

    def budget_columns(self) -> dict[str, Cell]:
        """The parts of the budget as columns of a table; None for an unknown one."""
        return {f"{part}_ms": self.budget_ms.get(part) for part in headroom.PARTS}

    def executed_columns(self) -> dict[str, Cell]:
        """Columns of the rungs between the tensor pipe and HFU."""
        return {
            "executed_percent": self.shares.executed_percent,
            "issued_percent": self.shares.issued_percent,
        }

    def verdict_columns(self) -> dict[str, Cell]:
        """The verdict as columns of a table; None in all of them if the step has no time."""
        if self.facts.time.time_s is None:
            return dict.fromkeys(VERDICT)
        verdict = self.verdict
        return {
            **verdict.columns,
            "expected_mfu_percent": self.shares.expected_mfu_percent,
            "ofu_percent": self.shares.ofu_percent,
            "verdict_flags": packed_all(verdict.flags),
        }

    @property
    def _without_mfu(self) -> Said:
        """Reason why there is no MFU."""
        if self.shares.mfu_spec_percent is not None:
            return Said("no_ceiling")
        if self.note == "no_peak":
            return Said("no_peak", precision=self.facts.peaks.effective_precision)
        return Said(str(self.note))


VERDICT = tuple(name for name in columns_of.VerdictColumns.model_fields if name != "mfu_note")


def account(facts: StepFacts) -> Account:
    """Computes the account of a step from its facts."""
    shares = shares_of(facts)
    return Account(facts, shares, budget_of(facts))


def shares_of(facts: StepFacts) -> Shares:
    """MFU by every denominator, HFU and MBU of one step.

    MFU = FLOPs that the model needs ÷ time ÷ peak; HFU takes the FLOPs that ran (Chowdhery et al.
    2022, PaLM, appendix B). MBU = bytes of parameters and key-value cache ÷ time ÷ memory bandwidth
    (Agarwal et al. 2023, "LLM Inference Performance Engineering: Best Practices", Databricks).
    """
    time_s = facts.time.time_s
    work = facts.work
    peaks = facts.peaks
    flops, executed_flops = work.flops, work.executed_flops
    if work.mostly_uncounted:
        flops = executed_flops = None
    at_clock = product(peaks.peak_tflop_s, ratio(facts.counters.clock_mhz, peaks.peak_clock_mhz))
    mfu = of_peak(flops, time_s, peaks.tflop_s)
    hfu = of_peak(executed_flops, time_s, peaks.executed_tflop_s)
    low, high = _mfu_interval(facts, mfu)
    expected = expected_mfu(facts)
    issued = product(hfu, work.issued_ratio)
    return Shares(
        tflop_s=tflop_s(work.flops, time_s),
        mfu_spec_percent=of_peak(flops, time_s, peaks.peak_tflop_s),
        mfu_max_clock_percent=of_peak(flops, time_s, peaks.max_clock_tflop_s),
        mfu_actual_clock_percent=of_peak(flops, time_s, at_clock),
        mfu_measured_percent=of_peak(flops, time_s, peaks.ceiling_tflop_s),
        mfu_percent=mfu,
        mfu_basis=peaks.basis if peaks.tflop_s is not None else None,
        mfu_ci_low_percent=low,
        mfu_ci_high_percent=high,
        hfu_percent=hfu,
        mbu_percent=percent(ratio(ratio(work.read_bytes, time_s), GIGA), peaks.gb_s),
        useful_mfu_percent=product(mfu, work.useful_ratio),
        executed_percent=product(hfu, work.executed_ratio),
        issued_percent=issued,
        expected_mfu_percent=expected,
        ofu_percent=corrected_ofu(expected, hfu, issued),
    )


def _mfu_interval(facts: StepFacts, mfu: Known) -> tuple[Known, Known]:
    """95 % confidence interval of MFU, from those of the time and of a measured ceiling; None
    without one."""
    time = facts.time
    peaks = facts.peaks
    timed = (time.time_s, time.time_ci_low_s, time.time_ci_high_s)
    below: tuple[Known, Known, Known] = (peaks.tflop_s, None, None)
    if peaks.basis == "measured":
        below = (peaks.ceiling_tflop_s, peaks.ceiling_ci_low_tflop_s, peaks.ceiling_ci_high_tflop_s)
    return quotient_interval(mfu, denominators=[timed, below])


def expected_mfu(facts: StepFacts) -> Known:
    """MFU as the hardware saw it (OFU), in %: tensor pipe active × SM clock ÷ the peak's clock.
    None without these counters, or for a format that uses no tensor cores."""
    active = facts.counters.tensor_active_percent
    clock_mhz = facts.counters.clock_mhz
    peak_clock_mhz = facts.peaks.peak_clock_mhz
    if facts.peaks.effective_precision not in TENSOR_PRECISIONS:
        return None
    if active is None or clock_mhz is None or not peak_clock_mhz:
        return None
    return active * clock_mhz / peak_clock_mhz


def corrected_ofu(ofu: Known, hfu: Known, issued: Known) -> Known:
    """OFU in % without padding to tiles and slow instructions, comparable with HFU; None if no
    kernel reveals these. OFU, arXiv:2605.20799, counts what the tensor pipe does: it followed
    counted MFU at r = 0.78 over 608 jobs."""
    if ofu is None or hfu is None or not issued:
        return None
    return ofu * hfu / issued


def budget_of(facts: StepFacts) -> dict[str, float]:
    """Parts of a step in ms, in whole nanoseconds that sum to it; empty without a trace of it."""
    time_s = facts.time.time_s
    traced = facts.traced.spent_ns
    if traced is None or not time_s:
        return {}
    work = facts.work
    peaks = facts.peaks
    spent_ns = _with_page_faults(facts, headroom.shared(traced, round(1e9 * time_s)), time_s)
    if work.flops is None or not peaks.tflop_s:
        return _in_ms(headroom.headroom(spent_ns, None))
    if work.of_model:  # a count of the model includes all matmuls
        spent_ns = headroom.all_counted(spent_ns)
    useful_ns = work.flops / peaks.tflop_s / 1e3
    is_spec = peaks.basis == "spec"
    clock_ns = None
    if is_spec:
        clock_ns = _slower_clock_ns(facts, useful_ns)
    best_ns = product(facts.traced.best_matmul_ratio, spent_ns.get("products"))
    if is_spec and peaks.ceiling_tflop_s:
        best_ns = work.flops / peaks.ceiling_tflop_s / 1e3
    parts_ns = headroom.headroom(
        spent_ns,
        useful_ns,
        executed_ratio=work.executed_ratio,
        issued_ratio=work.issued_ratio,
        clock_ns=clock_ns,
        best_ns=best_ns,
    )
    return _in_ms(parts_ns)


def _with_page_faults(facts: StepFacts, spent_ns: dict[str, int], time_s: float) -> dict[str, int]:
    """Takes the time of page faults out of operators as a part of its own, if the faults were
    timed."""
    share = facts.page_faults_percent
    if share is None:
        return spent_ns
    return headroom.apart(spent_ns, 1e9 * time_s * share / 100)


def _slower_clock_ns(facts: StepFacts, useful_ns: float) -> Known:
    """Nanoseconds that a clock below the peak's adds to the useful part; None if a clock is
    unknown."""
    clock_mhz = facts.counters.clock_mhz
    peak_clock_mhz = facts.peaks.peak_clock_mhz
    if not clock_mhz or not peak_clock_mhz:
        return None
    return useful_ns * max(0.0, peak_clock_mhz / clock_mhz - 1)


def _in_ms(parts_ns: Mapping[str, int]) -> dict[str, float]:
    return {part: time_ns / 1e6 for part, time_ns in parts_ns.items()}


def read(row: Row) -> Account:
    """Reads the account from a joined row of the profile table, or of the table of traces."""
    facts = facts_of(row)
    shares = group(Shares, row)
    expected = expected_mfu(facts)
    corrected = corrected_ofu(expected, shares.hfu_percent, shares.issued_percent)
    shares = replace(shares, expected_mfu_percent=expected, ofu_percent=corrected)
    times = ((part, number(row.get(f"{part}_ms"))) for part in headroom.PARTS)
    return Account(facts, shares, {part: ms for part, ms in times if ms is not None})
