"""Text generation: shares of memory bandwidth and of arithmetic by batch size, also for prompts."""

from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Legend, Texts, curves, significant, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, highest, ok, with_machine

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


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """A row for each run and share, with the name of its line: the model and MBU or MFU, and the
    context if there are several."""
    names = rows["model"]
    if rows["sequence_length"].nunique() > 1:
        names = Series([text("context", row=row) for _, row in rows.iterrows()], rows.index)
    rows = rows.assign(named=names)
    others = rows.columns.drop([*DASHES])
    shares = rows.melt([*others], [*DASHES], "share_of", "share").dropna(subset=["share"])
    measures = shares["share_of"].map({"mbu_percent": " MBU", "mfu_percent": " MFU"})
    return shares.assign(named=shares["named"] + measures).sort_values("batch_size")


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axes logarithmic, with a line at the ceiling."""
    ticks.doublings(axes, rows["batch_size"])
    axes.axhline(100, color=style.MUTED, linewidth=1)
    axes.margins(y=0.1)
    ticks.decades(axes.yaxis)


def _entries(rows: DataFrame, text: Texts) -> Legend:
    """Legend entries for MBU and MFU, and for prompts if they are drawn."""
    entries: Legend = []
    for column, dash in DASHES.items():
        entries.append(style.line(style.MUTED, text(column), dash))
    if rows["mode"].nunique() > 1:
        entries += style.dots(dict.fromkeys(MARKERS, style.MUTED), text, "mode", MARKERS)
    return entries


draw = specs.Lines(
    x="batch_size",
    y="share",
    told=("share", "time_s"),
    x_label="batch_size",
    y_label="share",
    by=[*curves.KEYS, "share_of"],
    named="named",
    hue="precision",
    kind="precision",
    colors=style.usual_colors,
    dressed=_dressed,
    finished=_finished,
    entries=_entries,
    shared={"sharex": True, "sharey": True},
    look={"dash": "share_of", "dashes": DASHES, "style": "mode", "markers": MARKERS},
)
