"""Time of one step against batch size, one line a model and precision."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report import trust
from mfulab.report.drawing import curves
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "batch_size"
ORDER = 0


def rows(tables: Tables) -> pd.DataFrame:
    """Runs of series with at least two batch sizes."""
    return curves.series(with_machine(tables, ok(tables["profile"], "time_s", "samples_per_s")))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The series whose samples per second gain most from a larger batch, and the one that gains least or loses."""
    first, last = curves.ends(rows)
    gain = last["samples_per_s"] / first["samples_per_s"]
    best, least = (
        {"run": curves.named(last.loc[at], text), "small": first.loc[at], "large": last.loc[at], "gain": gain[at]}
        for at in (gain.idxmax(), gain.idxmin())
    )
    said = [text("finding" if gain.max() > 1 else "finding_none", **best, count=len(gain))]
    if gain.max() > gain.min():
        key = "least_gains" if gain.min() > 1 else "least_same" if gain.min() == 1 else "least_loses"
        said.append(text(key, **least))
    if falling := int(trust.falling(rows).sum()):
        said.append(text("falling", count=falling))
    return " ".join(said)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine and mode, both axes logarithmic; bars are the 95 % confidence interval."""
    curves.draw(rows, figure, text, "time_s", ("time_ci_low_s", "time_ci_high_s"), ylabel=text("time"))
