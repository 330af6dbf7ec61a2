"""Speedup of execution modes relative to eager, and the number of steps after which compiling pays
off."""

from functools import partial

import numpy as np

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, relative
from mfulab.lab.report.figures.frameworks import ELSEWHERE
from mfulab.lab.report.frames import DataFrame, Tables, highest, ok, with_machine

TOPIC = "execution"
ORDER = 0
CLAIM = claims.side_of("speedup", 1.0)
REASONS = selection.FIRST_PANEL
COMPILE = "torch.compile"  # in all of its modes
ROUNDING = 1e-9  # rounding error of a number of steps


def rows(tables: Tables) -> DataFrame:
    """Selects runs of models in other execution modes of torch, paired with the same run in eager.
    Changing shapes, other frameworks and quantised models have figures of their own."""
    timed = with_machine(tables, ok(tables["profile"], "samples_per_s"))
    is_quantised = ~timed["quantisation"].isin(["", "none"])
    is_elsewhere = timed["execution"].isin(ELSEWHERE)
    is_varied = timed["varied_calls"].notna()
    alike = timed[~is_quantised & ~is_elsewhere & ~is_varied]
    paired = relative.ranked(relative.against(alike, "execution", "eager"))
    return relative.few(selection.pick(paired, selection.SYNTHETIC))


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the largest gain and loss, the longest compilation, and for how many models each
    way to compile pays off."""
    sentences = [relative.finding(rows, text, "execution")]
    made = rows[rows["compile_s"].notna()]
    if made.empty:
        return sentences[0]
    sentences.append(text("compiled", row=highest(made, "compile_s")))
    is_compile = made["execution"].str.startswith("compile")
    if is_compile.any():
        sentences.append(_pays(made[is_compile], COMPILE, text))
    others = made[~is_compile]
    for way in sorted(others["execution"].unique()):
        of_way = others[others["execution"] == way]
        sentences.append(_pays(of_way, text.name("execution", way), text))
    return " ".join(sentences)


def _pays(made: DataFrame, name: str, text: Texts) -> str:
    """Sentence on for how many models a way to compile pays off, and for which last."""
    total = made["model"].nunique()
    saved = made["time_s_base"] - made["time_s"]
    saved = saved.where(made["speedup_low"] > 1)
    steps = made["compile_s"] / saved[saved > 0]
    steps = np.ceil(steps - ROUNDING).clip(lower=1).dropna()
    if steps.empty:
        return text("never", way=name, total=total)
    last = steps.idxmax()
    return text(
        "pays",
        way=name,
        count=made.loc[steps.index, "model"].nunique(),
        total=total,
        row=made.loc[last],
        steps=steps[last],
        saved=saved[last],
    )


reading = relative.reading
draw = partial(relative.draw, axis="execution")
