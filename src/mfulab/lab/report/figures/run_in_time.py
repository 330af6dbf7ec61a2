"""One run over time: what the device reported, with the measured window marked."""

from matplotlib.axes import Axes

from mfulab.lab.report import claims, trust
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, runs, style
from mfulab.lab.report.frames import DataFrame, Tables, ok, with_machine

TOPIC = "series"
ORDER = 0
CLAIM = claims.below("mfu_percent", "utilization_percent")
VALUES = (
    "utilization_percent",
    "system_utilization_percent",
    "clock_mhz",
    "power_w",
    "temperature_c",
)


RUN = ["hardware", "recorded", "run"]
OF_RUN = [
    *RUN,
    "model",
    "mode",
    "precision",
    "batch_size",
    "mfu_percent",
    "started_at",
    "commit",
    runs.DOUBTFUL,
    trust.REACH,
]


def rows(tables: Tables) -> DataFrame:
    """Selects the series of one run: the most readings in its window, then the highest utilization.
    Runs of this machine come first."""
    series = tables["series"]
    if series.empty:  # has no columns either, for example with traces only
        return series
    profiled = trust.with_doubts(tables["profile"])[[*OF_RUN, "status", "utilization_percent"]]
    profiled = ok(profiled, "utilization_percent", "mfu_percent")
    is_read = series["in_window"] & series["utilization_percent"].notna()
    counts = series.assign(read=is_read).groupby(RUN, as_index=False)["read"].sum()
    profiled = profiled.merge(counts, on=RUN)
    profiled = profiled.sort_values(
        ["recorded", "read", "utilization_percent"], ascending=[True, False, False]
    )
    return with_machine(tables, series.merge(profiled[OF_RUN].head(1), on=RUN))


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the mean utilization within the window, and the MFU of the same window."""
    inside = rows.loc[rows["in_window"], "utilization_percent"]
    key = "finding_none" if inside.isna().all() else "finding"
    return text(
        key,
        row=rows.iloc[0],
        busy=inside.mean(),
        count=int(inside.notna().sum()),
    )


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a strip for each quantity over time, with the window shaded and its MFU as a line in
    the first strip."""
    values = []
    for name in VALUES:
        if name in rows and rows[name].notna().any():
            values.append(name)
    strips = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
    inside = rows.loc[rows["in_window"], "time_s"]
    for axes, name, color in zip(strips, values, style.PALETTE, strict=False):
        if len(inside):
            start = min(0.0, inside.min())
            axes.axvspan(
                start,
                inside.max(),
                color=style.GRID,
                alpha=0.6,
                linewidth=0,
            )
        places = ("time_s", name, name, "mfu_percent")
        kinds.lines(
            axes,
            rows,
            *places,
            color=color,
            linewidth=1.5,
            s=12,
        )
        axes.set_title(text(f"series_{name}"), fontsize=11)
        top = rows[name].max()
        if name.endswith("percent"):
            top = max(top, 100)
        axes.set_ylim(0, 1.15 * max(top, 0))
    _draw_mfu(strips[0], rows["mfu_percent"].iloc[0], text)
    strips[-1].set_xlabel(text("time"))
    if len(inside):
        return [style.dot(style.GRID, text("window", row=rows.iloc[0]), "s")]
    return []


def _draw_mfu(axes: Axes, mfu: float, text: Texts) -> None:
    """Draws a line at the MFU, in view, with its name beside."""
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.15 * mfu))
    axes.axhline(
        mfu,
        color=style.PALETTE[3],
        linewidth=1.5,
        linestyle=(0, (4, 3)),
    )
    words = f"MFU\n{text('share_of', share=mfu)}"
    beside = axes.get_yaxis_transform()
    axes.text(
        1.01,
        mfu,
        words,
        transform=beside,
        va="center",
        fontsize=10,
    )
