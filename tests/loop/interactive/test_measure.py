"""`mfulab.measure` around plain PyTorch loops: FLOPs by hand, steps, formats, a script."""

import contextlib
import io
import time
from types import SimpleNamespace

import pytest
import torch
from support.processes import until

import mfulab
from mfulab.core.groups import DeviceConfig
from mfulab.core.language import verdicts
from mfulab.core.said import Said
from mfulab.device.compute import allowed_precision
from mfulab.device.samplers.series import read_series
from mfulab.loop.interactive import costs, peaks, published
from mfulab.loop.interactive.measure import MeasureWarning
from mfulab.loop.interactive.peaks import Ceiling
from mfulab.loop.interactive.row import Mark, stretches
from mfulab.loop.interactive.show import facts_line
from mfulab.loop.interactive.without_data import count_call, unwrapped
from mfulab.timing import instruments

SCRIPT = """
import torch
import mfulab

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(320, 256), torch.randint(10, (320,)))
with mfulab.measure(model=model, ceiling_s=0.2) as window:
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
print("flops", window.row["flops"])
"""


def test_a_plain_training_script_prints_its_ladder(capsys):
    exec(compile(SCRIPT, "train.py", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    # Two layers forward, both weights and the inner activation backward.
    assert f"flops {2 * 32 * 256 * 512 * 2 + 2 * 32 * 512 * 10 * 3:.1f}" in printed
    for part in ("9 steps", "device utilization", "MFU", "best measured matmul"):
        assert part in printed


@pytest.fixture
def linear():
    return torch.nn.Linear(16, 8)


FORWARD = 2 * 4 * 16 * 8  # of a batch of 4


def measured(model, body, **options):
    with mfulab.measure(model=model, quiet=True, ceiling_s=0, **options) as window:
        body(window)
    return window


def test_bytes_are_of_the_format_that_ran(linear):
    elements = 4 * 16 + 16 * 8 + 4 * 8 + 8  # inputs, weights, outputs, bias

    def moved(model):
        def body(window):
            for _ in range(2):
                model(torch.randn(4, 16, dtype=model.weight.dtype))

        return measured(model, body).row["bytes_moved"]

    with torch.no_grad():
        assert moved(linear) == 4 * elements
        assert moved(linear.bfloat16()) == 2 * elements


@pytest.mark.parametrize(
    ("products", "convolutions", "capability", "expected"),
    [
        ("ieee", "tf32", 9, ("fp32", "tf32")),
        ("tf32", "ieee", 9, ("tf32", "fp32")),
        ("tf32", "tf32", 7, ("fp32",) * 2),
    ],
)
def test_torch_has_a_switch_for_products_and_one_for_convolutions(
    monkeypatch, products, convolutions, capability, expected
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision=products))
    monkeypatch.setattr(torch.backends.cudnn, "conv", SimpleNamespace(fp32_precision=convolutions))
    device = torch.device("cuda")
    found = tuple(allowed_precision(torch.float32, device, kind) for kind in (False, True))
    assert found == expected
    assert allowed_precision(torch.bfloat16, device, True) == "bf16"
    assert allowed_precision(torch.float32, torch.device("cpu"), True) == "fp32"


def test_known_peaks_can_be_given(linear):
    def body(window):
        linear(torch.randn(4, 16))

    row = measured(linear, body, peak_tflop_s={"fp32": 2.0}).row
    assert row["mfu_spec_percent"] == pytest.approx(100 * row["tflop_s"] / 2.0)
    found = row["mfu_percent"]
    assert found is None, "a CPU's MFU stands on the measured ceiling, which was switched off"


def test_the_ceiling_is_measured_after_the_block(linear, monkeypatch):
    monkeypatch.setattr(peaks, "measured_ceiling", lambda *_: Ceiling(0.5))
    with mfulab.measure(model=linear, quiet=True) as window:
        linear(torch.randn(4, 16))
    assert window.row["mfu_percent"] == pytest.approx(100 * window.row["tflop_s"] / 0.5)
    assert window.verdict.cause


def test_a_ceiling_far_below_the_computed_peak_is_said(linear, monkeypatch, capsys):
    computed = peaks.peak_of(torch.device("cpu"), torch.get_num_threads(), "fp32", DeviceConfig())
    for divisor, is_said in ((800, True), (1, False)):
        far = Ceiling(computed.spec / divisor)
        monkeypatch.setattr(peaks, "measured_ceiling", lambda *_, far=far: far)
        with mfulab.measure(model=linear) as window:
            linear(torch.randn(4, 16))
        assert ("far_ceiling" in {flag.key for flag in window.verdict.flags}) == is_said
        said = verdicts.say(Said("far_ceiling", {"share": 100 / 800}))
        assert (said in " ".join(capsys.readouterr().out.split())) == is_said


def test_the_series_is_kept_where_asked(linear, tmp_path, polled):
    path = tmp_path / "folder" / "series.csv"

    def body(window):
        for _ in range(3):  # the first ones are counted
            linear(torch.randn(4, 16))
            window.step()
        before = len(read_series(path))
        until(lambda: len(read_series(path)) >= before + 2)

    measured(linear, body, series=path)
    assert path.read_text().startswith("time_s,in_window,utilization_percent")
    assert ",True," in path.read_text()


def test_a_loop_that_waits_for_its_loader_is_told_so(linear):
    def slowly(samples):
        time.sleep(0.05)  # far more than a busy machine takes for a step
        return torch.stack(samples)

    data = torch.utils.data.DataLoader(torch.randn(40, 16), batch_size=4, collate_fn=slowly)

    with mfulab.measure(model=linear, quiet=True, ceiling_s=0.1) as window:
        for inputs in data:
            linear(inputs)
    assert window.row["input_wait_percent"] > 50
    assert window.verdict.cause == "input_bound"
    assert window.verdict.reason.key == "input_wait"


def test_a_block_is_traced_where_asked(linear, tmp_path):
    def body(window):
        for _ in range(3):
            linear(torch.randn(4, 16))

    window = measured(linear, body, trace=tmp_path / "trace.json.gz")
    assert window.row["kernel_busy_percent"] is None
    assert window.row["input_wait_percent"] is None
    assert (tmp_path / "trace.json.gz").stat().st_size > 0


def test_keyword_arguments_and_buffers():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(16)
            self.linear = torch.nn.Linear(16, 8)

        def forward(self, *, values, scale=1.0):
            return {"logits": self.linear(self.norm(values)) * scale}

    model = Model()

    def body(window):
        for _ in range(2):
            model(values=torch.randn(4, 16), scale=2.0)["logits"].sum().backward()

    before = model.norm.running_mean.clone()
    row = measured(model, body).row
    assert row["flops"] == 3 * FORWARD, (
        "the norm before it has weights, so the linear layer's input needs a gradient"
    )
    assert model.norm.running_mean.device.type == "cpu"
    assert not torch.equal(before, model.norm.running_mean), "by the loop itself"


def test_a_compiled_model_is_counted_by_what_is_inside(linear):
    assert unwrapped(torch.compile(linear)) is linear
    assert unwrapped(linear) is linear


def test_steps_by_hand():
    def cut(*marks):
        found = stretches(
            [Mark(*mark) for mark in marks], [1.0, 2.0, 4.0, 8.0, 16.0][: len(marks) - 1]
        )
        return [(seconds, slice(before.phases, after.phases)) for seconds, before, after in found]

    seen = cut(("begin", 0), ("forward", 1), ("forward", 2), ("end", 3))
    assert seen == [(2, slice(1, 2)), (4, slice(2, 3))]
    explicit = cut(
        ("begin", 0), ("forward", 1), ("step", 2), ("forward", 3), ("step", 4), ("end", 5)
    )
    assert explicit == [(3, slice(0, 2)), (12, slice(2, 4))]
    assert cut(("begin", 0), ("step", 2), ("skip", 5), ("step", 7)) == [
        (1, slice(0, 2)),
        (4, slice(5, 7)),
    ]
    assert cut(("begin", 0), ("optimizer", 2), ("end", 3)) == [(1, slice(0, 2))]
    assert cut(("begin", 0), ("end", 1)) == []


def hooks(model):
    return [
        *model._forward_hooks,
        *model._forward_pre_hooks,
        *torch.nn.modules.module._global_forward_hooks,
    ]


def test_nothing_inside_is_a_message_and_the_script_goes_on(linear):
    with pytest.warns(MeasureWarning, match=r"call window.step\(\) after each step"):
        window = measured(linear, lambda window: None)
    assert window.row == {}
    assert window.verdict is None
    assert not hooks(linear)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_error_inside_comes_through_and_leaves_nothing_behind(linear, after):
    engine = torch.autograd._engine_run_backward

    def body(window):
        for _ in range(after):
            linear(torch.randn(4, 16)).sum().backward()
        linear(torch.randn(4, 3))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        measured(linear, body)
    assert not hooks(linear)
    assert torch.autograd._engine_run_backward is engine
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert measured(linear, lambda window: linear(torch.randn(4, 16))).row["flops"] == FORWARD


def test_an_error_that_the_loop_catches_is_its_own(linear):
    def body(window):
        for rows in (4, 4, 4):
            with contextlib.suppress(RuntimeError):
                linear(torch.randn(4, 3))
            linear(torch.randn(rows, 16))

    row = measured(linear, body).row
    assert row["flops"] == FORWARD, "calls that failed are counted anew each time, and not timed"
    assert not hooks(linear)


def test_a_call_within_an_except_clause_did_not_fail(linear):
    def body(window):
        for _ in range(3):
            try:
                raise KeyError
            except KeyError:
                linear(torch.randn(4, 16))

    assert measured(linear, body).row["flops"] == FORWARD


def test_a_block_that_ended_halfway_leaves_no_half_a_cost(linear):
    window = mfulab.measure(linear, quiet=True, ceiling_s=0)

    def interrupted(module, inputs, output):
        raise KeyboardInterrupt

    handle = linear.register_forward_hook(interrupted)
    with contextlib.suppress(KeyboardInterrupt), window:
        linear(torch.randn(4, 16))
    handle.remove()
    with window:
        for _ in range(3):
            linear(torch.randn(4, 16)).sum().backward()
    assert window.row["flops"] == 2 * FORWARD


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(("error", "is_told"), [(KeyboardInterrupt, True), (ValueError, False)])
def test_ctrl_c_tells_of_the_steps_until_then_and_an_error_of_none(
    error, is_told, marked, linear, capsys
):
    window = mfulab.measure(linear, ceiling_s=0)

    def train():
        for number in range(8):
            loss = linear(torch.randn(4, 16)).sum()
            if number == 7:
                raise error
            loss.backward()
            if marked:
                window.step()

    with pytest.raises(error), window:
        train()
    printed = capsys.readouterr().out
    assert ("per step" in printed) is is_told
    if is_told:
        assert window.row["flops"] == 2 * FORWARD, "half a step is none"
        assert window.row["steps"] <= 6, "and not timed"
    assert not hooks(linear)


def test_an_error_of_measuring_ends_the_window_and_not_the_loop(linear, monkeypatch):
    monkeypatch.setattr(published.Published, "note_steps", lambda *_: 1 // 0)
    done = []

    def body(window):
        for number in range(3):
            linear(torch.randn(4, 16))
            window.step()
            done.append(number)

    with pytest.warns(MeasureWarning, match="measuring stopped: ZeroDivisionError"):
        window = measured(linear, body)
    assert (done, window.row) == ([0, 1, 2], {})
    assert not hooks(linear)


def test_a_window_is_used_again_and_knows_what_it_counted(linear):
    window = mfulab.measure(linear, quiet=True, ceiling_s=0)
    for counted in (1, 0):
        with window:
            for _ in range(3):
                linear(torch.randn(4, 16)).sum().backward()
        assert (window.row["counted_steps"], window.row["steps"]) == (counted, 3 - counted)
        assert window.row["flops"] == 2 * FORWARD


def test_a_second_window_says_so_and_the_first_goes_on(linear):
    def body(window):
        for _ in range(2):
            linear(torch.randn(4, 16))
        inner = mfulab.measure(linear)
        with pytest.warns(MeasureWarning, match="another window is open"):
            inner.__enter__()
        linear(torch.randn(4, 16))
        inner.step()
        inner.__exit__(None, None, None)
        assert inner.row == {}

    assert measured(linear, body).row["flops"] == FORWARD
    assert measured(linear, lambda window: linear(torch.randn(4, 16))).row["flops"] == FORWARD


def test_only_the_counted_step_has_its_time_and_is_told(linear):
    window = measured(linear, lambda window: linear(torch.randn(4, 16)))
    assert (window.row["steps"], window.row["counted_steps"]) == (1, 1)


def test_a_model_on_two_devices_has_times_and_no_mfu():
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 8, device="meta"))

    def body(window):
        for _ in range(2):
            model[0](torch.randn(4, 16))
            window.step()

    window = measured(model, body)
    assert window.row["mfu_percent"] is None
    assert "cpu, meta" in str(window.readings["mfu_percent"].reason)
    assert window.row["time_s"] > 0


