"""Time of a step over batch size, with a line for each model and precision."""

import pandas as pd
from matplotlib.axes import Axes

from mfulab.lab.report import claims, frames, selection, trust
from mfulab.lab.report.drawing import Texts, curves, specs, style, ticks
from mfulab.lab.report.frames import INTERVAL, DataFrame, Series, Tables, ok, those, with_machine
from mfulab.mfu.utilization import quotient_interval

TOPIC = "batch_size"
ORDER = 0
CLAIM = claims.rising("samples_per_s", curves.KEYS, "batch_size")
MODES = ("training", "inference")  # other modes are in the figure `decoding`
ENDS_MS = ("time_ci_low_ms", "time_ci_high_ms")
MOST_LINES = 6  # of a panel, each with its name
MOST_NAMED = 3  # series that are named because they are not ranked
MOST_REACH = 4.0  # factor beyond the slowest step that a panel shows of an interval
LINE = [key for key in curves.KEYS if key != "machine"]


def rows(tables: Tables) -> DataFrame:
    """Selects runs of series with at least two batch sizes, MOST_LINES series of each machine and
    mode. Plain eager steps are preferred."""
    timed = ok(tables["profile"], "time_s", "samples_per_s")
    series = curves.series(with_machine(tables, those(timed, timed["mode"].isin(MODES))))
    plain = selection.pick(series, "synthetic", "variant")
    if plain.empty:
        return plain
    panels = [_of_few_lines(here) for _, here in plain.groupby(["machine", "mode"], sort=False)]
    return pd.concat(panels).sort_values("batch_size", kind="stable")


def reading(rows: DataFrame, text: Texts) -> str:
    """Explains how to read the figure, and counts the series that it leaves out."""
    return selection.reading_of_few(rows, text, MOST_LINES, ["machine", "mode"])


def _of_few_lines(here: DataFrame) -> DataFrame:
    """Keeps at most MOST_LINES series of a panel, evenly spread over the times of their largest
    batch. The slowest series of each model comes first. `undrawn` is the number of the others."""
    last = here.sort_values("batch_size").drop_duplicates(LINE, keep="last")
    if len(last) <= MOST_LINES:
        return here.assign(undrawn=0)
    by_time = last.sort_values("time_s", ascending=False)
    slowest = by_time.drop_duplicates("model")
    others = by_time.drop(slowest.index)
    kept = frames.spread(slowest, MOST_LINES)
    kept = pd.concat([kept, frames.spread(others, MOST_LINES - len(kept))])
    wanted = pd.MultiIndex.from_frame(kept[LINE].astype(str))
    is_kept = pd.MultiIndex.from_frame(here[LINE].astype(str)).isin(wanted)
    return here[is_kept].assign(undrawn=len(last) - len(kept))


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
    sentences = _gains(frames.preferred(first, sound), frames.preferred(last, sound), text)
    if not sound.any():
        return " ".join([*sentences, text("faulty")])
    sentences += _unranked(first[~sound], last[~sound], text)
    falling = int(trust.falling(rows).sum())
    if falling:
        sentences.append(text("falling", count=falling))
    return " ".join(sentences)


def _gains(first: DataFrame, last: DataFrame, text: Texts) -> list[str]:
    """Sentences on the series that gain most and least, of those whose ends differ beyond their
    intervals, and on how many do not."""
    gain = _gain(first, last)
    is_known = [_is_known(first.loc[at], last.loc[at]) for at in gain.index]
    known = gain[is_known]
    rising = known[known > 1]
    losing = known[known < 1]
    total = len(gain)
    words = [text("finding_none")]
    if len(rising):
        most = _values(rising.idxmax(), first, last, text)
        tied = _reaching(rising, rising.idxmax(), first, last)
        key = "finding_tied" if tied else "finding"
        words = [text(key, **most, count=total, tied=tied)]
    if len(losing):
        least = _values(losing.idxmin(), first, last, text)
        words.append(
            text(
                "least_loses",
                **least,
                loss=1 / losing.min(),
            )
        )
    elif len(rising) and len(known) < total:
        words.append(
            text(
                "least_same",
                count=total - len(known),
                total=total,
            )
        )
    elif len(rising) > 1:
        tied = _reaching(rising, rising.idxmin(), first, last)
        least = _values(rising.idxmin(), first, last, text)
        words.append(text("least_gains", **least, tied=1 + tied))
    return words


