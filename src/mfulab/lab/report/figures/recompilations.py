"""Recompilations that changing shapes and branches cause in torch.compile, and the time of the
calls."""

from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Texts, specs
from mfulab.lab.report.frames import DataFrame, Tables, ok, one_each, with_machine

TOPIC = "execution"
ORDER = 3
REASONS = selection.TOGETHER


def rows(tables: Tables) -> DataFrame:
    """Selects a row for each model and execution on one machine that was called with changing batch
    sizes."""
    varied = with_machine(tables, ok(tables["profile"], "varied_calls", "varied_s"))
    return one_each(selection.one_machine(varied), ["model", "execution", "batch_size"])


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the run with the most compilations, on eager with this and other models, and on
    the same model's run with the fewest."""
    compiled = rows.dropna(subset=["recompilations"])
    compiled = compiled.sort_values(["recompilations", "varied_s"])
    if compiled.empty:
        return text("none", row=rows[["varied_calls", "varied_s"]].max())
    worst = compiled.iloc[-1]
    sentences = [text("finding", row=worst), *_in_eager(rows, worst["model"], text)]
    best = compiled[compiled["model"] == worst["model"]].iloc[0]
    if best["recompilations"] < worst["recompilations"]:
        key = "best_never"
        if best["recompilations"]:
            key = "best"
        sentences.append(text(key, row=best))
    broken = rows.loc[rows["graph_breaks"] > 0, "model"].drop_duplicates()
    if len(broken):
        sentences.append(text("broken", models=", ".join(specs.names("model", broken, text))))
    return " ".join(sentences)


def _in_eager(rows: DataFrame, model: str, text: Texts) -> list[str]:
    """Sentence on a model's run in eager, beside those of other models; empty without one."""
    eager = rows[rows["execution"] == "eager"]
    same = eager[eager["model"] == model]
    if same.empty:
        return []
    times = eager.loc[eager["model"] != model, "varied_s"]
    key = "eager"
    if len(times):
        key = "eager_others"
    row = same.iloc[0]
    return [
        text(
            key,
            row=row,
            count=len(times),
            low=times.min(),
            high=times.max(),
        )
    ]


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds labels of models, and the counts after their bars."""
    behind = []
    for _, row in rows.iterrows():
        words = ""
        if row["recompilations"] >= 0:
            key = "counted"
            if row["graph_breaks"] > 0:
                key = "counted_breaks"
            words = text(key, row=row)
        behind.append(words)
    return rows.assign(named=specs.names("model", rows["model"], text), behind=behind)


draw = specs.Bars(
    x="varied_s",
    y="named",
    told=("varied_s", "recompilations", "graphs", "graph_breaks"),
    words="behind",
    x_label="time",
    hue="execution",
    kind="execution",
    height=2,
    room=1.5,
    dressed=_dressed,
)
