"""The ladder from busy to useful: one falling line a run, from the loosest measure of use to the strictest."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.language import Texts
from mfulab.language.quantities import percent
from mfulab.report import labels, style
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "ladder"
RUNGS = (
    "utilization_percent",
    "kernel_busy_percent",
    "sm_active_percent",
    "occupancy_percent",
    "tensor_active_percent",
    "hfu_percent",
    "mfu_percent",
)
MOST = 20  # lines a panel


def rows(tables: Tables) -> pd.DataFrame:
    """The busiest run of each model on each machine, with at least three rungs."""
    known = with_machine(tables, ok(tables["profile"], "mfu_percent", "utilization_percent"))
    known = known[known[list(RUNGS)].notna().sum(axis=1) >= 3]
    if known.empty:
        return known
    busiest = known.loc[known.groupby(["machine", "model"])["utilization_percent"].idxmax()]
    return busiest.sort_values("mfu_percent", ascending=False).groupby("machine", sort=False).head(MOST)


def drops(row: pd.Series) -> pd.Series:
    """How far each rung lies below the last one known before it; percentage points, indexed by rung."""
    return -row[list(RUNGS)].astype(float).dropna().diff().dropna()


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The run that loses most between the first rung and the last, and the step at which it loses most."""
    gap = rows["utilization_percent"] - rows["mfu_percent"]
    worst = rows.loc[gap.idxmax()]
    lost = drops(worst)
    rung = str(lost.idxmax())
    known = [name for name in RUNGS if worst[name] == worst[name]]
    before = known[known.index(rung) - 1]
    return text(
        "finding",
        model=worst["model"],
        batch_size=int(worst["batch_size"]),
        machine=worst["machine"],
        busy=percent(worst["utilization_percent"]),
        mfu=percent(worst["mfu_percent"]),
        before=text(f"in_words_{before}"),
        after=text(f"in_words_{rung}"),
        high=percent(worst[before]),
        low=percent(worst[rung]),
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; the rungs that it could measure from left to right, names at the line ends."""
    machines = style.machines(rows)
    grid = style.panels(figure, [""], machines, sharey=True)
    colors = style.precision_colors(rows["precision"])
    for machine in machines:
        axes, here = grid["", machine], rows[rows["machine"] == machine]
        rungs = [name for name in RUNGS if here[name].notna().any()]
        for _, row in here.iterrows():
            known = [(place, row[name]) for place, name in enumerate(rungs) if row[name] == row[name]]
            axes.plot(
                *zip(*known, strict=True), color=colors[row["precision"]], marker="o", alpha=0.85, gid=row["model"]
            )
        crowded = len(machines) > 1
        axes.set_xticks(range(len(rungs)), [text(name) for name in rungs], rotation=40 if crowded else 0)
        for label in axes.get_xticklabels():
            label.set(
                ha="right" if crowded else "center", rotation_mode="anchor" if crowded else "default", fontsize=10
            )
        axes.set_ylim(0, max(105.0, 1.05 * here[rungs].max(axis=None)))
        axes.grid(axis="x", visible=False)
    grid["", machines[0]].set_ylabel(text("percent"))
    style.legend(figure, [style.line(color, text.name("precision", name)) for name, color in colors.items()])
    labels.settle(figure)
    for machine in machines:
        here = rows[rows["machine"] == machine]
        last = sum(here[name].notna().any() for name in RUNGS) - 1
        ends = [
            (last, mfu, model, colors[precision])
            for model, mfu, precision in here[["model", "mfu_percent", "precision"]].itertuples(index=False)
        ]
        labels.at_line_ends(grid["", machine], ends)
