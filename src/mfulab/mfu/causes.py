"""Causes of a step's lost time. Each is defined in one place: its parts of the step, its rule, what
it costs, and the sweep and figure that show what the remedy does. Texts are in the catalogues:
`verdict`, `advice`, `because`. Thresholds are rules of thumb; every sentence has the numbers it
rests on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mfulab.core.parts import leave_out
from mfulab.core.said import Numbers, Said
from mfulab.mfu.step import Counters, Known, Shares, StepFacts, StepTime

AS_LARGE = (
    0.9  # of the largest part: larger parts count as largest too, and the first cause decides
)
WASTED = 20.0  # % from which padding, or a clock that was held back, is worth naming
BUSY = 80.0  # % of the time from which a device counts as occupied
DRAM_BUSY = 55.0  # % of DRAM's cycles; about 80 is the most that real kernels reach
PIPE_IDLE = 10.0  # % below which a pipe does nothing that matters
# FP32 pipe ÷ tensor pipe from which the former carries the matmuls, if it is not idle itself
CARRIES = 3.0
FEW_WARPS = 20.0  # % of resident warps below which latency is hard to hide
OTHERS = 15.0  # points of CPU that other processes may use unnoticed
NEAR_CEILING = 70.0  # % of the measured ceiling: what large, well-shaped models reach
LITTLE = 10.0  # % of the step that is little to gain
VAGUE = 0.5  # of a time: with an interval as wide, it is no evidence of a share of the ceiling
# % of the computed peak, below which a measured ceiling cannot be right
FAR_CEILING = 5.0
ABOVE_PEAK = 100.0001  # % from which a share is above its peak, and not rounded there
BEATEN = 100.5  # % from which a speed reads as above its ceiling
SLOWER = 1.05  # time ÷ time in fp32 from which emulation is worth naming
# Tensor pipe ÷ issued instructions, or HFU, from which they contradict each other; or its inverse.
CROSS_CHECK = 1.15
# % of zeros from which a CPU's square root in fp32 takes twice as long: docs/measuring.md
SLOWING_ZEROS = 5.0
SQUARE_ROOT = "aten::sqrt"
LEAST_CHECKED = 1.0  # %: below it in both, their ratio says nothing
Lost = Mapping[str, float]  # percent of the step by part


@dataclass(frozen=True)
class FactsAndLosses:
    """Facts of a step that the causes' rules read, their shares of the peak, and the `lost` parts."""

    facts: StepFacts
    shares: Shares
    lost: Lost


Rule = Callable[[FactsAndLosses], Said | None]


@dataclass(frozen=True)
class Cause:
    """A cause and its key. Its rule is asked if one of `parts` is among the largest; always if it
    has no parts."""

    key: str
    parts: tuple[str, ...]
    rule: Rule  # returns the sentence with its numbers; None if they do not show this cause
    remedy: str  # argument of `snakemake --config` that measures the remedy's effect
    figure: str  # the figure that shows that effect
    costs: tuple[str, ...] | None = None  # parts that it costs; None for `parts`
    without_mfu: bool = False  # True if shares of time show it, without FLOPs or a peak
    code: str = ""  # the remedy as a line of a user's loop, if one line tries it


def at_least(value: Known, threshold: float) -> bool:
    """True if a value is known and not below a threshold."""
    return value is not None and value >= threshold


def below(value: Known, threshold: float) -> bool:
    """True if a value is known and below a threshold."""
    return value is not None and value < threshold


def reached(key: str, value: Known, least: float, name: str = "share") -> Said | None:
    """Sentence `key` with the value, if that is at least `least`; else None."""
    if at_least(value, least):
        return Said(key, {name: value})
    return None


def computed_beside(counters: Counters) -> Said | None:
    """Sentence on the share of the CPU that other processes took; None if it is too small to
    mention."""
    return reached("beside", counters.other_processes_percent, OTHERS)


def at_highest_clock(share: Known, shares: Shares) -> float:
    """A share of the peak, or of the peak at the device's highest clock if that one is higher; 0 if
    the share is None."""
    mfu = shares.mfu_percent
    highest = shares.mfu_max_clock_percent
    if not mfu or highest is None:
        return share or 0.0
    return (share or 0.0) * min(1.0, highest / mfu)


