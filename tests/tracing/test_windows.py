"""Windows of a device that lags: periods of equal work, whatever the file lacks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_events import event, launched, operator, steps, trace, write

from mfulab.measurements.read_trace.reader import read_file
from mfulab.tracing import window
from mfulab.tracing.window import phase_of

SHAPES = [[64, 64], [64, 64]]
FLOPS = 2 * 64**3


def row(tmp_path, *events):
    (found,) = read_file(write(tmp_path / "t.json", trace(*events)))
    return found.row


def test_launches_that_the_file_lacks_move_no_window(tmp_path):
    """Kernels without a launch inside both steps are no work of earlier ones: the host's marks
    bound the steps."""
    kernels = [
        [
            event("kernel", "flash_fwd", begin + 50, 1200),
            *launched("gemm", begin + 1300, begin + 1400, 300, number),
        ]
        for number, begin in ((1, 10_000), (2, 12_000))
    ]
    found = row(tmp_path, steps((10_000, 12_000), (12_000, 14_000)), *kernels)
    assert (found.time_s, found.kernel_busy_percent) == (pytest.approx(2e-3), pytest.approx(75))


def test_of_one_step_too_where_its_own_work_did_not_queue_behind_them(tmp_path):
    flash = event("kernel", "flash_fwd", 10_050, 1200)
    found = row(tmp_path, steps((10_000, 12_000)), flash, launched("gemm", 11_300, 11_400, 300, 1))
    assert (found.time_s, found.kernel_busy_percent) == (pytest.approx(2e-3), pytest.approx(75))
    # Launched before the other had ended, it waited for earlier work.
    found = row(tmp_path, steps((10_000, 12_000)), flash, launched("gemm", 10_100, 11_400, 800, 1))
    assert found.time_s == pytest.approx(950e-6)


@pytest.mark.parametrize("left", ["launched", "without launches", "not recorded"])
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 4), period=st.integers(3000, 9000), ahead=st.booleans())
def test_a_copy_that_runs_ahead_does_not_hide_the_lag(tmp_path_factory, left, count, period, ahead):
    """The device is 1.5 periods behind the host, and copies each step's input at once on a stream
    of its own."""
    lag, begin = 3 * period // 2, 100_000
    marks = [(begin + period * n, begin + period * (n + 1)) for n in range(count)]
    old = {
        "launched": launched("k", begin - 9, begin - 5, lag + 5, 900),
        "without launches": event("kernel", "k", begin - 5, lag + 5),
        "not recorded": [],
    }[left]
    own = [
        launched("k", at + 20, at + lag, period, number)
        for number, (at, _) in enumerate(marks, start=1)
    ]
    on_9 = {"device": 0, "stream": 9}
    copies = [
        [
            event("cuda_runtime", "cudaMemcpyAsync", at + 10, 2, 1, correlation=100 + number),
            event("gpu_memcpy", "Memcpy HtoD", at + 15, 30, 9, correlation=100 + number, **on_9),
        ]
        for number, (at, _) in enumerate(marks if ahead else ())
    ]
    found = row(tmp_path_factory.mktemp("t"), steps(*marks), old, *own, *copies)
    assert found.time_s == pytest.approx(1e-6 * period)
    assert found.kernel_busy_percent == pytest.approx(100)


@pytest.mark.parametrize(
    ("others", "floor_ns"), [([], 5_000), ([launched("k", 9, 1060, 2, 2)], 2_000)]
)
def test_one_long_product_is_not_bound_by_its_launch(tmp_path, others, floor_ns):
    """The floor is the shortest kernel of the trace, and at most what an empty one takes."""
    mm = operator("aten::mm", 0, 5, [[4096, 4096], [4096, 4096]], "c10::BFloat16")
    content = trace(steps((0, 1100)), mm, launched("gemm", 1, 50, 1000, 1), *others)
    (found,) = read_file(write(tmp_path / "t.json", content))
    assert {one.launch_ns for one in found.analysis.operators if one.kernel_ns} == {floor_ns}


def step(begin, number, *kernels):
    """A host step of 1000 µs: a product for each kernel, launched at once, and done within the
    step."""
    made = []
    for place, name in enumerate(kernels):
        at, own = begin + 50 * place, 10 * number + place + 1
        product = operator("aten::mm", at, 20, SHAPES, "c10::BFloat16")
        made.append([product, launched(name, at + 5, begin + 100 + 200 * place, 150, own)])
    return made


def flat(nested):
    return [
        one for given in nested for one in (flat(given) if isinstance(given, list) else [given])
    ]


LOOP = ("embed_gemm", "layer_gemm", "layer_gemm")


@pytest.mark.parametrize("kind", ["marks", "optimiser", "loader", "kernels"])
def test_steps_without_marks_are_those_that_marks_would_tell(tmp_path, kind):
    """Steps of 1 ms, three products each; the first has one more and is slow to start."""
    begins = [10_000 + 1000 * number for number in range(6)]
    events = [
        step(begins[0] - 1000, 0, "warm_up_gemm"),
        *(step(at, n, *LOOP) for n, at in enumerate(begins, start=1)),
    ]
    name = {
        "optimiser": "Optimizer.step#Adam.step",
        "loader": "enumerate(DataLoader)#_Iter.__next__",
    }.get(kind)
    if name:
        events += [[event("user_annotation", name, at - 20, 10, 1)] for at in [*begins, 16_000]]
    if kind == "marks":
        events += steps(*((at, at + 1000) for at in begins))
    found = row(tmp_path, flat(events))
    assert found.flops == 3 * FLOPS
    assert found.time_s == pytest.approx(1e-3, rel=0.08)
    assert found.steps == (5 if kind == "kernels" else 6)
    assert found.kernel_busy_percent == pytest.approx(45, rel=0.08)


def test_layers_of_one_step_are_no_steps(tmp_path):
    kernels = ("embed", *("layer_a", "layer_b") * 9, "head")
    assert row(tmp_path, flat(step(10_000, 1, *kernels))).steps == 1
    copied = [launched("layer_c", 9_000 + n, 9_500 + n, 1, 900 + n) for n in range(2)]
    assert row(tmp_path, flat([copied, step(10_000, 1, *kernels)])).steps == 1


def test_a_copy_of_tokens_tells_steps_from_layers(tmp_path):
    """A loop that begins and ends with kernels of its own, as generation after a prompt."""
    copy = event("gpu_memcpy", "Memcpy DtoH", 0, 2, 7, device=0, stream=7)
    loop = [
        [step(10_000 + 1000 * n, n, *LOOP), {**copy, "ts": 10_900 + 1000 * n}] for n in range(1, 7)
    ]
    found = row(tmp_path, flat([step(10_000, 0, "prompt"), loop, step(17_000, 7, "last")]))
    assert (found.steps, found.flops, found.time_s) == (5, 3 * FLOPS, pytest.approx(1e-3))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("execute_context_3(96)_generation_0(0)", "prefill"),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk55086sqsq32)", "decoding"),
        ("execute_context_1(4)_generation_2(2)", "mixed"),
        ("execute_context_0(0)_generation_0(0)", None),
        ("step[EXTEND bs=2 toks=12 c_sk=20]", "prefill"),
        ("step[DECODE bs=16]", "decoding"),
        ("step[TARGET_VERIFY bs=4]", "target_verify"),
        ("prefill[bs=2 tok=16384]", "prefill"),
        ("decode[bs=4]", "decoding"),
        ("step 12", None),
        ("decoder", None),
    ],
)
def test_ranges_of_engines(name, kind):
    assert phase_of(name) == kind


def test_prefill_and_decoding_are_rows_of_their_own(tmp_path):
    """Two prefills between runs of one and of three decoding steps: the longest run of each kind,
    beside the counts."""
    kinds = ["DECODE bs=4", "EXTEND bs=1 toks=64", "EXTEND bs=1 toks=64", *["DECODE bs=4"] * 3]
    spans = [(10_000 + 1000 * n, kind) for n, kind in enumerate(kinds)]
    marks = [event("user_annotation", f"step[{kind}]", at, 990, 1) for at, kind in spans]
    work = [
        step(at, n, *(LOOP if "EXT" in kind else LOOP[:1]))
        for n, (at, kind) in enumerate(spans, start=1)
    ]
    path = write(tmp_path / "t.json", trace(flat([marks, steps((10_000, 16_000)), work])))
    found = {one.row.mode: one.row for one in read_file(path)}
    seen = {kind: (one.steps, one.flops) for kind, one in found.items()}
    assert seen == {"decoding": (3, FLOPS), "prefill": (2, 3 * FLOPS)}
    assert '"count": 4' in found["decoding"].window_source


def plain_steps(begins, long=900):
    """Host steps from each time to the next, each of one product whose kernel takes `long` µs."""
    work = []
    for number, begin in enumerate(begins, start=1):
        mm = operator("aten::mm", begin + 10, 20, SHAPES, "c10::BFloat16")
        work.append([mm, launched("gemm", begin + 15, begin + 50, long, number)])
    return work


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("where", ["end", "beginning", "both"])
def test_a_mark_without_work_at_either_end_is_no_step(tmp_path, count, where):
    begins = [10_000 + 2000 * number for number in range(count)]
    spans = [(begin, begin + 2000) for begin in begins]
    if where != "end":
        spans.insert(0, (9_950, 10_000))
    if where != "beginning":
        spans.append((begins[-1] + 2000, begins[-1] + 2050))
    found = row(tmp_path, steps(*spans), flat(plain_steps(begins)))
    assert (found.steps, found.flops, found.time_s) == (count, FLOPS, pytest.approx(2e-3))
    assert "stubs_left_out" in found.window_source


def test_a_stub_with_one_small_kernel_is_none_either(tmp_path):
    """What a loop does after its last step, such as reading the loss."""
    begins = [10_000, 12_000, 14_000]
    spans = [*((begin, begin + 2000) for begin in begins), (16_000, 16_300)]
    small = launched("reduce", 16_010, 16_020, 3, 90)
    found = row(tmp_path, steps(*spans), flat(plain_steps(begins)), small)
    assert (found.steps, found.time_s) == (3, pytest.approx(2e-3))


def test_short_steps_among_long_ones_are_steps(tmp_path):
    """Long and short steps in turn, the short ones of a fiftieth of the work: four of them."""
    begins = [10_000, 12_000, 12_200, 14_200]
    work = [
        launched("gemm", begin + 5, begin + 50, length, number)
        for number, (begin, length) in enumerate(
            zip(begins, (1500, 30, 1500, 30), strict=True), start=1
        )
    ]
    spans = [(10_000, 12_000), (12_000, 12_200), (12_200, 14_200), (14_200, 14_400)]
    found = row(tmp_path, steps(*spans), flat(work))
    assert (found.steps, found.window_s) == (4, pytest.approx(4.4e-3))


def test_a_loop_that_marks_twice_has_half_as_many_steps(tmp_path):
    begins = [10_000, 12_000, 14_000]
    spans = [
        span for begin in begins for span in ((begin, begin + 1500), (begin + 1500, begin + 2000))
    ]
    found = row(tmp_path, steps(*spans), flat(plain_steps(begins)))
    assert (found.steps, found.flops, found.time_s) == (3, FLOPS, pytest.approx(2e-3))


@pytest.mark.parametrize("tail", [3, 30])
def test_what_repeats_after_most_of_the_work_is_no_step(tmp_path, tail):
    """One product of 1800 µs, then short kernels that are alike."""
    mm = operator("aten::mm", 10_000, 20, SHAPES, "c10::BFloat16")
    short = [
        launched("elementwise", 12_000 + 60 * n, 12_010 + 60 * n, 9, 50 + n) for n in range(tail)
    ]
    found = row(tmp_path, mm, launched("gemm", 10_005, 10_050, 1800, 1), flat(short))
    assert (found.steps, found.flops) == (1, FLOPS)


def test_steps_after_a_warm_up_that_repeats_more_often(tmp_path):
    """Forty short kernels fill weights; then five steps hold most of the time."""
    fills = [launched("fill", 9_000 + 20 * n, 9_002 + 20 * n, 9, 500 + n) for n in range(40)]
    work = [step(10_000 + 1000 * n, n, *LOOP) for n in range(1, 6)]
    found = row(tmp_path, flat(fills), flat(work))
    assert (found.steps, found.flops, found.time_s) == (4, 3 * FLOPS, pytest.approx(1e-3))
    assert "outside_window" in found.window_source


def test_steps_are_told_on_the_stream_that_computes_most(tmp_path):
    """Copies and short kernels on two more streams do not hide five equal steps."""
    work = [step(10_000 + 1000 * n, n, *LOOP) for n in range(1, 6)]
    beside = [
        event("kernel", f"side_{n % 3}", 10_900 + 170 * n, 20, 8, device=0, stream=8)
        for n in range(25)
    ]
    found = row(tmp_path, flat(work), beside)
    assert (found.steps, found.flops, found.time_s) == (4, 3 * FLOPS, pytest.approx(1e-3))


@pytest.mark.parametrize("link", ["launch", "id", "none"])
def test_kernels_without_launches_have_right_flops_or_none(tmp_path, link):
    """Nine equal steps without marks, whose device is half a step behind: FLOPs of each are known
    where a kernel names its launch or operator, else those of the whole trace are given."""
    events = []
    for number in range(9):
        begin = 10_000 + 1000 * number
        mm = operator(
            "aten::mm", begin, 20, SHAPES, "c10::BFloat16", **{"External id": 100 + number}
        )
        call, kernel = launched("gemm", begin + 5, begin + 500, 900, 1 + number)
        if link != "launch":
            kernel["args"].pop("correlation")
        if link == "id":
            kernel["args"]["External id"] = 100 + number
        events += [mm, kernel, *([call] if link == "launch" else [])]
    found = row(tmp_path, *events)
    if link == "none":
        assert (found.steps, found.flops) == (1, 9 * FLOPS)
        assert found.window_s == pytest.approx(8.9e-3)
    else:
        assert (found.steps, found.flops, found.time_s) == (8, FLOPS, pytest.approx(1e-3))


def test_marks_of_an_old_kineto_are_operators(tmp_path):
    """Torch before 1.10 writes categories with a capital, and marks as operators."""
    begins = [10_000, 12_000, 14_000]
    old = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel"}
    old["cuda_runtime"] = "Runtime"
    marks = steps(*((begin, begin + 2000) for begin in begins))
    events = [*marks, *flat(plain_steps(begins))]
    found = row(tmp_path, *({**one, "cat": old[one["cat"]]} for one in events))
    assert (found.steps, found.flops, found.time_s) == (3, FLOPS, pytest.approx(2e-3))
    assert found.first_step == 3


@pytest.mark.parametrize("marks", ["numbers", "kinds"])
def test_of_too_many_windows_the_longest_are_read_and_the_others_counted(tmp_path, marks):
    count = window.MOST_WINDOWS + 5
    begins = [10_000 + 5000 * number for number in range(count)]
    work = flat(plain_steps([*begins, begins[-1] + 2000], 100))
    spans = []
    for number, begin in enumerate(begins):
        times = [(begin, begin + 2000)]
        if number == count - 1:  # the last run has two steps
            times.append((begin + 2000, begin + 4000))
        for place, (since, until) in enumerate(times):
            name = f"ProfilerStep#{3 * number + place}"
            if marks == "kinds":
                name = f"step[KIND{number} bs=1]"
            spans.append(event("user_annotation", name, since, until - since, 1))
    found = read_file(write(tmp_path / "t.json", trace(spans, work)))
    assert len(found) == window.MOST_WINDOWS
    assert [each.row.steps for each in found[-2:]] == [1, 2]
    assert all('"windows_left_out": {"count": 5' in each.row.window_source for each in found)
