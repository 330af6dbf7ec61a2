"""The ladder on a terminal: one line a rung, from busy to useful, with a bar, and why what is missing is missing."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity
from mfulab.core.terminal import Terminal
from mfulab.device.samplers.reading import Reading
from mfulab.mfu import ladder
from mfulab.mfu.utilization import ratio
from mfulab.timing.statistics import FEWEST_WINDOWS

BAR = 24
# A mean step this much longer or shorter than the median is shown too.
MEAN_APART = 0.02
# A mean of all steps this much beside that of those that are timed is shown too.
ALL_APART = 0.05
# Flags that say that something else was measured too.
DISTURBING = {"other_processes", "beside", "held_back", "measuring", "measuring_briefly", "only_counted", "stolen"}
# What MFU is divided by, as the catalogues name it.
WORDS = ("of_spec", "of_max_clock", "of_actual_clock", "of_measured")


def bar(percent: float) -> str:
    """A bar of up to 24 blocks; above 100 % it ends in an arrow."""
    filled = round(min(percent, 100.0) / 100 * BAR)
    return "█" * filled + "░" * (BAR - filled) + ("▶" if percent > 100 else "")


def ladder_table(values: Mapping[str, Any], readings: Mapping[str, Reading], language: str = "en") -> Table:
    """The measured rungs of the ladder, those beside its order dimmed; why the first is missing in place of a bar."""
    table, names = Table(box=None, pad_edge=False, show_header=False), Texts(language, "rungs")
    measured, first = ladder.measured(values), ladder.RUNGS[0].column
    drop = ladder.largest_drop(values)
    if first in readings and all(rung.column != first for rung in measured):
        table.add_row(names(first), "—", Text(names.said(readings[first].reason), style="dim"))
    for rung in measured:
        style = "dim" if not rung.falls else "yellow" if drop and rung.column == drop.below.column else "green"
        share = f"{rung.percent:.1f}" if rung.percent >= 0.95 or not rung.percent else percent(rung.percent)
        table.add_row(names(rung.column), f"{share:>6} %", Text(bar(rung.percent), style=style))
    return table


def facts_line(values: Mapping[str, Any], language: str = "en") -> str:
    """Median step time, and the mean if it is another, throughput, rate, power and memory, as far as measured."""
    text, parts = Texts(language, "measured"), []
    if values.get("time_s") is not None:
        parts.append(text("time", ms=f"{1e3 * values['time_s']:.3f}", count=values.get("steps")))
        mean = ratio(values.get("window_s"), values.get("steps")) or values["time_s"]
        if abs(mean - values["time_s"]) > MEAN_APART * values["time_s"]:
            parts.append(text("mean", ms=f"{1e3 * mean:.3f}"))
        of_all = values.get("mean_of_all_s") or mean
        if abs(of_all - mean) > ALL_APART * mean:
            parts.append(text("mean_of_all", ms=f"{1e3 * of_all:.3f}"))
    sentences: dict[str, Callable[[float], str]] = {
        "samples_per_s": lambda rate: text("samples", rate=f"{rate:.1f}"),
        "tflop_s": lambda rate: text("rate", tflop_s=rate, precision=values.get("effective_precision")),
        "power_w": lambda watts: text("power", watts=watts),
        "energy_j": lambda joules: text("energy", joules=f"{joules:.3g}"),
        "memory_bytes": lambda size: text("memory", bytes=size),
    }
    parts += [sentence(value) for name, sentence in sentences.items() if (value := values.get(name)) is not None]
    for key in ("counted", "compiled", "watched"):
        if (count := values.get(f"{key}_steps")) and not (key == "counted" and values.get("only_counted")):
            parts.append(text(key, count=count, places=values.get(f"{key}_places")))
    if values.get("slow_places"):
        parts.append(text("slow", places=values["slow_places"]))
    return " · ".join(parts)


def phases_table(phases: Mapping[str, Mapping[str, Any]], language: str = "en") -> Table:
    """A line a named phase: time of a call, share of the step, FLOPs, and MFU or why there is none."""
    table, text = Table(box=None, pad_edge=False, show_header=False), Texts(language, "measured")
    for name, values in phases.items():
        mfu, share = None if values["only_counted"] else values["mfu_percent"], values["step_percent"]
        part = "" if share is None else text("of_step", share=share)
        flops = "" if values["flops"] is None else quantity(values["flops"], "FLOP")
        why = text("only_counted_phase") if values["only_counted"] else values["reason"] or ""
        last = why if mfu is None else f"MFU {percent(mfu)} % {bar(mfu)}"
        cells = (name, f"{1e3 * values['mean_s']:.3f} ms × {values['calls']}", part, flops, last)
        table.add_row(*map(Text, cells))
    return table


def show(window: Any, console: Terminal | None = None, language: str = "en") -> None:
    """Prints a finished window, in colours where the terminal has them: what disturbed it, facts, ladder, verdict."""
    values, readings, verdict, text = window.row, window.readings, window.verdict, Texts(language, "measured")
    lines = list[Any]()

    def say(line: str, style: str = "") -> None:
        lines.append(Text(line, style=style))

    disturbed, others = list[str](), list[str]()
    for flag in verdict.flags if verdict else ():
        said = verdicts.sentence(flag.key, flag.numbers, language)
        (disturbed if flag.key in DISTURBING else others).append(said)
    # What makes a row no measure of its own device: others' load, throttling, too few steps, a slow ceiling.
    if (steps := values.get("steps") or 0) < FEWEST_WINDOWS and not values.get("windows"):
        disturbed.append(text("few_steps", count=steps))
    if values.get("ceiling_other_processes_percent") is not None:
        disturbed.append(text("ceiling_beside"))
    if disturbed:
        say(text("disturbed", what="; ".join(disturbed)), "bold red")
    say(facts_line(values, language), "bold")
    if values.get("windows") and values.get("time_ci_low_s") is None:
        say(text("no_interval", count=values["windows"]), "dim")
    lines.append(ladder_table(values, readings, language))
    if phases := getattr(window, "phases", None):
        lines.append(phases_table(phases, language))
    shares = ((text(word), values.get(f"mfu_{word.removeprefix('of_')}_percent")) for word in WORDS)
    if parts := [text("share", share=percent(value), of=name) for name, value in shares if value is not None]:
        say(f"MFU: {', '.join(parts)}")
    if (ofu := values.get("expected_mfu_percent")) is not None:
        corrected = values.get("ofu_percent")
        say(text("ofu", share=percent(ofu)) + (text("ofu_corrected", share=percent(corrected)) if corrected else ""))
    if (attainable := values.get("attainable_mfu_percent")) is not None:
        gap = attainable - values["mfu_percent"]
        say(text("attainable", share=percent(attainable), gap=percent(gap)))
    if verdict is not None:
        cause = Texts(language).name("cause", verdict.cause)
        reason = verdicts.sentence(verdict.reason.key, verdict.reason.numbers, language)
        lines.append(Text.assemble((f"{cause}: ", "bold yellow"), (reason, "yellow")))
        say(text("try", advice=Texts(language, "advice")(verdict.cause)), "cyan")
    for other in others:
        say(text("look", flag=other), "red")
    labels = {"flops": "FLOPs", "mfu_percent": "MFU", "peak_tflop_s": text("peak")}
    if values.get("mfu_percent") is not None:
        labels["attainable_mfu_percent"] = text("attainable_name")
    for name, label in labels.items():
        if name in readings and readings[name].value is None and readings[name].reason:
            say(f"{label}: {readings[name].reason}", "dim")
    (console or Terminal()).print(Group(*lines))
