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

    def say(key: str, series: int) -> str:
        large = last.loc[series]
        run = curves.named(large, text)
        return text(key, run=run, small=first.loc[series], large=large, gain=gain[series], count=len(gain))

    best, least = gain.idxmax(), gain.idxmin()
    said = [say("finding" if gain[best] > 1 else "finding_none", best)]
    if gain[best] > gain[least]:
        key = "least_gains" if gain[least] > 1 else "least_same" if gain[least] == 1 else "least_loses"
        said.append(say(key, least))
    if falling := int(trust.falling(rows).sum()):
        said.append(text("falling", count=falling))
    return " ".join(said)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine and mode, both axes logarithmic; bars are the 95 % confidence interval."""
    curves.draw(rows, figure, text, "time_s", ("time_ci_low_s", "time_ci_high_s"), ylabel=text("time"), log=True)
