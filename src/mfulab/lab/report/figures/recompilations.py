"""Recompilations: what changing shapes and branches make torch.compile do anew, and how long the calls take."""

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, style
from mfulab.lab.report.frames import DataFrame, Tables, ok, one_each, with_machine

TOPIC, ORDER = "execution", 3


def rows(tables: Tables) -> DataFrame:
    """One row a model and execution of one machine, the first, that was called with changing batch sizes."""
    varied = with_machine(tables, ok(tables["profile"], "varied_calls", "varied_s"))
    return one_each(style.one_machine(varied), ["model", "execution", "batch_size"])


def finding(rows: DataFrame, text: Texts) -> str:
    """The run that compiled most often, then eager and the same model's run that compiled least."""
    compiled = rows.dropna(subset=["recompilations"]).sort_values(["recompilations", "varied_s"])
    if compiled.empty:
        return text("none", row=rows[["varied_calls", "varied_s"]].max())
    worst = compiled.iloc[-1]
    words = [text("finding", row=worst)]
    same = rows["model"] == worst["model"]
    words += [text("eager", row=row) for _, row in rows[same & (rows["execution"] == "eager")].head(1).iterrows()]
    best = compiled[compiled["model"] == worst["model"]].iloc[0]
    words += [text("best", row=best)] if best["recompilations"] < worst["recompilations"] else []
    if broken := list(rows.loc[rows["graph_breaks"] > 0, "model"].drop_duplicates()):
        words.append(text("broken", models=", ".join(text.name("model", name) for name in broken)))
    return " ".join(words)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A bar a run: the time of all its calls, with its counts behind it."""
    keys = (rows["graph_breaks"] == 0).map({True: "counted", False: "counted_breaks"})
    keys = keys.where(rows["recompilations"] >= 0, "")
    behind = [text(key, row=row) if key else "" for key, (_, row) in zip(keys, rows.iterrows(), strict=True)]
    rows = rows.assign(named=[text.name("model", name) for name in rows["model"]], behind=behind)
    style.fit(figure, 2 * rows["model"].nunique() + 1)
    axes, colors = figure.subplots(), style.colors(rows["execution"])
    told = ("varied_s", "recompilations", "graphs", "graph_breaks")
    kinds.bars(axes, rows, "varied_s", "named", *told, hue="execution", palette=colors, words="behind")
    axes.set(title=rows["machine"].iloc[0], xlabel=text("time", calls=int(rows["varied_calls"].max())))
    axes.set_xlim(0, 1.5 * rows["varied_s"].max())
    return style.dots(colors, text, "execution", "s")
