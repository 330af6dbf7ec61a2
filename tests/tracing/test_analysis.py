"""Shares of a window's time by hand, on traces as torch.profiler writes them."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_events import H100, TRACE, event, launched, operator, steps, trace, write

from mfulab.cli.main import main
from mfulab.core.language import verdicts
from mfulab.core.said import Said
from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.measurements.read_trace.reader import read_file
from mfulab.mfu import job as jobs
from mfulab.mfu import traced
from mfulab.tracing.analysis import Analysis, analyse
from mfulab.tracing.attribution import FUSED
from mfulab.tracing.chrome import TraceError
from mfulab.tracing.events import read
from mfulab.tracing.operators import trace_readings, trace_steps
from mfulab.tracing.window import annotation, windows

CPU = torch.device("cpu")
MM = [[64, 32], [32, 16]]  # 65,536 FLOPs


@pytest.fixture
def told(tmp_path):
    def of(first, *events, place=0, **metadata) -> Analysis:
        content = first if "traceEvents" in first else trace(first, *events, **metadata)
        recording = read(write(tmp_path / "t.json", content))[0]
        return analyse(recording, windows(recording)[place])

    return of


def values(analysis: Analysis) -> dict[str, float | None]:
    return {name: reading.value for name, reading in analysis.readings.items()}


def test_shares_by_hand(told):
    found = values(told(TRACE))
    assert found["kernel_busy_percent"] == pytest.approx(60), "kernels: copies are none"
    assert found["compute_busy_percent"] == pytest.approx(40)
    assert found["communication_percent"] == pytest.approx(20)
    assert found["copy_percent"] == pytest.approx(10)
    assert found["idle_percent"] == pytest.approx(30)
    assert found["launch_gaps_per_step"] == 1.5
    assert found["launch_gap_s"] == pytest.approx(10e-6)


def test_kernels_keep_their_time_and_gaps_give_way_where_a_step_is_faster_without_a_trace(told):
    traced = told(TRACE)
    found = traced.untraced(0.8 * traced.window.length / traced.window.steps / 1e9)
    shares = values(found)
    assert shares["kernel_busy_percent"] == pytest.approx(60 / 0.8)
    assert shares["copy_percent"] == pytest.approx(10 / 0.8)
    assert shares["idle_percent"] == pytest.approx(10 / 0.8)
    assert shares["launch_gap_s"] == pytest.approx(10e-6 / 3)
    assert shares["launch_gaps_per_step"] == 1.5
    seen = {kind: time for kind, time in found.spent.items() if kind != "idle"}
    assert seen == {kind: time for kind, time in traced.spent.items() if kind != "idle"}


@given(st.floats(0.01, 20), st.integers(1, 89))
def test_parts_sum_to_the_untraced_time_and_no_share_exceeds_it(tmp_path_factory, ratio, busy):
    content = trace(steps((0, 100)), launched("k", 5, 10, busy, 1))
    recording = read(write(tmp_path_factory.mktemp("t") / "t.json", content))[0]
    traced = analyse(recording, windows(recording)[0])
    found = traced.untraced(ratio * traced.window.length / 1e9)
    assert sum(found.spent.values()) == found.window.length
    kernels = found.spent["others"] + found.spent["uncounted"]
    longer = found.window.length - traced.window.length
    assert kernels == pytest.approx(busy * 1000 + max(0, longer), abs=2), (
        "longer steps are those of slower kernels"
    )
    assert 0 <= values(found)["kernel_busy_percent"] <= 100.001
    seen = values(found)["kernel_busy_percent"] + values(found)["idle_percent"]
    assert seen == pytest.approx(100, abs=0.01)
    assert (found is traced) == (round(ratio * traced.window.length) < busy * 1000)


def test_a_product_whose_clock_fell_after_its_trace_is_no_idle_device(told):
    """An 8192³ product: 1.39 ms in the ten traced steps, 1.57 as the power limit acts. A CPU's
    shares stay."""
    full = told(steps((0, 1390)), operator("aten::mm", 0, 5, MM), launched("gemm", 1, 1, 1388, 1))
    slowed = full.untraced(1570e-6)
    shares = values(slowed)
    assert shares["idle_percent"] == pytest.approx(100 * 2 / 1570)
    assert (
        shares["matmul_percent"]
        == shares["kernel_busy_percent"]
        == pytest.approx(100 * 1568 / 1570)
    )
    assert (slowed.spent["products"], slowed.spent["idle"]) == (1_568_000, 2_000)
    with torch.inference_mode():
        host = trace_steps(lambda: torch.ones(64, 64) @ torch.ones(64, 64), CPU, 2)
    assert trace_readings(host, CPU, 1.0)[0] == trace_readings(host, CPU)[0]


HEAD = "void Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(Params)"
NVJET = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"


@pytest.mark.parametrize(("words", "kernel", "head_us"), [(50257, HEAD, 6664), (50304, NVJET, 878)])
def test_a_head_of_an_odd_vocabulary_is_found_and_what_padding_saves(told, words, kernel, head_us):
    """GPT-2's: instructions of half the rate, and 7.6 times the time, which half the rate alone
    does not explain."""
    shapes = [[8192, 768], [words, 768]], [[8192, 768], [3072, 768]]
    analysis = told(
        steps((0, 7000)),
        operator("aten::linear", 0, 5, shapes[0], "c10::BFloat16"),
        launched(kernel, 1, 10, head_us, 1),
        operator("aten::linear", 10, 5, shapes[1], "c10::BFloat16"),
        launched(NVJET, 11, 10 + head_us, 53.5, 2),
    )
    head, linear = 2 * 8192 * 768 * words, 2 * 8192 * 768 * 3072
    fits = 8256 / 8192  # tokens in tiles of 192
    ratios, odd = analysis.ratios(), words == 50257
    tiled = head * (50304 / 50257 if odd else fits) + linear * fits
    assert ratios["executed_ratio"] == pytest.approx(tiled / (head + linear))
    issued = tiled + (head * 50304 / 50257 if odd else 0)
    assert ratios["issued_ratio"] == pytest.approx(issued / (head + linear))
    if not odd:
        assert analysis.misaligned() is None
        return
    found = json.loads(analysis.misaligned())
    assert (found["side"], found["padded"], found["ms"], found["rate"]) == (50257, 50304, 6.664, 50)
    assert found["best_ms"] == pytest.approx(0.0535 * 50304 / 3072, rel=1e-3)
    row = {"time_s": 7e-3, "misaligned": analysis.misaligned()}
    sentence = verdicts.misaligned(row)
    assert "50,257 to 50,304" in sentence
    assert "6.66 ms" in sentence
    assert "0.88 ms" in sentence
    assert "50,304" in verdicts.misaligned(row, "ko")


def test_a_trace_without_kernels_tells_no_ratio(told):
    found = told(steps((0, 100)), operator("aten::mm", 0, 50, MM), deviceProperties=[]).ratios()
    assert found == {"executed_ratio": None, "issued_ratio": None}


def test_the_edges_of_the_window_count_as_idle(told):
    assert values(told(steps((0, 100)), launched("k", 30, 40, 20, 1)))["kernel_busy_percent"] == 20


def test_what_ran_before_the_steps_does_not_count_and_what_they_launched_does(told):
    analysis = told(
        steps((100, 200)), event("kernel", "old", 50, 60), launched("late", 190, 195, 45, 1)
    )
    assert analysis.window.length == 130_000
    said = {one.key: one.numbers for one in analysis.window.source}
    assert said == {
        "profiler_steps": {},
        "earlier_work_left_out": {"ms": 0.01},
        "launched_later": {"ms": 0.04},
        "outside_window": {"percent": pytest.approx(100 * 60 / 105)},
    }
    assert values(analysis)["kernel_busy_percent"] == pytest.approx(100 * 45 / 130)


@pytest.mark.parametrize("recorded", [True, False])
@settings(max_examples=30)
@given(
    period=st.integers(20, 200),
    lag=st.integers(2, 500),
    count=st.integers(1, 5),
    gap=st.integers(0, 10),
)
def test_steps_of_a_device_that_lags_take_its_own_period(
    tmp_path_factory, recorded, period, lag, count, gap
):
    """The host issues a step each 10 µs; the device ends one each period, and is behind from the
    first mark on."""
    began = 100 - period + lag
    old = (
        launched("k", 91, began, period - gap, 50)
        if recorded
        else event("kernel", "k", began, period - gap)
    )
    kernels = [
        launched("k", 101 + 10 * n, began + (n + 1) * period, period - gap, 1 + n)
        for n in range(count)
    ]
    marks = steps(*((100 + 10 * n, 110 + 10 * n) for n in range(count)))
    recording = read(write(tmp_path_factory.mktemp("t") / "t.json", trace(marks, old, *kernels)))[0]
    window = windows(recording)[0]
    ended = max(100 + lag - gap, 100)
    assert window.length == 1000 * (began + (count + 1) * period - gap - ended)
    assert lag < gap or window.length == 1000 * count * period, "completion to completion"


def test_earlier_work_on_another_stream_takes_nothing_from_these_steps(told):
    late = event("kernel", "ncclDevKernel_AllGather", 90, 100, 8, correlation=9)
    analysis = told(steps((100, 200)), late, launched("k", 105, 120, 60, 1))
    assert (analysis.window.begin, analysis.window.end) == (100_000, 200_000)


def test_slow_first_steps_are_warm_up_and_a_gap_in_their_numbers_parts_them(tmp_path):
    spans = [(0, 90), (100, 110), (110, 120), (120, 130)]
    kernels = [
        launched("k", at, at + 1, 5, number)
        for number, at in enumerate((1, 101, 111, 121), start=1)
    ]
    path = write(tmp_path / "t.json", trace(steps(*spans), steps((500, 520), first=40), *kernels))
    first, second = windows(read(path)[0])
    assert (first.first_step, first.last_step, first.steps, first.length) == (4, 6, 3, 30_000)
    assert Said("warm_up_left_out", {"count": 1}) in first.source
    assert (second.first_step, second.steps) == (40, 1)


@pytest.mark.parametrize("mark", [steps((0, 0)), event("user_annotation", annotation(0), 0, 9, 1)])
def test_no_whole_step_is_one_message(tmp_path, mark):
    path = write(tmp_path / "t.json", trace(mark, launched("k", -9, -5, 2, 1)))
    with pytest.raises(TraceError) as error:
        windows(read(path)[0])
    assert error.value.why.key == "no_whole_step"


def test_steps_in_which_the_device_did_nothing_are_idle(told):
    analysis = told(
        steps((0, 100)), launched("k", 5, 10, 30, 1), steps((200, 300), first=9), place=1
    )
    found = (analysis.spent["idle"], values(analysis)["kernel_busy_percent"], analysis.kernels)
    assert found == (100_000, 0, [])


def test_without_steps_it_is_first_to_last_activity(told):
    window = told(launched("a", 0, 10, 5, 1), launched("b", 1, 40, 10, 2)).window
    assert (window.length, window.steps) == (40_000, 1)
    assert window.source == (Said("from_activities"), Said("taken_for_one"))


def test_a_kernel_belongs_to_the_operator_that_launched_it(told):
    analysis = told(
        steps((0, 100)),
        operator("aten::linear", 0, 20, [[64, 32], [16, 32]]),
        operator("aten::addmm", 5, 10, MM),
        launched("sgemm_128x64_", 8, 30, 30, 1),
        operator("aten::layer_norm", 20, 20),
        operator("aten::native_layer_norm", 22, 10),
        launched("norm", 25, 60, 10, 2),
        # An older trace: the kernel's external id is its correlation, and no operator's.
        operator("aten::relu", 50, 20, **{"External id": 2}),
    )
    assert analysis.spent["products"] == 30_000
    assert analysis.others == {"aten::layer_norm": 10_000}
    assert analysis.flops() == {"fp32": 65_536}, "once, and not for its callee again"
    assert [product.name for product in analysis.products] == ["aten::linear"]


def test_a_kernel_without_a_launch_belongs_by_its_external_id(told):
    mm = operator("aten::mm", 0, 20, MM, "c10::BFloat16", **{"External id": 5})
    kernel = event("kernel", "k", 30, 30, correlation=9, **{"External id": 5})
    analysis = told(steps((0, 100)), mm, kernel)
    assert (analysis.spent["products"], analysis.flops()) == (30_000, {"bf16": 65_536})


def test_what_a_graph_launched_is_a_share_of_its_own(told):
    analysis = told(
        steps((0, 100)),
        operator("aten::mm", 0, 5, MM),
        launched("gemm", 1, 10, 10, 1),
        [
            one
            for place in range(4)
            for one in [event("kernel", "fused", 20 + 10 * place, 10, correlation=2)]
        ],
        event("cuda_runtime", "cudaGraphLaunch", 6, 1, 1, correlation=2),
    )
    found = values(analysis)
    assert analysis.spent["graph"] == 40_000
    assert found["matmul_percent"] is None
    assert "80 % of the kernels' time was launched by a graph" in str(
        analysis.readings["matmul_percent"].reason
    )
    assert analysis.top_other_operators() is None


def test_input_wait_is_idle_time_only(told):
    loads = event(
        "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 40, 1
    )
    analysis = told(steps((0, 100)), loads, launched("k", 5, 10, 30, 1))
    assert analysis.spent["input_wait"] == 20_000
    assert values(analysis)["idle_percent"] == 70


def test_a_gap_is_launch_bound_where_its_end_was_not_yet_launched(told):
    analysis = told(
        steps((0, 100)),
        launched("a", 1, 10, 10, 1),
        launched("b", 2, 40, 10, 2),
        launched("c", 80, 85, 15, 3),
    )
    found = values(analysis)
    seen = found["launch_bound_percent"]
    assert seen == pytest.approx(10 + 35), "before a, before c; b waited for something else"


def test_a_checkpoint_is_executed_work_and_no_useful_one(told):
    number = {"Sequence number": 4, "Fwd thread id": 0}
    analysis = told(steps((0, 200)),
            operator("aten::mm", 0, 10, MM, **number),
            launched("gemm", 1, 10, 20, 1),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 50, 100, 1),
            operator("aten::mm", 55, 10, MM, **number),
            launched("gemm", 56, 60, 20, 2),
            operator("aten::mm", 70, 10, [[32, 64], [64, 16]]),
            launched("gemm", 71, 90, 20, 3))  # fmt: skip
    assert analysis.flops() == {"fp32": 2 * 65_536}
    assert analysis.flops("executed_flops", recomputed=True) == {"fp32": 3 * 65_536}
    assert (analysis.spent["products"], analysis.spent["recomputed"]) == (40_000, 20_000)
    assert analysis.backward


def test_float32_on_tensor_cores_is_tf32(told):
    for kernel, wanted in (
        ("ampere_sgemm_128x64_tn", "fp32"),
        ("cutlass_80_tensorop_s1688gemm_128x64_", "tf32"),
    ):
        analysis = told(
            steps((0, 100)), operator("aten::mm", 0, 5, MM), launched(kernel, 1, 10, 10, 1)
        )
        assert analysis.flops() == {wanted: 65_536}


def test_products_without_shapes_are_listed_and_not_zero(told):
    analysis = told(steps((0, 100)), operator("aten::mm", 0, 5), launched("gemm", 1, 10, 10, 1))
    assert analysis.flops() == {}
    assert analysis.uncounted["aten::mm"] == (10_000, Said("no_shapes"))
    assert values(analysis)["matmul_percent"] == 10


def test_an_operator_without_a_formula_whose_kernel_multiplies_is_listed(told):
    analysis = told(
        steps((0, 100)),
        operator("mine::fancy", 0, 5, MM),
        launched("fancy_gemm_kernel", 1, 10, 10, 1),
    )
    assert analysis.uncounted == {"mine::fancy": (10_000, Said("no_formula"))}


def test_a_cpu_is_told_by_its_operators(told):
    content = trace(
        event("user_annotation", annotation(1), 0, 100, 1),
        operator("aten::linear", 0, 40, [[64, 32], [16, 32]]),
        operator("aten::addmm", 5, 30, MM),
        operator("aten::batch_norm", 50, 20),
        operator("aten::native_batch_norm", 55, 10),
        event("cpu_op", "aten::mm", 10, 80, 2),  # another thread
        deviceProperties=[],
    )
    analysis = told(content)
    found = values(analysis)
    assert (found["matmul_percent"], found["other_operators_percent"]) == (40, 20)
    assert analysis.others == {"aten::batch_norm": 20_000}
    assert analysis.readings["kernel_busy_percent"].reason.key == "no_kernels_of_cpu"


def test_a_product_of_unknown_flops_around_a_known_one_takes_no_time_from_the_others(told):
    content = trace(
        event("user_annotation", annotation(1), 0, 100, 1),
        operator("aten::linear", 0, 40),
        operator("aten::addmm", 5, 30, MM),
        operator("aten::relu", 50, 20),
        deviceProperties=[],
    )
    assert told(content).others == {"aten::relu": 20_000}


def test_gloo_s_threads_communicate_and_what_compute_hides_is_not_exposed(told):
    """Steps of 100 µs: a product until 40, gloo from 20 to 60 and, in another thread, from 50 to
    70."""
    content = trace(
        event("user_annotation", annotation(1), 0, 100, 1),
        operator("aten::mm", 0, 40, [[8, 8], [8, 8]]),
        operator("c10d::allreduce_", 40, 30),  # queues and waits: no compute
        event("user_annotation", "gloo:all_reduce", 20, 40, 2),
        event("user_annotation", "gloo:all_reduce", 50, 20, 3),
        deviceProperties=[],
    )
    one = told(content)
    assert values(one)["communication_percent"] == 30
    assert values(one)["communication_total_percent"] == 50
    assert one.collectives == {"gloo:all_reduce": [40_000, 20_000]}
    assert one.spent["communication"] == 30_000
    assert sum(one.spent.values()) == one.window.length


def test_a_compiled_region_is_an_operator_and_the_products_in_it_are_products(told):
    content = trace(
        event("user_annotation", annotation(1), 0, 100, 1),
        operator("## Call CompiledFxGraph f1 ##", 5, 90),
        operator("mkldnn::_linear_pointwise", 20, 30),
        deviceProperties=[],
    )
    analysis = told(content)
    assert values(analysis)["matmul_percent"] == 30
    assert json.loads(analysis.top_other_operators() or "") == {FUSED: 60.0}
    content["traceEvents"].pop()
    assert told(content).readings["matmul_percent"].reason.key == "inside_compiled"


def mostly(name, step):
    """A trace of three steps that spent over 80 % in one kind; a neighbour may hold the core in
    some of ten traces."""
    for _ in range(10):
        readings, analysis = trace_readings(trace_steps(step, CPU, 3), CPU)
        if readings[name].value > 80:
            return readings, analysis
    raise AssertionError(f"{name} is never above 80 %: {readings[name]}")


def test_a_real_step_of_one_product_and_of_one_sum():
    wide, narrow = torch.randn(1536, 1536), torch.randn(1 << 24)
    products, analysis = mostly("matmul_percent", lambda: wide @ wide)
    sums, others = mostly("other_operators_percent", lambda: narrow.exp())
    assert analysis is not None
    assert others is not None
    assert analysis.flops() == {"fp32": 3 * 2 * 1536**3}
    assert sums["matmul_percent"].value == 0
    assert products["other_operators_percent"].value < 20
    assert next(iter(json.loads(others.top_other_operators() or ""))) == "aten::exp"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_real_checkpoint_is_seen(reentrant):
    layer, x = torch.nn.Linear(64, 64), torch.randn(32, 64, requires_grad=True)

    def step():
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant).sum().backward()

    _, analysis = trace_readings(trace_steps(step, CPU, 2), CPU)
    one = 2 * 2 * 32 * 64 * 64
    assert analysis is not None
    assert analysis.flops() == {"fp32": 3 * one}
    assert analysis.flops("executed_flops", recomputed=True) == {"fp32": 4 * one}


def per_sample_gradients():
    """Gradients of one convolution for each of five images."""
    layer = torch.nn.Conv2d(3, 8, 3)
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    loss = lambda weights, image: torch.func.functional_call(layer, weights, (image[None],)).sum()  # noqa: E731
    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randn(5, 3, 8, 8))


def gradient_penalty():
    """A loss of a gradient, which is differentiated again."""
    x, weight = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    y = ((x @ weight).tanh() @ weight).sum()
    (torch.autograd.grad(y, x, create_graph=True)[0].pow(2).sum() + y).backward()


class Product(torch.autograd.Function):
    """A product whose forward pass runs without gradients."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient @ b.T, a.T @ gradient


