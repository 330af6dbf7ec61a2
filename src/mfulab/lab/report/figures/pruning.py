"""Time of pruned models relative to the same model before, and the share of weights left."""

from mfulab.lab.report import claims
from mfulab.lab.report.drawing import Figure, Texts, kinds, runs, specs, style
from mfulab.lab.report.frames import DataFrame, Tables, against, one_each, preferred, steps

TOPIC = "flops"
ORDER = 3
CLAIM = claims.side_of("relative", 100.0)
ALIKE = ["machine", "model", "workload", "batch_size", "precision", "execution"]
COLORS = style.colors(("masked", "structured", "two_of_four"))
MOST_BATCHES = 3  # batch sizes, each with a panel


def rows(tables: Tables) -> DataFrame:
    """Selects pruned steps, in percent of the whole model's time (`relative`), weights (`left`) and
    FLOPs (`executed`)."""
    timed = steps(tables, "time_s")
    whole = one_each(timed[timed["pruning"] == "none"], ALIKE)
    pruned = one_each(timed[timed["pruning"].isin(COLORS)], [*ALIKE, "pruning", "pruned_share"])
    pruned = against(pruned, whole, ALIKE, "_whole", "executed_flops")
    points = pruned.groupby("machine")["pruned_share"].transform("size")
    pruned = preferred(pruned, points > 1)  # no single points next to curves
    left = 100 * (1 - pruned["pruned_share"])
    executed = pruned["executed_flops"] / pruned["executed_flops_whole"]
    return pruned.assign(
        relative=100 * pruned["factor"],
        left=left,
        executed=100 * executed,
        # Structured pruning makes a smaller model, whose FLOPs are counted as they are.
        nominal=left.where(pruned["pruning"] != "structured", 100 * executed),
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the most pruned case of each way, that of the largest batch if there are
    several: time, weights left, and FLOPs."""
    keys = ["pruned_share", "batch_size", "apart", "relative"]
    cases = rows.sort_values(keys, ascending=[False, False, False, True])
    cases = cases.drop_duplicates("pruning").set_index("pruning", drop=False)
    sentences = []
    for way in COLORS:
        if way not in cases.index:
            continue
        best = cases.loc[way]
        if rows["machine"].nunique() > 1:
            sentences.append(f"{best['machine']}:")
        if not best["apart"]:
            key = "finding_alike"
        elif best["relative"] > 100:
            key = "finding_slower"
        else:
            key = "finding"
        pruned = 100 - best["left"]
        sentences.append(
            text(
                key,
                best=best,
                pruned=pruned,
                factor=best["factor"],
            )
        )
        if best["executed"] >= 0:
            sentences.append(text("executed", best=best))
    return " ".join(sentences)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws time over the pruned share, in a panel for each machine and batch size. The dashed line
    is time proportional to the weights left."""
    shown = style.of_machines(rows, 2).sort_values("pruned_share")
    titles = {}
    for batch in sorted(shown["batch_size"].unique())[:MOST_BATCHES]:
        titles[batch] = text("batch", batch=int(batch))
    shown = shown.assign(pruned_percent=100 - shown["left"])
    colors = specs.present(COLORS)(shown["pruning"])
    # Machines have scales of their own, as their times may differ by large factors.
    longest = shown.groupby("machine")["relative"].max()
    panels = style.facets(
        figure,
        shown,
        "batch_size",
        titles,
        y=text("time"),
        sharey="row",
    )
    tooltip = ("pruned_share", "relative", "time_s")
    look = style.hued("pruning", colors)
    for axes, here in panels:
        axes.plot(
            [0, 100],
            [100, 0],
            linestyle="--",
            color=style.MUTED,
            linewidth=1,
        )
        alpha = here["apart"].map({True: 1.0, False: style.PALE}).tolist()
        kinds.lines(
            axes,
            here,
            "pruned_percent",
            "relative",
            *tooltip,
            alpha=alpha,
            **look,
        )
        axes.set(xlim=(0, 100), xlabel=text("pruned"))
        for machine in here["machine"].unique():
            axes.set_ylim(0, 1.1 * max(100, longest[machine]))
    entries = [
        *style.dots(colors, text, "pruning"),
        *style.within(~shown["apart"], text),
        *runs.key(figure, text),
        style.line(style.MUTED, text("left"), (4, 2)),
    ]
    style.legend(figure, entries)
