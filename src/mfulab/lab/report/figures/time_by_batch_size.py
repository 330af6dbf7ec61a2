"""Time of one step against batch size, one line a model and precision."""

import numpy as np

from mfulab.lab.report import frames, trust
from mfulab.lab.report.drawing import Figure, Legend, Texts, curves, kinds, labels, style, ticks
from mfulab.lab.report.frames import INTERVAL, DataFrame, Tables, ok, preferred, those, with_machine

TOPIC, ORDER = "batch_size", 0
MODES = ("training", "inference")  # of the others the figure `decoding` has the series
MOST_NAMED = 8  # lines of a panel that have a label


def rows(tables: Tables) -> DataFrame:
    """Runs of series with at least two batch sizes; of plain eager steps, where there are any."""
    timed = ok(tables["profile"], "time_s", "samples_per_s")
    series = curves.series(with_machine(tables, those(timed, timed["mode"].isin(MODES))))
    return preferred(series, (series["execution"] == "eager") & (series["workload"] == series["mode"]))


def finding(rows: DataFrame, text: Texts) -> str:
    """The series that gain most and least from a larger batch; those that are not comparable are counted."""
    first, last = curves.ends(rows)
    paired = first["batch_size"] < last["batch_size"]  # of the others an impossible end was left out
    if not paired.any():
        return text("single")
    first, last = first[paired], last[paired]
    sound = frames.comparable(first) & frames.comparable(last)
    left_out = int((~sound).sum()) if sound.any() else 0
    first, last = frames.preferred(first, sound), frames.preferred(last, sound)
    gain = last["samples_per_s"] / first["samples_per_s"]
    best, least = (
        {"run": curves.named(last.loc[at], text), "small": first.loc[at], "large": last.loc[at], "gain": gain[at]}
        for at in (gain.idxmax(), gain.idxmin())
    )
    words = [text("finding" if gain.max() > 1 else "finding_none", **best, count=len(gain))]
    if gain.max() > gain.min():
        key = "least_gains" if gain.min() > 1 else "least_same" if gain.min() == 1 else "least_loses"
        words.append(text(key, **least, loss=1 / gain.min()))
    words += [text("left_out", count=left_out)] if left_out else [] if sound.any() else [text("faulty")]
    falling = int(trust.falling(rows).sum())
    return " ".join([*words, *([text("falling", count=falling)] if falling else [])])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A panel a machine and mode, logarithmic; colour is the precision, bars are 95 % confidence intervals."""
    colors, modes = style.usual_colors(rows["precision"]), style.modes(rows, text)
    keys = ["model", "precision", "workload", "execution", "sequence_length"]
    look: style.Look = {"by": keys, "hue": "precision", "palette": colors, "s": 25}
    panels = style.facets(figure, rows, text, "mode", modes, x=text("batch_size"), y=text("time"), sharex=True)
    for axes, here in panels:
        if here.empty:
            continue
        kinds.lines(axes, here, "batch_size", "time_s", interval=INTERVAL[1:], **look)
        ticks.doublings(axes, rows["batch_size"])
        # Values decide the limits: an interval of two windows may be wider than any panel, and then runs out of it.
        values = rows.loc[rows["machine"].isin(here["machine"]), "time_s"]
        axes.set_ylim(values.min() / 2, values.max() * 2)
        ticks.decades(axes.yaxis)
        ends = here.groupby(keys, sort=False, dropna=False).tail(1)
        if len(ends) > MOST_NAMED:  # one a model, at its highest
            ends = ends.sort_values("time_s").drop_duplicates("model", keep="last")
            ends = ends.iloc[np.linspace(0, len(ends) - 1, min(len(ends), MOST_NAMED)).round().astype(int)]
        precisions = ends["precision"].map(lambda name: f" {text.name('precision', name)}" if len(colors) > 1 else "")
        names = [*map("".join, zip(ends["model"], precisions, strict=True))]
        shades = ends["precision"].map(colors)
        labels.later(labels.at_line_ends, axes, ends["batch_size"], ends["time_s"], names, shades)
    return [style.line(color, text.name("precision", name)) for name, color in colors.items()]
