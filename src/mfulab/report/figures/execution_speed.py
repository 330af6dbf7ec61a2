"""Gain of execution modes: samples per second relative to eager, each model at its largest batch that has both."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import relative
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC = "execution"
ORDER = 0
BASELINE = "eager"


def rows(tables: Tables) -> pd.DataFrame:
    """Runs in another mode than eager beside the same run in eager."""
    return relative.against(with_machine(tables, ok(tables["profile"], "samples_per_s")), "execution", BASELINE)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The largest gain and the largest loss."""
    return relative.finding(rows, text, "execution")


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Dots to the right of the line are faster than eager; bars are the 95 % confidence interval."""
    relative.draw(rows, figure, text, "execution")
