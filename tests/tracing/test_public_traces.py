"""Public traces of real devices, where they lie here: shares and FLOPs against hand counts."""

import functools
import gzip
import json
from pathlib import Path

import pytest
from support.slow import few

from mfulab.lab.tables.records import from_recorded
from mfulab.measurements.read_trace import TraceRow
from mfulab.measurements.read_trace.reader import read_file
from mfulab.mfu.traced import trace_columns

FOLDER = Path(__file__).parents[3] / "shared/traces"
REFERENCE = Path(__file__).parents[2] / "results/reference/public"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no traces in {FOLDER}")

# BERT-small: 4 layers of width 512 and 8 heads over 141 tokens, a head over 30,522 words.
BERT = 4 * (
    4 * 2 * 141 * 512 * 512 + 2 * 2 * 141 * 512 * 2048 + 4 * 141**2 * 512
) + 2 * 141 * 512 * (512 + 30_522)
# ViT-B/16: 4 pictures, 12 layers of width 768 over 197 tokens, 196 patches of 3·16·16, a pooler.
VIT = (
    12 * (4 * 2 * 788 * 768 * 768 + 2 * 2 * 788 * 768 * 3072 + 4 * 4 * 197**2 * 768)
    + 2 * 4 * 196 * 768 * 3 * 16 * 16
    + 2 * 4 * 768 * 768
)
# Qwen1.5-0.5B: 16 sequences of 559 tokens, 24 layers of width 1024 (MLP 2816), no head; rotary
# angles in fp32.
QWEN = (
    24 * (4 * 2 * 8944 * 1024 * 1024 + 3 * 2 * 8944 * 1024 * 2816 + 4 * 16 * 559**2 * 1024)
    + 2 * 32 * 559
)
# file: FLOPs of the trace, their format, steps, busy µs (kernels alone)
KNOWN = {
    "h100_bert_small_inference": (BERT, "bf16", 1, 307.197),
    "mi300x_bert_small_inference": (BERT, "bf16", 1, 388.344),
    "h100_vit_base_inference": (VIT, "bf16", 1, 1_220.926),
    "h100_qwen1_5_0_5b_inference": (QWEN, "bf16", 1, None),
}


@functools.cache
def told(name):
    (found,) = read_file(FOLDER / f"{name}.json.gz")
    return found


@functools.cache
def events_of(name):
    with gzip.open(FOLDER / f"{name}.json.gz") as file:
        return json.load(file)["traceEvents"]


@functools.cache
def all_shipped():
    """The kept rows by their file and, of several in one, their rank or device."""
    return {(row["trace"], row["rank"]): row for row in from_recorded(REFERENCE).records["traces"]}


@functools.cache
def shipped():
    """The kept rows of torch.profiler by the name of their file, which is without its ending."""
    told = {
        name.removesuffix(".json.gz"): row
        for (name, _), row in all_shipped().items()
        if name.endswith(".json.gz")
    }
    return {name: row for name, row in told.items() if not name.startswith("rocprof")}


def row_of(name):
    found = told(name)
    row = found.row.model_dump()
    return row | trace_columns(row), found.analysis


@pytest.mark.parametrize("name", KNOWN)
def test_flops_equal_a_hand_count(name):
    flops, product_format, steps, busy_us = KNOWN[name]
    row, _ = row_of(name)
    assert row["flops"] * row["steps"] == pytest.approx(flops, rel=1e-3)
    assert (row["effective_precision"], row["steps"]) == (product_format, steps)
    if busy_us is not None:
        found = row["kernel_busy_percent"] / 100 * row["window_s"] * 1e6
        assert found == pytest.approx(busy_us, abs=1e-3)


def summed(name: str) -> int:
    """FLOPs of all calls of mm, bmm and addmm but an optimiser's, by the shapes that each was
    recorded with."""
    flops, updates = (
        0,
        [event for event in events_of(name) if event["name"].startswith("Optimizer.step#")],
    )
    for event in events_of(name):
        if any(
            update["ts"] <= event.get("ts", 0) < update["ts"] + update["dur"] for update in updates
        ):
            continue
        shapes = event.get("args", {}).get("Input Dims", [])
        if event["name"] in ("aten::mm", "aten::bmm"):
            a, b = shapes[:2]
        elif event["name"] == "aten::addmm":
            a, b = shapes[1:3]
        else:
            continue
        flops += 2 * a[-2] * a[-1] * b[-1] * (a[0] if len(a) == 3 else 1)
    return flops