class Multiplied(torch.nn.Linear):
    """A layer of such a product."""

    def forward(self, x):
        return Product.apply(x, self.weight)


def optimized(optimizer, kind=torch.nn.Linear, **options):
    """A step inside its optimiser's, as Lightning runs it."""
    layer, x = kind(16, 16, bias=False), torch.randn(8, 16)
    update = optimizer(layer.parameters(), **options)

    def step():
        update.zero_grad()
        loss = layer(x).pow(2).sum()
        loss.backward()
        return loss

    update.step(step)


PROGRAMS = {
    "vmap over models": lambda: torch.func.vmap(lambda weight: A @ weight)(torch.randn(5, 8, 16)),
    "vmap over samples": per_sample_gradients,
    "create_graph": gradient_penalty,
    "complex": lambda: (
        torch.randn(6, 8, dtype=torch.cfloat) @ torch.randn(8, 4, dtype=torch.cfloat)
    ),
    "Muon": lambda: optimized(torch.optim.Muon),
    "closure": lambda: optimized(torch.optim.SGD, Multiplied),
    "LBFGS": lambda: optimized(torch.optim.LBFGS, max_iter=3),
}
A = torch.randn(4, 8)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_tells_as_many_flops_as_a_counter(name):
    program = PROGRAMS[name]
    program()
    torch.manual_seed(0)
    with OperatorCounter(LayerTracker(torch.nn.ModuleDict())) as counter:
        program()
    torch.manual_seed(0)
    _, analysis = trace_readings(trace_steps(program, CPU, 1), CPU)
    assert analysis is not None
    assert sum(analysis.flops().values()) == counter.operations.model_flops
    assert analysis.flops() == analysis.flops(recomputed=True), "nothing is computed twice"
    assert not analysis.uncounted


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_products_of_sparse_operands_are_unknown(layout):
    stored, dense = torch.eye(12).to_sparse(layout=layout), torch.randn(12, 8)
    _, analysis = trace_readings(
        trace_steps(lambda: (stored @ dense, dense.T @ dense), CPU, 1), CPU
    )
    assert analysis is not None
    assert analysis.flops() == {"fp32": 2 * 8 * 12 * 8}
    assert [reason for _, reason in analysis.uncounted.values()] == [Said("sparse")]


