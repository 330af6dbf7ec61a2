"""The printed ladder: what stands first, colours, width, both languages."""

import io
import json
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from mfulab.core.language import LANGUAGES, Texts, catalogue
from mfulab.core.language.sentences import sentence
from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading
from mfulab.loop.interactive.show import facts_line, phases_table, show
from mfulab.mfu.account import read
from mfulab.mfu.causes import BY_KEY

QUIET = {
    "time_s": 0.02, "steps": 50, "counted_steps": 1, "tflop_s": 0.2, "effective_precision": "fp32",
    "utilization_percent": 99.0, "hfu_percent": 30.0, "mfu_percent": 25.0, "mfu_measured_percent": 25.0,
    "memory_bytes": 2e9, "other_processes_percent": 1.0,
}  # fmt: skip


def printed(row, width=100, colours=False, language="en", readings=None):
    window = SimpleNamespace(row=row, readings=readings or {}, verdict=read(row).verdict)
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colours,
        color_system="standard" if colours else None,
    )
    show(window, console, language)
    return console.file.getvalue()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_quiet_block_begins_with_what_was_found_because_of_what_and_what_to_try(language):
    lines = printed(QUIET, width=400, language=language).splitlines()
    said = catalogue(language)["lines"]
    assert "99" in lines[0]
    assert "25" in lines[0]
    assert lines[1].startswith(said["because"].partition("{")[0])
    assert lines[2].startswith(said["try"].partition("{")[0])
    assert "20.000 ms" in lines[3]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_loop_s_advice_is_followed_by_its_code(language):
    row = {**QUIET, "matmul_percent": 20.0, "other_operators_percent": 75.0}
    code = BY_KEY["other_operators"].code
    assert read(row).verdict.cause == "other_operators"
    lines = printed({**row, "mean_of_all_s": 0.02}, width=400, language=language).splitlines()
    assert code in lines[3]
    # a sweep's run has a command instead
    assert code not in printed(row, width=400, language=language)


@pytest.mark.parametrize("emulated", [{"bf16", "fp16"}, {"fp16"}, set()])
def test_no_shorter_format_is_advised_where_the_device_emulates_all(monkeypatch, emulated):
    monkeypatch.setattr(
        "mfulab.loop.interactive.show.emulated_here", lambda _: dict.fromkeys(emulated)
    )
    row = {**QUIET, "matmul_percent": 20.0, "other_operators_percent": 75.0, "device": "cpu"}
    said = Texts("en", "otherwise")("other_operators", shorter=int(len(emulated) < 2))
    assert said in printed(row, width=400)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"other_processes_percent": 60.0}, "60 %"),
        ({"other_processes": 2.0}, "2 other"),
        ({"throttled_percent": 30.0}, "30 %"),
        ({"steps": 4}, "only 4 steps were timed"),
        ({"mfu_basis": "measured", "peak_tflop_s": 80.0, "ceiling_tflop_s": 0.1}, "0.12 %"),
        (
            {"steps": 1, "counted_steps": 1, "only_counted": 1},
            "the only step ran under the counter",
        ),
        ({"steps": 5, "counted_steps": 5, "only_counted": 5}, "every step ran under the counter"),
        ({"steps": 5, "measuring_percent": 61.0}, "measure 50 steps or more"),
        (
            {"steps": 50, "watched_steps": 9, "measuring_percent": 3.0},
            "took 3 % of the step's time",
        ),
        ({"ceiling_other_processes_percent": 80.0}, "MFU reads too high"),
    ],
)
def test_what_disturbed_a_block_is_its_first_line(change, said):
    first = printed({**QUIET, **change}, width=300).splitlines()[0]
    assert first.startswith("Disturbed: ")
    assert said in first


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("change", [{}, {"other_processes_percent": 60.0}])
def test_finding_because_and_try_precede_the_ladder(language, change):
    lines = printed({**QUIET, **change}, width=400, language=language).splitlines()
    said = catalogue(language)["lines"]
    starts = (said[key].partition("{")[0] for key in ("because", "try"))
    places = [
        next(at for at, line in enumerate(lines) if line.startswith(start)) for start in starts
    ]
    rungs = catalogue(language)["rungs"]
    first_rung = min(
        at
        for at, line in enumerate(lines)
        if "█" in line and line.startswith(tuple(map(str, rungs.values())))
    )
    assert places == sorted(places)
    assert places[-1] < first_rung


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("is_loop", [True, False])
def test_a_mean_apart_from_the_median_says_whether_rates_are_of_it(language, is_loop):
    row = {"time_s": 0.02, "steps": 50, "window_s": 50 * 0.025}
    if is_loop:
        row["mean_of_all_s"] = 0.025
    text = Texts(language, "measured")
    said = {key: text(key, ms="25.000") for key in ("mean", "mean_disturbed")}
    told = facts_line(row, language)
    assert (said["mean"] in told, said["mean_disturbed"] in told) == (is_loop, not is_loop)
    alike = facts_line({**row, "window_s": 50 * 0.0203, "mean_of_all_s": None}, language)
    assert not any(text(key, ms="20.300") in alike for key in said)


