"""MFU against batch size, one line a model and precision."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import curves
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "batch_size"
ORDER = 1


def rows(tables: Tables) -> pd.DataFrame:
    """Runs of series with at least two batch sizes."""
    return curves.series(with_machine(tables, ok(tables["profile"], "mfu_percent")))


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The series whose MFU rises most from its smallest to its largest batch."""
    first, last = curves.ends(rows)
    best = (last["mfu_percent"] - first["mfu_percent"]).abs().idxmax()
    small, large = first.loc[best], last.loc[best]
    key = "finding_same" if small["mfu_percent"] == large["mfu_percent"] else "finding"
    return text(key, run=curves.named(large, text), small=small, large=large, count=len(last))


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine and mode; bars are the 95 % confidence interval of the time."""
    curves.draw(rows, figure, text, "mfu_percent", ("mfu_ci_low_percent", "mfu_ci_high_percent"), ylabel=text("mfu"))