def test_a_checkpoint_s_last_call_which_runs_no_kernel_executes_nothing(told):
    number = {"Sequence number": 4, "Fwd thread id": 0}
    analysis = told(steps((0, 200)),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 0, 100, 1),
            operator("aten::mm", 5, 10, MM, **number),
            launched("gemm", 6, 60, 20, 1),
            operator("aten::mm", 20, 10, MM, **number),
            operator("aten::mm", 70, 10, [[32, 64], [64, 16]]),
            launched("gemm", 71, 90, 20, 2))  # fmt: skip
    assert analysis.flops() == {"fp32": 65_536}
    assert analysis.flops("executed_flops", recomputed=True) == {"fp32": 2 * 65_536}


TWO = {"deviceProperties": [{**H100, "id": number} for number in (0, 1)]}


def on_device(number: int, *args, **named):
    """A launch whose kernel runs on that device."""
    launch, kernel = launched(*args, **named)
    return [launch, {**kernel, "args": {**kernel["args"], "device": number}}]


def two_devices() -> list:
    """One process, two GPUs: each multiplies once, the second twice as long, and both reduce."""
    return [
        steps((0, 100)),
        operator("aten::mm", 0, 5, MM),
        on_device(0, "gemm", 1, 10, 20, 1),
        operator("aten::mm", 5, 5, MM),
        operator("aten::mm", 12, 2, MM),
        on_device(1, "gemm", 6, 10, 20, 2),
        on_device(1, "gemm", 13, 40, 20, 3),
        on_device(0, "ncclDevKernel_AllReduce", 14, 30, 40, 4),
        on_device(1, "ncclDevKernel_AllReduce", 15, 60, 10, 5),
    ]


