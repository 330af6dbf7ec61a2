"""Speedup of number formats relative to fp32, for each model at the largest batch that has both."""

from functools import partial

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import relative
from mfulab.lab.report.frames import DataFrame, Tables, ok, with_machine

TOPIC = "precision"
ORDER = 0
CLAIM = claims.side_of("speedup", 1.0)
REASONS = selection.FIRST_PANEL


def rows(tables: Tables) -> DataFrame:
    """Selects runs of models in other formats than fp32, paired with the same run in fp32."""
    timed = with_machine(tables, ok(tables["profile"], "samples_per_s"))
    paired = relative.ranked(relative.against(timed, "precision", "fp32"))
    return relative.few(selection.pick(paired, selection.SYNTHETIC))


reading = relative.reading
finding = partial(relative.finding, axis="precision")
draw = partial(relative.draw, axis="precision")
