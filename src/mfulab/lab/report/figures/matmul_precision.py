"""Speed against error of each number format in a matmul, by its fastest implementation."""

from mfulab.lab.report.drawing import Figure, Texts, kinds, labels, matmuls, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, ok, with_machine

TOPIC, ORDER = "precision", 2
INTEGERS = "int8"  # whose products and sums are exact


def rows(tables: Tables) -> DataFrame:
    """On each machine with two formats or more: the fastest matmul of each, at the largest size that all have."""
    square = matmuls.square(with_machine(tables, ok(tables["matmul"], "tflop_s", "relative_error")))
    formats = square.groupby(["machine", "n"])["precision"].transform("nunique")
    most = formats.groupby(square["machine"]).transform("max")
    shared = square[(formats == most) & (most > 1)]
    same = shared[shared["n"] == shared.groupby("machine")["n"].transform("max")]
    return same.loc[same.groupby(["machine", "precision"])["tflop_s"].idxmax()]


def finding(rows: DataFrame, text: Texts) -> str:
    """The fastest format against the most exact one; where integers are fastest, against that of those that round."""
    fast = rows.loc[rows["tflop_s"].idxmax()]
    here = rows[rows["machine"] == fast["machine"]]
    rounds = here[here["precision"] != INTEGERS] if fast["precision"] == INTEGERS else here
    exact = here.loc[rounds["relative_error"].idxmin()]
    off = {"fast_error": fast["relative_error"], "exact_error": exact["relative_error"]}
    errors = {name: f"{error:.1e}" if error else "0" for name, error in off.items()}
    key = "finding_integers" if len(rounds) < len(here) else "finding"
    return text("finding_same" if fast.name == exact.name else key, fast=fast, exact=exact, **errors)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """A point a format; left is exact, up is fast; an exact zero is drawn at the left edge."""
    for axes, here in style.by_machine(figure, rows, sharex=True):
        edge = ticks.zero_at_left(axes, rows["relative_error"])
        here = here.assign(error=here["relative_error"].clip(lower=edge))
        kinds.points(axes, here, "error", "tflop_s", "relative_error", "tflop_s", s=90, clip_on=False)
        axes.set(xlabel=text("error"), ylim=(here["tflop_s"].min() / 3, here["tflop_s"].max() * 3))
        ticks.speeds(axes)
        names = [f"{text.name('precision', row.precision)}  {row.kernel}" for row in here.itertuples()]
        labels.later(labels.beside_points, axes, list(zip(here["error"], here["tflop_s"], names, strict=True)))
