"""Layer norm and GELU in several ways, whose result is the same: the time of each relative to
operators written by hand, run one after the other."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, specs
from mfulab.lab.report.frames import DataFrame, Tables, against, one_each, steps

TOPIC = "execution"
ORDER = 2
CLAIM = claims.side_of("factor", 1.0)
REASONS = selection.BESIDE_ONE
WAYS = (
    *("norm_gelu_by_hand", "norm_gelu_in_place", "norm_gelu_library"),
    *("norm_gelu_one_stream", "norm_gelu_two_streams"),
)
BY_HAND = WAYS[0]
CASE = ["mode", "batch_size", "precision"]


def rows(tables: Tables) -> DataFrame:
    """Selects the steps of all ways on one machine at the largest batch, each with the step by hand
    in eager. `relative` is the time in percent of that step's."""
    timed = selection.one_machine(steps(tables, "time_s", model=WAYS))
    timed = one_each(timed, [*CASE, "model", "execution"])
    timed = timed[timed["batch_size"] == timed["batch_size"].max()]
    by_hand = timed[(timed["model"] == BY_HAND) & (timed["execution"] == "eager")]
    beside = against(timed, by_hand, CASE, "_by_hand")
    return beside.assign(relative=100 * beside["factor"]).sort_values("factor")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the fastest way, in eager if nothing is measurably faster, and on what
    torch.compile makes of the operators by hand."""
    fastest = rows.iloc[0]
    is_eager = rows["execution"] == "eager"
    for _, row in rows[is_eager & (rows["model"] == fastest["model"])].iterrows():
        if not claims.differs(fastest, row, "time_s"):
            fastest = row
    key = "finding_alike"
    if fastest["apart"]:
        key = "finding"
    name = text(fastest.model)
    sentences = [
        text(
            key,
            row=fastest,
            name=name,
            factor=1 / fastest["factor"],
        )
    ]
    is_compiled = (rows["model"] == BY_HAND) & (rows["execution"] == "compile")
    faster = rows[is_compiled & rows["apart"] & (rows["factor"] < 1)]
    for _, row in faster.head(1).iterrows():
        sentences.append(
            text(
                "compiled",
                row=row,
                factor=1 / row["factor"],
            )
        )
    return " ".join(sentences)


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds the names of ways, and the shares after their bars."""
    named = [text(model) for model in rows["model"]]
    return rows.assign(named=named, words=specs.shares(rows["relative"], text))


def _titled(here: DataFrame, text: Texts) -> str:
    """The batch of a panel's rows."""
    return text("batch", row=here.iloc[0])


draw = specs.Bars(
    x="relative",
    y="named",
    told=("time_s", "relative"),
    words="words",
    x_label="relative",
    hue="execution",
    kind="execution",
    height=2,
    dressed=_dressed,
    titled=_titled,
)
