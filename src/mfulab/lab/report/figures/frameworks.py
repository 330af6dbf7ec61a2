"""One model in several frameworks: time, compile time and MFU."""

import itertools
import json

from mfulab.lab.report.drawing import Figure, Texts, kinds, percent, significant, style
from mfulab.lab.report.frames import INTERVAL, DataFrame, Tables, apart, one_each, steps

TOPIC, ORDER = "execution", 2
ELSEWHERE = ("jax", "tensorflow_eager", "tensorflow_function", "onnxruntime")
EXECUTIONS = ("eager", "compile", *ELSEWHERE)
CASE = ["model", "mode", "batch_size"]
MOST = 3  # cases that get a panel each
VANISHED = 1e-6  # of the first loss
TOLERANCE_PERCENT = 1.0  # of a loss: the order of additions differs, and each update carries its rounding on


def rows(tables: Tables) -> DataFrame:
    """Steps on one machine, the first, of cases that another framework than torch was timed in."""
    timed = steps(tables, "time_s", execution=EXECUTIONS, precision="fp32")
    timed = timed.assign(other=timed["execution"].isin(ELSEWHERE))
    timed = timed[timed.groupby(["machine", *CASE])["other"].transform("any")]
    timed = one_each(style.one_machine(timed), [*CASE, "execution"])
    return timed.assign(order=timed["execution"].map(EXECUTIONS.index)).sort_values([*CASE, "order"])


def alike(curves: dict[str, list[float]]) -> tuple[int, float]:
    """Steps before a loss vanishes, and the largest deviation, in percent of a step's largest loss."""
    steps = [*zip(*curves.values(), strict=False)]
    compared = list(itertools.takewhile(lambda losses: min(losses) > VANISHED * steps[0][0], steps))
    return len(compared), 100 * max(((max(losses) - min(losses)) / max(losses) for losses in compared), default=0.0)


def finding(rows: DataFrame, text: Texts) -> str:
    """The case whose executions lie furthest apart, the longest compilation, and how far the losses agree."""
    cases = [case.sort_values("time_s") for _, case in rows.groupby(CASE, sort=False)]
    ranked = [case for case in cases if len(case) > 1 and apart(case.iloc[-1], case.iloc[0])]
    here = max(ranked or cases, key=lambda case: case["time_s"].iloc[-1] / case["time_s"].iloc[0])
    fast, slow = here.iloc[0], here.iloc[-1]
    values = {"row": fast, "fast": text(fast.execution), "slow": text(slow.execution), "longer": slow["time_s"]}
    words = [text("finding" if ranked else "finding_alike" if len(here) > 1 else "finding_one", **values)]
    beside = here.iloc[1:][~apart(here.iloc[1:], fast)] if ranked else here.head(0)
    others = ", ".join(map(text, beside["execution"]))
    words += [text("as_fast", fast=values["fast"], others=others)] if others else []
    for _, row in rows.dropna(subset=["compile_s"]).nlargest(1, "compile_s").iterrows():
        words.append(text("compiled", name=text(row.execution), time=row["compile_s"]))
    with_losses = rows[rows["losses"].fillna("") != ""]  # of the first case that has them
    with_losses = with_losses.merge(with_losses[CASE].head(1), on=CASE)
    curves = {row.execution: json.loads(row.losses) for row in with_losses.itertuples()}
    if len(curves) > 1:
        steps, share = alike(curves)
        key = "all_steps" if steps == min(map(len, curves.values())) else "until_vanished"
        span = text(key, steps=steps, row=with_losses.iloc[0])
        key = "losses" if share <= TOLERANCE_PERCENT else "losses_differ"
        values = {"share": significant(share, 2), "tolerance": f"{TOLERANCE_PERCENT:g}", "row": with_losses.iloc[0]}
        words.append(text(key if steps else "losses_vanish", span=span, count=len(curves), **values))
    return " ".join(words)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a case, a bar an execution; MFU and compile time behind it."""
    shares = rows["mfu_percent"].map(lambda share: "" if share != share else f"{percent(share)} %\n")
    times = rows["compile_s"].map(lambda time: "" if time != time else text("after", time=time))
    rows = rows.assign(
        case=[text("case", row=row) for row in rows.itertuples()],
        name=[text(name) for name in rows["execution"]],
        time_ms=1e3 * rows["time_s"],
        behind=(shares + times).str.strip(),
    )
    names = list(dict.fromkeys(rows.sort_values("order")["name"]))
    look: style.Look = {"hue": "execution", "palette": dict(zip(EXECUTIONS, style.PALETTE, strict=False))}
    look |= {"order": names, "dodge": False, "words": "behind", "fontsize": 8}
    for axes, here in style.facets(figure, rows, text, "case", MOST, x=text("time"), sharey=True, lines=len(names) + 1):
        kinds.bars(axes, here, "time_ms", "name", *INTERVAL, "mfu_percent", **look)
        axes.set_xlim(0, 2.4 * here["time_ms"].max())
        axes.locator_params(axis="x", nbins=4)
