"""Traces of serving engines: operators of their own, whose lengths the step's range tells."""

import json

import pytest
from support.trace_events import event, launched, operator, trace, write

from mfulab.measurements.read_trace.reader import read_file
from mfulab.mfu.traced import trace_columns

BF16 = "c10::BFloat16"
FP8 = "c10::Float8_e4m3fn"
HEADS, WIDTH = 32, 128
ATTENTION = "vllm::unified_attention_with_output"


def mark(name, begin, end):
    return event("user_annotation", name, begin, end - begin, 1)


def decoding(keys):
    return f"execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk{keys}sqsq8sqsk{keys})"


def attention(at, number, tokens=8):
    shapes = [
        [tokens, HEADS, WIDTH],
        [tokens, 8, WIDTH],
        [tokens, 8, WIDTH],
        [tokens, HEADS, WIDTH],
    ]
    call = operator(ATTENTION, at, 10, [*shapes, [], [], [], [0]], BF16)
    return [call, *launched("kernel_unified_attention_3d", at + 1, at + 20, 30, number)]


def linear(at, number, name="vllm::rocm_unquantized_gemm", kind=BF16, kernel="Cijk_BBS_MT16x16x64"):
    call = operator(name, at, 10, [[8, 4096], [6144, 4096], []], kind)
    return [call, *launched(kernel, at + 1, at + 20, 20, number)]


def row_of(path):
    (found,) = read_file(path)
    row = found.row.model_dump()
    return row | trace_columns(row), found.analysis


def test_each_steps_attention_costs_what_its_own_requests_do(tmp_path):
    events = [
        *(mark(decoding(1000), 100, 190), mark(decoding(3000), 200, 290)),
        *(attention(110, 1), attention(210, 2), linear(140, 3), linear(240, 4)),
    ]
    row, analysis = row_of(write(tmp_path / "t.json", trace(*events)))
    matmuls = 2 * 8 * 4096 * 6144
    pairs = 4 * HEADS * WIDTH
    assert (row["mode"], row["steps"]) == ("decoding", 2)
    assert row["flops"] == matmuls + pairs * 2000
    moved = 2 * 2 * 8 * HEADS * WIDTH + 2000 * 8 * 2 * WIDTH * 2
    (product,) = [one for one in analysis.products if one.name == ATTENTION]
    assert (product.calls, product.call_bytes) == (2, moved)


def test_a_range_that_two_writers_mark_is_one_step(tmp_path):
    events = [
        *(mark(decoding(1000), 100, 190), mark("step[DECODE bs=8]", 101, 189)),
        *(mark(decoding(1000), 200, 290), mark("step[DECODE bs=8]", 201, 289)),
        *(linear(110, 1), linear(210, 2)),
    ]
    row, _ = row_of(write(tmp_path / "t.json", trace(*events)))
    assert row["steps"] == 2
    assert row["flops"] == 2 * 8 * 4096 * 6144


def test_without_lengths_attention_is_named_with_its_share_and_nothing_is_invented(tmp_path):
    events = [
        mark("execute_context_0(0)_generation_8(8)", 100, 190),
        *(attention(110, 1), linear(140, 2)),
    ]
    row, analysis = row_of(write(tmp_path / "t.json", trace(*events)))
    assert row["flops"] == 2 * 8 * 4096 * 6144
    time, reason = analysis.uncounted[ATTENTION]
    assert (time, reason.key) == (30_000, "no_step_lengths")
    assert row["uncounted_percent"] == pytest.approx(60)
    assert json.loads(row["mfu_reason"])["mostly_uncounted"]["share"] == pytest.approx(60)


def test_more_queries_than_the_call_has_tokens_are_not_its_own(tmp_path):
    events = [mark(decoding(1000), 100, 190), attention(110, 1, tokens=4), linear(140, 2)]
    _, analysis = row_of(write(tmp_path / "t.json", trace(*events)))
    assert ATTENTION in analysis.uncounted


def test_an_operator_that_no_file_names_is_still_named(tmp_path):
    name = "mine::paged_thing"
    events = [mark(decoding(1000), 100, 190), linear(110, 1), linear(140, 2, name)]
    row, analysis = row_of(write(tmp_path / "t.json", trace(*events)))
    assert row["flops"] == 2 * 8 * 4096 * 6144
    assert analysis.uncounted[name][1].key == "no_formula"
    assert analysis.uncounted[name][0] == 20_000


def test_what_an_operator_runs_inside_counts_where_its_own_shapes_tell_nothing(tmp_path):
    events = [
        mark(decoding(1000), 100, 190),
        operator("vllm::moe_forward", 110, 40, [[8, 4096], [8, 64], []], BF16),
        *linear(120, 1, "aten::mm"),
        *launched("fused_moe_kernel", 145, 190, 10, 2),
    ]
    events[2]["args"]["Input Dims"] = [[8, 4096], [4096, 64]]
    row, analysis = row_of(write(tmp_path / "t.json", trace(*events)))
    assert row["flops"] == 2 * 8 * 4096 * 64
    assert analysis.uncounted["vllm::moe_forward"][0] == 10_000


@pytest.mark.parametrize(
    ("name", "types", "kernel", "expected"),
    [
        ("vllm::fp8_gemm_nt_op", [FP8, "float", FP8, "float"], "deep_gemm::impl", "fp8"),
        ("_C::gptq_gemm", ["c10::Half", "int"], "marlin", "fp16"),
        ("sgl_kernel::cutlass_scaled_fp4_mm", [BF16, *["unsigned char"] * 2], "cutlass", "fp4"),
        ("sglang::inplace_fused_experts", [BF16, *["unsigned char"] * 2], "moe", "bf16"),
        ("sglang::inplace_fused_experts", [BF16, FP8, FP8, "float", "int"], "moe", "fp8"),
    ],
)
def test_the_format_is_that_of_what_is_multiplied(tmp_path, name, types, kernel, expected):
    shapes = {
        "vllm::fp8_gemm_nt_op": [[64, 512], [64, 4], [256, 512], [2, 4]],
        "_C::gptq_gemm": [[64, 512], [64, 256]],
        "sgl_kernel::cutlass_scaled_fp4_mm": [[64, 256], [64, 256], [256, 256]],
        "sglang::inplace_fused_experts": [
            [64, 512],
            [8, 512, 512],
            [8, 512, 256],
            [64, 2],
            [64, 2],
        ],
    }[name]
    call = operator(name, 110, 10, shapes)
    call["args"]["Input type"] = types + ["Scalar"] * (len(shapes) - len(types))
    events = [mark(decoding(1000), 100, 190), call, launched(kernel, 111, 130, 20, 1)]
    row, _ = row_of(write(tmp_path / "t.json", trace(*events)))
    assert row["effective_precision"] == expected
