"""One model in several frameworks: time, compile time and MFU."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from mfulab.core.json_text import parse_json
from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, significant, specs, style
from mfulab.lab.report.frames import (
    INTERVAL,
    DataFrame,
    Series,
    Tables,
    apart,
    comparable,
    highest,
    one_each,
    preferred,
    steps,
)

TOPIC = "execution"
ORDER = 2
CLAIM = claims.ordered("time_s", ["model", "mode", "batch_size"])
REASONS = selection.BESIDE_ONE
ELSEWHERE = ("jax", "tensorflow_eager", "tensorflow_function", "onnxruntime")
EXECUTIONS = ("eager", "compile", *ELSEWHERE)
COLORS = style.colors(EXECUTIONS)
CASE = ["model", "mode", "batch_size"]
VANISHED = 1e-6  # share of the first loss below which a loss has vanished
# % of a loss: additions are in different orders, and updates accumulate their rounding
TOLERANCE_PERCENT = 1.0


def rows(tables: Tables) -> DataFrame:
    """Selects steps on one machine, of cases that were also timed in another framework than
    torch."""
    timed = steps(tables, "time_s", execution=EXECUTIONS, precision="fp32")
    timed = timed.assign(other=timed["execution"].isin(ELSEWHERE))
    timed = timed[timed.groupby(["machine", *CASE])["other"].transform("any")]
    timed = one_each(selection.one_machine(timed), [*CASE, "execution"])
    timed = timed.assign(order=timed["execution"].map(EXECUTIONS.index))
    return timed.sort_values([*CASE, "order"])


def alike(curves: Mapping[str, Sequence[float]]) -> tuple[int, float]:
    """Returns the number of steps before a loss vanishes, and the largest deviation of losses until
    then, in percent."""
    steps = list(zip(*curves.values(), strict=False))
    count = 0
    deviation = 0.0
    for losses in steps:
        if min(losses) <= VANISHED * steps[0][0]:
            break
        count += 1
        deviation = max(deviation, (max(losses) - min(losses)) / max(losses))
    return count, 100 * deviation


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the case whose executions differ most, the longest compilation, and how well
    losses agree."""
    sentences = _compared(rows, text)
    if rows["compile_s"].notna().any():
        longest = highest(rows, "compile_s")
        name = text(longest.execution)
        sentences.append(text("compiled", name=name, time=longest["compile_s"]))
    return " ".join([*sentences, *_losses(rows, text)])


def _compared(rows: DataFrame, text: Texts) -> list[str]:
    """Sentences on the case whose executions differ most, and on executions that are as fast as its
    fastest. Steps that wait for new memory are told apart."""
    sound = preferred(rows, comparable(rows))
    cases = []
    ranked = []
    for _, case in sound.groupby(CASE, sort=False):
        by_time = case.sort_values("time_s")
        cases.append(by_time)
        if len(by_time) > 1 and apart(by_time.iloc[-1], by_time.iloc[0]):
            ranked.append(by_time)
    here = max(ranked or cases, key=_factor)
    fast = here.iloc[0]
    slow = here.iloc[-1]
    if ranked:
        key = "finding"
    elif len(here) > 1:
        key = "finding_alike"
    else:
        key = "finding_one"
    fast_name = text(fast.execution)
    slow_name = text(slow.execution)
    sentences = [
        text(
            key,
            row=fast,
            longer=slow["time_s"],
            fast=fast_name,
            slow=slow_name,
        )
    ]
    if ranked:
        sentences += _as_fast(here, text)
    return sentences + _waiting(rows.merge(here.head(1)[CASE], on=CASE), text)


def _as_fast(by_time: DataFrame, text: Texts) -> list[str]:
    """Sentence on executions of a case that are as fast as its fastest; empty if there are
    none."""
    fast = by_time.iloc[0]
    others = by_time.iloc[1:]
    beside = others.loc[~apart(others, fast), "execution"]
    if beside.empty:
        return []
    names = ", ".join(map(text, beside))
    return [text("as_fast", fast=text(fast.execution), others=names)]


def _waiting(case: DataFrame, text: Texts) -> list[str]:
    """Sentence on the execution of a case that waits longest for new memory; empty if none
    does."""
    waiting = case[_waits(case)]
    if waiting.empty:
        return []
    longest = waiting.loc[(waiting["time_s"] - waiting["kept_memory_time_s"]).idxmax()]
    return [text("waiting", name=text(longest.execution), row=longest)]


def _waits(rows: DataFrame) -> Series:
    """True for steps that would be measurably quicker if their memory were kept."""
    kept_s = rows.reindex(columns=["kept_memory_time_s"])["kept_memory_time_s"]
    return ~comparable(rows) & (kept_s < rows["time_s"])


def _factor(by_time: DataFrame) -> float:
    """Longest time of a case ÷ its shortest."""
    return float(by_time["time_s"].iloc[-1] / by_time["time_s"].iloc[0])


def _losses(rows: DataFrame, text: Texts) -> list[str]:
    """Sentence on how well losses agree in the first case with several executions; empty if there
    are fewer than two."""
    trained = rows[rows["losses"].fillna("") != ""]
    trained = trained.merge(trained[CASE].head(1), on=CASE)
    curves = {row.execution: parse_json(row.losses) for row in trained.itertuples()}
    if len(curves) < 2:
        return []
    first = trained.iloc[0]
    steps, share = alike(curves)
    if not steps:
        return [text("losses_vanish", count=len(curves), row=first)]
    span = "until_vanished"
    if steps == min(map(len, curves.values())):
        span = "all_steps"
    key = "losses_differ"
    if share <= TOLERANCE_PERCENT:
        key = "losses"
    return [
        text(
            key,
            span=text(span, steps=steps, row=first),
            count=len(curves),
            share=significant(share, 2),
            tolerance=f"{TOLERANCE_PERCENT:g}",
        )
    ]


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds labels of cases and executions, and MFU and compile time after each bar."""
    cases = []
    behind = []
    for row in rows.assign(waits=_waits(rows)).itertuples():
        cases.append(text("case", row=row))
        words = []
        if row.mfu_percent == row.mfu_percent:
            words.append(text("of_mfu", share=row.mfu_percent))
        if row.waits:
            words.append(text("kept", time=row.kept_memory_time_s))
        elif row.compile_s == row.compile_s:
            words.append(text("after", time=row.compile_s))
        behind.append("\n".join(words))
    names = rows["execution"].map(text)
    return rows.assign(
        case=cases,
        name=names,
        time_ms=1e3 * rows["time_s"],
        behind=behind,
    )


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Leaves room between ticks."""
    axes.locator_params(axis="x", nbins=4)


draw = specs.Bars(
    x="time_ms",
    y="name",
    told=(*INTERVAL, "mfu_percent"),
    words="behind",
    x_label="time",
    facet="case",
    hue="execution",
    colors=specs.present(COLORS),
    keyed=False,
    height=1.2,
    room=2.4,
    dressed=_dressed,
    finished=_finished,
    shared={"sharey": True},
    look={"dodge": False, "fontsize": 8},
)