def _reaching(gains: Series, at: int, first: DataFrame, last: DataFrame) -> int:
    """Number of other series whose interval of the gain meets that of the series `at`."""
    low, high = _ends(first.loc[at], last.loc[at])
    count = 0
    for other in gains.index.drop(at):
        other_low, other_high = _ends(first.loc[other], last.loc[other])
        count += other_low <= high and low <= other_high
    return count


def _unranked(first: DataFrame, last: DataFrame, text: Texts) -> list[str]:
    """Sentence that names series that may not be ranked, with their gains; empty if there are
    none."""
    gain = _gain(first, last).sort_values(ascending=False)
    if gain.empty:
        return []
    named = []
    for at in gain.index[:MOST_NAMED]:
        named.append(text("unranked_run", **_values(at, first, last, text)))
    runs = "; ".join(named)
    if len(gain) > MOST_NAMED:
        runs += text.within("why")("and_more", count=len(gain) - MOST_NAMED)
    return [text("unranked", runs=runs)]


def _is_known(first: Series, last: Series) -> bool:
    """True if the speeds of a series' ends differ: 1 is outside the interval of their ratio, as in
    the figures of speedups."""
    if first.get(trust.DOUBTS) or last.get(trust.DOUBTS):
        return False
    low, high = _ends(first, last)
    return not low <= 1 <= high


def _ends(first: Series, last: Series) -> tuple[float, float]:
    """Interval of a series' gain; its value alone if no interval is known."""
    ratio = last["samples_per_s"] / first["samples_per_s"]
    spreads = claims.spreads(pd.DataFrame([first, last]))
    before, after = ((1.0, 1 / spread, spread) for spread in spreads)
    low, high = quotient_interval(ratio, [after], [before])
    if low is None or high is None:
        return ratio, ratio
    return low, high


def _gain(first: DataFrame, last: DataFrame) -> Series:
    """Speedup of the last batch size of each series relative to its first."""
    return last["samples_per_s"] / first["samples_per_s"]


def _values(at: int, first: DataFrame, last: DataFrame, text: Texts) -> dict[str, object]:
    """Values for a sentence on one series: its name, its ends, and the speedup of the last."""
    small = first.loc[at]
    large = last.loc[at]
    return {
        "run": curves.named(large, text),
        "small": small,
        "large": large,
        "gain": large["samples_per_s"] / small["samples_per_s"],
    }


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds times in milliseconds and labels of lines."""
    named = rows["model"]
    if rows["precision"].nunique() > 1:
        named = named + " " + specs.names("precision", rows["precision"], text)
    times = rows[INTERVAL].mul(1e3).set_axis(["time_ms", *ENDS_MS], axis=1)
    return rows.assign(named=named).join(times)


def _finished(axes: Axes, here: DataFrame, rows: DataFrame, text: Texts) -> None:
    """Makes the axes logarithmic. Limits follow values and intervals, but an interval of two
    windows may be wider than the panel."""
    if here.empty:
        return
    ticks.doublings(axes, rows["batch_size"])
    shown = rows[rows["machine"].isin(here["machine"])]
    times = shown["time_ms"]
    fastest = times.min()
    slowest = times.max()
    low = shown["time_ci_low_ms"].fillna(times).min()
    high = shown["time_ci_high_ms"].fillna(times).max()
    bottom = max(low / 1.2, fastest / MOST_REACH)
    top = min(high * 1.2, slowest * MOST_REACH)
    axes.set_ylim(min(bottom, fastest / 2), max(top, slowest * 2))
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
    dressed=_dressed,
    finished=_finished,
    shared={"sharex": True},
    look={"y_interval": ENDS_MS, "s": 25},
)