def test_each_device_of_one_process_has_a_row_and_its_own_flops(tmp_path):
    path = write(tmp_path / "both.json", trace(*two_devices(), **TWO))
    first, second = (one.row for one in read_file(path))
    assert [(row.device_index, row.rank, row.device) for row in (first, second)] == [
        (0, 0, H100["name"]), (1, 1, H100["name"])
    ]  # fmt: skip
    assert (first.flops, second.flops) == (65_536, 2 * 65_536)
    assert (first.matmul_percent, second.matmul_percent) == (20, 40)
    assert (first.kernel_busy_percent, second.kernel_busy_percent) == (60, 50)
    assert json.loads(second.notes) == {"several_devices": {"count": 2, "device": 1}}
    assert first.message == second.message == ""


def test_devices_of_one_process_are_joined_as_ranks(tmp_path):
    path = write(tmp_path / "both.json", trace(*two_devices(), **TWO))
    rows = [one.row.model_dump() for one in read_file(path)]
    for row in rows:
        row |= traced.trace_columns(row)
    jobs.joined(rows)
    assert rows[0]["job_ranks"] == 2
    assert rows[0]["job_slowest_rank"] == 1, "the first waits for it"
    found = (rows[0]["transfer_percent"], rows[0]["waiting_percent"])
    assert found == (pytest.approx(10), pytest.approx(30))
    of_all = 100 * 3 * 65_536 / (100e-6 * 2 * rows[0]["peak_tflop_s"] * 1e12)
    assert rows[0]["job_mfu_percent"] == pytest.approx(of_all)


