"""Memory budgets: sums by hand, and the pretended allocator against a real one's laws."""

from dataclasses import replace

import pytest
import torch
from support.models import read
from support.slow import few
from torch import nn

from mfulab.flops import memory
from mfulab.flops.count import count
from mfulab.flops.formulas import TransformerShape
from mfulab.flops.tensors import MemorySize
from mfulab.models.counted import count_model


def test_seven_billion_parameters():
    plain = memory.training_memory(7_000_000_000, element_bytes=2)
    assert (plain.weights, plain.gradients, plain.optimizer_state) == (14e9, 14e9, 28e9)
    assert plain.total == 56e9
    mixed = memory.training_memory(7_000_000_000, element_bytes=2, master_copy=True)
    assert mixed.total == 112e9
    assert memory.training_memory(7_000_000_000, optimizer="sgd").total == 56e9
    small = memory.training_memory(7_000_000_000, element_bytes=2, optimizer="adam_8bit")
    assert small.optimizer_state == 14e9 + 14e9 / 64


def test_devices_divide_all_but_activations_and_cache_and_the_rest_is_rounded_up():
    held = memory.StepMemory(10, 9, 8, 7, 6, 5)
    assert held.total == 45
    assert held.sharded(4) == memory.StepMemory(3, 3, 2, 2, 6, 5)
    assert held.sharded(1) == held


def test_autocast_keeps_weights_and_moments_wide_and_computes_on_narrow_copies():
    cast = memory.training_memory(
        100, trainable=40, element_bytes=2, autocast=True, activation_elements=7
    )
    assert cast == memory.StepMemory(600, 0, 160, 320, 14)
    copied = memory.training_memory(100, trainable=40, element_bytes=2, master_copy=True)
    assert copied == memory.StepMemory(200, 160, 80, 320, 0)
    eight_bits = memory.training_memory(64, element_bytes=2, optimizer="adam_8bit")
    assert eight_bits.optimizer_state == 130


def test_what_is_not_trained_needs_no_gradient():
    adapted = memory.training_memory(
        1000, trainable=10, element_bytes=2, activation_elements=5, activation_fixed_bytes=3
    )
    found = (adapted.weights, adapted.gradients, adapted.optimizer_state, adapted.activations)
    assert found == (2000, 20, 40, 13)


def test_key_value_cache():
    llama = TransformerShape(0, 32, 32, 128, 4096, 0, key_value_heads=32, causal=True)
    assert 2 * llama.cache_elements(2048) == 2**30
    assert 2 * replace(llama, layers=1).cache_elements(2048) == 33_554_432
    assert replace(llama, key_value_heads=8).cache_elements(2048) == llama.cache_elements(2048) / 4


def test_saved_tensors_are_the_activations():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
        inputs = torch.randn(4, 10)
    counted = count(model, lambda: model(inputs).sum())
    # The input, and what ReLU returns, which both ReLU and the next layer keep; weights are not
    # activations.
    assert counted.saved == MemorySize(elements=4 * 10 + 4 * 20)


def test_integers_and_masks_are_told_apart():
    with torch.device("meta"):
        model = nn.MaxPool2d(2)
        inputs = torch.randn(1, 2, 8, 8, requires_grad=True)
    saved = count(model, lambda: model(inputs).sum()).saved
    assert saved == MemorySize(elements=2 * 64, fixed_bytes=2 * 16 * 8)
    assert saved.bytes(2) == 2 * 64 * 2 + 2 * 16 * 8


def test_peak_of_a_chain_is_two_layers_without_a_backward_pass():
    with torch.device("meta"), torch.no_grad():
        model = nn.Sequential(*[nn.Linear(100, 100) for _ in range(6)])
        inputs = torch.randn(1000, 100)
        counted = count(model, lambda: model(inputs))
    assert counted.peak == MemorySize(elements=2 * 1000 * 100)


def test_peak_ends_with_all_gradients():
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(1000, 1000, bias=False) for _ in range(4)])
        inputs = torch.randn(1, 1000)
        counted = count(model, lambda: model(inputs).sum())
    gradients = 4 * 1000**2
    assert gradients <= counted.peak.elements < 1.01 * gradients


def test_the_same_step_on_a_real_cpu_has_the_same_peak():
    peaks = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(8 * 36, 10),
            )
            images = torch.randn(5, 3, 8, 8)
        peaks.append(count(model, lambda model=model, images=images: model(images).sum()).peak)
    assert peaks[0] == peaks[1]


def test_checkpointing_saves_memory_at_the_price_of_flops():
    plain, again = (
        count_model(read("gpt2"), 2, checkpointing=flag).count for flag in (False, True)
    )
    assert again.saved.elements < plain.saved.elements / 3
    assert again.peak.elements < plain.peak.elements
    assert plain.operations.sum("recomputed").flops == 0
    # The head (26 %) is no block, and each block's last product is not needed again.
    assert again.operations.sum("recomputed").flops > 0.39 * plain.operations.sum("forward").flops