@dataclass(frozen=True)
class Operators:
    """Shares of a step by the operators in its trace, in percent."""

    matmuls: float
    others: float
    outside: float  # in no operator
    speed: float  # MFU of the matmuls alone
    measured: int  # 1 if that MFU is of the measured ceiling, else 0
    beaten: int  # 1 if it is above 100 % in all of the time's interval, else 0

    @property
    def numbers(self) -> Numbers:
        """Numbers for a sentence on the step's operators."""
        return vars(self)


def operators_of(facts: StepFacts, shares: Shares) -> Operators | None:
    """Shares of the step by its operators, as traced; None without a trace of them, or without
    MFU."""
    matmuls = facts.traced.matmul_percent
    others = facts.traced.other_operators_percent
    mfu = first_known(shares.mfu_measured_percent, shares.mfu_percent)
    if not matmuls or others is None or mfu is None:
        return None
    counted = matmuls * (1 - (facts.traced.uncounted_percent or 0) / 100)
    if not counted:
        return None
    speed = 100 * mfu / counted
    return Operators(
        matmuls=matmuls,
        others=others,
        outside=100 - matmuls - others,
        speed=speed,
        measured=int(shares.mfu_measured_percent is not None),
        beaten=int(speed * _least_factor(facts.time) >= BEATEN),
    )


def _least_factor(time: StepTime) -> float:
    """A step's time ÷ the upper end of its interval: what its speed may fall to. 1 if unknown."""
    if time.time_s is None or not time.time_ci_high_s:
        return 1.0
    return time.time_s / time.time_ci_high_s


def _emulated_format(seen: FactsAndLosses) -> Said | None:
    """Sentence on a format that the device emulates, so that MFU is of fp32's ceiling."""
    peaks = seen.facts.peaks
    slower = peaks.slower_than_fp32
    if not peaks.peak_precision or peaks.effective_precision == peaks.peak_precision:
        return None
    numbers: Numbers = {
        "precision": peaks.effective_precision,
        "cpu": int(peaks.basis == "measured"),
    }
    if slower is None:
        return Said("emulated", numbers)
    if slower < SLOWER:
        return None
    return Said("emulated_slower", **numbers, ratio=slower)


def _padded(seen: FactsAndLosses) -> Said | None:
    share = 100 * (seen.shares.padding_ratio or 0.0)
    if share < WASTED:
        return None
    return Said("padded", share=share, useful=seen.shares.useful_mfu_percent)


def _doubtful_ceiling(seen: FactsAndLosses) -> Said | None:
    """Sentence on why a run near its ceiling is not called compute-bound: the ceiling is
    unreliable."""
    share = seen.shares.mfu_measured_percent
    peaks = seen.facts.peaks
    if share is None or share < NEAR_CEILING:
        return None
    if peaks.ceiling_raised_percent is not None:
        return Said("sets_ceiling", share=peaks.ceiling_raised_percent)
    highest = max(share, at_highest_clock(seen.shares.mfu_percent, seen.shares))
    if highest > ABOVE_PEAK:
        return Said("above_ceiling", share=highest)
    others = peaks.ceiling_other_processes_percent
    if peaks.ceiling_slowdown is not None or others is not None:
        return Said("disturbed_ceiling", share=share)
    return None


def _compute_bound(seen: FactsAndLosses) -> Said | None:
    """Sentence on a run near its ceiling, with what is left where that is not little. None if the
    step's time, and so that share, is hardly known."""
    share = seen.shares.mfu_measured_percent
    if share is None or share < NEAR_CEILING or not _is_known(seen.facts.time):
        return None
    others = seen.lost.get("other_operators", 0.0)
    if others >= LITTLE:
        return Said("compute_bound_others", share=share, others=others)
    if 100 - share > LITTLE:
        return Said("compute_bound_in_part", share=share)
    return Said("compute_bound", share=share)


def _is_known(time: StepTime) -> bool:
    """False if the interval of a step's time reaches VAGUE of it to a side."""
    time_s, low, high = time.time_s, time.time_ci_low_s, time.time_ci_high_s
    if time_s is None or low is None or high is None:
        return True
    return max(time_s - low, high - time_s) < VAGUE * time_s


