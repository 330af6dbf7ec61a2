"""The cost of autograd where nobody wants gradients: time beside no_grad, and the memory of graphs that are kept."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.groups import LEAKED_STEPS
from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, quantity
from mfulab.report import trust
from mfulab.report.drawing import kinds, runs, style, ticks
from mfulab.report.frames import Tables, alone, ok, one_each, with_machine

TABLES = ("profile", "environment")
TOPIC = "execution"
ORDER = 10
CASE = ["machine", "model", "precision", "sequence_length", "batch_size"]
WAYS = ("no_grad", "inference_mode", "recorded", "leaked")
COLORS = dict(zip(WAYS, (style.MUTED, style.PALETTE[0], style.PALETTE[2], style.PALETTE[1]), strict=True))
LEAST = 0.5  # % of a time: less is no difference
MOST = 8  # cases that get a line each
FEWEST = 2  # ways that a case needs


def rows(tables: Tables) -> pd.DataFrame:
    """Eager inference in at least two ways, no_grad among them; `relative` is the time in percent of no_grad's.

    `apart` says whether its interval and no_grad's do not meet, `graph_bytes` what each graph holds that a leak keeps.
    """
    found = with_machine(tables, alone(ok(tables["profile"], "time_s")))
    found = found[(found["mode"] == "inference") & (found["execution"] == "eager") & found["autograd"].isin(WAYS)]
    found = one_each(found.assign(sequence_length=found["sequence_length"].fillna(0)), [*CASE, "autograd"])
    plain = found[found["autograd"] == "no_grad"][[*CASE, *trust.INTERVAL]]
    found = found.merge(plain, on=CASE, suffixes=("", "_no_grad"))
    found = found[found.groupby(CASE)["autograd"].transform("nunique") >= FEWEST]
    once = found[found["autograd"] == "recorded"][[*CASE, "memory_bytes"]]
    found = found.merge(once.rename(columns={"memory_bytes": "once_bytes"}), on=CASE, how="left")
    kept = (found["memory_bytes"] - found["once_bytes"]) / LEAKED_STEPS
    return found.assign(
        relative=100 * found["time_s"] / found["time_s_no_grad"],
        apart=trust.apart(found, suffix="_no_grad"),
        graph_bytes=kept.where(found["autograd"] == "leaked"),
    )


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The case where recording costs most time, beyond what processes differ by, and the graph that holds most."""
    recorded = rows[rows["autograd"] == "recorded"]
    said = []
    if not recorded.empty:
        slower = recorded[recorded["apart"] & (recorded["relative"] >= 100 + LEAST)]
        key = "no_slower" if slower.empty else "slower"
        said.append(text(key, **_most(slower)))
    freed = rows[rows["autograd"] == "inference_mode"]
    if not freed.empty:
        faster = freed[freed["apart"] & (freed["relative"] <= 100 - LEAST)]
        key = "no_faster" if faster.empty else "faster"
        said.append(text(key, **_most(faster)))
    leaked = rows[rows["graph_bytes"] > 0]
    if not leaked.empty:
        largest = leaked.loc[leaked["graph_bytes"].idxmax()]
        held = {"bytes": quantity(largest["graph_bytes"], "B"), "later": quantity(1000 * largest["graph_bytes"], "B")}
        said.append(text("leaks", **_named(largest), **held))
    return " ".join(said)


def _most(rows: pd.DataFrame) -> dict[str, object]:
    """The row that differs most from no_grad; nothing if there is none."""
    if rows.empty:
        return {}
    most = rows.loc[(rows["relative"] - 100).abs().idxmax()]
    return {**_named(most), "share": percent(abs(most["relative"] - 100))}


def _named(row: pd.Series) -> dict[str, object]:
    return {"model": row["model"], "batch": int(row["batch_size"])}


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """For each machine, a line a case: time relative to no_grad on the left, peak memory on the right."""
    machines = style.machines(rows, 2)
    shown = rows[rows["machine"].isin(machines)]
    shown = shown.assign(
        case=[text("case", model=row.model, batch=int(row.batch_size)) for row in shown.itertuples()],
        memory_mib=shown["memory_bytes"] / 2**20,
    )
    order = shown.sort_values(["model", "batch_size"], kind="stable")["case"].drop_duplicates()
    cases = list(order.iloc[:MOST])[::-1]
    columns = [text("times"), text("memory")]
    grid = style.panels(figure, machines, columns, sharey=True)
    if len(machines) == 1:
        style.fit(figure, len(cases))
    colors = {way: color for way, color in COLORS.items() if (shown["autograd"] == way).any()}
    for machine in machines:
        left, right = (grid[machine, column] for column in columns)
        here = shown[(shown["machine"] == machine) & shown["case"].isin(cases)]
        heights = kinds.lanes(left, here, "case", cases, hue="autograd", hues=[*colors], apart=0.18)
        look = {"hue": "autograd", "colors": colors}
        kinds.points(left, here.assign(place=heights), "relative", "place", "relative", "time_s", **look)
        kinds.points(right, here.assign(place=heights), "memory_mib", "place", "memory_bytes", **look)
        left.axvline(100, color=style.MUTED, linewidth=1)
        left.set_xlim(min(90.0, 0.95 * here["relative"].min()), max(110.0, 1.05 * here["relative"].max()))
        right.set_xscale("log")
        ticks.decades(right.xaxis, 5)
    style.legend(figure, style.dots(colors, text, "autograd") + runs.key(shown, text))
