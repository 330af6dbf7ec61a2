"""The budget of a step: each nanosecond once, whatever is given."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.mfu.account import account
from mfulab.mfu.headroom import (
    PARTS,
    apart,
    attainable_s,
    best_speeds,
    best_time,
    headroom,
    of_operators,
    shape_class,
    shared,
)
from mfulab.mfu.step import facts_of, without_hidden_matmuls


def of_step(row):
    facts = facts_of(row)
    facts = replace(facts, traced=without_hidden_matmuls(facts.traced))
    return account(facts).budget_columns()


KINDS = ("products", "recomputed", "others", "uncounted", "graph")
KINDS += ("communication", "copies", "input_wait", "idle")
times = st.integers(0, 10**12)
spent = st.fixed_dictionaries(dict.fromkeys(KINDS, times), optional={"page_faults": times})
extra = st.floats(0, 1e12)
ratios = st.tuples(st.floats(0.5, 12), st.floats(1, 24))


@given(spent, st.none() | extra, st.none() | ratios, st.none() | extra, st.none() | extra)
def test_the_parts_sum_to_the_step_exactly(kinds, useful, pair, clock, best):
    executed, issued = pair or (None, None)
    parts = headroom(
        kinds, useful, executed_ratio=executed, issued_ratio=issued, clock_ns=clock, best_ns=best
    )
    assert sum(parts.values()) == sum(kinds.values())
    assert all(value >= 0 for name, value in parts.items() if name != "matmuls_below_best")
    known = {"clock": clock, "best_below_peak": best}
    known |= {"tile_padding": executed, "slow_instructions": issued}
    absent = {name for name, given in known.items() if given is None}
    if useful is None:
        absent = {*known, "best_below_peak", "matmuls_below_best", "useful"}
    else:
        assert parts["useful"] == round(useful)
    absent |= {"page_faults"} - set(kinds)
    found = list(parts)
    assert found == [part for part in PARTS if part not in absent], "what is not known is in no sum"


products = st.lists(
    st.fixed_dictionaries(
        {
            "format": st.sampled_from(["bf16", "fp32"]),
            "matmul": st.none() | st.just([1, 64, 64, 64]),
            "flops": st.integers(1, 10**15),
            "time_ns": st.integers(1, 10**9),
            "fast": st.floats(0.01, 1),
        }
    ).map(lambda one: {**one, "best_ns": one["fast"] * one["time_ns"]}),
    max_size=4,
)


@given(
    products, st.dictionaries(st.just(("bf16", shape_class(1, 64, 64, 64))), st.floats(0.1, 1e4))
)
def test_the_best_of_a_shape_is_never_slower_than_what_ran(found, measured):
    share, basis = best_time(found, measured)
    if not found:
        assert (share, basis) == (None, None)
        return
    assert 0 < share <= 1 + 1e-9
    assert basis in ("trace", "matmul_runs", "both")
    assert measured or basis == "trace"


def test_the_best_of_a_shape_by_hand():
    """Two shapes of 1 TFLOP: one took 100 ns a call at best in the trace, of the other a faster
    matmul was measured."""
    shapes = ([1, 1000, 1000, 500], 300, 200), ([1, 4096, 4096, 4096], 700, 650)
    found = [
        {"format": "bf16", "flops": 1e6, "matmul": sides, "time_ns": time, "best_ns": best}
        for sides, time, best in shapes
    ]
    assert best_time(found, {}) == (pytest.approx(0.85), "trace")
    measured = {("bf16", shape_class(1, 4000, 5000, 4096)): 2.5}  # TFLOP/s: 400 ns
    assert best_time(found, measured) == (pytest.approx(0.6), "both")
    assert best_time(found[1:], measured) == (pytest.approx(400 / 700), "matmul_runs")
    seen = best_time(found, {("fp32", shape_class(1, 4096, 4096, 4096)): 2.5})[1]
    assert seen == "trace", "another format"


MATMUL = {
    "status": "ok", "tflop_s": 2.0, "batch": 1, "m": 64, "n": 128, "k": 256,
    "precision": "fp32", "effective_precision": None,
}  # fmt: skip


def test_the_best_matmul_of_a_device_is_the_fastest_of_its_format_and_class():
    tf32 = {"effective_precision": "tf32"}
    changes = ({}, {"tflop_s": 3.0}, {"tflop_s": 1.0}, tf32, {"batch": None, "m": 1024})
    found = best_speeds(("a", MATMUL | change) for change in changes)
    classes = {("fp32", (6, 7, 8, 0)): 3.0, ("tf32", (6, 7, 8, 0)): 2.0}
    assert found == {"a": classes | {("fp32", (10, 7, 8, 0)): 2.0}}
    several = best_speeds([("a", MATMUL), ("b", MATMUL | {"batch": 2})])
    assert several == {"a": {("fp32", (6, 7, 8, 0)): 2.0}, "b": {("fp32", (6, 7, 8, 1)): 2.0}}


@pytest.mark.parametrize(
    "change", [{"status": "failed"}, {"tflop_s": None}, {"m": None}, {"n": None}, {"k": None}]
)
def test_a_matmul_without_speed_or_sides_is_no_best(change):
    assert best_speeds([("a", MATMUL | change)]) == {}
    assert best_speeds([(None, MATMUL)]) == {}


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KINDS, times)), st.integers(1, 10**15))
def test_a_share_of_a_window_sums_to_its_step(kinds, step):
    assert sum(shared(kinds, step).values()) == step


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KINDS, times)), st.floats(0, 1e13))
def test_page_faults_come_out_of_operators_and_the_sum_stays(kinds, faults):
    parts = apart(kinds, faults)
    operators = ("products", "recomputed", "others", "uncounted")
    assert sum(parts.values()) == sum(kinds.values())
    assert min(parts.values()) >= 0
    assert parts["page_faults"] == min(round(faults), sum(kinds.get(name, 0) for name in operators))
    assert all(parts[name] == kinds[name] for name in set(kinds) - set(operators))


def test_page_faults_of_a_measured_step():
    """2,000 faults a step of 1.5 µs each: 3 of 10 ms, out of 6 ms of matmuls and 3 ms of others."""
    row = {
        "spent": json.dumps({"products": 6000, "uncounted": 0, "others": 3000, "idle": 1000}), "time_s": 1e-2,
        "flops": 1e9, "mfu_basis": "measured", "ceiling_tflop_s": 1.0,
        "page_faults_per_s": 2e5, "page_fault_s": 1.5e-6,
    }  # fmt: skip
    found = of_step(row)
    assert found["page_faults_ms"] == pytest.approx(3.0)
    seen = (found["other_operators_ms"], found["idle_ms"])
    assert seen == (pytest.approx(2.0), pytest.approx(1.0))
    expected = (pytest.approx(1.0), pytest.approx(3.0))
    assert (found["useful_ms"], found["matmuls_below_best_ms"]) == expected
    assert of_step(row | {"page_fault_s": None})["page_faults_ms"] is None, (
        "too few to take a noticeable time"
    )
    assert of_step(row | {"kept_memory_time_s": 7e-3})["page_faults_ms"] == pytest.approx(3.0)
    in_vain = of_step(row | {"kept_memory_time_s": 1e-2})
    wanted = (0, pytest.approx(3.0))
    assert (in_vain["page_faults_ms"], in_vain["other_operators_ms"]) == wanted, "it took as long"


def test_by_hand():
    kinds = {"products": 50, "recomputed": 5, "others": 20, "communication": 10, "idle": 15}
    parts = headroom(kinds, 12, executed_ratio=1.25, issued_ratio=1.5, clock_ns=4, best_ns=25)
    assert {name: value for name, value in parts.items() if value} == {
        "idle": 15, "communication": 10, "other_operators": 20, "recomputation": 5,
        "clock": 4, "tile_padding": 3, "slow_instructions": 3,
        "best_below_peak": 3, "matmuls_below_best": 25, "useful": 12,
    }  # fmt: skip


def test_products_above_their_peak_are_shown_and_not_clipped():
    parts = headroom({"products": 10, "idle": 1}, 12, executed_ratio=1.25)
    assert (parts["matmuls_below_best"], parts["tile_padding"], parts["useful"]) == (-2, 0, 12)


def test_what_a_trace_slows_around_matmuls_yields_to_the_useful_part():
    """Of 20, 8 are useful, though the trace saw 4 in matmuls: the other 16 are 12 of the step."""
    parts = headroom({"products": 4, "idle": 12, "others": 4}, 8, executed_ratio=1.25)
    assert (parts["useful"], parts["matmuls_below_best"], parts["tile_padding"]) == (8, 0, 0)
    assert (parts["idle"], parts["other_operators"]) == (9, 3)


def test_a_measured_step_of_a_gpu():
    row = {
        "spent": json.dumps({"products": 600, "uncounted": 0, "others": 200, "idle": 200}), "time_s": 1e-3,
        "flops": 300e9, "mfu_basis": "spec", "peak_tflop_s": 1000.0, "ceiling_tflop_s": 800.0,
        "clock_mhz": 1500.0, "peak_clock_mhz": 1800.0,
    }  # fmt: skip
    found = of_step(row)
    assert found["page_faults_ms"] is None, "a GPU's samplers count none"
    assert sum(filter(None, found.values())) == pytest.approx(1.0)
    assert (found["useful_ms"], found["clock_ms"]) == (pytest.approx(0.3), pytest.approx(0.06))
    assert found["best_below_peak_ms"] == pytest.approx(0.375 - 0.3 - 0.06)
    assert found["matmuls_below_best_ms"] == pytest.approx(0.6 - 0.375)


def test_without_flops_or_shares_nothing_is_invented():
    row = {"spent": json.dumps({"products": 6, "idle": 4}), "time_s": 1.0}
    assert of_step(row)["useful_ms"] is None
    assert of_step(row)["uncounted_ms"] == pytest.approx(600)
    hidden = {**row, "spent": json.dumps({"others": 6, "idle": 4})}
    assert of_step(hidden) == of_step({}) == dict.fromkeys(f"{part}_ms" for part in PARTS)


measured = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.just("others"),
            "operator": st.sampled_from(["aten::add", "aten::mm"]),
            "time_ns": st.integers(0, 10**9),
            "kernel_ns": st.integers(0, 10**9),
            "launch_ns": st.integers(0, 10**6),
        },
        optional={
            "flops": st.none()
            | st.dictionaries(st.sampled_from(["bf16", "fp32", "unknown"]), st.integers(0, 10**15)),
            "bytes": st.floats(0, 1e12),
        },
    ).filter(lambda one: one.get("flops") is None or "bytes" in one)
)


@given(
    measured,
    st.dictionaries(st.sampled_from(["bf16", "fp32"]), st.floats(0.1, 1e4)),
    st.none() | st.floats(1, 1e4),
)
def test_every_operator_has_a_best_time_or_none_and_no_time_is_lost(operators, peaks, bandwidth):
    found = of_operators(operators, peaks, bandwidth, 2)
    seen = sum(row["time_ms"] for row in found)
    assert seen == pytest.approx(sum(one["time_ns"] for one in operators) / 2e6)
    known = [row for row in found if row["bound"]]
    assert found[: len(known)] == known, "what is known comes first"
    gains = [row["headroom_ms"] for row in known]
    assert gains == sorted(gains, reverse=True)
    for row in known:
        expected = row["headroom_ms"] < 0
        assert row["doubtful"] == expected, "above the roof is marked, never clipped"
    if bandwidth is None:
        assert not known
    for row in found[len(known) :]:
        assert row["best_ms"] is row["headroom_ms"] is None


def test_the_roofline_of_operators_by_hand():
    """1 TFLOP/s and 100 GB/s: a matmul of 1 µs, a copy of 2, a kernel too short for either, one
    above the roof."""
    given = {"kind": "others", "operator": "any", "launch_ns": 100}
    operators = [
        {**given, "time_ns": 3000, "kernel_ns": 3000, "flops": {"bf16": 10**6}, "bytes": 50_000},
        {**given, "time_ns": 9000, "kernel_ns": 9000, "flops": {}, "bytes": 200_000},
        {**given, "time_ns": 120, "kernel_ns": 120, "flops": {}, "bytes": 800},
        {**given, "time_ns": 1500, "kernel_ns": 1500, "flops": {}, "bytes": 200_000},
        {**given, "time_ns": 500, "kernel_ns": 500, "flops": {"fp8": 1}, "bytes": 1},
        {**given, "time_ns": 700, "kernel_ns": 700, "reason": {"no_shapes": {}}},
    ]
    found = of_operators(operators, {"bf16": 1.0}, 100.0, 1)
    told = [
        (row["bound"], row["best_ms"], row["headroom_ms"], row.get("doubtful")) for row in found
    ]
    assert told[:4] == [
        ("memory", pytest.approx(0.002), pytest.approx(0.007), False),
        ("compute", pytest.approx(0.001), pytest.approx(0.002), False),
        ("launch", pytest.approx(0.0001), pytest.approx(0.00002), False),
        ("memory", pytest.approx(0.002), pytest.approx(-0.0005), True),
    ]
    assert [row["reason"] for row in found[4:]] == [{"no_shapes": {}}, {"no_roof": {}}]


def test_the_attainable_takes_best_times_padding_and_what_has_none():
    roofs = [
        {"kind": "products", "bound": "compute", "best_ms": 2.0, "time_ms": 5.0},
        {"kind": "products", "bound": "memory", "best_ms": 1.0, "time_ms": 1.5},
        {"kind": "others", "bound": "launch", "best_ms": 0.5, "time_ms": 0.7},
        {"kind": "others", "bound": None, "best_ms": None, "time_ms": 0.25},
        {"kind": "idle", "bound": None, "best_ms": None, "time_ms": 100.0},
    ]
    assert attainable_s(roofs) == pytest.approx(3.75e-3)
    assert attainable_s(roofs, executed_ratio=1.5) == pytest.approx(4.75e-3)
    assert attainable_s(roofs[2:]) is None, "no matmul has a best time"
    assert attainable_s([]) is None
