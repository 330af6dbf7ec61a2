"""Text generation: shares of memory bandwidth and of arithmetic by batch size, also for prompts."""

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
from mfulab.lab.report.frames import DataFrame, Tables, ok, with_machine

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
        return text("prefill", row=rows.loc[rows["mfu_percent"].idxmax()])
    first, last = curves.ends(decoded)
    small, large = (rows.loc[first["mbu_percent"].idxmax()] for rows in (first, last))
    if small["batch_size"] == large["batch_size"]:
        key = "finding_one"
    elif claims.differs(small, large, "time_s"):
        key = "finding"
    else:
        key = "finding_alike"
    sentences = [text(key, small=small, large=large, slower=large["time_s"] / small["time_s"])]
    if large["key_value_cache_bytes"] >= 0:
        sentences.append(text("cache", large=large))
    prompts, tokens = (
        rows[rows["mode"] == mode].drop_duplicates(CONTEXT) for mode in ("prefill", "decoding")
    )
    both = prompts.merge(tokens, on=CONTEXT, suffixes=("", "_token"))
    for _, row in both.nlargest(1, "sequence_length").iterrows():
        sentences.append(text("prompt", row=row))
    routed = decoded.dropna(subset=["expert_imbalance"])  # mixtures of experts
    routed = routed.sort_values(["batch_size", "expert_imbalance"], kind="stable")
    for _, uneven in routed.tail(1).iterrows():
        imbalance = uneven["expert_imbalance"]
        key = "experts_even" if imbalance <= 1 else "experts"
        named = {"model": uneven["model"], "batch": int(uneven["batch_size"])}
        sentences.append(text(key, **named, times=significant(imbalance)))
    return " ".join(sentences)


def reading(rows: DataFrame, text: Texts) -> str:
    """Explains how to read the figure, and its squares only if prompts are drawn."""
    if (rows["mode"] == "prefill").any():
        return f"{text('reading')} {text('squares')}"
    return text("reading")


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each machine with logarithmic axes: MBU solid, MFU dashed. Colour shows the
    precision; squares are prompts."""
    colors = style.usual_colors(rows["precision"])
    shares = rows.melt([*rows.columns.drop([*DASHES])], [*DASHES], "share_of", "share")
    look: style.Look = {
        "by": [*curves.KEYS, "share_of"],
        "hue": "precision",
        "palette": colors,
        "dash": "share_of",
    }
    look |= {"dashes": DASHES, "style": "mode", "markers": MARKERS}
    for axes, here in style.by_machine(figure, rows, sharex=True, x=text("batch_size")):
        lines = shares[shares["machine"] == here["machine"].iloc[0]].sort_values("batch_size")
        kinds.lines(axes, lines, "batch_size", "share", **look)
        ticks.doublings(axes, rows["batch_size"])
        axes.axhline(100, color=style.MUTED, linewidth=1)
        axes.margins(y=0.1)
        ticks.decades(axes.yaxis)
        axes.set_ylabel(text("share"))
        ends = here.groupby(curves.KEYS, sort=False, dropna=False).tail(1)
        ends = ends.assign(share=ends["mbu_percent"].fillna(ends["mfu_percent"])).sort_values(
            "share"
        )
        ends = ends.drop_duplicates(["model", "sequence_length", "mode"], keep="last")
        several = rows["sequence_length"].nunique() > 1
        names = [
            text("context", row=row) if several else row["model"] for _, row in ends.iterrows()
        ]
        labels.later(
            labels.at_line_ends,
            axes,
            ends["batch_size"],
            ends["share"],
            names,
            [style.INK] * len(ends),
        )
    entries = [style.line(color, text.name("precision", name)) for name, color in colors.items()]
    for column, dash in DASHES.items():
        entries.append(style.line(style.MUTED, text(column), dash))
    modes = {}
    if rows["mode"].nunique() > 1:
        modes = dict.fromkeys(MARKERS, style.MUTED)
    return entries + style.dots(modes, text, "mode", MARKERS)
