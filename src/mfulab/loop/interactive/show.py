"""Prints the ladder on a terminal: one line per rung, from busy to useful, with a bar, and the
reason for what is missing."""

import io
from collections.abc import Callable, Mapping
from typing import Protocol

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import in_percent, percent, quantity
from mfulab.core.parts import Row
from mfulab.core.terminal import Terminal, bare_table, uncut
from mfulab.device.emulation import emulated_here
from mfulab.device.samplers.reading import UNTOLD, Reading
from mfulab.device.vendors import kinds
from mfulab.mfu import ladder
from mfulab.mfu.account import Judged
from mfulab.mfu.three_lines import ThreeLines, device_of, three_lines
from mfulab.mfu.utilization import percent as percent_of
from mfulab.mfu.utilization import ratio
from mfulab.timing.statistics import FEWEST_WINDOWS

BAR = 24
# Characters of a line if there is no terminal.
WIDTH = 100
# A mean step this much longer or shorter than the median is shown too.
MEAN_APART = 0.02
# A mean of all steps that differs this much from that of the timed steps is shown too.
ALL_APART = 0.05
# Percent of FLOPs that nothing shows from step to step; a larger share is mentioned.
UNSHOWN_PERCENT = 1.0
# Flags for rows in which something else was measured too.
DISTURBING = {
    "other_processes",
    "beside",
    "far_ceiling",
    "held_back",
    "measuring",
    "measuring_briefly",
    "only_counted",
    "stolen",
}
# Denominators of MFU, as keys of the catalogues.
WORDS = ("of_spec", "of_max_clock", "of_actual_clock", "of_measured")


def bar(percent: float) -> str:
    """Bar of up to 24 blocks; above 100 % it ends in an arrow."""
    filled = round(min(percent, 100.0) / 100 * BAR)
    return "█" * filled + "░" * (BAR - filled) + ("▶" if percent > 100 else "")


def ladder_table(
    values: Mapping[str, object], readings: Mapping[str, Reading], language: str = "en"
) -> Table:
    """Table of the measured rungs; those outside of the ladder's order are dimmed. If the first
    rung is missing, the reason stands in place of its bar."""
    table = bare_table()
    names = Texts(language, "rungs")
    measured = ladder.measured(values)
    first = ladder.RUNGS[0].column
    drop = ladder.largest_drop(values)
    if first in readings and all(rung.column != first for rung in measured):
        reason = readings[first].reason or UNTOLD
        table.add_row(names(first), "—", uncut(verdicts.say(reason, language), "dim"))
    for rung in measured:
        if not rung.falls:
            style = "dim"
        elif drop and rung.column == drop.below.column:
            style = "yellow"
        else:
            style = "green"
        add_rung(table, names, rung.column, rung.percent, style)
    return table


def add_rung(table: Table, names: Texts, key: str, percent: float, style: str = "green") -> None:
    """Adds a rung to a table: its name by its key, its percent and a bar."""
    share = names.written(in_percent(percent))
    table.add_row(names(key), f"{share:>8}", Text(bar(percent), style=style))


def facts_line(values: Row, language: str = "en") -> str:
    """Formats, as far as measured: median step time (and the mean if it differs), throughput, rate,
    power and memory."""
    text = Texts(language, "measured")
    parts = []
    if values.get("time_s") is not None:
        parts = _time_parts(values, text)
    sentences: dict[str, Callable[[float], str]] = {
        "samples_per_s": lambda rate: text("samples", rate=f"{rate:.1f}"),
        "tflop_s": lambda rate: text(
            "rate", tflop_s=rate, precision=values.get("effective_precision")
        ),
        "power_w": lambda watts: text("power", watts=watts),
        "energy_j": lambda joules: text("energy", joules=f"{joules:.3g}"),
        "memory_bytes": lambda size: text("memory", bytes=size),
    }
    for name, sentence in sentences.items():
        value = values.get(name)
        if value is not None:
            parts.append(sentence(value))
    left_out = ["compiled", "watched"]
    if not values.get("only_counted"):
        left_out.insert(0, "counted")
    for key in left_out:
        count = values.get(f"{key}_steps")
        if count:
            parts.append(text(key, count=count, places=values.get(f"{key}_places")))
    if values.get("slow_places"):
        parts.append(text("slow", places=values["slow_places"]))
    return " · ".join(parts)