def _recompiled(seen: FactsAndLosses) -> Said | None:
    """Sentence on a compiled step that takes as long as calls that compile, so that it compiles
    itself."""
    time = seen.facts.time
    if not (time.time_s and time.varied_s and time.varied_calls and time.recompilations):
        return None
    each_s = time.varied_s / time.varied_calls
    if time.recompilations < time.varied_calls / 2 or time.time_s < each_s / 2:
        return None
    return Said("recompiled", count=time.recompilations, calls=time.varied_calls)


def _input_bound(seen: FactsAndLosses) -> Said | None:
    # Kernels queued earlier may keep a GPU busy while the host waits: then the wait costs no time.
    longer = max("input_wait", "copies", key=lambda part: seen.lost.get(part, 0.0))
    if not seen.lost.get(longer):
        return None
    return Said(longer, share=seen.lost[longer])


def _communication_bound(seen: FactsAndLosses) -> Said | None:
    return Said("communication", share=seen.lost["communication"])


def _launch_bound(seen: FactsAndLosses) -> Said | None:
    """Sentence on time in which a GPU has nothing to do, though not for want of input."""
    idle = seen.lost["idle"]
    traced = seen.facts.traced
    gaps = traced.launch_gaps_per_step
    gap_s = traced.launch_gap_s
    time_s = seen.facts.time.time_s
    if seen.facts.counters.kernel_busy_percent is None:
        return None
    if not gaps or not gap_s:
        return Said("idle", idle=idle)
    launching = traced.launch_bound_percent
    if launching is None and time_s is not None:
        # As if all gaps were as long as the median one, and waited for a launch.
        launching = 100 * gaps * gap_s / time_s
    if below(launching, idle / 2):
        return None
    return Said("launch_gaps", idle=idle, gaps=gaps, gap_us=1e6 * gap_s)


def _stalled(seen: FactsAndLosses) -> Said | None:
    if seen.facts.counters.kernel_busy_percent is None:
        return None
    gaps = seen.facts.traced.launch_gaps_per_step or 0
    gap_s = seen.facts.traced.launch_gap_s or 0
    return Said("stalled", idle=seen.lost["idle"], gaps=gaps, gap_us=1e6 * gap_s)


def _recomputed(seen: FactsAndLosses) -> Said | None:
    return Said("recomputed", share=seen.lost["recomputation"])


def _memory_bound(seen: FactsAndLosses) -> Said | None:
    active = seen.facts.counters.dram_active_percent
    moved = seen.facts.work.bytes_moved
    time_s = seen.facts.time.time_s
    ceiling_gb_s = seen.facts.peaks.ceiling_gb_s
    if active is not None or not (moved and time_s and ceiling_gb_s):
        return reached("dram_active", active, DRAM_BUSY)
    return reached("bandwidth", 100 * moved / time_s / 1e9 / ceiling_gb_s, DRAM_BUSY)


def _wrong_precision(seen: FactsAndLosses) -> Said | None:
    tensor = seen.facts.counters.tensor_active_percent
    fp32 = seen.facts.counters.fp32_active_percent
    if tensor is None or fp32 is None:
        return None
    if tensor < PIPE_IDLE <= fp32 and fp32 >= CARRIES * tensor:
        return Said("wrong_precision", fp32=fp32, tensor=tensor)
    return None


def _throttled(seen: FactsAndLosses) -> Said | None:
    counters = seen.facts.counters
    clock_mhz = counters.clock_mhz
    numbers = {"share": counters.throttled_percent}
    if not at_least(counters.throttled_percent, WASTED):
        return None
    if seen.facts.on_cpu and not clock_mhz:
        return Said("quota", numbers)
    if not at_least(counters.sm_active_percent, BUSY):
        return None
    if clock_mhz:
        return Said("throttled_to", **numbers, clock=clock_mhz)
    return Said("throttled", numbers)


