"""`mfulab.measure` around plain PyTorch loops: FLOPs by hand, steps, formats, and a script of its own."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import mfulab
from mfulab.hardware.compute import allowed_precision
from mfulab.interactive import measure
from mfulab.interactive.calls import CallLog, UncountedError, count_calls, unwrapped
from mfulab.interactive.measure import step_times

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


def test_a_plain_training_script_prints_its_ladder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    finished = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=120
    )
    # Two layers forward, both weights and the inner activation backward.
    assert f"flops {2 * 32 * 256 * 512 * 2 + 2 * 32 * 512 * 10 * 3:.1f}" in finished.stdout
    for part in ("10 steps", "utilization (it is busy)", "MFU (it is useful)", "best measured matmul"):
        assert part in finished.stdout


def test_importing_mfulab_is_light():
    code = "import sys, mfulab; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "rich", "pydantic"} & set(loaded)


@pytest.fixture
def linear():
    return torch.nn.Linear(16, 8)


FORWARD = 2 * 4 * 16 * 8  # of a batch of 4


def measured(model, body, **options):
    with mfulab.measure(model=model, quiet=True, ceiling_s=0, **options) as window:
        body(window)
    return window


def test_inference_counts_forward_only(linear):
    def body(window):
        with torch.no_grad():
            for _ in range(3):
                linear(torch.randn(4, 16))

    row = measured(linear, body).row
    assert (row["steps"], row["flops"]) == (3, FORWARD)
    assert row["samples_per_s"] == pytest.approx(12 / row["window_s"])


def test_training_counts_backward(linear):
    def body(window):
        for _ in range(2):
            linear(torch.randn(4, 16)).sum().backward()

    assert measured(linear, body).row["flops"] == 2 * FORWARD, "inputs need no gradient"


def test_a_forward_pass_without_backward_is_not_training(linear):
    def body(window):
        linear(torch.randn(4, 16)).sum().backward()
        linear(torch.randn(4, 16))

    assert measured(linear, body).row["flops"] == 1.5 * FORWARD


def test_each_shape_is_counted_as_it_came(linear):
    def body(window):
        with torch.no_grad():
            linear(torch.randn(4, 16))
            linear(torch.randn(12, 16))

    assert measured(linear, body).row["flops"] == (FORWARD + 3 * FORWARD) / 2


def test_explicit_steps_span_micro_batches(linear):
    def body(window):
        for _ in range(3):
            for _ in range(2):
                linear(torch.randn(4, 16)).sum().backward()
            window.step()

    row = measured(linear, body).row
    assert (row["steps"], row["flops"]) == (3, 2 * 2 * FORWARD)


def test_a_batch_stands_for_calls_that_cannot_be_seen(linear):
    linear.eval()
    row = measured(linear, lambda window: [window.step() for _ in range(3)], batch=torch.randn(4, 16)).row
    assert (row["steps"], row["flops"]) == (3, FORWARD)


def test_autocast_decides_the_format(linear):
    def body(window):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            linear(torch.randn(4, 16))

    assert measured(linear, body).row["effective_precision"] == "bf16"


def test_bytes_are_of_the_format_that_ran(linear):
    elements = 4 * 16 + 16 * 8 + 4 * 8 + 8  # inputs, weights, outputs, bias

    def moved(model):
        return measured(model, lambda window: model(torch.randn(4, 16, dtype=model.weight.dtype))).row["bytes_moved"]

    with torch.no_grad():
        assert moved(linear) == 4 * elements
        assert moved(linear.bfloat16()) == 2 * elements


def test_convolutions_are_told_from_products():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
    log = CallLog(model)
    log.open()
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    log.close()
    flops = count_calls(log)
    convolution, linear = 2 * 2 * 36 * 27 * 8, 2 * 2 * 288 * 10
    assert flops.convolutions == 2 * convolution, "forward, and backward to the weights alone"
    assert flops.model == flops.convolutions + 3 * linear


@pytest.mark.parametrize(
    ("products", "convolutions", "capability", "expected"),
    [("ieee", "tf32", 9, ("fp32", "tf32")), ("tf32", "ieee", 9, ("tf32", "fp32")), ("tf32", "tf32", 7, ("fp32",) * 2)],
)
def test_torch_has_a_switch_for_products_and_one_for_convolutions(
    monkeypatch, products, convolutions, capability, expected
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision=products))
    monkeypatch.setattr(torch.backends.cudnn, "conv", SimpleNamespace(fp32_precision=convolutions))
    device = torch.device("cuda")
    assert tuple(allowed_precision(torch.float32, device, kind) for kind in (False, True)) == expected
    assert allowed_precision(torch.bfloat16, device, True) == "bf16"
    assert allowed_precision(torch.float32, torch.device("cpu"), True) == "fp32"


def test_known_peaks_can_be_given(linear):
    def body(window):
        linear(torch.randn(4, 16))

    row = measured(linear, body, peak_tflop_s={"fp32": 2.0}).row
    assert row["mfu_spec_percent"] == pytest.approx(100 * row["tflop_s"] / 2.0)
    assert row["mfu_percent"] is None, "a CPU's MFU stands on the measured ceiling, which was switched off"


def test_the_ceiling_is_measured_after_the_block(linear, monkeypatch):
    monkeypatch.setattr(measure, "measured_ceiling", lambda device, precision, threads, limit_s: 0.5)
    with mfulab.measure(model=linear, quiet=True) as window:
        linear(torch.randn(4, 16))
    assert window.row["mfu_percent"] == pytest.approx(100 * window.row["tflop_s"] / 0.5)
    assert window.verdict.cause


def test_nothing_inside_is_an_error(linear):
    with pytest.raises(ValueError, match="was not called"):
        measured(linear, lambda window: None)


def test_an_error_inside_comes_through(linear):
    with pytest.raises(ZeroDivisionError):
        measured(linear, lambda window: 1 / 0)
    assert not linear._forward_hooks
    assert not linear._forward_pre_hooks


def test_the_series_is_kept_where_asked(linear, tmp_path):
    path = tmp_path / "series.csv"

    def body(window):
        linear(torch.randn(4, 16))

    measured(linear, body, series=path)
    assert path.parent.exists()


def test_a_loop_that_waits_for_its_loader_is_told_so(linear):
    def slowly(samples):
        time.sleep(0.02)
        return torch.stack(samples)

    data = torch.utils.data.DataLoader(torch.randn(40, 16), batch_size=4, collate_fn=slowly)

    with mfulab.measure(model=linear, quiet=True, ceiling_s=0.1) as window:
        for inputs in data:
            linear(inputs)
    assert window.row["input_wait_percent"] > 50
    assert window.verdict.cause == "input-bound"
    assert "DataLoader" in window.verdict.reason


def test_a_block_is_traced_where_asked(linear, tmp_path):
    window = measured(linear, lambda window: linear(torch.randn(4, 16)), trace=tmp_path / "trace.json.gz")
    assert window.row["kernel_busy_percent"] is None
    assert window.row["input_wait_percent"] is None
    assert (tmp_path / "trace.json.gz").stat().st_size > 0


def test_too_many_shapes_are_not_counted(linear):
    log = CallLog(linear)
    log.open()
    for length in range(1, 20):
        linear(torch.randn(length, 16))
    log.close()
    with pytest.raises(UncountedError, match="19 different shapes"):
        count_calls(log)


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
        model(values=torch.randn(4, 16), scale=2.0)["logits"].sum().backward()

    before = model.norm.running_mean.clone()
    row = measured(model, body).row
    assert row["flops"] == 3 * FORWARD, "the norm before it has weights, so the linear layer's input needs a gradient"
    assert model.norm.running_mean.device.type == "cpu"
    assert not torch.equal(before, model.norm.running_mean), "by the loop itself"


def test_a_model_that_cannot_be_counted_has_no_mfu_but_the_rest():
    class Model(torch.nn.Linear):
        def forward(self, values):
            if values.sum().item() > 1e9:
                return values
            return super().forward(values)

    model = Model(16, 8)

    def body(window):
        model(torch.randn(4, 16))

    window = measured(model, body)
    assert window.row["mfu_percent"] is None
    assert window.row["utilization_percent"] is not None
    assert window.readings["flops"].reason
    assert window.verdict.cause == "no MFU"


def test_a_compiled_model_is_counted_by_what_is_inside(linear):
    assert unwrapped(torch.compile(linear)) is linear
    assert unwrapped(linear) is linear


def test_step_times_by_hand():
    assert step_times(["begin", "forward", "forward", "end"], [9.0, 1.0, 2.0]) == [1.0, 2.0]
    assert step_times(["begin", "forward", "step", "forward", "step", "end"], [1, 2, 1, 3, 9]) == [3, 4]
    assert step_times(["begin", "end"], [1.0]) == []
