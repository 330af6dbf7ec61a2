"""Text generation: shares of memory bandwidth and of arithmetic by batch size, also for prompts."""

from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import (
    Figure,
    Legend,
    Texts,
    curves,
    kinds,
    labels,
    significant,
    style,
    ticks,
)
from mfulab.lab.report.frames import DataFrame, Tables, highest, ok, with_machine

TOPIC = "batch_size"
ORDER = 2
CLAIM = claims.below("mfu_percent", "mbu_percent")
REASONS = selection.BESIDE_ONE
DASHES: style.Look = {"mbu_percent": "", "mfu_percent": (4, 2)}
MARKERS = {"decoding": "o", "prefill": "s"}
CONTEXT = ["machine", "model", "precision", "execution", "sequence_length"]


def rows(tables: Tables) -> DataFrame:
    """Selects series with at least two batch sizes. For each model and machine, the decoding with
    the longest context nearest to the memory's limit, and the prefill of its prompts."""
    steps = ok(tables["profile"], *DASHES)
    steps = curves.series(with_machine(tables, steps[steps["mode"].isin(MARKERS)]))
    decoding = steps["mode"] == "decoding"
    if not decoding.any():
        return steps.head(0)
    first, _ = curves.ends(steps[decoding])
    order = first.sort_values(["sequence_length", "mbu_percent"], ascending=False)
    shown = order.drop_duplicates(["machine", "model"])[CONTEXT]
    steps = steps.assign(mbu_percent=steps["mbu_percent"].where(decoding))
    return steps.merge(shown, on=CONTEXT)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the decoding nearest to the memory's limit, its cache, the longest prompt, and
    the balance of experts."""
    decoded = rows[rows["mode"] == "decoding"]
    if decoded.empty:
        return text("prefill", row=highest(rows, "mfu_percent"))
    first, last = curves.ends(decoded)
    small = highest(first, "mbu_percent")
    large = highest(last, "mbu_percent")
    if small["batch_size"] == large["batch_size"]:
        key = "finding_one"
    elif claims.differs(small, large, "time_s"):
        key = "finding"
    else:
        key = "finding_alike"
    sentences = [
        text(
            key,
            small=small,
            large=large,
            slower=large["time_s"] / small["time_s"],
        )
    ]
    if large["key_value_cache_bytes"] >= 0:
        sentences.append(text("cache", large=large))
    prompts = rows[rows["mode"] == "prefill"].drop_duplicates(CONTEXT)
    tokens = decoded.drop_duplicates(CONTEXT)
    both = prompts.merge(tokens, on=CONTEXT, suffixes=("", "_token"))
    for _, row in both.nlargest(1, "sequence_length").iterrows():
        sentences.append(text("prompt", row=row))
    return " ".join([*sentences, *_balance(decoded, text)])


def _balance(decoded: DataFrame, text: Texts) -> list[str]:
    """Sentence on the balance of experts in a mixture of them, at its largest batch; empty if there
    is none."""
    routed = decoded.dropna(subset=["expert_imbalance"])
    if routed.empty:
        return []
    routed = routed.sort_values(["batch_size", "expert_imbalance"], kind="stable")
    row = routed.iloc[-1]
    times = significant(row["expert_imbalance"])
    key = "experts"
    if row["expert_imbalance"] <= 1:
        key = "experts_even"
    return [
        text(
            key,
            model=row["model"],
            batch=int(row["batch_size"]),
            times=times,
        )
    ]


def reading(rows: DataFrame, text: Texts) -> str:
    """Explains how to read the figure, and its squares only if prompts are drawn."""
    if (rows["mode"] == "prefill").any():
        return f"{text('reading')} {text('squares')}"
    return text("reading")


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each machine with logarithmic axes: MBU solid, MFU dashed. Colour shows the
    precision; squares are prompts."""
    colors = style.usual_colors(rows["precision"])
    others = [*rows.columns.drop([*DASHES])]
    shares = rows.melt(others, [*DASHES], "share_of", "share")
    look: style.Look = {
        "by": [*curves.KEYS, "share_of"],
        "hue": "precision",
        "palette": colors,
        "dash": "share_of",
        "dashes": DASHES,
        "style": "mode",
        "markers": MARKERS,
    }
    for axes, here in style.by_machine(figure, rows, sharex=True, x=text("batch_size")):
        lines = shares[shares["machine"] == here["machine"].iloc[0]]
        lines = lines.sort_values("batch_size")
        kinds.lines(axes, lines, "batch_size", "share", **look)
        ticks.doublings(axes, rows["batch_size"])
        axes.axhline(100, color=style.MUTED, linewidth=1)
        axes.margins(y=0.1)
        ticks.decades(axes.yaxis)
        axes.set_ylabel(text("share"))
        _name_lines(axes, here, rows["sequence_length"].nunique() > 1, text)
    entries = []
    for name, color in colors.items():
        entries.append(style.line(color, text.name("precision", name)))
    for column, dash in DASHES.items():
        entries.append(style.line(style.MUTED, text(column), dash))
    if rows["mode"].nunique() > 1:
        entries += style.dots(dict.fromkeys(MARKERS, style.MUTED), text, "mode", MARKERS)
    return entries


def _name_lines(axes: Axes, here: DataFrame, with_context: bool, text: Texts) -> None:
    """Names each model's highest line at its end, with its context if there are several."""
    ends = here.groupby(
        curves.KEYS,
        sort=False,
        dropna=False,
    ).tail(1)
    ends = ends.assign(share=ends["mbu_percent"].fillna(ends["mfu_percent"]))
    ends = ends.sort_values("share")
    ends = ends.drop_duplicates(["model", "sequence_length", "mode"], keep="last")
    names = list(ends["model"])
    if with_context:
        names = [text("context", row=row) for _, row in ends.iterrows()]
    inks = [style.INK] * len(ends)
    labels.later(
        labels.at_line_ends,
        axes,
        ends["batch_size"],
        ends["share"],
        names,
        inks,
    )
