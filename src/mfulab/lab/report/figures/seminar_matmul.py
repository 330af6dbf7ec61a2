"""The mean of ten calls that the seminar prints, divided into compiling, the kernel, and the
rest."""

from collections.abc import Iterable

from matplotlib.axes import Axes

from mfulab.core.language.quantities import significant
from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, quantity, style
from mfulab.lab.report.frames import DataFrame, Series, Tables, highest, preferred, with_machine

TOPIC = "kernels"
ORDER = 5
REASONS = selection.TOGETHER
PRINTED_S = 0.540  # time that the text prints for its naive Numba kernel
# The text's kernels, each with its corrected version.
CORRECTED = {
    "numba_cpu_seminar": "numba_cpu_naive",
    "numba_cuda_seminar": "numba_cuda_naive",
    "numba_cuda_seminar_transposed": "numba_cuda_transposed",
    "numba_cuda_seminar_shared": "numba_cuda_shared",
    "numba_cuda_seminar_guarded": "numba_cuda_shared",
}
ROOM = 1.25  # length of the x axis ÷ longest bar; the numbers need the rest
TOLD = 0.06  # share of the longest bar from which a part has room for its number
CALLS = ["time_s", "first_calls_mean_s", "first_call_s"]
PARTS_OF_MEAN = style.colors(("time_s", "compiled_s", "cold_s"))  # with their colours


def rows(tables: Tables) -> DataFrame:
    """Selects matmuls of one machine, at its largest size, that were timed from the first call on,
    including wrong results. `compiled_s` and `cold_s` are the other parts of the mean besides
    `time_s`."""
    table = tables["matmul"]
    is_timed = table[CALLS].notna().all(axis=1)
    is_wrong = table["status"] == "incorrect"
    tried = table[(is_timed | is_wrong) & table["first_calls"].notna()]
    tried = with_machine(tables, tried)
    tried = tried[matmuls.cube(tried)]
    of_text = tried[tried["kernel"].isin(CORRECTED) & tried["time_s"].notna()]
    tried = tried[tried["machine"].isin(of_text["machine"])]
    here = matmuls.fastest(selection.one_machine(tried))
    largest = here.loc[here["time_s"].notna(), "n"].max()
    here = here[here["n"] == largest]
    compiled_s = (here["first_call_s"] - here["time_s"]) / here["first_calls"]
    cold_s = here["first_calls_mean_s"] - here["time_s"] - compiled_s
    return here.assign(compiled_s=compiled_s.clip(lower=0), cold_s=cold_s.clip(lower=0))


def naive(rows: DataFrame) -> Series:
    """Returns the text's kernel that the sentence is about: the naive one, or the slowest of the
    text's."""
    timed = rows[rows["time_s"].notna()]
    own = preferred(timed, timed["kernel"].isin(CORRECTED))
    plain = preferred(own, own["kernel"].isin(["numba_cuda_seminar", "numba_cpu_seminar"]))
    return highest(plain, "first_calls_mean_s")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the parts of the mean of the text's kernel and the printed value, on its error,
    and on wrong results."""
    row = naive(rows)
    kernel = row["kernel"]
    sentences = [
        text(
            "finding",
            row=row,
            printed=quantity(PRINTED_S, "s"),
        )
    ]
    errors = rows.set_index("kernel")["max_absolute_error"].dropna()
    other = CORRECTED.get(kernel)
    if kernel in errors and other in errors:
        values = {"own": errors[kernel], "other_error": errors[other]}
        sentences.append(text("errors", kernel=kernel, other=other, **values))
    for _, row in rows[rows["status"] == "incorrect"].iterrows():
        sentences.append(text("wrong_at", row=row))
    return " ".join(sentences)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a bar for each kernel, the longest at the top: the mean of its first calls in parts,
    with numbers."""
    shown = rows[rows["time_s"].notna()].sort_values("first_calls_mean_s", ascending=False)
    milliseconds = (1e3 * shown[[*PARTS_OF_MEAN]]).add_suffix(" ms")
    shown = shown.join(milliseconds).reset_index(drop=True)
    style.fit(figure, len(shown))
    axes = figure.subplots()
    parts = {f"{part} ms": color for part, color in PARTS_OF_MEAN.items()}
    kinds.stacks(axes, shown, parts, "kernel", *CALLS)
    ends = shown[[*parts]].sum(axis=1)
    for index, mean_s in enumerate(shown["first_calls_mean_s"]):
        style.beside(axes, quantity(mean_s, "s"), (ends[index], index), 5)
    _number_parts(axes, shown, parts, ends)
    axes.set_xlim(0, ROOM * ends.max())
    axes.set_xlabel(text("mean", calls=f"{shown['first_calls'].max():.0f}"))
    first = shown.iloc[0]
    precision = text.name("precision", first["precision"])
    axes.set_title(f"{first['machine']} · {first['n']:.0f}³ · {precision}")
    return style.dots(PARTS_OF_MEAN, text, marker="s")


def _number_parts(axes: Axes, shown: DataFrame, parts: Iterable[str], ends: Series) -> None:
    """Writes the milliseconds of each part into it if there is room."""
    look: style.Look = {
        "ha": "center",
        "va": "center",
        "fontsize": 9,
        "color": style.ON_DEEP,
    }
    least = TOLD * ends.max()
    start = Series(0.0, shown.index)
    for part in parts:
        lengths = shown[part]
        for index in shown.index[lengths >= least]:
            center = start[index] + lengths[index] / 2
            axes.text(center, index, significant(lengths[index]), **look)
        start = start + lengths
