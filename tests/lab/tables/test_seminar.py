"""The seminar's table, every row against the number that was worked out beforehand."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.cli.main import main
from mfulab.lab.report import frames
from mfulab.lab.report.figures import latency_pyramid
from mfulab.lab.report.page import document
from mfulab.lab.tables import statements
from mfulab.lab.tables.seminar import _practice, recompute

TRUE = {
    "linear 4→3": 24,
    "convolution 3×3, 3→1 channels, 2×2 out": 216,
    "convolution 3→16, 3×3, 32×32 out": 442_368,
    "linear 4096→1000": 4_096_000,
    "convolution, 6 kernels 3×3×3, 3×3 out": 2_916,
    "linear 5→3": 30,
    "digit CNN, convolution 1": 60_840,
    "digit CNN, convolution 2": 259_200,
    "digit CNN, linear 1": 737_280,
    "digit CNN, linear 2": 2_560,
    "digit CNN, total": 1_059_880,
    "digit CNN at 1 GFLOP/s": 1.05988,
    "SimpleCNN, one image, forward": 29_704_192,
    "SimpleCNN on an A100, a step of 32 images in 0.0231 s": 100 * 2_157_969_408 / 0.0231 / 19.5e12,
    "Linear(1024, 1024), batch 16": 50.72 * 67_108_864 / 16e9,
    "ResNet-18, one image, forward, MACs": 1_814_073_344,
    "product of two 1024×1024 matrices": 2_147_483_648,
    "one 4×4×4 product-and-sum of a tensor core": 128,
    "7 B parameters in 16 bits: weights, gradients, Adam": 56e9,
    "KV cache of one layer, 4096 wide, 2048 tokens, fp16": 33_554_432,
    "KV cache of 32 layers": 2**30,
    "GPT-2 small, forward, a token": 284_812_800,
    "GPT-2 small at 10 TFLOP/s": 1e13 / 284_812_800,
    "attention of one layer, forward (GPT-2 small, 1024 tokens)": 4 * 1024**2 * 768,
    "the bits of 1.0 in fp32": 0x3F800000,
    "machine epsilon of fp32": 2**-23,
    "machine epsilon of fp64": 2**-52,
    "GPT-2 small, parameters": 124_439_808,
    "peak of an A100": 312,
    "memory of each of N devices in data parallelism": 56e9,
    "prune.l1_unstructured": 0,
    "linear 4→3, operation by operation": 9,
    "the same step, each operation by the peak of its format": 100
    * (1_387_266_048 / 156e12 + 770_703_360 / 19.5e12)
    / 0.0231,
    "sides that a tile of 128 takes without padding": 0,
    "a failing call within try and except, cublasSgemm": 0,
    "the four projections of the same attention": 8 * 1024 * 768**2,
    "np.transpose of a 1024×1024 float32 matrix, distance of neighbours in a row": 4096,
    "first step that makes half of the mean of 50 at 0.0231 s": 0.5775,
    "NumPy's 0.194 s as FLOP/s, if n were 1,000": 2e9 / 0.194,
    "NumPy's and PyTorch's times as predicted, ÷ 0.194 and 0.017 s": 10 / 0.194,
    "a parameter updated in place outside torch.no_grad()": 1,
    "a statically quantised model without QuantStub and DeQuantStub, given float32": 1,
    # mean, variance, difference, sum, root, quotient, product, sum
    "operators of a layer norm by hand": 8,
    "a device of more FLOP/s, generating at batch 1": 989.4 / 312,
    "loading that takes as long as the step, its share of utilization and of MFU": 0.5,
    "lanes that an instruction of each scheduler of an H100 fills": 16_896,
    "values that cudaGetLastError returns": 1,
    "get_optimal_block_size of a device": 1024,
    "results of a tensor that requires a gradient": 1,
    "disk, 50,000 to 100,000 cycles at 3 GHz": 100 / 3,
    "activations of 12 layers for the backward pass (GPT-2 small, 1024 tokens)": 12
    * (34 * 1024 * 768 + 5 * 12 * 1024**2),
    "a depthwise-separable convolution's share of the plain one's MACs, 128→128 channels, 3×3": 1
    / 128
    + 1 / 9,
    "the profiler's times in seconds": 1e6,
    "machine epsilon of binary128": 2.0**-112,
    "decimal32, decimal64, decimal128: 0.1 + 0.2 − 0.3": 0,
    "unit in the last place of 1 and of 2²⁴ in fp32": 2,
}
QUOTATIONS = yaml.safe_load(
    Path(__file__).with_name("seminar_quotations.yaml").read_text(encoding="utf-8")
)
IN_SUBSTANCE = "in substance: "
# Printed wrong by the source.
WRONG = {
    "digit CNN, total",
    "SimpleCNN on an A100, a step of 32 images in 0.0231 s",
    "Linear(1024, 1024), batch 16",
    "KV cache of one layer, 4096 wide, 2048 tokens, fp16",
    "KV cache of 32 layers",
    "GPT-2 small, forward, a token",
    "GPT-2 small at 10 TFLOP/s",
    "from cuda.bindings import cublas",
    "GPT-2 small, parameters",
    "memory of each of N devices in data parallelism",
    "prune.l1_unstructured",
    "GPU utilization",
    "FLOPs",
    "energy efficiency of a language model",
    "linear 4→3, operation by operation",
    "the same step, each operation by the peak of its format",
    "sides that a tile of 128 takes without padding",
    "memory sectors that a warp of the naive kernel reads, its threads in different rows of 1,024 float32",
    "np.transpose of a 1024×1024 float32 matrix, distance of neighbours in a row",
    "NumPy's 0.194 s as FLOP/s, if n were 1,000",
    "NumPy's and PyTorch's times as predicted, ÷ 0.194 and 0.017 s",
    "a device of more FLOP/s, generating at batch 1",
    "loading that takes as long as the step, its share of utilization and of MFU",
    "lanes that an instruction of each scheduler of an H100 fills",
    "format of products of float32 tensors in PyTorch, unless told otherwise",
    "values that cudaGetLastError returns",
    "get_optimal_block_size of a device",
    "a statically quantised layer without calibration, its error",
    "torch.Tensor.grad_zero_",
    "transfers in the mean of ten calls",
    "greatest error of a 512³ product of uniform float32, ÷ 6.0e-4",
    "results of a tensor that requires a gradient",
    "self_cuda_time_total of the profiler's operators",
    "first step that makes half of the mean of 50 at 0.0231 s",
    "a statically quantised model without QuantStub and DeQuantStub, given float32",
    "operators of a layer norm by hand",
    "activations of 12 layers for the backward pass (GPT-2 small, 1024 tokens)",
    "gradient of distillation at T = 4, with KL alone",
    "torch.cuda.amp.autocast and GradScaler, torch.quantization.quantize_dynamic, torch.jit.script",
    "a model with fewer MACs",
}


@pytest.fixture(scope="module")
def table():
    return {row["case"]: SimpleNamespace(**row) for row in recompute()}


@pytest.mark.parametrize("case", TRUE)
def test_value(table, case):
    assert table[case].value == pytest.approx(TRUE[case], rel=1e-12)


def misquoted(row):
    """Why a row does not stand in the fixture: another text or topic, or words that its text does
    not have there."""
    if row.source == "ours":
        is_placed = bool(row.place)
        return ["names a topic of no text"] * is_placed + ["quotes no text"] * is_verbatim(row)
    topics = QUOTATIONS[row.source]
    if row.place not in topics:
        return [f"{row.source} has no {row.place!r}"]
    said = [words for words in topics[row.place] if row.printed.strip("“”") in words]
    return [f"{row.printed!r} is not in {topics[row.place]}"] * (is_verbatim(row) and not said)


def is_verbatim(row):
    return bool(row.printed) and not row.printed.startswith(IN_SUBSTANCE)


def test_each_statement_has_its_text_and_topic_and_its_words_are_quoted_or_said_to_be_the_substance(
    table,
):
    assert {case: faults for case, row in table.items() if (faults := misquoted(row))} == {}
    assert sum(is_verbatim(row) for row in table.values()) > 25
    assert {row.source for case, row in table.items() if case in WRONG} == {*QUOTATIONS}


@pytest.mark.parametrize(
    ("case", "source", "agrees"),
    [
        ("GPU utilization", "accounting", False),
        ("prune.l1_unstructured", "accounting", False),
        ("a model with fewer MACs", "lab", False),
        ("a failing call within try and except, cublasSgemm", "kernels", True),
        ("peak of a Turing card with 72 SMs at 1.77 GHz, fp32", "hardware", True),
        ("a parameter updated in place outside torch.no_grad()", "hardware", True),
        ("peak of an A100", "lab", True),
        ("FLOPs", "optimise", False),
        ("gradient of distillation at T = 4, with KL alone", "accounting", False),
        ("disk, 50,000 to 100,000 cycles at 3 GHz", "accounting", True),
    ],
)
def test_a_statement_is_laid_to_the_text_that_makes_it(table, case, source, agrees):
    assert (table[case].source, table[case].agrees) == (source, agrees)


def test_pycuda_s_prediction_is_not_held_against_numba(table):
    row = table["NumPy's and PyTorch's times as predicted, ÷ 0.194 and 0.017 s"]
    assert "0.540" not in row.case + row.formula
    assert "PyCUDA" in row.note


def test_calibration_and_graphs_are_tried(table):
    row = table["a statically quantised layer without calibration, its error"]
    assert row.value > 50
    assert statements.static_error(calibrated=True) < 0.05
    for steps in (1, 7):
        assert statements.graph_nodes(statements.updated(steps)) == steps
    with torch.no_grad():
        assert statements.graph_nodes(2 * torch.ones(3, requires_grad=True)) == 0


def test_sums_in_float64_lose_less_than_those_in_float32(table):
    row = table["greatest error of the same 512³ product with sums in float64, ÷ 1.5e-4"]
    assert (
        row.value * 1.5e-4 == statements.rounded_once_error() <= 2.0**-17
    )  # half a ULP of 128 to 256
    assert statements.rounded_once_error() < statements.greatest_error(0) / 5
    assert table["Numba's and PyTorch's times, ÷ NumPy's 0.194 s"].value > 1


def test_the_block_sizes_of_the_note_are_recorded(table):
    rows = pd.read_csv(ROOT / "results/reference/nvidia-h200/matmul.csv", low_memory=False)
    tried = rows.query("kernel == 'cuda_coalesced' and m == 2704 and status == 'ok'")
    note = table["get_optimal_block_size of a device"].note
    for side in (16, 32):
        times = tried.loc[tried["block"] == f"[{side}, {side}]", "time_s"]
        assert f"{side}×{side} takes {1e3 * times.min():.2f} ms" in note or (
            f"{side}×{side} {1e3 * times.min():.2f} ms" in note
        )


@pytest.mark.parametrize(
    "change",
    [
        {"printed": "1,060,401"},
        {"source": "lab"},
        {"place": "pruning"},
        {"place": ""},
        {"source": "ours"},
        {"source": "ours", "place": ""},
    ],
)
def test_a_misquotation_is_found(table, change):
    assert misquoted(SimpleNamespace(**vars(table["digit CNN, total"]) | change))


def test_a_number_of_ours_is_not_said_to_be_printed(table):
    found = {case for case, row in table.items() if not row.printed}
    assert found == {case for case, row in table.items() if row.source == "ours"}


def test_a_layer_norm_by_hand_calls_seven_kinds_of_operator():
    values = dict(_practice())
    assert values["norm_operators"] == 8
    assert values["norm_operators_kinds"] == 7
    assert values["norm_fused"] == 1


def test_rounded_answers(table):
    answers = {case: row.answer for case, row in table.items()}
    assert answers["SimpleCNN on an A100, a step of 32 images in 0.0231 s"] == "0.48 %"
    assert answers["the same step, each operation by the peak of its format"] == "0.21 %"
    assert answers["Linear(1024, 1024), batch 16"] == "0.21 %"
    found = table["gradient of distillation at T = 4, with KL alone"].value
    assert found == pytest.approx(1 / 16, rel=1e-3)
    assert answers["GPT-2 small at 10 TFLOP/s"] == "35,111 tokens/s"
    assert answers["digit CNN at 1 GFLOP/s"] == "1.06 ms"
    assert answers["ResNet-18, one image, forward"].startswith("3.628 ")
    assert round(table["ResNet-18, one image, forward"].value / 1e9, 2) == 3.64
    assert "112 GB" in table["7 B parameters in 16 bits: weights, gradients, Adam"].note
    peaks = [row.value for case, row in table.items() if case.startswith("peak of a Turing card")]
    assert [round(peak / 1e12, 1) for peak in peaks] == [16.3, 130.5]


def test_the_source_is_called_wrong_where_it_is(table):
    assert {case for case, row in table.items() if not row.agrees} == WRONG
    assert all(table[case].note for case in WRONG)


def test_the_table_is_written_and_the_page_shows_it(table, one_figure, tmp_path):
    main(["seminar", "--out", str(tmp_path / "seminar.csv")])
    rows = frames.texts(tmp_path / "seminar.csv")
    assert len(rows) == len(table)
    assert set(rows.loc[rows["agrees"] != "True", "case"]) == WRONG
    content = document.build(tmp_path)
    assert 'id="seminar"' in content
    assert "<s>1,060,400</s>" in content
    assert "1,059,880 FLOP" in content


@pytest.mark.parametrize("content", few(["case,printed\nx,y\n", "", None]))
def test_without_the_table_the_page_has_no_section(one_figure, tmp_path, content):
    if content is not None:
        (tmp_path / "seminar.csv").write_text(content)
    assert 'id="seminar"' not in document.build(tmp_path)


def recorded(table):
    return pd.read_csv(ROOT / f"results/reference/amd-epyc-2c/{table}.csv", low_memory=False)


def test_a_separable_network_saves_less_time_than_flops():
    rows = (
        recorded("profile")
        .query("experiment == 'fewer_flops'")
        .set_index(["mode", "precision", "model"])
    )
    for mode, precision in {key[:2] for key in rows.index}:
        plain, separable = (
            rows.loc[(mode, precision, f"{name}_cnn")] for name in ("plain", "separable")
        )
        # Two of three convolutions are separable, 64→128 and 128→128; the first, 3→64, has 27
        # products a place.
        of_convolutions = (27 * 64 + 9 * 64 + 64 * 128 + 9 * 128 + 128**2) / (
            27 * 64 + 9 * 64 * 128 + 9 * 128**2
        )
        assert separable.flops / plain.flops == pytest.approx(of_convolutions, rel=0.02)
        assert separable.time_s / plain.time_s > 1.5 * separable.flops / plain.flops
    plain, separable = (
        rows.loc[("inference", "fp32", f"{name}_cnn")] for name in ("plain", "separable")
    )
    told = (
        (ROOT / "docs/flops.md")
        .read_text(encoding="utf-8")
        .partition("### Separable convolutions")[2]
    )
    assert f"{separable.flops / plain.flops:.3f} of the FLOPs of inference" in told
    assert f"{separable.time_s / plain.time_s:.2f} of the time" in told
    found = " ".join(told.split()).count(
        f"from {plain.mfu_percent:.0f} % to {separable.mfu_percent:.0f} %"
    )
    assert found == 1


def test_documents_have_the_recording_s_page_faults_and_cycles():
    rows = recorded("profile").query("status == 'ok'")
    many = rows["page_faults_per_s"] * rows["median_time_s"] > 300
    known = [rows.loc[which, "precision_percent"].median() for which in (many, ~many)]
    told = " ".join((ROOT / "docs/notes/measuring.md").read_text(encoding="utf-8").split())
    said = f"the {many.sum()} steps with more than 300 faults (`page_faults_per_s` × `median_time_s`) have a median "
    assert f"{said}`precision_percent` of {known[0]:.0f}, the others of {known[1]:.0f}." in told
    chased = (
        recorded("memory").query("pattern == 'random'").groupby("level")["cycles_per_access"].min()
    )
    disk = recorded("memory").query("pattern == 'disk'")["cycles_per_access"].min()
    lines = (ROOT / "docs/seminar.md").read_text(encoding="utf-8")
    for level, cycles in [*chased.items(), ("disk", disk)]:
        if printed := latency_pyramid.PRINTED.get(level):
            assert f"| {level} | {printed} | {cycles:,.0f} |" in lines


def test_numpy_s_printed_time_is_of_no_thousand_but_of_2_700_at_this_project_s_speed():
    rows = recorded("matmul").query("kernel == 'numpy' and n == 2048 and precision == 'fp32'")
    rate = 2 * 2048**3 / rows["time_s"].iloc[0]
    assert (0.194 * rate / 2) ** (1 / 3) == pytest.approx(2700, rel=0.02)