def _shape(seen: FactsAndLosses) -> Said | None:
    misaligned = seen.facts.traced.misaligned
    time_s = seen.facts.time.time_s
    if misaligned and time_s:
        gained_percent = (misaligned["ms"] - misaligned["best_ms"]) / time_s / 10
        if gained_percent >= WASTED:
            return Said("misaligned", misaligned)
    padding = seen.lost.get("tile_padding", 0.0)
    slow = seen.lost.get("slow_instructions", 0.0)
    if max(padding, slow) >= max(AS_LARGE * max(seen.lost.values()), WASTED):
        return Said("executed", padding=padding, slow=slow)
    busy = seen.facts.counters.kernel_busy_percent
    active = seen.facts.counters.sm_active_percent
    if busy is not None and active is not None and busy - active >= WASTED:
        return Said("tiles", busy=busy, active=active)
    expected = seen.shares.expected_mfu_percent
    counted = seen.shares.mfu_percent
    if expected is None or counted is None:
        return None
    is_padded = expected > max(CROSS_CHECK * counted, LEAST_CHECKED)
    known = leave_out(seen.lost, ("busy",))  # of which padding may be a part
    if is_padded and expected - counted >= AS_LARGE * max(known.values(), default=0.0):
        return Said("padding", expected=expected, counted=counted)
    return None


def _low_occupancy(seen: FactsAndLosses) -> Said | None:
    counters = seen.facts.counters
    is_active = at_least(counters.sm_active_percent, BUSY)
    if is_active and below(counters.occupancy_percent, FEW_WARPS):
        return Said("low_occupancy", share=counters.occupancy_percent)
    return None


def _shared(seen: FactsAndLosses) -> Said | None:
    others = computed_beside(seen.facts.counters)
    if others and below(seen.facts.counters.utilization_percent, BUSY):
        return Said("shared", others.numbers)
    return None


def _under_used(seen: FactsAndLosses) -> Said | None:
    return Said("under_used", share=seen.facts.counters.utilization_percent)


def _page_faults(seen: FactsAndLosses) -> Said | None:
    time_s = seen.facts.time.time_s
    kept_s = seen.facts.time.kept_memory_time_s
    faults_per_s = seen.facts.counters.page_faults_per_s
    if not time_s or faults_per_s is None:
        return None
    numbers = {"share": seen.lost["page_faults"], "faults": faults_per_s * time_s}
    if kept_s is None:
        return Said("page_faults", numbers)
    return Said("page_faults_kept", **numbers, kept=100 * kept_s / time_s)


def _other_operators(seen: FactsAndLosses) -> Said | None:
    operators = operators_of(seen.facts, seen.shares)
    if operators is None:
        if seen.facts.traced.matmul_percent:
            return None
        return Said("other_operators_alone", others=seen.lost["other_operators"])
    longest = next(iter(seen.facts.traced.top_other_operators.items()), None)
    if longest is None:
        return Said("other_operators", operators.numbers)
    name, share = longest
    numbers: Numbers = {"name": name, "share": share, **operators.numbers}
    zeros = seen.facts.counters.second_moment_zeros_percent
    if at_least(zeros, SLOWING_ZEROS) and _is_root_of_moments(seen.facts, name, share):
        return Said("other_operators_zeros", **numbers, zeros=zeros)
    return Said("other_operators_most", numbers)


def _is_root_of_moments(facts: StepFacts, name: str, share: float) -> bool:
    """True if an operator is the square root that a CPU takes of an optimiser's second moments in
    fp32. Zeros slow down no other format as much, and no GPU."""
    if name != SQUARE_ROOT or not facts.on_cpu or facts.peaks.effective_precision != "fp32":
        return False
    return at_least(facts.time.update_percent, share)


def _overhead(seen: FactsAndLosses) -> Said | None:
    operators = operators_of(seen.facts, seen.shares)
    if operators is None or not seen.facts.on_cpu:
        return None
    return Said("overhead", operators.numbers)


def _slow_matmuls(seen: FactsAndLosses) -> Said | None:
    operators = operators_of(seen.facts, seen.shares)
    if operators is None or operators.speed >= NEAR_CEILING:
        return None
    return Said("slow_matmuls", operators.numbers)


def _busy_not_useful(seen: FactsAndLosses) -> Said | None:
    busy = seen.facts.counters.utilization_percent
    mfu = seen.shares.mfu_percent
    if at_least(busy, BUSY) and below(mfu, WASTED):
        return Said("busy_not_useful", busy=busy, mfu=mfu)
    return None