@pytest.mark.parametrize(
    ("mfu", "said"), [(0.014, "0.014 %"), (0.94, "0.94 %"), (0.97, "1.0 %"), (25.0, "25.0 %")]
)
def test_a_rung_near_nothing_is_told_from_nothing(mfu, said):
    small = {"hfu_percent": mfu, "mfu_percent": mfu, "tflop_s": 3.84e-5, "memory_bytes": 2.1e5}
    lines = printed({**QUIET, **small}, width=300).splitlines()
    assert (
        next(line for line in lines if line.startswith("MFU  "))
        .split("MFU")[1]
        .strip()
        .startswith(said)
    )
    [facts] = [line for line in lines if "20.000 ms" in line]
    assert "38.4 MFLOP/s in fp32" in facts
    assert "210 kB at most" in facts


def test_more_than_the_peak_is_never_shown_without_a_word():
    assert "MFU of 287 %" in printed({**QUIET, "mfu_percent": 287.0, "mfu_measured_percent": 287.0})


@pytest.mark.parametrize("width", [50, 80, 140])
@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_no_wider_than_the_terminal(width, language):
    console = Console(width=width)
    text = printed({**QUIET, "other_processes_percent": 60.0}, width, language=language)
    assert max(console.measure(line).maximum for line in text.splitlines()) <= width


def squeezed(text: str) -> str:
    """A text without blanks, by which it was wrapped."""
    return "".join(text.split())


@pytest.mark.parametrize("width", range(47, 100, 7))
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_reason_loses_a_letter_however_wide_its_letters_are(width, language):
    """A line that wide letters fill to the last column keeps them all."""
    row = {**QUIET, "utilization_percent": None}
    readings, said = {}, {}
    for key in ("no_kernels_of_cpu", "no_amd_counter", "no_operator_with_formula"):
        readings["utilization_percent"] = Reading(None, "%", "x", reason=Said(key))
        said[key] = printed(row, width, language=language, readings=readings)
    for key, text in said.items():
        words = squeezed(sentence(key, {}, language))
        assert words in squeezed(text), (key, width)


@pytest.mark.parametrize("width", range(40, 100, 7))
def test_a_phase_s_reason_is_wrapped_too(width):
    cell = json.dumps({"no_kernels_of_cpu": {}, "no_amd_counter": {}})
    phase = {"mean_s": 0.01, "calls": 1, "step_percent": 50.0, "flops": 1e9}
    phase |= {"only_counted": False, "mfu_percent": None, "reason": cell}
    console = Console(file=io.StringIO(), width=width)
    console.print(phases_table({"앞으로": phase}, "ko"))
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= width


def test_colours_only_where_the_terminal_has_them():
    assert "\x1b[" in printed(QUIET, colours=True)
    assert "\x1b[" not in printed(QUIET)


def test_what_is_missing_says_why():
    readings = {"flops": Reading(None, "", "counted", reason=Said("no_operator_with_formula"))}
    text = printed({**QUIET, "mfu_percent": None, "mfu_measured_percent": None}, readings=readings)
    assert "FLOPs: no operator with a formula ran" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_cause_has_its_advice(language):
    assert set(catalogue(language)["advice"]) == {*BY_KEY}