def _time_parts(values: Row, text: Texts) -> list[str]:
    """Median step time, and means that differ from it."""
    median = values["time_s"]
    parts = [text("time", ms=_ms(median), count=values.get("steps"))]
    mean = ratio(values.get("window_s"), values.get("steps")) or median
    if abs(mean - median) > MEAN_APART * median:
        # A loop's rates are those of its mean step, a sweep's those of the undisturbed step.
        key = "mean" if "mean_of_all_s" in values else "mean_disturbed"
        parts.append(text(key, ms=_ms(mean)))
    of_all = values.get("mean_of_all_s") or mean
    if abs(of_all - mean) > ALL_APART * mean:
        parts.append(text("mean_of_all", ms=_ms(of_all)))
    return parts


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def phases_table(phases: Mapping[str, Row], language: str = "en") -> Table:
    """Table of named phases: time of a call, share of the step, FLOPs, and MFU or the reason why it
    is missing."""
    table = bare_table()
    text = Texts(language, "measured")
    for name, values in phases.items():
        share = values["step_percent"]
        part = ""
        if share is not None:
            part = text("of_step", share=share)
        flops = ""
        if values["flops"] is not None:
            flops = quantity(values["flops"], "FLOP")
        mfu = values["mfu_percent"]
        if values["only_counted"]:
            last = text("only_counted_phase")
        elif mfu is None:
            last = verdicts.flags(values["reason"], language)
        else:
            last = text.written(f"MFU {percent(mfu)} % {bar(mfu)}")
        cells = (name, f"{_ms(values['mean_s'])} ms × {values['calls']}", part, flops, last)
        table.add_row(*map(uncut, cells))
    return table


class Finished(Protocol):
    """Parts of a finished window that are shown."""

    @property
    def row(self) -> Row: ...

    @property
    def readings(self) -> Mapping[str, Reading]: ...

    @property
    def verdict(self) -> Judged | None: ...


def show(window: Finished, console: Terminal | None = None, language: str = "en") -> None:
    """Prints a finished window, in colours if the terminal has them: what disturbed it, the result,
    its cause, and what to try; then facts and ladder."""
    values = window.row
    text = Texts(language, "measured")
    disturbed, others = _flags(window.verdict, language)
    disturbed += _unsure(values, text)
    lines: list[Text | Table] = []
    if disturbed:
        lines.append(Text(text("disturbed", what="; ".join(disturbed)), style="bold red"))
    lines += first_lines(_three_lines(window, language), language)
    lines.append(Text(facts_line(values, language)))
    if values.get("windows") and values.get("time_ci_low_s") is None:
        lines.append(Text(text("no_interval", count=values["windows"]), style="dim"))
    lines.append(ladder_table(values, window.readings, language))
    if phases := getattr(window, "phases", None):
        lines.append(phases_table(phases, language))
    lines += list(map(Text, _share_lines(values, text)))
    for flag in others:
        lines.append(Text(text("look", flag=flag), style="red"))
    for line in _missing(window, text):
        lines.append(Text(line, style="dim"))
    (console or Terminal()).print(Group(*lines))


def as_text(window: Finished, language: str = "en") -> str:
    """Text that `show` prints for a finished window, without colours."""
    written = io.StringIO()
    show(window, Terminal(file=written, width=WIDTH, color_system=None), language)
    return written.getvalue().rstrip()