def test_one_device_whose_clock_is_apart_is_named(tmp_path):
    late = [on_device(1, "k", 9e6, place, 1, 10 + place) for place in range(3)]
    many = [on_device(0, "k", place, place + 5, 1, 100 + place) for place in range(20)]
    path = write(tmp_path / "apart.json", trace(steps((0, 100)), *many, *late, **TWO))
    with pytest.raises(TraceError) as error:
        read(path)
    assert error.value.why.key == "clocks_apart"
    assert error.value.why.numbers["device"] == 1


def test_flops_of_a_model_stand_in_for_shapes(tmp_path, capsys):
    """The counter's FLOPs, in the format that was said; time of matmuls without shapes is then
    theirs."""
    content = trace(
        steps((0, 1000)), operator("aten::addmm", 0, 5), launched("gemm", 1, 100, 500, 1)
    )
    path = write(tmp_path / "t.json", content)
    words = ["--model", "linear_1024", "--batch-size", "2", "--precision", "bf16", "--json"]
    assert main(["trace", str(path), *words]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["flops"] == 2 * 2 * 1024 * 1024, "of inference: no backward pass was recorded"
    assert row["flops_source"] == {"counted_of": {"model": "linear_1024", "batch_size": 2}}
    assert row["mfu_percent"] == pytest.approx(100 * row["flops"] / 1e-3 / 989.43e12, rel=1e-4)
    found = row["useful_ms"]
    assert found == pytest.approx(1e3 * row["flops"] / 989.43e12, abs=1e-6), "whole nanoseconds"
    assert row["uncounted_ms"] == 0
