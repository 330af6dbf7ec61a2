"""One run in time: what the device reported while it ran, the measured window marked."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.report.drawing import runs, style
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("series", "profile", "environment")
TOPIC = "series"
VALUES = ("utilization_percent", "system_utilization_percent", "clock_mhz", "power_w", "temperature_c")


def rows(tables: Tables) -> pd.DataFrame:
    """The series of the busiest run, of this machine before recorded ones, with its MFU."""
    keys = ["hardware", "recorded", "run"]
    known = ok(tables["profile"], "utilization_percent", "mfu_percent")
    known = known.sort_values(["recorded", "utilization_percent"], ascending=[True, False])
    wanted = runs.judged(known).merge(tables["series"][keys].drop_duplicates(), on=keys).head(1)
    columns = [*keys, "model", "mode", "precision", "batch_size", "mfu_percent", "started_at", "commit", runs.DOUBTFUL]
    return with_machine(tables, tables["series"].merge(wanted[columns], on=keys))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Mean utilization inside the window beside the MFU of the same window."""
    inside = rows[rows["in_window"]]
    first = rows.iloc[0]
    busy = inside["utilization_percent"].mean()
    return text(
        "finding" if busy == busy else "finding_none",
        model=first["model"],
        batch_size=int(first["batch_size"]),
        machine=first["machine"],
        busy=percent(busy) if busy == busy else "",
        mfu=percent(first["mfu_percent"]),
        count=int(inside["utilization_percent"].notna().sum()),
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A strip a quantity over time; the window is shaded, its MFU a line across the first strip."""
    values = [name for name in VALUES if name in rows and rows[name].notna().any()]
    strips = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
    inside = rows.loc[rows["in_window"], "time_s"]
    for index, (axes, name) in enumerate(zip(strips, values, strict=True)):
        if len(inside):
            axes.axvspan(min(0.0, inside.min()), inside.max(), color=style.GRID, alpha=0.6, linewidth=0)
        look = {"color": style.PALETTE[index], "marker": ".", "markersize": 5, "linewidth": 1.5}
        runs.mark(axes.plot(rows["time_s"], rows[name], **look)[0], rows.head(1), "mfu_percent")
        axes.set_title(text(f"series_{name}"), fontsize=11)
        axes.set_ylim(0, 1.15 * max(rows[name].max(), 100 if name.endswith("percent") else 0))
    mfu = rows["mfu_percent"].iloc[0]
    strips[0].set_ylim(top=max(strips[0].get_ylim()[1], 1.15 * mfu))
    strips[0].axhline(mfu, color=style.PALETTE[3], linewidth=1.5, linestyle=(0, (4, 3)))
    named = f"MFU\n{text('share_of', share=mfu)}"
    strips[0].text(1.01, mfu, named, transform=strips[0].get_yaxis_transform(), va="center", fontsize=10)
    strips[-1].set_xlabel(text("time"))
    first = rows.iloc[0]
    window = text(
        "window",
        model=first["model"],
        mode=text.name("mode", first["mode"]),
        precision=text.name("precision", first["precision"]),
        batch_size=int(first["batch_size"]),
    )
    style.legend(figure, [*([style.dot(style.GRID, window, "s")] if len(inside) else []), *runs.key(rows, text)])
