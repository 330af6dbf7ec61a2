"""The ladder from busy to useful: a falling line or a row of cells a run, from the loosest measure to the strictest."""

import textwrap
from collections.abc import Mapping, Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfulab.language import Texts
from mfulab.language.quantities import percent
from mfulab.report.drawing import labels, style
from mfulab.report.frames import Tables, ok, with_machine, with_traces

TABLES = ("profile", "traces", "environment")
TOPIC = "ladder"
RUNGS = (
    "utilization_percent",
    "kernel_busy_percent",
    "product_percent",
    "sm_active_percent",
    "occupancy_percent",
    "tensor_active_percent",
    "hfu_percent",
    "mfu_percent",
)
MOST = 20  # runs a panel
MOST_LINES = 8  # of which more lie on one another


def rows(tables: Tables) -> pd.DataFrame:
    """The busiest run of each model on each machine, with at least three rungs."""
    known = with_machine(tables, ok(with_traces(tables), "mfu_percent", "utilization_percent"))
    # Other operators keep SMs active too: of the two neither is below the other.
    known["product_percent"] = known["product_percent"].where(known["sm_active_percent"].isna())
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
    told = worst["batch_size"] == worst["batch_size"]  # a trace does not tell it
    return text(
        "finding" if told else "finding_of_trace",
        model=worst["model"],
        batch_size=int(worst["batch_size"]) if told else None,
        machine=worst["machine"],
        busy=percent(worst["utilization_percent"]),
        mfu=percent(worst["mfu_percent"]),
        before=text(f"in_words_{before}"),
        after=text(f"in_words_{rung}"),
        high=percent(worst[before]),
        low=percent(worst[rung]),
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; the rungs that it measured from left to right: falling lines, or cells where runs are many."""
    machines = style.machines(rows)
    grid = style.panels(figure, [""], machines)
    lines = rows.groupby("machine").size().max() <= MOST_LINES
    colors = style.precision_colors(rows["precision"])
    for machine in machines:
        axes, here = grid["", machine], rows[rows["machine"] == machine]
        rungs = [name for name in RUNGS if here[name].notna().any()]
        if lines:
            _draw_lines(axes, here, rungs, colors)
            axes.set_ylim(0, max(105.0, 1.05 * rows[list(RUNGS)].max(axis=None)))
            axes.set_xticks(range(len(rungs)), [text(name) for name in rungs])
            axes.grid(axis="x", visible=False)
        else:
            _draw_cells(axes, here, rungs)
            axes.set_title(textwrap.fill(machine, 72 // len(machines)))
            axes.set_xticks([place + 0.5 for place in range(len(rungs))], [text(name) for name in rungs])
            axes.set_xlabel(text("percent"))
        slanted = {"ha": "right", "rotation": 40 if lines else 65, "rotation_mode": "anchor"}
        for label in axes.get_xticklabels():
            label.set(fontsize=10 if lines else 9, **(slanted if len(machines) > 1 else {"rotation": 0}))
    if not lines:
        return
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


def _draw_lines(axes: Axes, here: pd.DataFrame, rungs: Sequence[str], colors: Mapping[str, str]) -> None:
    for _, row in here.iterrows():
        known = [(place, row[name]) for place, name in enumerate(rungs) if row[name] == row[name]]
        axes.plot(*zip(*known, strict=True), color=colors[row["precision"]], marker="o", alpha=0.85, gid=row["model"])


def _draw_cells(axes: Axes, here: pd.DataFrame, rungs: Sequence[str]) -> None:
    """A line of cells a run, the highest MFU above; lines would lie on one another and none could be followed."""
    shares = here[rungs].astype(float)
    sns.heatmap(
        shares,
        ax=axes,
        cmap="crest",
        vmin=0,
        vmax=100,
        cbar=False,
        annot=shares.map(lambda share: percent(share) if share == share else ""),
        fmt="",
        annot_kws={"fontsize": 8},
        linewidths=1,
        linecolor=style.PAPER,
        xticklabels=False,
        yticklabels=[f"{model} {precision}" for model, precision in zip(here["model"], here["precision"], strict=True)],
    )
    axes.tick_params(axis="y", labelrotation=0, labelsize=8)
    axes.set_ylabel("")
    axes.grid(visible=False)
