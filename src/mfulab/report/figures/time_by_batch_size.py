"""Time of one step against batch size, one line a model and precision."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.language import Texts
from mfulab.language.quantities import significant
from mfulab.report.drawing import curves
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "batch_size"
ORDER = 0


def rows(tables: Tables) -> pd.DataFrame:
    """Runs of series with at least two batch sizes."""
    return curves.series(with_machine(tables, ok(tables["profile"], "time_s", "samples_per_s")))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The series whose samples per second gain most from a larger batch."""
    first, last = curves.ends(rows)
    gain = last["samples_per_s"] / first["samples_per_s"]
    best, least = gain.idxmax(), gain.idxmin()
    key = "finding" if gain.max() > 1 else "finding_none"
    return text(
        key,
        model=last.loc[best, "model"],
        mode=text.name("mode", last.loc[best, "mode"]),
        precision=text.name("precision", last.loc[best, "precision"]),
        small=int(first.loc[best, "batch_size"]),
        large=int(last.loc[best, "batch_size"]),
        gain=significant(gain[best]),
        least=significant(gain[least]),
        least_model=last.loc[least, "model"],
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine and mode, both axes logarithmic; bars are the 95 % confidence interval."""
    curves.draw(rows, figure, text, "time_s", ("time_ci_low_s", "time_ci_high_s"), ylabel=text("time"), log=True)
