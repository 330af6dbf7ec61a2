"""Execution modes and autograd: their sentences from extreme, equal and single rows."""

import pytest
from support.drawn import overlaps, step, tables, texts
from support.said import heard

from mfulab.lab.report import figures
from mfulab.lab.report.figures import autograd, execution_speed

COMMON = step("inference", model="gpt2", autograd="no_grad", batch_size=1)


def made(
    execution: str = "compile", time_s: float = 0.01, compile_s: float | None = 20.0, **changes
) -> dict:
    known = None if execution == "eager" else compile_s
    return {**COMMON, "execution": execution, "time_s": time_s, "samples_per_s": 1 / time_s, "compile_s": known,
            **changes}  # fmt: skip


def compiled(tmp_path, *rows: dict) -> dict[str, list[dict]]:
    return heard(execution_speed, tables(tmp_path, *rows))


def test_compiling_pays_after_its_time_divided_by_what_a_step_saves(tmp_path):
    told = compiled(tmp_path, made("eager", 0.03), made("compile", 0.01), made("trace", 0.02, 0.5))
    longest, [pays, traced] = told["compiled"][0]["row"], told["pays"]
    assert (longest["execution"], longest["compile_s"]) == ("compile", 20)
    assert pays["row"]["execution"] == "compile"
    assert (traced["row"]["execution"], traced["steps"]) == ("trace", 50)
    assert (pays["steps"], pays["saved"]) == (1000, pytest.approx(0.02))
    assert (pays["way"], pays["count"], pays["total"]) == ("torch.compile", 1, 1)


def test_what_is_no_faster_never_pays(tmp_path):
    equal = compiled(tmp_path, made("eager", 0.01), made("compile", 0.01))
    assert equal["never"] == [{"way": "torch.compile", "total": 1}]
    mixed = compiled(tmp_path, made("eager", 0.02), made("compile", 0.01), made("trace", 0.03, 0.5))
    assert mixed["never"] == [{"way": "trace", "total": 1}]
    assert mixed["pays"][0]["way"] == "torch.compile"
    met = made("eager", 0.02, time_ci_low_s=0.009, time_ci_high_s=0.03)
    within = compiled(
        tmp_path, met, made("compile", 0.01, time_ci_low_s=0.008, time_ci_high_s=0.012)
    )
    assert "pays" not in within
    unknown = compiled(tmp_path, made("eager", 0.02), made("compile", 0.01, None))
    assert {"compiled", "pays", "never"}.isdisjoint(unknown)


def test_without_eager_or_at_another_batch_nothing_is_compared(tmp_path):
    assert execution_speed.rows(tables(tmp_path, made("compile"))).empty
    assert execution_speed.rows(
        tables(tmp_path, made("eager", batch_size=8), made("compile"))
    ).empty
    assert execution_speed.rows(tables(tmp_path, made("eager"))).empty


@pytest.mark.parametrize("faster", [1.0, 1.001, 1.03, 1.2])
def test_factors_of_marks_close_together_lie_apart(tmp_path, faster):
    rows = [made("eager", 0.01), made("compile", 0.01 / 1.17), made("trace", 0.01 / 1.17 / faster)]
    drawn = figures.render("execution_speed", tables(tmp_path, *rows), "en")
    assert drawn is not None
    written = texts(drawn.figure)
    assert sum(words.endswith("×") and words[0] == "1" for words, _ in written) >= 2
    assert overlaps(drawn.figure, written) == []


def way(autograd: str, time_s: float = 0.01, memory_bytes: float = 1e8, **changes) -> dict:
    return {
        **COMMON,
        "autograd": autograd,
        "time_s": time_s,
        "memory_bytes": memory_bytes,
        **changes,
    }


def test_a_graph_costs_time_and_a_kept_one_memory(tmp_path):
    every = [
        way("no_grad"),
        way("inference_mode", 0.008),
        way("recorded", 0.015),
        way("leaked", 0.016, 9e8),
    ]
    told = heard(autograd, tables(tmp_path, *every))
    assert told["slower"][0]["share"] == pytest.approx(50)
    assert told["faster"][0]["share"] == pytest.approx(20)
    [leaks] = told["leaks"]
    assert (leaks["row"]["graph_bytes"], leaks["later"]) == (100e6, 100e9)


def test_equal_ways_cost_nothing(tmp_path):
    ways = [way(name) for name in ("no_grad", "inference_mode", "recorded", "leaked")]
    assert heard(autograd, tables(tmp_path, *ways)).keys() == {"no_slower", "no_faster"}


def test_intervals_that_meet_tell_no_difference(tmp_path):
    wide = {"time_ci_low_s": 0.005, "time_ci_high_s": 0.02}
    alike = way("no_grad", **wide), way("recorded", 0.015, **wide)
    assert heard(autograd, tables(tmp_path, *alike)).keys() == {"no_slower"}
    narrow = {"time_ci_low_s": 0.021, "time_ci_high_s": 0.03}
    apart = way("no_grad", **wide), way("recorded", 0.025, **narrow)
    assert heard(autograd, tables(tmp_path, *apart))["slower"][0]["share"] == pytest.approx(150)


def test_one_way_alone_is_not_drawn(tmp_path):
    assert autograd.rows(tables(tmp_path, way("no_grad"))).empty
    assert autograd.rows(tables(tmp_path, way("recorded"), way("leaked"))).empty