@pytest.mark.parametrize(("name", "steps"), [("rank0_of_2", 2), ("rank1_of_2", 2)])
def test_flops_equal_a_sum_over_events(name, steps):
    """Both ranks hold calls of aten::linear with shapes that are not theirs; what they are made of
    counts. Shampoo's own matmuls, 18 % of all, are no model's."""
    assert row_of(name)[0]["flops"] * steps == pytest.approx(summed(name), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "tokens", "logits", "pairs"),
    [
        ("graph_launched_decode", 32, 32, 55086),
        ("graph_piecewise_execution", 8192, 46, 7671310 + 34489),
    ],
)
def test_a_serving_engines_step_costs_what_its_model_does_by_hand(name, tokens, logits, pairs):
    """gpt-oss-20b in vLLM: 24 layers of 2,880, 64 heads and 8 of keys, 64 wide, a router of 32. The
    step's range tells the pairs; experts hold neither their width nor their number in the record."""
    projections = 2 * tokens * 2880 * 64 * (64 + 2 * 8 + 64)
    layer = projections + 2 * tokens * 2880 * 32 + 4 * 64 * 64 * pairs
    row, analysis = row_of(name)
    assert row["flops"] == 24 * layer + 2 * logits * 2880 * 201088
    unknown, reason = analysis.uncounted["vllm::moe_forward"]
    assert reason.key == "uncounted_operator"
    assert unknown > 0.4 * analysis.window.length


def test_flops_of_training_equal_a_sum_over_its_events():
    """The graph's kernels have no operators; what was launched eagerly is 180 linear layers and
    their gradients."""
    row, _ = row_of("v100_nccl_training")
    assert row["flops"] * 6 == pytest.approx(summed("v100_nccl_training"), rel=1e-3)
    assert row["mfu_percent"] is None
    found = json.loads(row["mfu_reason"])
    assert found == {"mostly_uncounted": {"share": 88.4389, "least": 1.41079}}


def test_mfu_of_the_real_devices():
    for name, peak in (
        ("h100_qwen1_5_0_5b_inference", 989.4),
        ("mi300x_bert_small_inference", 1307.4),
    ):
        row, _ = row_of(name)
        assert row["peak_tflop_s"] == pytest.approx(peak, rel=1e-3)
        found = row["mfu_percent"]
        assert found == pytest.approx(100 * row["flops"] / row["time_s"] / peak / 1e12, rel=1e-3)


def test_a_device_that_lags_is_read_over_its_own_period():
    """The H100 ends the step before 14.2 ms into the host's; from there to its own end it takes
    35.2 ms."""
    row, analysis = row_of("h100_qwen1_5_0_5b_inference")
    (earlier,) = (said for said in analysis.window.source if said.key == "earlier_work_left_out")
    assert earlier.numbers["ms"] == pytest.approx(14.1955, abs=1e-4)
    assert row["time_s"] == pytest.approx(35.1834e-3, abs=1e-7)
    assert row["mfu_percent"] == pytest.approx(100 * QWEN / 35.1834e-3 / 989.4e12, abs=0.01)
    assert row["kernel_busy_percent"] == pytest.approx(90.27, abs=0.01)


@pytest.mark.slow
def test_busy_time_is_the_union_of_kernels_to_the_nanosecond():
    for name in shipped():
        found = told(name)
        window, spans, busy = found.analysis.window, [], 0
        for event in events_of(name):
            if event.get("cat") == "kernel":
                begin = round(event["ts"] * 1000)
                spans.append((begin, begin + round(event["dur"] * 1000)))
        reached = window.begin
        for begin, end in sorted(spans):
            begin, end = max(begin, reached), min(end, window.end)
            busy += max(0, end - begin)
            reached = max(reached, end)
        kernels = ("products", "recomputed", "uncounted", "others", "graph", "communication")
        assert sum(found.analysis.spent[kind] for kind in kernels) == busy, name
        assert sum(found.analysis.spent.values()) == window.length


