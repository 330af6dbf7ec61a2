"""One convolution in three ways: by the library, as a matmul of unfolded images, and by direct
loops."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, significant, specs, style
from mfulab.lab.report.frames import DataFrame, Series, Tables, against, highest, one_each, steps

TOPIC = "flops"
ORDER = 6
CLAIM = claims.side_of("factor", 1.0)
REASONS = selection.BESIDE_ONE
THREE_WAYS = ("convolution_library", "convolution_im2col", "convolution_direct")
COLORS = style.colors(THREE_WAYS)
LIBRARY = THREE_WAYS[0]
CASE = ["mode", "batch_size", "precision"]


def rows(tables: Tables) -> DataFrame:
    """Selects eager steps of the three ways on one machine, each with the library's step of the
    same case."""
    timed = steps(tables, "time_s", "flops", model=THREE_WAYS, execution="eager")
    timed = one_each(selection.one_machine(timed), [*CASE, "model"])
    beside = against(timed, timed[timed["model"] == LIBRARY], CASE, "_library")
    ways = beside.groupby(CASE)["model"].transform("nunique")
    return beside[ways > 1].sort_values(CASE)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the largest case: equal FLOPs, and time of each way relative to the library; and
    on the largest error."""
    others = rows[rows["model"] != LIBRARY]
    if others.empty:
        return ""
    most = highest(others, "flops")
    here = others[(others[CASE] == most[CASE]).all(axis=1)].sort_values("factor")
    ways = ", ".join(_way(row, text) for _, row in here.iterrows())
    sentences = [text("finding", most=most, ways=ways)]
    error = rows["relative_error"].max()
    if error == error:
        sentences.append(text("error", error=significant(error, 2)))
    return " ".join(sentences)


def _way(row: Series, text: Texts) -> str:
    """Text on a way's time relative to the library's, without a number if their intervals
    overlap."""
    key = "way_alike"
    if row["apart"]:
        key = "way"
    return text(
        key,
        name=text(row.model),
        factor=significant(row["factor"], 2),
    )


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Sorts rows by batch, largest first, and adds its label and the factor and MFU after each
    bar."""
    rows = rows.sort_values("batch_size", ascending=False, kind="stable")
    cases = []
    words = []
    for row in rows.itertuples():
        cases.append(text("batch", count=int(row.batch_size)))
        word = f"{significant(row.factor, 2)}×"
        if row.mfu_percent == row.mfu_percent:
            word += f" · {text('of_mfu', share=row.mfu_percent)}"
        words.append(word)
    return rows.assign(case=cases, words=words)


draw = specs.Bars(
    x="factor",
    y="case",
    told=("factor", "time_s", "mfu_percent"),
    words="words",
    x_label="relative",
    facet="mode",
    hue="model",
    colors=specs.present(COLORS),
    height=2,
    dressed=_dressed,
    reference=1.0,
    room=1.6,
    look={"fontsize": 10},
)
