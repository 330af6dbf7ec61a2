"""One model in several frameworks: time, compile time and MFU."""

import itertools

from matplotlib.axes import Axes

from mfulab.core.json_text import parse_json
from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, significant, specs, style
from mfulab.lab.report.frames import INTERVAL, DataFrame, Tables, apart, one_each, steps

TOPIC = "execution"
ORDER = 2
CLAIM = claims.ordered("time_s", ["model", "mode", "batch_size"])
REASONS = selection.BESIDE_ONE
ELSEWHERE = ("jax", "tensorflow_eager", "tensorflow_function", "onnxruntime")
EXECUTIONS = ("eager", "compile", *ELSEWHERE)
COLORS = dict(zip(EXECUTIONS, style.PALETTE, strict=False))
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
    return timed.assign(order=timed["execution"].map(EXECUTIONS.index)).sort_values(
        [*CASE, "order"]
    )


def alike(curves: dict[str, list[float]]) -> tuple[int, float]:
    """Returns the number of steps before a loss vanishes, and the largest deviation of losses until
    then, in percent."""
    steps = [*zip(*curves.values(), strict=False)]
    compared = list(itertools.takewhile(lambda losses: min(losses) > VANISHED * steps[0][0], steps))
    deviations = ((max(losses) - min(losses)) / max(losses) for losses in compared)
    return len(compared), 100 * max(deviations, default=0.0)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the case whose executions differ most, the longest compilation, and how well
    losses agree."""
    sentences = _compared(rows, text)
    for _, row in rows.dropna(subset=["compile_s"]).nlargest(1, "compile_s").iterrows():
        sentences.append(text("compiled", name=text(row.execution), time=row["compile_s"]))
    return " ".join([*sentences, *_losses(rows, text)])


def _compared(rows: DataFrame, text: Texts) -> list[str]:
    """Sentences on the case whose executions differ most, and on executions that are as fast as its
    fastest."""
    cases = [case.sort_values("time_s") for _, case in rows.groupby(CASE, sort=False)]
    ranked = [case for case in cases if len(case) > 1 and apart(case.iloc[-1], case.iloc[0])]
    here = max(ranked or cases, key=lambda case: case["time_s"].iloc[-1] / case["time_s"].iloc[0])
    fast = here.iloc[0]
    slow = here.iloc[-1]
    if ranked:
        key = "finding"
    elif len(here) > 1:
        key = "finding_alike"
    else:
        key = "finding_one"
    names = {"fast": text(fast.execution), "slow": text(slow.execution)}
    sentences = [text(key, row=fast, longer=slow["time_s"], **names)]
    if not ranked:
        return sentences
    others = here.iloc[1:]
    beside = others.loc[~apart(others, fast), "execution"]
    if len(beside):
        sentences.append(text("as_fast", fast=names["fast"], others=", ".join(map(text, beside))))
    return sentences


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
    is_whole = steps == min(map(len, curves.values()))
    span = text("all_steps" if is_whole else "until_vanished", steps=steps, row=first)
    key = "losses" if share <= TOLERANCE_PERCENT else "losses_differ"
    tolerance = f"{TOLERANCE_PERCENT:g}"
    shown = significant(share, 2)
    return [text(key, span=span, count=len(curves), share=shown, tolerance=tolerance)]


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds labels of cases and executions, and MFU and compile time after each bar."""
    behind = []
    for share, compile_s in rows[["mfu_percent", "compile_s"]].itertuples(index=False):
        words = []
        if share == share:
            words = [text("of_mfu", share=share)]
        if compile_s == compile_s:
            words.append(text("after", time=compile_s))
        behind.append("\n".join(words))
    return rows.assign(
        case=[text("case", row=row) for row in rows.itertuples()],
        name=rows["execution"].map(text),
        time_ms=1e3 * rows["time_s"],
        behind=behind,
    )


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
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
