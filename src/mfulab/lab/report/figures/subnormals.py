"""Cost of subnormal numbers: operations on them beside those on normal ones, and with subnormal taken for zero."""

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, significant, style
from mfulab.lab.report.frames import DataFrame, Tables, against, one_each, steps

TOPIC, ORDER = "precision", 7
KINDS = {"normal": 0, "subnormal": 3, "flushed": 2}  # with places in the palette
OPERATIONS = ("products", "quotients", "roots")
CASE = ["operation", "precision"]


def rows(tables: Tables) -> DataFrame:
    """One row an operation, precision and kind of numbers of one machine, with the factor over normal numbers."""
    timed = steps(tables, "time_s", model=[f"{numbers}_{name}" for numbers in KINDS for name in OPERATIONS])
    parts = timed["model"].str.split("_", n=1).str
    timed = one_each(style.one_machine(timed.assign(numbers=parts[0], operation=parts[1])), [*CASE, "numbers"])
    both = against(timed, timed[timed["numbers"] == "normal"], CASE, "_normal")
    both = both.merge(both.loc[both["numbers"] == "subnormal", CASE], on=CASE)
    return both.sort_values([*CASE, "numbers"])


def finding(rows: DataFrame, text: Texts) -> str:
    """The operation and precision that subnormal numbers slow down most, what zero makes of it, and the least."""
    slow = rows[rows["numbers"] == "subnormal"].sort_values("factor")
    row, least = slow.iloc[-1], slow.iloc[0]
    words = [text("finding", row=row, operation=text(row.operation))]
    same = rows[(rows[CASE] == row[CASE]).all(axis=1)]
    words += [text("zero", row=flushed) for _, flushed in same[same["numbers"] == "flushed"].iterrows()]
    other = least["operation"] != row["operation"]
    return " ".join([*words, *([text("least", row=least, operation=text(least.operation))] if other else [])])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A panel an operation, a bar a precision and kind of numbers: the step's time, with its factor behind it."""
    operations = {name: text(name) for name in OPERATIONS if (rows["operation"] == name).any()}
    colors = {name: style.PALETTE[place] for name, place in KINDS.items() if (rows["numbers"] == name).any()}
    rows = rows.assign(
        named=[text.name("precision", name) for name in rows["precision"]],
        time_us=1e6 * rows["time_s"],
        words=[f"{significant(factor, 2)}×" for factor in rows["factor"]],
    )
    order = list(dict.fromkeys(rows["named"]))
    look: style.Look = {"hue": "numbers", "palette": colors, "order": order, "words": "words", "fontsize": 11}
    for axes, here in style.facets(figure, rows, text, "operation", operations, x=text("time"), lines=2 * len(order)):
        kinds.bars(axes, here, "time_us", "named", "time_s", "factor", **look)
        axes.set_xlim(0, 1.3 * here["time_us"].max())
        axes.locator_params(axis="x", nbins=4)
    return style.dots(colors, text, marker="s")
