"""One run over time: what the device reported, with the measured window marked."""

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


def rows(tables: Tables) -> DataFrame:
    """Selects the series of one run: the most readings in its window, then the highest utilization.
    Runs of this machine come first."""
    keys = ["hardware", "recorded", "run"]
    columns = [
        *keys,
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
    profiled = trust.with_doubts(tables["profile"])[[*columns, "status", "utilization_percent"]]
    profiled = ok(profiled, "utilization_percent", "mfu_percent")
    series = tables["series"]
    if series.empty:  # has no columns either, for example with traces only
        return series
    series = series.assign(read=series["in_window"] & series["utilization_percent"].notna())
    profiled = profiled.merge(series.groupby(keys, as_index=False)["read"].sum(), on=keys)
    wanted = profiled.sort_values(
        ["recorded", "read", "utilization_percent"], ascending=[True, False, False]
    ).head(1)
    return with_machine(tables, tables["series"].merge(wanted[columns], on=keys))


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the mean utilization within the window, and the MFU of the same window."""
    inside = rows.loc[rows["in_window"], "utilization_percent"]
    key = "finding_none" if inside.isna().all() else "finding"
    return text(key, row=rows.iloc[0], busy=inside.mean(), count=int(inside.notna().sum()))


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a strip for each quantity over time, with the window shaded and its MFU as a line in
    the first strip."""
    values = []
    for name in VALUES:
        if name in rows and rows[name].notna().any():
            values.append(name)
    strips = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
    inside = rows.loc[rows["in_window"], "time_s"]
    mfu = rows["mfu_percent"].iloc[0]
    for axes, name, color in zip(strips, values, style.PALETTE, strict=False):
        if len(inside):
            axes.axvspan(
                min(0.0, inside.min()), inside.max(), color=style.GRID, alpha=0.6, linewidth=0
            )
        kinds.lines(
            axes, rows, "time_s", name, name, "mfu_percent", color=color, linewidth=1.5, s=12
        )
        axes.set_title(text(f"series_{name}"), fontsize=11)
        axes.set_ylim(0, 1.15 * max(rows[name].max(), 100 if name.endswith("percent") else 0))
    first = strips[0]
    named = f"MFU\n{text('share_of', share=mfu)}"
    first.set_ylim(top=max(first.get_ylim()[1], 1.15 * mfu))
    first.axhline(mfu, color=style.PALETTE[3], linewidth=1.5, linestyle=(0, (4, 3)))
    first.text(1.01, mfu, named, transform=first.get_yaxis_transform(), va="center", fontsize=10)
    strips[-1].set_xlabel(text("time"))
    if len(inside):
        return [style.dot(style.GRID, text("window", row=rows.iloc[0]), "s")]
    return []
