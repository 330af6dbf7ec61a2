"""Compile time and when it pays: the mean time of a step, compilation included, by the number of steps."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report import trust
from mfulab.report.drawing import kinds, runs, style, ticks
from mfulab.report.frames import Tables, alone, ok, one_each, with_machine

TABLES = ("profile", "environment")
TOPIC = "execution"
BASELINE = "eager"
KEYS = ["machine", "model", "workload", "precision", "sequence_length", "batch_size"]
MOST = 3  # models that get a panel each, and batch sizes
DECADES = 6.0  # of steps at most: what pays later is not seen to pay


def rows(tables: Tables) -> pd.DataFrame:
    """Runs that were compiled, traced, scripted or captured, beside the same run in eager.

    `eager_s` is its time, `pays_after` the number from which compiling has paid: infinite where no step is faster
    beyond the intervals.
    """
    found = with_machine(tables, alone(ok(tables["profile"], "time_s")))
    found = one_each(found, [*KEYS, "execution"])
    eager = found[found["execution"] == BASELINE]
    made = trust.against(found[found["compile_s"].notna()], eager, KEYS, "_eager")
    saved = made["time_s_eager"] - made["time_s"]
    paid = np.ceil(made["compile_s"] / saved.where((saved > 0) & made["apart"]) - 1e-9)
    return made.assign(eager_s=made["time_s_eager"], pays_after=paid.fillna(math.inf).clip(lower=1))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The longest compilation, the run that pays after fewest steps, and those that never pay."""
    said = [text("finding", row=rows.loc[rows["compile_s"].idxmax()])]
    paying = rows[np.isfinite(rows["pays_after"])].sort_values("pays_after", kind="stable")
    for _, row in paying.iloc[[0, -1]].drop_duplicates("pays_after").iterrows() if len(paying) else ():
        said.append(text("pays", row=row, saved=row["eager_s"] - row["time_s"]))
    never = len(rows) - len(paying)
    if never:
        said.append(text("never_all" if paying.empty else "never", count=never, total=len(rows)))
    return " ".join(said)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Of one machine: a column a model, a row a batch size, a line an execution; dots where compiling has paid."""
    here = rows[rows["machine"] == style.machines(rows)[0]]
    models = list(here.groupby("model")["pays_after"].min().sort_values(kind="stable").index[:MOST])
    batches = sorted(here["batch_size"].unique())[:MOST]
    names = [text("batch", batch=int(batch)) for batch in batches]
    grid = style.panels(figure, names, models, sharex=True)
    colors = style.colors(sorted(here["execution"].unique()))
    finite = here["pays_after"][np.isfinite(here["pays_after"])]
    end = 10 ** min(DECADES, math.ceil(math.log10(max(100.0, 3 * finite.max() if len(finite) else 100.0))))
    steps = np.geomspace(1, end, 120)
    style.label(figure, text("steps"), text("time"))
    for (name, model), axes in grid.items():
        cases = here[(here["model"] == model) & (here["batch_size"] == batches[names.index(name)])]
        cases = cases.drop_duplicates("execution").assign(eager_ms=1e3 * cases["eager_s"])
        axes.set(xscale="log", yscale="log", xlim=(1, end), visible=len(cases) > 0)
        for _, row in cases.iterrows():
            times = 1e3 * (row["time_s"] + row["compile_s"] / steps)
            [line] = axes.plot(steps, times, color=colors[row["execution"]])
            runs.mark(line, row.to_frame().T, "compile_s", "time_s", "eager_s")
        for eager_ms in cases["eager_ms"].head(1):
            axes.axhline(eager_ms, color=style.MUTED, linewidth=1.5)
        paid = cases[cases["pays_after"] <= end]
        told = ("pays_after", "compile_s")
        kinds.points(axes, paid, "pays_after", "eager_ms", *told, hue="execution", colors=colors)
        ticks.decades(axes.yaxis, 5)
        ticks.decades(axes.xaxis, 5)
    entries = [style.line(color, text.name("execution", name)) for name, color in colors.items()]
    eager = style.line(style.MUTED, text.name("execution", BASELINE))
    style.legend(figure, [eager, *entries, *runs.key(here, text)])
