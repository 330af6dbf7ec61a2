"""Steps that really run: passes, formats and FLOPs by hand, and as on the meta device."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mfulab.flops.count import count
from mfulab.flops.counter import Operations, OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.models.huggingface import build as build_huggingface

ROWS, WIDTH = 4, 8
ONE = 2 * ROWS * WIDTH * WIDTH
"""A linear layer's forward pass; its gradient to the weights, and to the input, cost as much each."""


def counted(model: nn.Module, step) -> Operations:
    with OperatorCounter(LayerTracker(model), memory=False) as counter:
        step()
    assert not counter.operations.uncounted
    return counter.operations


def passes(operations: Operations) -> dict[str, int]:
    kinds = ("forward", "backward", "recomputed", "optimizer")
    return {kind: operations.sum(kind).flops for kind in kinds if operations.sum(kind).flops}


@pytest.fixture
def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH)


def test_the_values_of_a_counted_step_are_those_of_any_step(linear, inputs):
    linear(inputs).sum().backward()
    plain = linear.weight.grad
    linear.zero_grad()
    counted(linear, lambda: linear(inputs).sum().backward())
    assert torch.equal(plain, linear.weight.grad)
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_an_error_leaves_nothing_behind(linear, inputs):
    engine = torch.autograd._engine_run_backward
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        counted(linear, lambda: linear(inputs[:, 1:]))
    assert torch.autograd._engine_run_backward is engine
    assert passes(counted(linear, lambda: linear(inputs))) == {"forward": ONE}


def test_an_input_that_requires_a_gradient_is_paid_for(linear, inputs):
    found = passes(counted(linear, lambda: linear(inputs).sum().backward()))
    assert found == {"forward": ONE, "backward": ONE}
    inputs.requires_grad_()
    seen = passes(counted(linear, lambda: linear(inputs).sum().backward()))
    assert seen == {"forward": ONE, "backward": 2 * ONE}


def test_a_second_backward_pass_through_one_forward_pass_counts(linear, inputs):
    def step():
        loss = linear(inputs).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert passes(counted(linear, step)) == {"forward": ONE, "backward": 2 * ONE}


def test_micro_batches_and_evaluation_in_between(linear, inputs):
    def step():
        for _ in range(3):
            linear(inputs).sum().backward()
        with torch.no_grad():
            linear(inputs)

    assert passes(counted(linear, step)) == {"forward": 4 * ONE, "backward": 3 * ONE}


def test_several_outputs_have_one_backward_pass_through_each():
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.main, self.auxiliary = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x):
            hidden = self.trunk(x)
            return {
                "shown": hidden.detach(),
                "main": self.main(hidden),
                "auxiliary": self.auxiliary(hidden),
            }

    model = Heads()

    def step():
        outputs = model(torch.randn(ROWS, WIDTH))
        (outputs["main"].sum() + outputs["auxiliary"].sum()).backward()

    operations = counted(model, step)
    assert passes(operations) == {"forward": 3 * ONE, "backward": 5 * ONE}
    assert operations.sum("backward", layer="auxiliary").flops == 2 * ONE


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_inside_or_outside_of_forward_decides_the_format(inside):
    class Model(nn.Linear):
        def forward(self, x):
            with torch.autocast(
                "cpu", dtype=torch.bfloat16, enabled=inside or torch.is_autocast_enabled("cpu")
            ):
                return super().forward(x)

    model = Model(WIDTH, WIDTH)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
            loss = model(torch.randn(ROWS, WIDTH)).sum()
        loss.backward()

    assert counted(model, step).by_format() == {(torch.bfloat16, False): 2 * ONE}


def test_formats_and_kinds_are_told_apart():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10).double())
    operations = counted(
        model,
        lambda: model[2](model[1](model[0](torch.randn(2, 3, 8, 8))).double()).sum().backward(),
    )
    convolution, product = 2 * 2 * 36 * 27 * 8, 2 * 2 * 288 * 10
    found = operations.by_format()
    assert found == {(torch.float32, True): 2 * convolution, (torch.float64, False): 3 * product}


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("as_function", [False, True])
def test_checkpoints_are_recomputed_whether_layers_or_functions(use_reentrant, as_function):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    function = (lambda x: (x @ model[0].weight).relu() @ model[2].weight) if as_function else model
    inputs = torch.randn(ROWS, WIDTH, requires_grad=True)
    found = passes(
        counted(
            model,
            lambda: checkpoint(function, inputs, use_reentrant=use_reentrant).sum().backward(),
        )
    )
    # A checkpoint that is not reentrant stops before the last product, which nobody needs again.
    again = ONE * (2 if use_reentrant else 1)
    assert found == {"forward": 2 * ONE, "backward": 4 * ONE, "recomputed": again}