def as_html(window: Finished, language: str = "en") -> str:
    """HTML of what `show` prints for a finished window, for a notebook."""
    console = Terminal(file=io.StringIO(), width=WIDTH, record=True, force_terminal=True)
    show(window, console, language)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _flags(verdict: Judged | None, language: str) -> tuple[list[str], list[str]]:
    """Sentences of a verdict's flags: those about other things that were measured too, and the
    rest."""
    disturbing: list[str] = []
    others: list[str] = []
    for flag in verdict.flags if verdict else ():
        sentence = verdicts.say(flag, language)
        if flag.key in DISTURBING:
            disturbing.append(sentence)
        else:
            others.append(sentence)
    return disturbing, others


def _unsure(values: Row, text: Texts) -> list[str]:
    """Sentences on what else makes a row unreliable: too few steps, a ceiling measured beside other
    processes."""
    sentences = []
    steps = values.get("steps") or 0
    if steps < FEWEST_WINDOWS and not values.get("windows"):
        sentences.append(text("few_steps", count=steps))
    if values.get("ceiling_other_processes_percent") is not None:
        sentences.append(text("ceiling_beside"))
    return sentences


def _share_lines(values: Row, text: Texts) -> list[str]:
    """Lines with MFU by each denominator, OFU, and attainable MFU, as far as they are known."""
    lines = []
    parts = []
    for word in WORDS:
        share = values.get(f"mfu_{word.removeprefix('of_')}_percent")
        if share is not None:
            parts.append(text("share", share=percent(share), of=text(word)))
    if parts:
        lines.append(f"MFU: {', '.join(parts)}")
    ofu = values.get("expected_mfu_percent")
    corrected = values.get("ofu_percent")
    if ofu is not None:
        line = text("ofu", share=percent(ofu))
        if corrected:
            line += text("ofu_corrected", share=percent(corrected))
        lines.append(line)
    attainable = values.get("attainable_mfu_percent")
    if attainable is not None:
        gap = percent(attainable - values["mfu_percent"])
        lines.append(text("attainable", share=percent(attainable), gap=gap))
    return lines


def first_lines(found: ThreeLines, language: str) -> list[Text]:
    """The three lines of the result, and the code that tries the last, each in its style."""
    styles = ("bold", "yellow", "cyan", "cyan")
    styled = zip(found.worded(language), styles, strict=False)
    return [Text(line, style=style) for line, style in styled]


def _three_lines(window: Finished, language: str) -> ThreeLines:
    values = window.row
    name = values.get("model") or Texts(language, "lines")("loop")
    shown = {"device": getattr(window, "device", ""), **values}
    if window.verdict is not None:
        shown |= {**window.verdict.columns, "verdict_flags": None}  # flags are shown apart
    return three_lines(
        shown,
        name,
        device_of(shown),
        language,
        is_loop="mean_of_all_s" in values,
        shorter_helps=_shorter_helps(str(shown["device"])),
    )


def _shorter_helps(device: str) -> bool:
    """False if this machine's device emulates every number format of two bytes."""
    kind, _, _ = device.partition(":")
    if kind != "cpu" and kind not in kinds():
        return True
    return not {"bf16", "fp16"} <= emulated_here(kind).keys()


def _missing(window: Finished, text: Texts) -> list[str]:
    """Lines with the reasons why FLOPs, MFU, a peak or the attainable MFU are missing."""
    labels = {"flops": "FLOPs", "mfu_percent": "MFU", "peak_tflop_s": text("peak")}
    if window.row.get("mfu_percent") is not None:
        labels["attainable_mfu_percent"] = text("attainable_name")
    lines = []
    unshown = percent_of(window.row.get("unshown_flops"), window.row.get("flops"))
    if unshown is not None and unshown > UNSHOWN_PERCENT:
        lines.append(text("unshown", share=percent(unshown)))
    for name, label in labels.items():
        reading = window.readings.get(name)
        if reading is not None and reading.value is None and reading.reason:
            lines.append(f"{label}: {verdicts.say(reading.reason, text.language)}")
    return lines