SHIPPED = [one for one in FOLDER.glob("*.json.gz") if "capture" not in one.name]
BY_SIZE = sorted(SHIPPED, key=lambda one: (one.stat().st_size, one.name))


@pytest.mark.parametrize("name", few([one.name for one in BY_SIZE], 9))
def test_the_times_of_operators_sum_to_the_step_and_each_has_a_roof_or_a_reason(name):
    for one in read_file(FOLDER / name):
        row = one.row.model_dump()
        found = json.loads(trace_columns(row)["operator_roofline"])
        seen = sum(operator.time_ns for operator in one.analysis.operators)
        assert seen == one.analysis.window.length
        expected = pytest.approx(1e3 * row["time_s"], rel=1e-9)
        assert sum(each["time_ms"] for each in found) == expected
        for each in found:
            if each["kind"] in ("products", "recomputed", "uncounted", "others"):
                assert (each["bound"] is None) == bool(each["reason"]), each
            assert not each.get("doubtful"), (
                "no public trace has an operator above its device's roof"
            )


def test_the_roofline_of_the_real_devices_by_hand():
    row, _ = row_of("h100_qwen1_5_0_5b_inference")
    roofs = [
        one for one in json.loads(row["operator_roofline"]) if one["kind"] in ("products", "others")
    ]
    found = {(one["operator"], one["shapes"]): one for one in roofs}
    # 24 attentions over 16 sequences of 559 tokens and 16 heads of 64: queries, keys, values and
    # results, once each.
    attention = next(one for (name, _), one in found.items() if "attention" in name)
    assert attention["bound"] == "memory", "490 GFLOP take 0.497 ms at the peak, 1.76 GB 0.525 ms"
    seen = attention["best_ms"]
    assert seen == pytest.approx(1e3 * 24 * 4 * 16 * 16 * 559 * 64 * 2 / 3350e9, rel=1e-3)
    up = found["aten::linear", "16×559×1024·2816×1024"]
    assert up["bound"] == "compute"
    assert up["best_ms"] == pytest.approx(1e3 * 48 * 2 * 8944 * 1024 * 2816 / 989.43e12, rel=1e-3)
    # SiLU times the gate: two bf16 tensors read, one written.
    gate = found["aten::mul", "16×559×2816·16×559×2816"]
    assert gate["best_ms"] == pytest.approx(1e3 * 24 * 3 * 8944 * 2816 * 2 / 3350e9, rel=1e-3)
    assert gate["headroom_ms"] == pytest.approx(gate["time_ms"] - gate["best_ms"])


@pytest.mark.slow
def test_the_shipped_rows_are_what_the_files_give():
    fresh_rows = [
        one.row.model_dump()
        for name in {name for name, _ in all_shipped()}
        for one in read_file(FOLDER / name)
    ]
    assert len(fresh_rows) == len(all_shipped())
    for fresh in fresh_rows:
        name = fresh["trace"]
        row = all_shipped()[name, fresh["rank"]]
        of_reading = ("run", "commit", "source", "started_at", "process_s", "measured_s")
        for column in TraceRow.model_fields.keys() - {*of_reading}:
            assert row[column] == pytest.approx(fresh[column]), (name, column)


def test_what_cannot_be_told_is_empty_and_says_why():
    row, _ = row_of("a100_alexnet_no_shapes")
    assert (row["flops"], row["mfu_percent"]) == (None, None)
    assert json.loads(row["mfu_reason"]) == {"no_shapes": {}}
    row, _ = row_of("graph_launched_decode")
    assert row["device"] is None
    assert json.loads(row["mfu_reason"]) == {"unnamed_device": {"precision": "bf16"}}
    row, _ = row_of("v100_216000_events")
    assert row["kernel_busy_percent"] == pytest.approx(56.27, abs=0.01)
    assert row["verdict"] == "launch_bound", (
        "42 % idle, 38 of it in gaps for a launch, beside 21 % of communication"
    )