class Forces(nn.Module):
    """An energy and its gradient, as force fields have it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.energy = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, places):
        places = places.requires_grad_()
        (forces,) = torch.autograd.grad(
            self.energy(self.hidden(places).tanh()).sum(), places, create_graph=True
        )
        return forces


@pytest.mark.parametrize("recomputed", [False, True])
def test_forces_are_output_and_no_recomputation(recomputed):
    model = Forces()

    def step():
        places = torch.randn(ROWS, WIDTH)
        forces = checkpoint(model, places, use_reentrant=False) if recomputed else model(places)
        forces.square().sum().backward()

    head = 2 * ROWS * WIDTH
    forward = (ONE + head) + (head + ONE)  # energy, and its gradient
    # Gradients of the force's product (2) and of its head's weights; then through the hidden layer,
    # to its weights and to the places.
    expected = {"forward": forward, "backward": 2 * ONE + head + 2 * ONE}
    found = passes(counted(model, step))
    assert found == expected | ({"recomputed": forward} if recomputed else {})


def test_functional_gradients_in_and_around_a_model(linear, inputs):
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return torch.func.grad(lambda x: self.layer(x).tanh().sum())(x)

    model = Functional()
    found = passes(counted(model, lambda: model(inputs).sum().backward()))
    assert found == {"forward": 2 * ONE, "backward": 3 * ONE}

    def loss(parameters):
        return torch.func.functional_call(linear, parameters, (inputs,)).sum()

    found = passes(counted(linear, lambda: torch.func.grad(loss)(dict(linear.named_parameters()))))
    assert found == {"forward": ONE, "backward": ONE}
    assert passes(counted(linear, lambda: torch.func.vmap(linear)(inputs))) == {"forward": ONE}


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_optimizers_are_a_pass_of_their_own(linear, inputs, options):
    optimizer = torch.optim.AdamW(linear.parameters(), **options)

    def step():
        linear(inputs).sum().backward()
        torch.nn.utils.clip_grad_norm_(linear.parameters(), 1.0)
        optimizer.step()

    operations = counted(linear, step)
    assert passes(operations) == {"forward": ONE, "backward": ONE}
    parameters = WIDTH * WIDTH + WIDTH
    assert operations.sum("optimizer").other_flops == pytest.approx(14 * parameters, abs=16)


def test_an_optimizer_that_multiplies_matrices_does_not_count_as_the_model(linear, inputs):
    linear(inputs).sum().backward()
    muon = torch.optim.Muon([linear.weight])
    assert set(passes(counted(linear, muon.step))) == {"optimizer"}


def test_the_closure_of_an_optimizer_is_a_step(linear, inputs):
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = linear(inputs).square().sum()
        loss.backward()
        return loss

    found = passes(counted(linear, lambda: optimizer.step(closure)))
    assert found["forward"] == found["backward"]
    assert found["forward"] % ONE == 0


def test_two_models_are_one_dictionary_of_them():
    models = nn.ModuleDict({"generator": nn.Linear(WIDTH, WIDTH), "critic": nn.Linear(WIDTH, 1)})

    def step():
        made = models["generator"](torch.randn(ROWS, WIDTH))
        models["critic"](made.detach()).sum().backward()
        models["critic"](made).sum().backward()

    operations = counted(models, step)
    score = 2 * ROWS * WIDTH
    assert operations.sum("forward", layer="critic").flops == 2 * score
    assert operations.sum("backward", layer="critic").flops == 3 * score
    assert operations.sum("backward", layer="generator").flops == ONE


def test_a_compiled_model_is_counted_before_and_after_it_is_compiled(linear, inputs):
    compiled = torch.compile(linear, backend="aot_eager")
    for _ in range(2):
        operations = counted(linear, lambda: compiled(inputs).sum().backward())
        assert passes(operations) == {"forward": ONE, "backward": ONE}
        assert {key.layer for key in operations.totals if key.operator == "aten::addmm"} == {""}
        compiled(inputs).sum().backward()


def test_where_the_result_goes_to_is_no_operand(linear, inputs):
    out = torch.empty(ROWS, ROWS)
    found = passes(counted(linear, lambda: torch.mm(inputs, inputs.mT, out=out)))
    assert found == {"forward": 2 * ROWS * ROWS * WIDTH}


def test_gradients_that_a_fused_kernel_gives_unasked_are_not_needed():
    query = torch.randn(2, 3, 16, 8, requires_grad=True)
    key, value = torch.randn(2, 3, 16, 8), torch.randn(2, 3, 16, 8)
    step = counted(
        nn.Identity(),
        lambda: functional.scaled_dot_product_attention(query, key, value).sum().backward(),
    )
    product = 2 * 2 * 3 * 16 * 16 * 8
    assert step.sum("backward").flops == 2 * product, "of the probabilities, and of the queries"
    assert step.sum("backward").executed_flops == 5 * product


ARCHITECTURES = {
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "LlamaForCausalLM": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "BertForMaskedLM": {"num_attention_heads": 2},
    "MixtralForCausalLM": {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_local_experts": 4,
    },
}


def tiny(architecture: str) -> nn.Module:
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes = {} if architecture.startswith("GPT2") else sizes
    return build_huggingface(
        architecture, **{"vocab_size": 50, **sizes, **ARCHITECTURES[architecture]}
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_real_step_of_a_transformer_costs_what_the_meta_device_says(architecture):
    found = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            model = tiny(architecture).train()
            ids = torch.zeros(3, 16, dtype=torch.long)
        if device == "meta":
            operations = count(
                model, lambda model=model, ids=ids: model(ids).logits.sum()
            ).operations
        else:
            mask = torch.ones_like(ids)
            operations = counted(
                model,
                lambda model=model, ids=ids, mask=mask: (
                    model(ids, attention_mask=mask).logits.sum().backward()
                ),
            )
        found.append(passes(operations))
    assert found[0] == found[1]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 5), st.booleans())
def test_any_chain_of_layers_costs_as_on_the_meta_device(widths, batch, norm):
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.LayerNorm(after) if norm else nn.GELU()]
    model = nn.Sequential(*layers)
    inputs = torch.randn(batch, widths[0])
    real = counted(model, lambda: model(inputs).sum().backward())
    model.zero_grad()
    meta = model.to("meta")
    shapes = inputs.to("meta")
    assert passes(real) == passes(count(meta, lambda: meta(shapes).sum()).operations)
