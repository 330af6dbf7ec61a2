"""Cost of subnormal numbers: time of operations on them relative to normal numbers, also with
flushing to zero; and cost of zeros among normal numbers."""

from itertools import product

from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, significant, specs, style
from mfulab.lab.report.frames import DataFrame, Tables, against, one_each, steps

TOPIC = "precision"
ORDER = 7
CLAIM = claims.side_of("factor", 1.0)
REASONS = selection.BESIDE_ONE
KINDS = {
    "normal": style.PALETTE[0],
    "subnormal": style.PALETTE[3],
    "flushed": style.PALETTE[2],
    "zeros": style.PALETTE[1],
}
OPERATIONS = ("products", "quotients", "roots")
CASE = ["operation", "precision"]


def rows(tables: Tables) -> DataFrame:
    """Selects a row for each operation, precision and kind of numbers on one machine, with the
    factor relative to normal numbers."""
    models = [f"{numbers}_{name}" for numbers, name in product(KINDS, OPERATIONS)]
    timed = steps(tables, "time_s", model=models)
    parts = timed["model"].str.split("_", n=1).str
    timed = selection.one_machine(timed.assign(numbers=parts[0], operation=parts[1]))
    timed = one_each(timed, [*CASE, "numbers"])
    both = against(timed, timed[timed["numbers"] == "normal"], CASE, "_normal")
    both = both.merge(both.loc[both["numbers"] == "subnormal", CASE], on=CASE)
    return both.sort_values([*CASE, "numbers"])


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the operation and precision that subnormal numbers slow down most, and on the
    least slowdown. Others are on flushing to zero and on zeros among normal numbers."""
    slow = rows[rows["numbers"] == "subnormal"].sort_values("factor")
    if slow.empty:
        return ""
    least = slow.iloc[0]
    row = slow.iloc[-1]
    if not row["apart"]:
        return text("finding_alike", row=row)
    sentences = [
        text(
            "finding",
            row=row,
            operation=text(row.operation),
        )
    ]
    same = rows[(rows[CASE] == row[CASE]).all(axis=1)]
    for _, flushed in same[same["numbers"] == "flushed"].iterrows():
        key = "zero_alike"
        if flushed["apart"]:
            key = "zero"
        sentences.append(text(key, row=flushed))
    for _, zeros in same[same["numbers"] == "zeros"].iterrows():
        key = "half_zeros_alike"
        if zeros["apart"]:
            key = "half_zeros"
        sentences.append(text(key, row=zeros, operation=text(zeros.operation)))
    if least["operation"] != row["operation"]:
        key = "least_alike"
        if least["apart"]:
            key = "least"
        sentences.append(
            text(
                key,
                row=least,
                operation=text(least.operation),
            )
        )
    return " ".join(sentences)


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds labels of panels, lines and bars."""
    return rows.assign(
        named=specs.names("precision", rows["precision"], text),
        panel=rows["operation"].map(text),
        time_ms=1e3 * rows["time_s"],
        words=[f"{significant(factor, 2)}×" for factor in rows["factor"]],
    )


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Leaves room between ticks."""
    axes.locator_params(axis="x", nbins=4)


draw = specs.Bars(
    x="time_ms",
    y="named",
    told=("time_s", "factor"),
    words="words",
    x_label="time",
    facet="panel",
    hue="numbers",
    colors=specs.present(KINDS),
    height=2,
    dressed=_dressed,
    finished=_finished,
    look={"fontsize": 11},
)
