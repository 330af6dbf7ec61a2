"""The same model in several frameworks: time, compile time and MFU, and how far their training losses lie apart."""

import itertools
import json

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.report import trust
from mfulab.report.drawing import kinds, runs, style, ticks
from mfulab.report.frames import Tables, alone, ok, one_each, with_machine

TABLES = ("profile", "environment")
TOPIC = "execution"
ORDER = 2
IN_TORCH = ("eager", "compile")
ELSEWHERE = ("jax", "tensorflow_eager", "tensorflow_function", "onnxruntime")
EXECUTIONS = (*IN_TORCH, *ELSEWHERE)
CASE = ["model", "mode", "batch_size"]
MOST = 3  # cases that get a panel each
VANISHED = 1e-6  # of the first loss
TOLERANCE_PERCENT = 1.0  # of a loss: the order of additions differs, and each update carries its rounding on


def rows(tables: Tables) -> pd.DataFrame:
    """Steps on one machine, the first, of cases that another framework than torch was timed in."""
    known = with_machine(tables, alone(ok(tables["profile"], "time_s")))
    known = known[known["execution"].isin(EXECUTIONS) & (known["precision"] == "fp32")]
    known = known.assign(other=known["execution"].isin(ELSEWHERE))
    known = known[known.groupby(["machine", *CASE])["other"].transform("any")]
    known = one_each(style.one_machine(known), [*CASE, "execution"])
    order = known["execution"].map({name: place for place, name in enumerate(EXECUTIONS)})
    return known.assign(order=order).sort_values([*CASE, "order"])


def losses(rows: pd.DataFrame) -> tuple[dict[str, list[float]], list[float]]:
    """The losses of each execution of the first case that has them, and those of float64; empty where not known."""
    told = rows[(rows["losses"] != "") & rows["losses"].notna()]
    if told.empty:
        return {}, []
    here = told[(told[CASE] == told.iloc[0][CASE]).all(axis=1)]
    exact = here["exact_losses"].dropna().replace("", None).dropna()
    return {row.execution: json.loads(row.losses) for row in here.itertuples()}, json.loads([*exact, "[]"][0])


def deviations(curves: dict[str, list[float]], exact: list[float]) -> dict[str, list[float]]:
    """Percent by which losses are off float64's, or the first execution's without these, until one vanishes."""
    if not curves:
        return {}
    steps, _ = alike(curves)
    known = dict(curves)
    truth = exact or known.pop(next(iter(known)))
    return {
        name: [100 * abs(loss - true) / abs(true) for loss, true in zip(values[:steps], truth, strict=False) if true]
        for name, values in known.items()
    }


