"""Gain of number formats: samples per second relative to fp32, each model at its largest batch that has both."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.report.drawing import relative
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("profile", "environment")
TOPIC, ORDER = "precision", 0


def rows(tables: Tables) -> pd.DataFrame:
    """Runs in another format than fp32 beside the same run in fp32."""
    return relative.against(with_machine(tables, ok(tables["profile"], "samples_per_s")), "precision", "fp32")


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The largest gain and the largest loss."""
    return relative.finding(rows, text, "precision")


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Dots to the right of the line are faster than fp32; bars are the 95 % confidence interval."""
    relative.draw(rows, figure, text, "precision")
