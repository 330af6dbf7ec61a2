"""Gain of execution modes: samples per second relative to eager, and the steps after which compiling has paid."""

from functools import partial

import numpy as np

from mfulab.lab.report.drawing import Texts, relative
from mfulab.lab.report.figures.frameworks import ELSEWHERE
from mfulab.lab.report.frames import DataFrame, Tables, apart, ok, with_machine

TOPIC, ORDER = "execution", 0


def rows(tables: Tables) -> DataFrame:
    """torch's runs in another mode than eager beside the same run in eager; `recompilations` has changing shapes,
    `frameworks` and `quantised` have theirs."""
    timed = with_machine(tables, ok(tables["profile"], "samples_per_s"))
    elsewhere = timed["execution"].isin(ELSEWHERE) | ~timed["quantisation"].isin(["", "none"])
    return relative.against(timed[timed["varied_calls"].isna() & ~elsewhere], "execution", "eager")


def finding(rows: DataFrame, text: Texts) -> str:
    """The largest gain and loss; the longest compilation, after how many steps it has paid, and how many never do."""
    words, made = [relative.finding(rows, text, "execution")], rows[rows["compile_s"].notna()]
    if made.empty:
        return words[0]
    words.append(text("compiled", row=made.loc[made["compile_s"].idxmax()]))
    saved = (made["time_s_base"] - made["time_s"]).where(apart(made, suffix="_base"))
    steps = np.ceil(made["compile_s"] / saved[saved > 0] - 1e-9).clip(lower=1).dropna()
    for slowest, most in steps.nlargest(1).items():
        words.append(text("pays", row=made.loc[slowest], steps=most, saved=saved[slowest]))
    never = len(made) - len(steps)
    return " ".join([*words, *([text("never", count=never, total=len(made))] if never else [])])


draw = partial(relative.draw, axis="execution")