def _no_mfu(seen: FactsAndLosses) -> Said | None:
    if seen.shares.mfu_percent is not None:
        return None
    if seen.shares.mfu_spec_percent is None:
        return Said("no_mfu")
    return Said("no_ceiling")


def _not_explained(seen: FactsAndLosses) -> Said:
    share = first_known(seen.shares.mfu_measured_percent, seen.shares.mfu_percent)
    return Said("not_explained", share=share)


_MATMULS = ("matmuls_below_best", "best_below_peak", "busy")
_BY_COMPILING = "execution=eager,compile"
BY_BATCH = "batch_size=8,16,32"  # for a run: its own, then twice and four times as large
_TRACED = "overrides=profile.trace=true"
_COMPILE = "model = torch.compile(model)"
_TRACE = 'with mfulab.measure(model, trace="trace.json.gz"):'

# The first whose rule returns a sentence is the verdict. The last one's always does.
CAUSES = (
    Cause(
        "emulated_format",
        (),
        _emulated_format,
        "model=simple_cnn precision=fp32,bf16",
        "precision_speed",
    ),
    Cause(
        "padded",
        ("padding",),
        _padded,
        "model=gpt2 sequence_length=32,64,128",
        "flops_versus_time",
        costs=("useful",),
    ),
    Cause(
        "doubtful_ceiling",
        (),
        _doubtful_ceiling,
        "experiment=matmul_sizes",
        "matmul_throughput",
        costs=(),
    ),
    Cause(
        "recompiled",
        (),
        _recompiled,
        "experiment=recompilations",
        "recompilations",
        costs=(),
        without_mfu=True,
    ),
    Cause("compute_bound", (), _compute_bound, "experiment=fewer_flops", "flops_versus_time"),
    Cause(
        "input_bound",
        ("input_wait", "copies"),
        _input_bound,
        "model=simple_cnn workload=training_loaded workload.loader_workers=0,2,4",
        "input",
        without_mfu=True,
        code="DataLoader(..., num_workers=4)",
    ),
    Cause(
        "communication_bound",
        ("communication",),
        _communication_bound,
        "experiment=data_parallel",
        "data_parallel",
        without_mfu=True,
    ),
    Cause(
        "launch_bound",
        ("idle",),
        _launch_bound,
        f"model=tiny_kernels {_BY_COMPILING}",
        "execution_speed",
        without_mfu=True,
        code=_COMPILE,
    ),
    Cause(
        "stalled",
        ("idle",),
        _stalled,
        f"model=resnet18 {_TRACED}",
        "utilization_ladder",
        without_mfu=True,
        code=_TRACE,
    ),
    Cause(
        "recomputed",
        ("recomputation",),
        _recomputed,
        "model=gpt2 workload=training,training_checkpointed",
        "training_phases",
    ),
    Cause(
        "memory_bound",
        ("other_operators", *_MATMULS),
        _memory_bound,
        f"model=resnet18 {_BY_COMPILING}",
        "execution_speed",
        code=_COMPILE,
    ),
    Cause(
        "wrong_precision",
        _MATMULS,
        _wrong_precision,
        "model=resnet18 precision=fp32,tf32,bf16",
        "precision_speed",
        code='torch.set_float32_matmul_precision("high")',
    ),
    Cause(
        "throttled",
        ("clock", "busy", "unused"),
        _throttled,
        "experiment=quickstart",
        "run_in_time",
    ),
    Cause(
        "shape",
        ("tile_padding", "slow_instructions", *_MATMULS),
        _shape,
        "experiment=alignment",
        "matmul_shapes",
    ),
    Cause(
        "low_occupancy",
        _MATMULS,
        _low_occupancy,
        f"model=resnet18 {BY_BATCH}",
        "time_by_batch_size",
    ),
    Cause("shared", ("idle", "unused"), _shared, "experiment=quickstart", "run_in_time", costs=()),
    Cause(
        "under_used",
        ("unused",),
        _under_used,
        f"model=resnet18 {BY_BATCH}",
        "time_by_batch_size",
        costs=("idle",),
    ),
    Cause(
        "page_faults",
        ("page_faults",),
        _page_faults,
        "model=norm_gelu_by_hand workload=inference",
        "time_by_batch_size",
        without_mfu=True,
    ),
    Cause(
        "other_operators",
        ("other_operators",),
        _other_operators,
        f"model=resnet18 {_BY_COMPILING}",
        "execution_speed",
        code=_COMPILE,
    ),
    Cause(
        "overhead",
        ("idle",),
        _overhead,
        f"model=simple_cnn {_BY_COMPILING}",
        "execution_speed",
        code=_COMPILE,
    ),
    Cause(
        "slow_matmuls",
        _MATMULS[:2],
        _slow_matmuls,
        f"model=resnet18 {BY_BATCH}",
        "time_by_batch_size",
    ),
    Cause(
        "busy_not_useful",
        ("busy",),
        _busy_not_useful,
        f"model=resnet18 {_TRACED}",
        "utilization_ladder",
        code=_TRACE,
    ),
    Cause(
        "no_mfu",
        (),
        _no_mfu,
        "experiment=counters",
        "counter_deviation",
        costs=(),
        without_mfu=True,
    ),
    Cause(
        "not_explained",
        (),
        _not_explained,
        f"model=resnet18 {_TRACED}",
        "utilization_ladder",
        code=_TRACE,
    ),
)
BY_KEY = {cause.key: cause for cause in CAUSES}


