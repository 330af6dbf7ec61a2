"""Speed of quantised models relative to the same step before, with the bytes of their weights and
their error."""

from mfulab.lab.report import claims
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


def rows(tables: Tables) -> DataFrame:
    """Selects quantised steps, paired with the same eager step before. `relative` is their speed in
    percent of it."""
    timed = steps(tables, "samples_per_s", "time_s")
    before = one_each(timed[timed["execution"] == "eager"], ALIKE)
    is_quantised = ~timed["quantisation"].isin(["", "none"])
    fewer = timed[is_quantised & timed["weight_bytes"].notna()]
    fewer = one_each(fewer, [*ALIKE, "quantisation"])
    fewer = against(fewer, before, ALIKE, "_before", "samples_per_s", "mbu_percent")
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
    """Keeps two machines, sorts rows by scheme, and adds labels of cases, schemes and bars."""
    rows = style.of_machines(rows, 2)
    rows = rows.sort_values("quantisation", key=lambda name: name.map(ORDER_OF_SCHEMES.index))
    schemes = {}
    for scheme, here in rows.groupby("quantisation", sort=False):
        formats = "/".join(dict.fromkeys(specs.names("precision", here["precision"], text)))
        largest = here[["weight_bytes", "error"]].max()
        schemes[scheme] = text(
            "scheme",
            scheme=scheme,
            precision=formats,
            largest=largest,
        )
    cases = []
    words = []
    for _, row in rows.iterrows():
        cases.append(text("case", **_case(row, text)))
        known = row[["relative", "mbu_percent"]].dropna()
        words.append(", ".join(specs.shares(known, text)))
    return rows.assign(
        case=cases,
        words=words,
        named=rows["quantisation"].map(schemes),
    )


def _behind(rows: DataFrame, text: Texts) -> Legend:
    """Legend entries for the words after bars and for differences within the intervals."""
    return [style.dot("none", text("behind")), *style.within(~rows["apart"], text)]


draw = specs.Bars(
    x="relative",
    y="named",
    told=("relative", "time_s", "mbu_percent"),
    words="words",
    pale="apart",
    x_label="relative",
    facet="case",
    most=4,
    reference=100,
    room=1.9,
    dressed=_dressed,
    entries=_behind,
    shared={"sharey": True, "sharex": True},
    look={"fontsize": 8, "labelsize": 9, "width": 0.6},
)
