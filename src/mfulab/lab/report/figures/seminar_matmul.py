"""The seminar's kernels as written beside the corrected ones: hot, by the seminar's own clock, and by their errors."""

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, quantity, style, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, own, preferred, with_machine

TOPIC, ORDER = "kernels", 5
CORRECTED = {
    "numba_cpu_seminar": "numba_cpu_naive",
    "numba_cuda_seminar": "numba_cuda_naive",
    "numba_cuda_seminar_transposed": "numba_cuda_transposed",
    "numba_cuda_seminar_shared": "numba_cuda_shared",
}
TIMES = ("time_s", "first_calls_mean_s", "first_call_s")
MOST_SIZES = 2
PARTS = ("accumulator", "access", "rest", "compiled", "cold")  # of the first calls' mean
DOMINATES = 50.0  # % of the mean's sum: less, and compilation is not what the mean shows


def rows(tables: Tables) -> DataFrame:
    """Matmuls that were timed from the first call on, and those of them that were wrong; the largest sizes, here."""
    table = tables["matmul"]
    wanted = (table["status"] == "incorrect") | table[list(TIMES)].notna().all(axis=1)
    tried = with_machine(tables, table[wanted & table["first_calls"].notna() & table["m"].notna()])
    if not tried["time_s"].notna().any():
        return tried.head(0)
    here = own(matmuls.square(tried))
    here = here[here["hardware"] == here["hardware"].iloc[-1]]
    sizes = sorted(here["n"].unique())[-MOST_SIZES:]
    return here[here["n"].isin(sizes)].sort_values(["n", "family", "kernel"])


def finding(rows: DataFrame, text: Texts) -> str:
    """The mean of the seminar's kernel that the first call spoils most, its errors, and what is wrong altogether."""
    timed = rows[rows["time_s"].notna()]
    timed = timed.assign(
        factor=timed["first_calls_mean_s"] / timed["time_s"],
        share=100 * timed["first_call_s"] / (timed["first_calls"] * timed["first_calls_mean_s"]),
    )
    among = preferred(timed, timed["kernel"].isin(CORRECTED))  # the largest of the seminar's own kernels, if timed
    worst = among.loc[among.loc[among["n"] == among["n"].max(), "factor"].idxmax()]
    words, calls = [text("finding", worst=worst)], worst["first_calls"]
    if calls > 1 and worst["share"] < DOMINATES:
        without_s = (calls * worst["first_calls_mean_s"] - worst["first_call_s"]) / (calls - 1)
        words.append(text("not_dominated", without=quantity(without_s, "s")))
    words += _parts(timed, worst, text)
    errors = timed.set_index(["n", "kernel"])["max_absolute_error"].dropna()
    pairs = [(n, kernel) for n, kernel in errors.index if (n, CORRECTED.get(kernel)) in errors.index]
    for n, kernel in sorted(pairs)[-1:]:
        values = {"kernel": kernel, "other": CORRECTED[kernel], "size": int(n)}
        words.append(text("errors", own=errors[n, kernel], other_error=errors[n, CORRECTED[kernel]], **values))
    words += [text("wrong_at", row=row) for _, row in rows[rows["status"] == "incorrect"].iterrows()]
    return " ".join(words)


def _parts(timed: DataFrame, worst: Series, text: Texts) -> list[str]:
    """The mean of a kernel's first calls as an exact sum, each suspect by what the kernel without it saves, hot."""
    hot = timed[timed["n"] == worst["n"]].drop_duplicates("kernel").set_index("kernel")["time_s"]
    others = {"accumulator": CORRECTED.get(worst["kernel"]), "access": f"{worst['kernel']}_transposed"}
    if others["accumulator"] not in hot or "torch" not in hot:
        return []
    parts = {key: worst["time_s"] - hot[other] for key, other in others.items() if other in hot}
    parts["rest"] = worst["time_s"] - hot["torch"] - sum(parts.values())
    parts["compiled"] = (worst["first_call_s"] - worst["time_s"]) / worst["first_calls"]
    parts["cold"] = worst["first_calls_mean_s"] - worst["time_s"] - parts["compiled"]
    summands = [(key, parts[key]) for key in PARTS if key in parts]
    terms = [f"{'−' if part < 0 else '+'} {text(key, part=quantity(abs(part), 's'))}" for key, part in summands]
    return [text("parts", mean=worst["first_calls_mean_s"], library=hot["torch"], terms=" ".join(terms))]


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Two panels a size: three times of each kernel, and its greatest error; a wrong result has no time."""
    sizes, kernels = sorted(rows["n"].unique()), list(dict.fromkeys(rows["kernel"]))[::-1]
    rows = rows.assign(as_written=rows["kernel"].str.contains("seminar"))
    grid = style.panels(figure, [""], [title for n in sizes for title in (f"{n:g}³", "")], sharey=True)
    style.resize(figure, 2.4 + 0.36 * max(len(kernels), 4))
    colors, markers = (dict(zip(TIMES, looks, strict=False)) for looks in (style.PALETTE, style.MARKERS))
    authors = {True: style.PALETTE[3], False: style.PALETTE[7]}
    for n, times, errors in zip(sizes, grid[0, ::2], grid[0, 1::2], strict=True):
        here = rows[rows["n"] == n].drop_duplicates("kernel")
        here = here.assign(place=kinds.lanes(times, here, "kernel", kernels))
        times.hlines(here["place"], here["time_s"], here["first_call_s"], color=style.GRID, linewidth=3)
        timings = here.melt([*here.columns.drop([*TIMES])], [*TIMES], "time", "seconds")
        look: style.Look = {"hue": "time", "palette": colors, "style": "time", "markers": markers, "alpha": 0.9}
        kinds.points(times, timings, "seconds", "place", "seconds", **look)
        for height in here.loc[here["status"] == "incorrect", "place"]:
            times.annotate(text("wrong"), (0.02, height), xycoords=("axes fraction", "data"), va="center")
        look = {"hue": "as_written", "palette": authors, "marker": "D"}
        kinds.points(errors, here, "max_absolute_error", "place", "max_absolute_error", **look)
        for axes, label in ((times, "times"), (errors, "errors_axis")):
            axes.margins(x=0.08)
            axes.grid(axis="y", visible=False)
            axes.set_xlabel(text(label), fontsize=10)
            if axes.dataLim.x1 > 0:
                axes.set_xlim(axes.dataLim.x0 / 30, 30 * axes.dataLim.x1)  # so wide that whole decades are enough
                ticks.decades(axes.xaxis, 3)
    written = {"as_written": authors[True], "others": authors[False]}
    return style.dots(colors, text, marker=markers) + style.dots(written, text, marker="D")