def because(seen: FactsAndLosses) -> tuple[Cause, Said]:
    """The first cause that has one of the largest parts and whose rule returns a sentence, with
    that sentence."""
    least = AS_LARGE * max(seen.lost.values(), default=0.0)
    large = {part for part, share in seen.lost.items() if share >= least and share > 0}
    has_mfu = seen.shares.mfu_percent is not None
    for cause in CAUSES:
        if cause.parts and large.isdisjoint(cause.parts):
            continue
        if not has_mfu and not cause.without_mfu:
            continue
        reason = cause.rule(seen)
        if reason is not None:
            return cause, reason
    raise AssertionError("the last cause says something of every step")


def lost_parts(facts: StepFacts, shares: Shares, budget_ms: Mapping[str, float]) -> Lost:
    """Parts of the time that do not serve the model, in percent of the step: from its budget, else
    from measured shares, where `busy` is time of which nothing more is known. In addition
    `padding`, the share of the useful part that serves no token, and `unused`, the idle share of a
    CPU's cores."""
    lost = dict[str, float]()
    mfu = shares.mfu_percent
    useful = shares.useful_mfu_percent
    if mfu is not None and useful is not None:
        lost["padding"] = mfu - useful
    used = facts.counters.utilization_percent
    if used is not None and facts.on_cpu:
        lost["unused"] = 100 - used
    time_s = facts.time.time_s
    parts_ms = leave_out(budget_ms, ("useful",))
    if time_s and any(parts_ms.values()):
        return lost | {part: ms / time_s / 10 for part, ms in parts_ms.items()}
    return {**lost, **_of_shares(facts, shares)}


def _of_shares(facts: StepFacts, shares: Shares) -> Lost:
    """Lost parts by measured shares, for a step without a budget."""
    waited = facts.traced.input_wait_percent or 0.0
    copied = facts.traced.copy_percent or 0.0
    sent = facts.traced.communication_percent or 0.0
    operators = operators_of(facts, shares)
    if operators is not None:
        idle = operators.outside
        below_best = operators.matmuls * (1 - operators.speed / 100)
        others = {"other_operators": operators.others, "matmuls_below_best": below_best}
    else:
        counters = facts.counters
        busy = first_known(counters.kernel_busy_percent, counters.utilization_percent)
        if busy is None:  # nothing shows that the device waits
            busy = 100.0
        share = first_known(shares.mfu_measured_percent, shares.mfu_percent) or 0.0
        idle = max(0.0, 100 - busy - copied)
        left = busy - sent - share
        faults = min(facts.page_faults_percent or 0.0, max(0.0, left))
        others = {"page_faults": faults, "busy": left - faults}
    waited = min(waited, idle)
    return {
        "input_wait": waited,
        "copies": copied,
        "communication": sent,
        "idle": idle - waited,
        **others,
    }


def first_known(*values: Known) -> Known:
    """First value that is not None; None if all are."""
    for value in values:
        if value is not None:
            return value
    return None