@pytest.mark.parametrize("model", [[torch.nn.Linear(2, 2), "model"], 3, lambda: 1, {"actor": None}])
def test_no_model_is_a_mistake_of_the_call(model):
    with pytest.raises(TypeError, match=r"give a torch.nn.Module"):
        mfulab.measure(model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"language": "fr"}, "language='fr': choose en or ko"),
        ({"flops_per_step": 0}, "flops_per_step=0: give a number above 0"),
        ({"flops_per_step": float("nan")}, "flops_per_step=nan"),
        ({"flops_per_step": "2e9"}, "flops_per_step=2e9: give a number above 0"),
        ({"ceiling_s": -1}, "ceiling_s=-1: give seconds"),
        ({"ceiling_s": None}, "ceiling_s=None: give seconds"),
        ({"peak_tflop_s": {"fp32": -2.0}}, "peak_tflop_s={'fp32': -2.0}: give dense TFLOP/s"),
        ({"peak_tflop_s": 989}, "peak_tflop_s=989: give dense TFLOP/s"),
    ],
)
def test_an_argument_that_cannot_be_is_said_before_the_loop(linear, options, said):
    with pytest.raises(ValueError, match=said):
        mfulab.measure(linear, **options)


@pytest.mark.parametrize("options", [{"steps": 0}, {"warm_up": -1}])
def test_a_decorator_that_measures_nothing_says_so(options):
    with pytest.raises(ValueError, match="give 1 step or more"):
        mfulab.measured(**options)


