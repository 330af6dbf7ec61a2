"""Recompilations: what changing shapes and branches make torch.compile do anew, and how long the calls take."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import quantity
from mfulab.report.drawing import runs, style
from mfulab.report.frames import Tables, ok, one_each, own, with_machine

TABLES = ("profile", "environment")
TOPIC = "execution"
ORDER = 3
EAGER = "eager"


def rows(tables: Tables) -> pd.DataFrame:
    """One row a model and execution of one machine, the first, that was called with changing batch sizes."""
    known = with_machine(tables, ok(tables["profile"], "varied_calls", "varied_s"))
    if known.empty:
        return known
    known = own(known)
    known = known[known["machine"] == style.machines(known)[0]]
    return one_each(known, ["model", "execution", "batch_size"])


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The run that compiled most often, beside eager and the same model's run that compiled least."""
    compiled = rows[rows["recompilations"].notna()]
    if compiled.empty:
        return text("none", count=int(rows["varied_calls"].max()), time=quantity(rows["varied_s"].max(), "s"))
    worst = compiled.sort_values(["recompilations", "varied_s"]).iloc[-1]
    values = {
        "model": text.name("model", worst["model"]),
        "execution": text.name("execution", worst["execution"]),
        "calls": int(worst["varied_calls"]),
        "count": int(worst["recompilations"]),
        "graphs": int(worst["graphs"]),
        "time": quantity(worst["varied_s"], "s"),
    }
    words = [text("finding", **values)]
    same = rows[rows["model"] == worst["model"]]
    eager = same[same["execution"] == EAGER]
    if len(eager):
        words.append(text("eager", time=quantity(eager.iloc[0]["varied_s"], "s")))
    best = same[same["recompilations"].notna()].sort_values(["recompilations", "varied_s"]).iloc[0]
    if best["recompilations"] < worst["recompilations"]:
        name = text.name("execution", best["execution"])
        words.append(
            text("best", execution=name, count=int(best["recompilations"]), time=quantity(best["varied_s"], "s"))
        )
    broken = compiled[compiled["graph_breaks"] > 0]
    if len(broken):
        models = ", ".join(text.name("model", name) for name in dict.fromkeys(broken["model"]))
        words.append(text("broken", models=models))
    return " ".join(words)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A bar a run: the time of all its calls, with its counts behind it."""
    models, executions = (list(dict.fromkeys(rows[name])) for name in ("model", "execution"))
    style.fit(figure, 2 * len(models) + 1)
    axes = figure.subplots()
    colors, width = style.colors(executions), 0.8 / len(executions)
    places = rows["execution"].map(executions.index) + 0.5
    heights = 0.4 - rows["model"].map(models.index) - width * places
    bars = axes.barh(heights, rows["varied_s"], height=0.9 * width, color=rows["execution"].map(colors))
    runs.mark(bars, rows, "varied_s", "recompilations", "graphs", "graph_breaks")
    for height, row in zip(heights, rows.itertuples(), strict=True):
        counted = row.recompilations == row.recompilations
        values = {"count": int(row.recompilations), "breaks": int(row.graph_breaks)} if counted else {}
        words = text("counted" if not row.graph_breaks else "counted_breaks", **values) if counted else ""
        axes.text(row.varied_s, height, f" {words}", va="center", fontsize=9)
    axes.set_yticks([-place for place in range(len(models))], [text.name("model", name) for name in models])
    axes.set_xlim(0, 1.5 * rows["varied_s"].max())
    axes.set_title(rows["machine"].iloc[0])
    axes.set_xlabel(text("time", calls=int(rows["varied_calls"].max())))
    axes.grid(axis="y", visible=False)
    entries = [style.dot(colors[name], text.name("execution", name), "s") for name in executions]
    style.legend(figure, entries + runs.key(rows, text))
