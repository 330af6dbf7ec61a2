"""Milliseconds of a step that are lost between the peak and MFU, each part once."""

from mfulab.lab.report import claims
from mfulab.lab.report.drawing import Figure, Texts, kinds, percent, runs, style
from mfulab.lab.report.frames import DataFrame, Series, Tables, ok, with_machine, with_traces
from mfulab.mfu.headroom import PARTS

TOPIC = "why"
ORDER = 0
FEWEST = 1  # the parts of one step explain each other
MOST = 12  # runs of all machines
SHOWN = 0.05  # points below which a part has no step of its own
NAMED = 4.0  # points of a stacked bar that hold a number
COLORS = dict(zip(PARTS, (
    "#8c8c8c", "#c9ced6", "#cc78bc", "#56b4e9", "#949494", "#d55e00", "#de8f05", "#ece133", "#ca9161", "#fbafe4",
    "#b4d3b2", "#7fa87c", "#a5c8e1", "#0173b2", "#029e73"), strict=True))  # fmt: skip
DARK = ("matmuls_below_best", "useful", "input_wait", "graph")  # on which numbers are white
# The part that takes most off a run.
CLAIM = claims.largest([part for part in PARTS if part != "useful"])


def rows(tables: Tables) -> DataFrame:
    """The budget of the busiest run of each model on each machine, in points of MFU."""
    timed = with_machine(tables, ok(with_traces(tables), "time_s", "mfu_percent", "useful_ms"))
    if timed.empty:
        return timed
    for part in PARTS:
        timed[part] = (timed[f"{part}_ms"] / 10 / timed["time_s"]).fillna(
            0
        )  # a part that is not known takes nothing
    best = timed.loc[
        timed["utilization_percent"].fillna(0).groupby([timed["machine"], timed["model"]]).idxmax()
    ]
    ordered = best.sort_values(["recorded", "machine", "useful"], ascending=[True, True, False])
    machines = style.machines(ordered)
    return (
        ordered[ordered["machine"].isin(machines)]
        .groupby("machine", sort=False)
        .head(MOST // len(machines))
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """The part that takes most off the run that loses most to it."""
    place, part = rows[[part for part in PARTS if part != "useful"]].astype(float).stack().idxmax()
    worst = rows.loc[place]
    named = {"part": text.within("trace")(part)}
    return text(
        "finding",
        worst=worst,
        step=1e3 * worst["time_s"],
        ms=worst[f"{part}_ms"],
        points=worst[part],
        **named,
    )


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """A bar a run, cut into the parts of its step; the runs of a machine below its name."""
    axes = style.panels(figure, [""], [""], lines=len(rows) + rows["machine"].nunique())[0, 0]
    colors = {}
    for part, color in reversed(COLORS.items()):
        if (rows[part].abs() >= SHOWN).any():
            colors[part] = color
    lines: list[Series] = []
    for machine, here in rows.groupby("machine", sort=False):
        axes.text(0, len(lines) + 0.1, machine, fontsize=10, fontweight="bold", va="center")
        lines += [
            Series({runs.DOUBTFUL: False, "run": "", "name": ""}),
            *(row for _, row in here.iterrows()),
        ]
    shown = DataFrame(lines)
    useful = ["" if share != share else text("share_of", share=share) for share in shown["useful"]]
    shown["name"] = (shown["model"] + "  ").fillna("") + useful
    shown[[*colors]] = shares = shown[[*colors]].astype(float).clip(lower=0).fillna(0)
    look = {"edgecolor": style.PAPER, "linewidth": 0.6, "width": 0.78}
    kinds.stacks(axes, shown, colors, "name", *(f"{part}_ms" for part in colors), **look)
    starts = shares.cumsum(axis=1) - shares
    for (index, part), value in shares.reset_index(drop=True).stack().items():
        if value >= NAMED:
            on_bar = "#fefefe" if part in DARK else "#101418"  # whatever the page's theme
            look = {"color": on_bar, "ha": "center"}
            if shown.iloc[index][runs.DOUBTFUL]:
                look["color"] = style.INK
            axes.text(
                starts.iloc[index][part] + value / 2,
                index,
                percent(value),
                va="center",
                fontsize=9,
                **look,
            )
    axes.tick_params(axis="y", length=0, labelsize=10)
    widest = max(100.0, float(shares.sum(axis=1).max()))
    axes.set(ylim=(len(shown) - 0.4, -0.6), xlim=(0, widest), xlabel=text("points"))
    entries = [style.dot(color, text.within("trace")(part), "s") for part, color in colors.items()]
    style.legend(figure, entries + runs.key(figure, text), 3)
