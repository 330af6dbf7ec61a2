"""Time of quantised models and of the same step before, with the bytes of their weights and their
error."""

from pandas import concat

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Legend, Texts, significant, specs, style
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    against,
    apart,
    highest,
    lowest,
    one_each,
    preferred,
    steps,
)

TOPIC = "precision"
CLAIM = claims.side_of("relative", 100.0)
ALIKE = ["machine", "model", "workload", "mode", "batch_size", "sequence_length", "precision"]
ORDER_OF_SCHEMES = ("dynamic_int8", "static_int8", "weight_int8", "weight_int4")
COLORS = {"before": style.MUTED, "after": style.PALETTE[0]}


def rows(tables: Tables) -> DataFrame:
    """Selects quantised steps of one machine, paired with the same eager step before. `relative` is their speed in
    percent of it."""
    timed = steps(tables, "samples_per_s", "time_s")
    before = one_each(timed[timed["execution"] == "eager"], ALIKE)
    is_quantised = ~timed["quantisation"].isin(["", "none"])
    fewer = timed[is_quantised & timed["weight_bytes"].notna()]
    fewer = selection.one_machine(one_each(fewer, [*ALIKE, "quantisation"]))
    fewer = against(fewer, before, ALIKE, "_before", "samples_per_s", "mbu_percent", "run")
    # MBU is bytes ÷ time: ratios of MBU and time give the ratio of bytes. Not for decoding, which
    # reads its cache in addition to weights.
    moved = fewer["mbu_percent_before"] / (fewer["mbu_percent"] * fewer["factor"])
    size = (1 / moved).where(fewer["mode"] != "decoding")
    of_scheme = [fewer[key] for key in ("machine", "model", "precision", "quantisation")]
    return fewer.assign(
        relative=100 * fewer["samples_per_s"] / fewer["samples_per_s_before"],
        size=size.groupby(of_scheme).transform("max"),
        error=100 * fewer["output_error"],
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the fastest and slowest scheme beyond the intervals, the bandwidth of decoding,
    and the largest error."""
    beyond = rows[rows["apart"]]
    is_faster = rows["apart"] & (rows["relative"] > 100)
    best = highest(preferred(rows, is_faster), "relative")
    if is_faster.any():
        key = "finding"
    elif best["apart"] and best["relative"] < 100:
        key = "finding_slower"
    else:
        key = "finding_alike"
    sentences = [text(key, **_case(best, text))]
    worse = beyond[(beyond["relative"] < 100) & (beyond["relative"] < best["relative"])]
    if len(worse):
        sentences.append(text("slowest", **_case(lowest(worse, "relative"), text)))
    alike = len(rows) - len(beyond)
    if alike:
        sentences.append(text("overlaps", count=alike, total=len(rows)))
    ratio = rows["mbu_percent_before"] / rows["mbu_percent"]
    differs = ratio.notna() & apart(rows, suffix="_before", ratio=ratio)
    decoded = rows[differs & (rows["mode"] == "decoding")]
    if len(decoded):
        sentences.append(text("bandwidth", **_case(highest(decoded, "relative"), text)))
    if rows["quantisation"].nunique() > 1:
        sentences.append(text("error", **_case(highest(rows, "error"), text)))
    return " ".join(sentences)


def _case(row: Series, text: Texts) -> dict[str, object]:
    """Values for a sentence on one row."""
    size = "?"
    if row["size"] >= 0:
        size = significant(row["size"])
    return {
        "row": row,
        "scheme": text("of", row=row),
        "factor": row["relative"] / 100,
        "size": size,
    }


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """A bar for each scheme, below one for the step before, with times in milliseconds and
    labels."""
    rows = rows.sort_values("quantisation", key=lambda name: name.map(ORDER_OF_SCHEMES.index))
    cases = [text("case", **_case(row, text)) for _, row in rows.iterrows()]
    rows = rows.assign(case=cases)
    bars = []
    for precision, here in rows.groupby("precision", sort=False):
        before = here.drop_duplicates("case")
        bars.append(
            before.assign(
                run=before["run_before"],
                time_s=before["time_s_before"],
                mbu_percent=before["mbu_percent_before"],
                relative=100.0,
                named=text("before", precision=precision),
                words="",
                kind="before",
                apart=True,
                doubtful=False,
            )
        )
        bars.append(
            here.assign(
                named=[_label(rows, row, text) for _, row in here.iterrows()],
                words=[_gain(row, text) for _, row in here.iterrows()],
                kind="after",
            )
        )
    together = concat(bars)
    return together.assign(time_ms=1e3 * together["time_s"])


def _label(rows: DataFrame, row: Series, text: Texts) -> str:
    """Name of a scheme, with the bytes and the largest error of its weights."""
    alike = rows[
        (rows["quantisation"] == row["quantisation"]) & (rows["precision"] == row["precision"])
    ]
    return text(
        "scheme", scheme=row["quantisation"], largest=alike[["weight_bytes", "error"]].max()
    )


def _gain(row: Series, text: Texts) -> str:
    """Words on a scheme's speed relative to the step before."""
    if not row["apart"]:
        return text("grey_short")
    return f"{significant(row['relative'] / 100)}×"


def _behind(rows: DataFrame, text: Texts) -> Legend:
    """Legend entries for the words after bars and for differences within the intervals."""
    return [style.dot("none", text("behind")), *style.within(~rows["apart"], text)]


draw = specs.Bars(
    x="time_ms",
    y="named",
    told=("time_ms", "relative", "mbu_percent"),
    words="words",
    pale="apart",
    x_label="time",
    facet="case",
    most=3,
    hue="kind",
    colors=specs.present(COLORS),
    keyed=False,
    room=1.6,
    dressed=_dressed,
    entries=_behind,
    shared={"sharey": True},
    look={"fontsize": 9, "labelsize": 9, "width": 0.6, "dodge": False},
)