def test_fused_attention_keeps_no_scores():
    saved = count_model(read("gpt2"), 1).count.saved.elements
    scores = 12 * 12 * 1024 * 1024
    assert saved < count_model(read("gpt2"), 1, 512).count.saved.elements * 2.01
    assert saved < 3 * scores


def test_attention_leaves_its_output_where_the_next_layer_takes_it():
    """Heads that are merged again after attention copy nothing, on the meta device as on a CPU."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x):
            heads = self.project(x).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
            output = nn.functional.scaled_dot_product_attention(*heads)
            return self.out(output.transpose(1, 2).reshape(2, 16, 32))

    counts = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            model, x = Attention(), torch.randn(2, 16, 32)
        counts.append(count(model, lambda model=model, x=x: model(x).sum(), fused=device == "meta"))
    assert counts[0].saved == counts[1].saved
    found = counts[0].operations.sum("forward").other_elements
    assert found == counts[1].operations.sum("forward").other_elements


def test_predicted_peak():
    peak = {
        "parameters": 100,
        "trainable": 100,
        "step_peak_bytes": 4000,
        "step_peak_fixed_bytes": 7,
    }
    assert memory.training_peak_bytes(**peak) == 400 + 800 + 4000 + 7
    assert memory.training_peak_bytes(**peak, element_bytes=2) == 200 + 400 + 2000 + 7
    assert memory.training_peak_bytes(**peak, optimizer="sgd") == 400 + 4000 + 7
    # Gradients and the optimiser's temporaries outgrow small activations.
    small = {**peak, "step_peak_bytes": 400, "step_peak_fixed_bytes": 0}
    assert memory.training_peak_bytes(**small, optimizer_copies=1) == 400 + 800 + 800
    # Under autocast: fp32 weights and moments, a 16-bit copy of the weights, fp32 gradients.
    found = memory.training_peak_bytes(**peak, element_bytes=2, autocast=True)
    assert found == 400 + 800 + 2000 + 7 + 200 + 200
    frozen = {**peak, "trainable": 40, "element_bytes": 2, "autocast": True}
    passes = 2000 + 7 + 200 + 40 * 2
    assert memory.training_peak_bytes(**frozen) == 400 + 320 + passes
    assert memory.training_peak_bytes(**frozen, accumulated=True) == 400 + 320 + passes + 160
    assert memory.inference_peak_bytes(100, 4000, 7) == 4407
    assert memory.inference_peak_bytes(100, 4000, 7, element_bytes=2, autocast=True) == 600 + 2007


class _Recurrent(nn.Module):
    """An LSTM, and a layer that may save its output as well."""

    def __init__(self, inputs: int, hidden: int, followed: bool, **options: float) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(inputs, hidden, **options)
        width = (self.recurrent.proj_size or hidden) * (1 + self.recurrent.bidirectional)
        self.last = nn.Linear(width, 3) if followed else nn.Identity()

    def forward(self, x):
        return self.last(self.recurrent(x)[0])


@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden", "options"),
    few(
        [
            (8, 8, 128, 128, {}),
            (8, 8, 64, 128, {"batch_first": True}),
            (5, 4, 512, 256, {"num_layers": 2, "bidirectional": True}),
            (5, 4, 128, 100, {"num_layers": 3, "dropout": 0.3}),
            (5, 4, 40, 64, {"num_layers": 2, "dropout": 0.3, "bidirectional": True}),
            (7, 3, 20, 50, {"bias": False}),
            (7, 1, 400, 33, {"num_layers": 2}),
            (6, 3, 48, 48, {"num_layers": 4, "bidirectional": True}),
            (5, 4, 64, 64, {"proj_size": 32, "num_layers": 2}),
        ],
        4,
    ),
)
@pytest.mark.parametrize("followed", few([True, False]))
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16, torch.float64]))
def test_what_an_lstm_saves_on_a_cpu(steps, batch, inputs, hidden, options, followed, dtype):
    counts = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = _Recurrent(inputs, hidden, followed, **options)
            x = torch.randn(
                *((batch, steps) if options.get("batch_first") else (steps, batch)), inputs
            )
        if device == "cpu":
            model, x = model.to(dtype), x.to(dtype)
        counts.append(count(model, lambda model=model, x=x: model(x).sum(), fused=device == "meta"))
    real, pretended = counts
    assert real.more_on_cpu == MemorySize()
    by_onednn = real.operations.sum(operator="aten::mkldnn_rnn_layer").calls > 0
    if dtype == torch.float32 and "proj_size" not in options:
        assert by_onednn
    else:
        assert not by_onednn or dtype == torch.bfloat16
    predicted = pretended.saved + pretended.more_on_cpu if by_onednn else pretended.saved
    size = dtype.itemsize
    assert predicted.bytes(size) == real.saved.bytes(size)
    if by_onednn:
        found = pretended.saved.bytes(size)
        assert found < 0.6 * real.saved.bytes(size), "the operators alone are not enough"


def test_inference_keeps_no_workspace():
    with torch.device("meta"), torch.no_grad():
        model, x = _Recurrent(8, 8, True), torch.randn(4, 2, 8)
        assert count(model, lambda: model(x).sum()).more_on_cpu == MemorySize()
