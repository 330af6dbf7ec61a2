"""Tokens that a joule buys a language model, over batch size."""

from matplotlib.axes import Axes

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, curves, specs, ticks
from mfulab.lab.report.frames import DataFrame, Tables, ok, with_machine

TOPIC = "energy"
REASONS = selection.BESIDE_ONE


def rows(tables: Tables) -> DataFrame:
    """Selects runs of language models whose energy was measured, in series of at least two batch
    sizes. `tokens_per_j` are the tokens of a step ÷ its energy, as FLOPs per joule are."""
    steps = with_machine(tables, ok(tables["profile"], "tokens_per_s", "time_s", "energy_j"))
    steps = steps[(steps["tokens_per_s"] > 0) & (steps["energy_j"] > 0)]
    tokens_per_j = steps["tokens_per_s"] * steps["time_s"] / steps["energy_j"]
    return curves.series(steps.assign(tokens_per_j=tokens_per_j))


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the series in which a larger batch gains most tokens for a joule."""
    first, last = curves.ends(rows)
    factors = last["tokens_per_j"] / first["tokens_per_j"]
    best = factors.idxmax()
    small = first.loc[best]
    large = last.loc[best]
    key = "finding_alike"
    if claims.differs(small, large, "tokens_per_j"):
        key = "finding"
    return text(key, small=small, large=large, factor=factors[best])


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds the names of lines."""
    precisions = specs.names("precision", rows["precision"], text)
    return rows.assign(named=rows["model"] + ", " + precisions)


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    ticks.doublings(axes, rows["batch_size"])
    axes.margins(y=0.1)
    ticks.decades(axes.yaxis)


draw = specs.Lines(
    x="batch_size",
    y="tokens_per_j",
    told=("tokens_per_s", "energy_j", "tokens_per_j"),
    x_label="batch_size",
    y_label="tokens",
    by=curves.KEYS,
    named="named",
    hue="mode",
    kind="mode",
    dressed=_dressed,
    finished=_finished,
    shared={"sharey": True},
    look={"s": 36},
)