def alike(curves: dict[str, list[float]]) -> tuple[int, float]:
    """Steps before the loss vanishes in any execution, and in these the largest deviation within a step, in percent.

    A deviation is relative to the step's largest loss. What follows a loss of zero is chance: no gradient leads there.
    """
    steps = list(zip(*curves.values(), strict=False))
    kept = list(itertools.takewhile(lambda losses: min(losses) > VANISHED * steps[0][0], steps))
    return len(kept), 100 * max(((max(losses) - min(losses)) / max(losses) for losses in kept), default=0.0)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The case whose executions lie furthest apart, the longest compilation, and how far the losses agree.

    The slowest is ranked only if its interval and the fastest's do not meet, and others that meet the fastest's are
    named beside it.
    """
    cases = [case.sort_values("time_s") for _, case in rows.groupby(CASE, sort=False)]
    ranked = [case for case in cases if len(case) > 1 and trust.apart(case.iloc[-1], case.iloc[0])]
    here = max(ranked or cases, key=lambda case: case["time_s"].iloc[-1] / case["time_s"].iloc[0])
    fast, slow = here.iloc[0], here.iloc[-1]
    values = {"row": fast, "fast": text(fast.execution), "slow": text(slow.execution), "longer": slow["time_s"]}
    words = [text("finding" if ranked else "finding_alike" if len(here) > 1 else "finding_one", **values)]
    beside = here.iloc[1:][~trust.apart(here.iloc[1:], fast)] if ranked else here.head(0)
    if len(beside):
        words.append(text("as_fast", fast=values["fast"], others=", ".join(text(each) for each in beside["execution"])))
    compiled = rows.dropna(subset=["compile_s"])
    if len(compiled):
        row = compiled.loc[compiled["compile_s"].idxmax()]
        words.append(text("compiled", name=text(row.execution), time=quantity(row["compile_s"], "s")))
    curves, exact = losses(rows)
    if len(curves) > 1:
        steps, share = alike(curves)
        span = text("all_steps" if steps == min(map(len, curves.values())) else "until_vanished", steps=steps)
        key = "losses" if share <= TOLERANCE_PERCENT else "losses_differ"
        values = {"share": significant(share, 2), "tolerance": f"{TOLERANCE_PERCENT:g}"}
        words.append(text(key if steps else "losses_vanish", span=span, count=len(curves), **values))
    if off := [max(values) for values in deviations(curves, exact).values() if values and exact]:
        words.append(text("off_float64", share=significant(max(off), 2)))
    return " ".join(words)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a case with a bar an execution, and a panel of how far losses are off, in the bars' colours."""
    cases = list(rows.groupby(CASE, sort=False))[:MOST]
    curves, exact = losses(rows)
    apart = {name: values for name, values in deviations(curves, exact).items() if any(values)}
    panels = len(cases) + bool(apart)
    lines = -(-panels // 2)
    figure.set_size_inches(style.SIZE[0], 1.4 + 2.6 * lines)
    style.arrange(figure)
    grid = list(figure.subplots(lines, min(2, panels), squeeze=False).flat)
    colors = dict(zip(EXECUTIONS, style.PALETTE, strict=False))
    for axes, ((model, mode, batch), here) in zip(grid, cases, strict=False):
        here = here.assign(
            name=[text(name) for name in here["execution"]],
            time_ms=1e3 * here["time_s"],
            behind=[_behind(row, text) for _, row in here.iterrows()],
        )
        told = ("time_s", "time_ci_low_s", "time_ci_high_s", "mfu_percent")
        look: style.Look = {"hue": "execution", "colors": colors, "dodge": False, "words": "behind"}
        kinds.bars(axes, here, "time_ms", "name", *told, **look)
        axes.set_xlim(0, 2.4 * here["time_ms"].max())
        axes.locator_params(axis="x", nbins=5)
        axes.set_title(f"{text.name('model', model)} · {text.name('mode', mode)}")
        axes.set_xlabel(text("time", batch=int(batch)))
    if apart:
        axes = grid[len(cases)]
        # A logarithmic axis has no place for what agrees exactly.
        steps = [(name, step, off or None) for name, values in apart.items() for step, off in enumerate(values, 1)]
        off = pd.DataFrame(steps, columns=["execution", "step", "off"]).astype({"off": float})
        sns.lineplot(off, x="step", y="off", hue="execution", palette=colors, style="execution", legend=False, ax=axes,
                     dashes=style.dashes(EXECUTIONS), estimator=None, marker=".", markersize=5)  # fmt: skip
        axes.axhline(TOLERANCE_PERCENT, **style.LIMIT)
        axes.set(yscale="log", xlim=(0.5, off["step"].max() + 0.5))
        ticks.decades(axes.yaxis, most=6)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(text("loss_title"))
        axes.set_xlabel(text("step"))
        axes.set_ylabel(text("off_percent") if exact else text("off_first_percent", name=text(next(iter(curves)))))
    for axes in grid[panels:]:
        axes.set_visible(False)
    style.legend(figure, runs.key(rows, text))


def _behind(row: pd.Series, text: Texts) -> str:
    parts = [f"{percent(row['mfu_percent'])} %"] if pd.notna(row["mfu_percent"]) else []
    parts += [text("after", time=quantity(row["compile_s"], "s"))] if pd.notna(row["compile_s"]) else []
    return " · ".join(parts)
