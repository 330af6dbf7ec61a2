"""Speed of quantised models against the same step before, with the bytes of their weights and their error."""

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, significant, style
from mfulab.lab.report.frames import DataFrame, Series, Tables, against, apart, one_each, steps

TOPIC = "precision"
ALIKE = ["machine", "model", "workload", "mode", "batch_size", "sequence_length", "precision"]
ORDER_OF_SCHEMES = ("dynamic_int8", "static_int8", "weight_int8", "weight_int4")
MOST = 4  # cases that get a panel each


def rows(tables: Tables) -> DataFrame:
    """Quantised steps, each beside the eager step that it was: `relative` is their speed in percent of that."""
    timed = steps(tables, "samples_per_s", "time_s")
    before = one_each(timed[timed["execution"] == "eager"], ALIKE)
    fewer = timed[~timed["quantisation"].isin(["", "none"]) & timed["weight_bytes"].notna()]
    fewer = one_each(fewer, [*ALIKE, "quantisation"])
    fewer = against(fewer, before, ALIKE, "_before", "samples_per_s", "mbu_percent")
    # MBU is bytes ÷ time: with the ratio of both its bytes before follow, without a count of their own.
    moved = fewer["mbu_percent_before"] / (fewer["mbu_percent"] * fewer["factor"])
    return fewer.assign(
        relative=100 * fewer["samples_per_s"] / fewer["samples_per_s_before"],
        size=(1 / moved).where(fewer["mode"] != "decoding"),  # a decoding step reads its cache beside them
        error=100 * fewer["output_error"],
    ).assign(size=lambda rows: rows.groupby(["machine", "model", "precision", "quantisation"])["size"].transform("max"))


def finding(rows: DataFrame, text: Texts) -> str:
    """The fastest and the slowest scheme beyond the intervals, the bandwidth of decoding, and the largest error."""
    beyond = rows[rows["apart"]]
    faster, slower = beyond[beyond["relative"] > 100], beyond[beyond["relative"] < 100]
    best = rows.loc[(rows if faster.empty else faster)["relative"].idxmax()]
    words = [text("finding_slower" if faster.empty else "finding", **_case(best, text))]
    for _, slowest in slower[slower["relative"] < best["relative"]].nsmallest(1, "relative").iterrows():
        words.append(text("slowest", **_case(slowest, text)))
    alike = len(rows) - len(beyond)
    words += [text("overlaps", count=alike, total=len(rows))] if alike else []
    ratio = rows["mbu_percent_before"] / rows["mbu_percent"]
    decoded = rows[(rows["mode"] == "decoding") & ratio.notna() & apart(rows, suffix="_before", ratio=ratio)]
    words += [text("bandwidth", **_case(best, text)) for _, best in decoded.nlargest(1, "relative").iterrows()]
    if rows["quantisation"].nunique() > 1:
        words.append(text("error", **_case(rows.loc[rows["error"].idxmax()], text)))
    return " ".join(words)


def _case(row: Series, text: Texts) -> dict[str, object]:
    size = significant(row["size"]) if row["size"] >= 0 else "?"
    return {"row": row, "scheme": text("of", row=row), "factor": row["relative"] / 100, "size": size}


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A panel a machine and case, a bar a scheme."""
    shown = rows[rows["machine"].isin(style.machines(rows, 2))]
    schemes = {}
    for scheme in (name for name in ORDER_OF_SCHEMES if (shown["quantisation"] == name).any()):
        steps = shown[shown["quantisation"] == scheme]
        formats = "/".join(text.name("precision", name) for name in dict.fromkeys(steps["precision"]))
        largest = steps[["weight_bytes", "error"]].max()
        schemes[scheme] = text("scheme", scheme=scheme, precision=formats, largest=largest)
    shares = shown[["relative", "mbu_percent"]].to_numpy()
    shown = shown.assign(
        case=[text("case", **_case(row, text)) for _, row in shown.iterrows()],
        words=[", ".join(text("share_of", share=share) for share in both if share == share) for both in shares],
        named=shown["quantisation"].map(schemes),
    )
    panels = style.facets(figure, shown, text, "case", MOST, sharey=True, sharex=True)
    cases = panels[0][0].get_gridspec().ncols
    style.resize(figure, 1.8 + 2.6 * len(panels) / cases)
    look: style.Look = {"order": list(schemes.values()), "words": "words", "fontsize": 8, "labelsize": 9, "width": 0.6}
    for axes, here in panels:
        axes.axvline(100, **style.LIMIT)
        kinds.bars(axes, here, "relative", "named", "relative", "time_s", "mbu_percent", pale="apart", **look)
        axes.set_xlim(0, 1.9 * max(100, shown["relative"].max()))
    panels[cases // 2 - cases][0].set_xlabel(text("relative"))
    return [style.dot("none", text("behind")), *style.within(~shown["apart"], text)]