def test_a_terminal_without_the_letters_costs_the_ladder_and_not_the_loop(linear, monkeypatch):
    class Ascii(io.StringIO):
        def write(self, text):
            text.encode("ascii")
            return super().write(text)

    monkeypatch.setattr("sys.stdout", Ascii())
    with (
        pytest.warns(MeasureWarning, match="could not be printed: UnicodeEncodeError"),
        mfulab.measure(linear, ceiling_s=0) as window,
    ):
        linear(torch.randn(4, 16))
    assert window.row["steps"] == 1


def test_what_cannot_be_watched_does_not_stop_the_loop(linear, monkeypatch):
    monkeypatch.setattr(instruments, "samplers_for", lambda *_: 1 // 0)
    with pytest.warns(MeasureWarning, match="ZeroDivisionError"):
        window = measured(linear, lambda window: linear(torch.randn(4, 16)))
    assert window.row == {}
    monkeypatch.undo()
    assert measured(linear, lambda window: linear(torch.randn(4, 16))).row["flops"] == FORWARD


def test_a_disturbed_ceiling_is_measured_anew_and_the_best_is_kept(monkeypatch):
    found = iter([Ceiling(0.2, 60.0), Ceiling(0.1, 60.0), Ceiling(0.5, 1.0)])
    monkeypatch.setattr(peaks, "_known", {})
    monkeypatch.setattr(peaks, "_measure", lambda *_: next(found))
    cpu = torch.device("cpu")
    first = peaks.measured_ceiling(cpu, "fp32", 1, 1.0)
    assert first.disturbed
    assert first.tflop_s == 0.2
    second = peaks.measured_ceiling(cpu, "fp32", 1, 1.0)
    assert not second.disturbed
    assert second.tflop_s == 0.5
    seen = peaks.measured_ceiling(cpu, "fp32", 1, 1.0)
    assert seen is second, "an undisturbed one is measured once"


def test_a_ceiling_knows_what_others_took_meanwhile(monkeypatch):
    monkeypatch.setattr(peaks, "_known", {})
    found = peaks._measure(torch.device("cpu"), "fp32", 0.2)
    assert found.tflop_s > 0
    assert found.other_processes_percent is not None


TIME_FIRST = torch.nn.RNN(16, 16)


class Permutes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = TIME_FIRST

    def forward(self, x):
        return self.inner(x.transpose(0, 1))


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (TIME_FIRST, torch.randn(50, 4, 16)),
        (torch.nn.RNN(16, 16, batch_first=True), torch.randn(4, 50, 16)),
        (Permutes(), torch.randn(4, 50, 16)),
        (torch.nn.Sequential(torch.nn.Dropout(), TIME_FIRST), torch.randn(50, 4, 16)),
        (TIME_FIRST, torch.nn.utils.rnn.pack_sequence([torch.randn(n, 16) for n in (9, 7, 5, 3)])),
        (torch.vmap(torch.nn.Linear(16, 8)), torch.randn(4, 16)),
        (torch.vmap(torch.nn.Linear(16, 8)), torch.randn(4, 1, 16)),
    ],
)
def test_samples_are_counted_along_the_batch_wherever_it_lies(model, batch, monkeypatch):
    # From torch 2.14 on, code that another test compiled may take the hooks of all modules away.
    taken_away = "mfulab.loop.interactive.hooks.hooks_are_guarded_against"
    monkeypatch.setattr(taken_away, lambda: False)

    def body(window):
        for _ in range(3):
            model(batch)
            window.step()

    given = model if isinstance(model, torch.nn.Module) else model.__wrapped__
    window = measured(given, body)
    assert [step.samples for step in window._steps] == [4, 4, 4]


