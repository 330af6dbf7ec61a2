"""The mean of ten calls that the seminar prints, taken apart: compiling, the kernel, and the rest."""

from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, quantity, style
from mfulab.lab.report.frames import DataFrame, Series, Tables, preferred, with_machine

TOPIC = "kernels"
ORDER = 5
REASONS = selection.TOGETHER
PRINTED_S = 0.540  # of the text's naive Numba kernel
CORRECTED = {
    "numba_cpu_seminar": "numba_cpu_naive",
    "numba_cuda_seminar": "numba_cuda_naive",
    "numba_cuda_seminar_transposed": "numba_cuda_transposed",
    "numba_cuda_seminar_shared": "numba_cuda_shared",
    "numba_cuda_seminar_guarded": "numba_cuda_shared",
}
ROOM = 1.9  # of the longest bar: the words behind it need the rest
TOLD = 0.02  # of a mean: a smaller part is not told
CALLS = ["time_s", "first_calls_mean_s", "first_call_s"]
PARTS = dict(zip(("time_s", "compiled_s", "cold_s"), style.PALETTE, strict=False))


def rows(tables: Tables) -> DataFrame:
    """Matmuls of one machine at its largest size that were timed from the first call on, those with
    a wrong result too; `compiled_s` and `cold_s` are the mean's parts beside `time_s`."""
    table = tables["matmul"]
    timed = table[CALLS].notna().all(axis=1)
    tried = table[(timed | (table["status"] == "incorrect")) & table["first_calls"].notna()]
    tried = with_machine(tables, tried)
    tried = tried[matmuls.cube(tried)]
    of_text = tried["kernel"].isin(CORRECTED) & tried["time_s"].notna()
    tried = tried[tried["machine"].isin(tried.loc[of_text, "machine"])]
    here = matmuls.fastest(selection.one_machine(tried))
    here = here[here["n"] == here.loc[here["time_s"].notna(), "n"].max()]
    compiled_s = (here["first_call_s"] - here["time_s"]) / here["first_calls"]
    cold_s = here["first_calls_mean_s"] - here["time_s"] - compiled_s
    return here.assign(compiled_s=compiled_s.clip(lower=0), cold_s=cold_s.clip(lower=0))


def naive(rows: DataFrame) -> Series:
    """The text's kernel whose mean is told: the naive one, else the slowest of its own."""
    timed = rows[rows["time_s"].notna()]
    own = preferred(timed, timed["kernel"].isin(CORRECTED))
    plain = preferred(own, own["kernel"].isin(["numba_cuda_seminar", "numba_cpu_seminar"]))
    return plain.loc[plain["first_calls_mean_s"].idxmax()]


def finding(rows: DataFrame, text: Texts) -> str:
    """The mean of the text's kernel as its parts, beside what the text printed; its error, and what
    is wrong altogether."""
    told = naive(rows)
    sentences = [text("finding", row=told, printed=quantity(PRINTED_S, "s"))]
    errors = rows.set_index("kernel")["max_absolute_error"].dropna()
    other = CORRECTED.get(told["kernel"])
    if told["kernel"] in errors and other in errors:
        values = {"own": errors[told["kernel"]], "other_error": errors[other]}
        sentences.append(text("errors", kernel=told["kernel"], other=other, **values))
    for _, row in rows[rows["status"] == "incorrect"].iterrows():
        sentences.append(text("wrong_at", row=row))
    return " ".join(sentences)


def _said(row: Series, text: Texts) -> str:
    """A mean and its parts in words, those that would be read as none left out."""
    said = quantity(row["first_calls_mean_s"], "s")
    large = []
    for part in PARTS:
        if row[part] >= TOLD * row["first_calls_mean_s"]:
            large.append(part)
    parts = [f"{quantity(row[part], 's')} {text(part)}" for part in large]
    if len(parts) > 1:
        return f"{said}: {', '.join(parts)}"
    return said


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A bar a kernel: the mean of its first calls in its parts, the longest above, and the same in
    words."""
    shown = rows[rows["time_s"].notna()].sort_values("first_calls_mean_s", ascending=False)
    milliseconds = (1e3 * shown[[*PARTS]]).add_suffix(" ms")
    shown = shown.join(milliseconds).reset_index(drop=True)
    style.fit(figure, len(shown))
    axes = figure.subplots()
    parts = {f"{part} ms": color for part, color in PARTS.items()}
    kinds.stacks(axes, shown, parts, "kernel", *CALLS)
    ends = shown[[*parts]].sum(axis=1)
    where: style.Look = {"textcoords": "offset points", "va": "center", "fontsize": 9}
    for index, row in shown.iterrows():
        axes.annotate(_said(row, text), (ends[index], index), (5, 0), **where)
    axes.set_xlim(0, ROOM * ends.max())
    axes.set_xlabel(text("mean", calls=f"{shown['first_calls'].max():.0f}"))
    first = shown.iloc[0]
    form = text.name("precision", first["precision"])
    axes.set_title(f"{first['machine']} · {first['n']:.0f}³ · {form}")
    return style.dots(PARTS, text, marker="s")
