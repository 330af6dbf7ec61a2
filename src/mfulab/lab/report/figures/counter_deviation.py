"""Deviation of other tools' FLOPs from ours: one line for each model, one mark for each tool."""

from mfulab.core.language import verdicts
from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, specs, style
from mfulab.lab.report.drawing.specs import Colors
from mfulab.lab.report.frames import DataFrame, Series, Tables, ok

TOPIC = "flops"
ORDER = 2
CLAIM = claims.COUNTED
MOST_MODELS = 8
AGREES_WITHIN = 1.0  # percent


def rows(tables: Tables) -> DataFrame:
    """Selects the MOST_MODELS models on which tools disagree most, the largest deviation last. `run` names
    tool and model, as one run has all tools. Synthetic loads are drawn only if there is nothing
    else. `synthetic` and `undrawn` are the numbers of their counts and of other models', of which
    `agreeing` agree."""
    counted = ok(tables["counters"], "deviation_percent").drop_duplicates(["model", "counter"])
    every = len(counted)
    counted = selection.pick(counted, "synthetic")
    synthetic = every - len(counted)
    off = counted["deviation_percent"].abs().groupby(counted["model"])
    counted = counted.assign(off=off.transform("max"))
    counted = counted.sort_values(["off", "model", "counter"], kind="stable")
    shown = counted["model"].drop_duplicates()[-MOST_MODELS:]
    drawn = counted[counted["model"].isin(shown)]
    others = counted[~counted["model"].isin(shown)]
    agreeing = int((others["deviation_percent"].abs() <= AGREES_WITHIN).sum())
    names = drawn["counter"] + ", " + drawn["model"]
    return drawn.assign(run=names, synthetic=synthetic, undrawn=len(others), agreeing=agreeing)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the largest deviation and its explanation, on how many counts agree, and on those
    left out."""
    off = rows["deviation_percent"].abs()
    worst = rows.loc[off.idxmax()]
    counts = {
        "agreeing": int((off <= AGREES_WITHIN).sum()) + int(worst["agreeing"]),
        "count": len(rows) + int(worst["undrawn"]),
        "within": AGREES_WITHIN,
    }
    explanation = verdicts.message(worst["explanation"], text.language)
    sentences = [text("finding", **counts, worst=worst, explanation=explanation)]
    for key, column in {"synthetic": "synthetic", "others": "undrawn"}.items():
        if worst[column]:
            sentences.append(text(key, count=int(worst[column])))
    return " ".join(sentences)


def _order(rows: DataFrame) -> list[str]:
    return list(dict.fromkeys(rows["model"]))


def _colors(counters: Series) -> dict[str, str]:
    return style.colors(sorted(set(counters)))


def _markers(colors: Colors) -> dict[str, str]:
    return dict(zip(colors, style.MARKERS, strict=False))


draw = specs.Dots(
    x="deviation_percent",
    y="model",
    told=("deviation_percent",),
    x_label="deviation",
    hue="counter",
    kind="counter",
    colors=_colors,
    markers=_markers,
    reference=0,
    order=_order,
    apart=0.15,  # so that tools that agree do not overlap
    small=10,
)