def test_samples_are_unknown_where_compiled_code_may_take_time_first():
    def body(window):
        for _ in range(3):
            model(torch.randn(50, 4, 16))
            window.step()

    layer = torch.nn.TransformerEncoderLayer(16, 2, 32)
    model = torch.compile(torch.nn.Sequential(layer), backend="eager")
    window = measured(model, body)
    assert [step.samples for step in window._steps] == [None] * 3
    assert window.readings["samples_per_s"].reason.key == "batch_unknown"


def test_a_loop_of_two_speeds_says_its_mean_too(linear):
    def body(window):
        for pause in (0.0, 0.0, 0.0, 0.05, 0.0):
            linear(torch.randn(4, 16))
            time.sleep(pause)
            window.step()

    row = measured(linear, body).row
    mean = 1e3 * row["window_s"] / row["steps"]
    assert row["samples_per_s"] == pytest.approx(4e3 / mean)
    assert "ms in the mean" in facts_line(row)  # of which steps, a busy machine decides


@pytest.mark.parametrize(
    ("batch", "cache", "attainable"), [(1, 0, 4.98), (4096, 0, 100.0), (1, 1 << 30, 100.0)]
)
def test_the_attainable_is_the_roofline_of_each_product(monkeypatch, batch, cache, attainable):
    """By hand: 2·512² FLOPs a row at 0.1 TFLOP/s, and 4 bytes of weights, rows and results at 10
    GB/s."""
    monkeypatch.setattr(peaks, "measured_ceiling", lambda *_: Ceiling(0.1))
    monkeypatch.setattr(peaks, "bandwidth", lambda *_: 10.0)
    monkeypatch.setattr(peaks, "certain_cache_bytes", lambda _: cache)
    model = torch.nn.Linear(512, 512, bias=False)
    cost = costs.cost_of(count_call(model, torch.randn(batch, 512), backward=False).operations)
    cpu = torch.device("cpu")
    found = peaks.peaks_of(cpu, cost.formats, cost.formats, DeviceConfig(), 1.0)
    best_s, why = peaks.attainable_s(costs.cost_of_all([(cost, 3)]), found, cpu, 3)
    compute_s, memory_s = batch * 2 * 512**2 / 1e11, 4 * (512**2 + 2 * batch * 512) / 1e10
    assert (best_s, why) == (pytest.approx(max(compute_s, 0.0 if cache else memory_s)), None)
    assert 100 * compute_s / best_s == pytest.approx(attainable, rel=0.01)


def test_the_attainable_is_empty_with_its_reason(capsys):
    model = torch.nn.Linear(8, 8)
    with mfulab.measure(model, ceiling_s=0, peak_tflop_s={"fp32": 1.0}) as window, torch.no_grad():
        for _ in range(5):
            model(torch.randn(4, 8))
    assert window.row["attainable_mfu_percent"] is None
    assert "attainable" not in capsys.readouterr().out, "MFU says what is missing"
    given = peaks.attainable_s(costs.PhaseCost(), peaks.WeightedPeaks(), torch.device("cpu"), 1)
    assert given == (None, Said("bytes_unknown"))


def test_work_left_out_before_a_forward_pass_is_no_step():
    marks = [
        Mark(what, 0) for what in ("begin", "forward", "forward", "skip", "forward", "skip", "end")
    ]
    assert [seconds for seconds, _, _ in stretches(marks, [9.0, 1.0, 2.0, 4.0, 8.0, 16.0])] == [1.0]
    marks = [Mark(what, 0) for what in ("begin", "step", "skip", "step")]
    assert [seconds for seconds, _, _ in stretches(marks, [1.0, 2.0, 4.0])] == [1.0, 4.0]
