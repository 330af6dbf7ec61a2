"""Models that the meta device cannot run, and models that nothing can: counts and reasons."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from support.said import keys, numbers
from torch import nn

from mfulab.core.groups import ModelConfig
from mfulab.flops.count import CountError, count
from mfulab.flops.values import KnownValues
from mfulab.models.build import ModelError
from mfulab.models.counted import count_model

LINEAR = 2 * 3 * 8 * 8


class ReadsData(nn.Linear):
    """Its control flow depends on values of tensors too large to keep them, which only real ones
    have."""

    def forward(self, x):
        return super().forward(x) if x.repeat(1000, 1)[0, 0].item() > -1e9 else x


class ReadsAFewNumbers(nn.Linear):
    """Its constructor and its forward read small tensors: rates that grow, and whether anything is
    masked."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
        rates += torch.arange(2.0).tolist()
        self.layers = nn.ModuleList(nn.Dropout(rate) for rate in rates)
        self.register_buffer("mask", torch.ones(8, dtype=torch.bool))

    def forward(self, x):
        assert [layer.p for layer in self.layers] == pytest.approx([0, 0.05, 0.1, 0, 1])
        changed = self.mask.clone()
        changed[2:4] = False
        return super().forward(x) if self.mask.all() and int(changed.sum()) == 6 else x


class NamesTheCPU(nn.Linear):
    """It makes a tensor on the CPU, whatever device it is on itself, which fake tensors allow."""

    def forward(self, x):
        return super().forward(x + torch.ones(8, 8, device="cpu")[0])


class HasNoMetaKernel(nn.Linear):
    """It calls an operator that knows how to run and not which shape it returns."""

    def forward(self, x):
        return super().forward(torch.ops.mfulab_test.doubled(x))


@torch.library.custom_op("mfulab_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


class TwoInputs(nn.Linear):
    def forward(self, x, y):
        return super().forward(x) + y


def config(module: Callable[..., nn.Module], **arguments: int) -> ModelConfig:
    return ModelConfig(
        name=module.__name__,
        _target_=f"{__name__}.{module.__name__}",
        arguments={"in_features": 8, "out_features": 8, **arguments},
        input_shape=[8],
    )


@pytest.mark.parametrize(
    ("module", "means", "reason"),
    [
        (nn.Linear, "meta", None),
        (ReadsAFewNumbers, "meta", None),
        (NamesTheCPU, "fake", "not_on_meta"),
        (ReadsData, "cpu", "not_on_fake"),
        (HasNoMetaKernel, "cpu", "not_on_meta"),
    ],
)
def test_the_next_means_is_tried_and_the_reason_kept(module, means, reason):
    target = f"{__name__}.{module.__name__}" if module is not nn.Linear else "torch.nn.Linear"
    counted = count_model(config(module).model_copy(update={"target": target}), 3)
    assert counted.means == means
    assert reason in (keys(counted.message) if counted.message else {None})
    assert counted.count.operations.sum("forward").flops == LINEAR


class Forces(nn.Module):
    """Energy of a perceptron, and forces, its gradient; `enabled` even where nobody else records
    one."""

    def __init__(self, in_features: int, out_features: int, enabled: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, 16), nn.Tanh(), nn.Linear(16, 1))
        self.enabled = enabled

    def forward(self, x):
        with torch.enable_grad() if self.enabled else nullcontext():
            x = x.requires_grad_()
            energy = self.layers(x)
            return energy + torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("enabled", [True, False])
def test_forces_are_part_of_the_forward_pass_in_training_and_in_inference(enabled):
    counts = {
        mode: count_model(config(Forces, enabled=enabled), 6, mode=mode).count.operations
        for mode in ("training", "inference")
    }
    wide, thin = 2 * 6 * 8 * 16, 2 * 6 * 16
    seen = {mode: found.sum("forward").flops for mode, found in counts.items()}
    assert seen == dict.fromkeys(counts, 2 * (wide + thin))
    assert counts["inference"].sum("backward").flops == 0
    # Both layers' weights twice, by way of energy and forces; between them each layer's products
    # and their gradients.
    assert counts["training"].sum("backward").flops == 2 * thin + thin + 4 * wide


def scripted(in_features: int, out_features: int) -> nn.Module:
    return torch.jit.script(
        nn.Sequential(nn.Linear(in_features, 4), nn.ReLU(), nn.Linear(4, out_features))
    )


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_scripted_model_is_counted(mode):
    found = count_model(config(scripted), 6, mode=mode).count.operations
    assert found.sum("forward").flops == 2 * 6 * (8 * 4 + 4 * 8)
    assert found.sum("backward").flops == (2 * 6 * (8 * 4 + 2 * 4 * 8) if mode == "training" else 0)


def test_gradients_of_torch_func_are_counted_and_what_they_save_is_unknown():
    layer, x = nn.Linear(4, 8), torch.randn(6, 4)
    loss = lambda parameters: torch.func.functional_call(layer, parameters, (x,)).sum()  # noqa: E731
    found = count(layer, lambda: torch.func.grad(loss)(dict(layer.named_parameters())), fused=False)
    seen = [found.operations.sum(each).flops for each in ("forward", "backward")]
    assert seen == [2 * 6 * 4 * 8] * 2
    assert found.saved_in_part
    assert not count(layer, lambda: layer(x).sum(), fused=False).saved_in_part


def test_what_a_custom_operator_costs_is_unknown_and_said_so():
    counted = count_model(config(HasNoMetaKernel), 3)
    assert counted.count.operations.uncounted == {"mfulab_test::doubled": 1}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            config(nn.Linear, in_features=9).model_copy(update={"target": "torch.nn.Linear"}),
            {"failed_in_forward", "as_told"},
        ),
        (config(TwoInputs), {"failed_in_forward", "as_told"}),
    ],
)
def test_what_nothing_can_run_names_the_input_and_the_way_out(wrong, why):
    with pytest.raises(CountError) as raised:
        count_model(wrong, 3)
    told = raised.value.said
    assert told.key == "cannot_be_counted"
    assert (told.numbers["model"], told.numbers["shape"]) == (wrong.name, "[3, 8]")
    assert why <= keys(told)


def test_a_model_larger_than_memory_is_not_tried_on_the_cpu(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=100))
    with pytest.raises(CountError) as raised:
        count_model(config(ReadsData), 3)
    assert numbers(raised.value, "count_needs_memory")["free"] == 100


def test_small_values_are_known_until_something_unknown_is_written_over_them():
    with torch.device("meta"), KnownValues():
        numbers = torch.arange(3) * 2
        view = numbers[1:]
        view += 1
        assert numbers.tolist() == [0, 3, 5]
        assert numbers.max().item() == 5
        view.copy_(torch.empty(5000)[:2].long())
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            numbers[0].item()


def test_a_target_that_cannot_be_built_is_not_tried_twice():
    with pytest.raises(ModelError, match="unexpected keyword argument"):
        count_model(config(ReadsData, wrong=1), 3)
