"""Time of a step over batch size, with a line for each model and precision."""

import numpy as np
from matplotlib.axes import Axes

from mfulab.lab.report import claims, frames, selection, trust
from mfulab.lab.report.drawing import Texts, curves, specs, style, ticks
from mfulab.lab.report.frames import INTERVAL, DataFrame, Series, Tables, ok, those, with_machine

TOPIC = "batch_size"
ORDER = 0
CLAIM = claims.rising("samples_per_s", curves.KEYS, "batch_size")
MODES = ("training", "inference")  # other modes are in the figure `decoding`
ENDS_MS = ("time_ci_low_ms", "time_ci_high_ms")
MOST_NAMED = 8  # labelled lines of a panel


def rows(tables: Tables) -> DataFrame:
    """Selects runs of series with at least two batch sizes. Plain eager steps are preferred."""
    timed = ok(tables["profile"], "time_s", "samples_per_s")
    series = curves.series(with_machine(tables, those(timed, timed["mode"].isin(MODES))))
    return selection.pick(series, "synthetic", "variant")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the series that gain most and least from a larger batch, and on the number of
    series that are not comparable."""
    first, last = curves.ends(rows)
    # Series that lost an impossible end have only one.
    paired = first["batch_size"] < last["batch_size"]
    if not paired.any():
        return text("single")
    first = first[paired]
    last = last[paired]
    sound = frames.comparable(first) & frames.comparable(last)
    first = frames.preferred(first, sound)
    last = frames.preferred(last, sound)
    sentences = _gains(first, last, text)
    sentences += selection.unranked_words(sound, text)
    falling = int(trust.falling(rows).sum())
    if falling:
        sentences.append(text("falling", count=falling))
    return " ".join(sentences)


def _gains(first: DataFrame, last: DataFrame, text: Texts) -> list[str]:
    """Sentences on the series that gain most and least, of those whose ends differ beyond their
    intervals, and on how many do not."""
    gain = last["samples_per_s"] / first["samples_per_s"]
    known = gain[[_is_known(first.loc[at], last.loc[at]) for at in gain.index]]
    rising = known[known > 1]
    losing = known[known < 1]
    words = [text("finding_none")]
    if len(rising):
        words = [
            text("finding", **_gain(rising.idxmax(), first, last, gain, text), count=len(gain))
        ]
    if len(losing):
        least = _gain(losing.idxmin(), first, last, gain, text)
        words.append(text("least_loses", **least, loss=1 / losing.min()))
    elif len(rising) and len(known) < len(gain):
        words.append(text("least_same", count=len(gain) - len(known), total=len(gain)))
    elif len(rising) > 1:
        words.append(text("least_gains", **_gain(rising.idxmin(), first, last, gain, text)))
    return words


def _is_known(first: Series, last: Series) -> bool:
    """True if the speeds of a series' ends differ in either direction."""
    ends = (first, last), (last, first)
    return any(claims.differs(low, high, "samples_per_s") for low, high in ends)


def _gain(
    at: int, first: DataFrame, last: DataFrame, gain: Series, text: Texts
) -> dict[str, object]:
    """Values for a sentence on one series: its name, its ends, and the speedup of the last."""
    run = curves.named(last.loc[at], text)
    return {"run": run, "small": first.loc[at], "large": last.loc[at], "gain": gain[at]}


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds times in milliseconds and labels of lines."""
    named = rows["model"]
    if rows["precision"].nunique() > 1:
        named = named + " " + specs.names("precision", rows["precision"], text)
    times = rows[INTERVAL].mul(1e3).set_axis(["time_ms", *ENDS_MS], axis=1)
    return rows.assign(named=named).join(times)


def _named(ends: DataFrame) -> DataFrame:
    """Ends of the lines to name: all if there are few, else at most MOST_NAMED, one for each model
    at its highest."""
    if len(ends) <= MOST_NAMED:
        return ends
    ends = ends.sort_values("time_ms").drop_duplicates("model", keep="last")
    places = np.linspace(0, len(ends) - 1, min(len(ends), MOST_NAMED)).round()
    return ends.iloc[places.astype(int)]


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axes logarithmic. Limits follow the values, since an interval of two windows may be
    wider than the panel."""
    if here.empty:
        return
    ticks.doublings(axes, rows["batch_size"])
    values = rows.loc[rows["machine"].isin(here["machine"]), "time_ms"]
    axes.set_ylim(values.min() / 2, values.max() * 2)
    ticks.decades(axes.yaxis)


draw = specs.Lines(
    x="batch_size",
    y="time_ms",
    x_label="batch_size",
    y_label="time",
    facet="mode",
    hue="precision",
    kind="precision",
    colors=style.usual_colors,
    by=["model", "precision", "workload", "execution", "sequence_length"],
    named="named",
    ends=_named,
    dressed=_dressed,
    finished=_finished,
    shared={"sharex": True},
    look={"y_interval": ENDS_MS, "s": 25},
)
