"""FLOPs of the loops that people have, by hand: what ran is counted and nothing else."""

import io
import itertools
import json

import pytest
import torch
from support.sharded_models import PRODUCT, WAYS
from support.sharded_models import ROWS as SHARDED_ROWS
from support.sharded_models import WIDTH as SHARDED_WIDTH
from torch import nn
from torch.utils.checkpoint import checkpoint

import mfulab
from mfulab.core.terminal import Terminal
from mfulab.flops.sharded import pretended_ranks
from mfulab.loop.interactive import peaks
from mfulab.loop.interactive.peaks import Ceiling
from mfulab.loop.interactive.show import show
from mfulab.loop.interactive.structure import holds_compiled
from mfulab.models.huggingface import build as build_huggingface

ROWS, WIDTH = 4, 16
ONE = 2 * ROWS * WIDTH * WIDTH
"""A square linear layer's forward pass; its gradient to the weights, and to the input, cost as much each."""


def batch(rows: int = ROWS, **options) -> torch.Tensor:
    return torch.randn(rows, WIDTH, **options)


def measured(model, step, steps: int = 4, explicit: bool = False, **options):
    """A window over `steps` calls of `step`, of which the first is the counted one."""
    with mfulab.measure(model, quiet=True, ceiling_s=0, **options) as window:
        for _ in range(steps):
            step()
            if explicit:
                window.step()
    return window


@pytest.fixture
def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


@pytest.fixture
def two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def test_a_scripted_model_is_counted_step_by_step(linear):
    scripted = torch.jit.script(linear)
    row = measured(scripted, lambda: scripted(batch()).sum().backward(), explicit=True).row
    assert row["flops"] == 2 * ONE


def test_inference_is_a_forward_pass(linear):
    with torch.no_grad():
        row = measured(linear, lambda: linear(batch())).row
    assert (row["steps"], row["counted_steps"], row["flops"]) == (3, 1, ONE)


def test_an_input_that_requires_a_gradient(linear):
    row = measured(linear, lambda: linear(batch(requires_grad=True)).sum().backward()).row
    assert row["flops"] == 3 * ONE


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_are_executed_and_not_the_models(two, use_reentrant):
    def step():
        checkpoint(two, batch(requires_grad=True), use_reentrant=use_reentrant).sum().backward()

    row = measured(two, step).row
    # the other kind stops before the last product, which nobody needs again
    again = 2 if use_reentrant else 1
    assert (row["flops"], row["executed_flops"]) == (6 * ONE, (6 + again) * ONE)


def test_checkpoints_inside_a_model(two):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = two, nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.head(checkpoint(self.block, x, use_reentrant=False))

    model = Model()
    row = measured(model, lambda: model(batch()).sum().backward()).row
    assert (row["flops"], row["executed_flops"]) == ((3 + 5) * ONE, (3 + 5 + 1) * ONE)


def test_autocast_inside_forward_decides_the_format():
    class Model(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x)

    model = Model(WIDTH, WIDTH)
    row = measured(model, lambda: model(batch()).sum().backward()).row
    assert (row["effective_precision"], row["flops"]) == ("bf16", 2 * ONE)


def test_several_formats_weigh_the_peak_by_their_flops(monkeypatch):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.narrow, self.wide = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = self.narrow(x)
            return checkpoint(self.wide, x.float(), use_reentrant=True)

    rates = {"bf16": 4.0, "fp32": 1.0}
    monkeypatch.setattr(
        peaks, "measured_ceiling", lambda device, precision, *_: Ceiling(rates[precision])
    )
    monkeypatch.setattr(peaks, "emulated", lambda *_: "")  # as on a CPU with units of both
    model = Model()
    with mfulab.measure(model, quiet=True) as window:
        for _ in range(3):
            model(batch()).sum().backward()
    row = window.row
    assert (row["flops"], row["executed_flops"]) == (5 * ONE, 6 * ONE)
    assert json.loads(row["peak_weights"]) == {"bf16": 0.4, "fp32": 0.6}
    assert row["ceiling_tflop_s"] == pytest.approx(5 / (2 / 4 + 3 / 1))
    assert row["mfu_percent"] == pytest.approx(100 * row["tflop_s"] * (2 / 4 + 3 / 1) / 5)
    assert row["hfu_percent"] == pytest.approx(100 * row["tflop_s"] * 6 / 5 * (2 / 4 + 4 / 1) / 6)


class Heads(nn.Module):
    """A trunk and two heads; the first entry of its output has no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.main, self.auxiliary = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, full=True):
        hidden = self.trunk(x)
        found = {"shown": hidden.detach(), "main": self.main(hidden)}
        return {**found, "auxiliary": self.auxiliary(hidden)} if full else found


def test_every_output_that_the_loss_takes_has_its_backward_pass():
    model = Heads()

    def step():
        found = model(batch())
        (found["main"].sum() + found["auxiliary"].sum()).backward()

    assert measured(model, step).row["flops"] == (3 + 5) * ONE


def test_a_loss_that_takes_one_output_now_and_two_then():
    model, turn = Heads(), iter(range(8))

    def step():
        found = model(batch())
        loss = found["main"].square().sum()
        if next(turn) % 2:
            loss = loss + found["auxiliary"].sum()
        loss.backward()

    row = measured(model, step, steps=8).row
    assert (row["counted_steps"], row["steps"]) == (2, 6)
    assert row["flops"] == (3 + (3 + 5) / 2) * ONE


def test_python_arguments_change_the_work():
    model, turn = Heads(), iter(range(8))

    def step():
        model(batch(), full=bool(next(turn) % 2))["main"].sum().backward()

    row = measured(model, step, steps=8).row
    assert (row["counted_steps"], row["flops"]) == (2, (2.5 + 3) * ONE)


def test_evaluation_mode_afterwards_changes_nothing():
    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(super().forward(x) if self.training else x)

    model = Model(WIDTH, WIDTH)
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for _ in range(3):
            model(batch()).sum().backward()
        model.eval()
    assert window.row["flops"] == (2 + 3) * ONE


def test_accumulation_with_micro_batches_of_all_lengths(linear):
    lengths = itertools.cycle([1, 40, 20, 31])
    done = []

    def step():
        for _ in range(3):
            done.append(next(lengths))
            linear(batch(done[-1])).sum().backward()

    row = measured(linear, step, steps=10, explicit=True).row
    assert row["counted_steps"] == 2, "each length is counted once"
    assert row["flops"] == sum(done[6:]) / 8 * 2 * 2 * WIDTH * WIDTH


def test_one_backward_pass_through_two_forward_passes_of_their_own_lengths(linear):
    lengths = iter([(4, 8), (4, 4), (8, 4), (4, 8), (8, 4)])

    def step():
        query, passage = next(lengths)
        (linear(batch(query)).sum() + linear(batch(passage)).sum()).backward()

    row = measured(linear, step, steps=5, explicit=True).row
    assert (row["counted_steps"], row["steps"], row["flops"]) == (3, 2, 2 * 3 * ONE)


@pytest.mark.parametrize("listed", [True, False])
def test_two_models(listed):
    generator, critic = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def step():
        made = generator(batch())
        (critic(made.detach()).mean() - critic(batch()).mean()).backward()
        critic(made).mean().backward()

    score = 2 * ROWS * WIDTH
    models = {"generator": generator, "critic": critic} if listed else generator
    row = measured(models, step, explicit=True).row
    assert (row["steps"], row["counted_steps"]) == (3, 1)
    assert row["flops"] == 2 * ONE + 3 * score + (2 + 2) * score


@pytest.mark.parametrize("explicit", [True, False])
def test_functional_gradients(linear, explicit):
    parameters = dict(linear.named_parameters())
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.0)

    def step():
        inputs = batch()
        torch.func.grad(lambda p: torch.func.functional_call(linear, p, (inputs,)).sum())(
            parameters
        )
        optimizer.step()

    assert measured(linear, step, explicit=explicit).row["flops"] == 2 * ONE
    assert measured(None, step, explicit=explicit).row["flops"] == 2 * ONE


def test_a_loop_that_calls_no_module_is_cut_by_its_optimizer():
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
    optimizer = torch.optim.SGD([weight], lr=0.0)

    def step():
        (batch() @ weight).sum().backward()
        optimizer.step()

    row = measured(None, step).row
    assert (row["steps"], row["counted_steps"], row["flops"]) == (2, 2, 2 * ONE)


@pytest.mark.parametrize("whole", [False, True])
def test_compiled_models_and_compiled_steps(two, whole):
    # The backend runs what Dynamo and autograd made of the model, without a compiler to wait for.
    def train(model):
        model(batch()).sum().backward()

    compiled = torch.compile(two, backend="aot_eager")
    step = (lambda: compiled(batch()).sum().backward()) if whole else lambda: train(compiled)
    step()
    row = measured(compiled, step).row
    assert holds_compiled(compiled(batch()).sum()), "counting leaves it compiled"
    assert (row["steps"], row["counted_steps"], row["flops"]) == (3, 1, 5 * ONE)


def test_code_that_was_compiled_elsewhere_in_the_process_changes_no_count():
    torch.compile(lambda x: x.sin().sum(), backend="aot_eager")(
        torch.randn(3, requires_grad=True)
    ).backward()
    test_a_loss_that_takes_one_output_now_and_two_then()
    test_two_models(True)
    inner = torch.compile(
        lambda x, weight, bias: nn.functional.linear(x, weight, bias).relu(), backend="aot_eager"
    )

    class Model(nn.Linear):
        def forward(self, x):
            return inner(x, self.weight, self.bias).square()

    model, compiled = Model(WIDTH, WIDTH), []

    def step():
        loss = model(batch()).sum()
        compiled.append(holds_compiled(loss))
        loss.backward()

    step()
    row = measured(model, step, steps=6).row
    assert compiled == [True, False, True, False, True, True, True], "counting leaves it compiled"
    assert row["flops"] == 2 * ONE
    assert row["counted_steps"] == 2, "the second shows that the graph is of compiled code"


def test_a_compiled_loss_function(linear):
    inputs, loss = batch(), torch.compile(lambda x: linear(x).square().mean(), backend="aot_eager")
    loss(inputs).backward()
    row = measured(None, lambda: loss(inputs).backward(), explicit=True).row
    assert row["flops"] == 2 * ONE


ARCHITECTURES = {
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "LlamaForCausalLM": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "Qwen2ForCausalLM": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "BertForMaskedLM": {"num_attention_heads": 2},
    "MixtralForCausalLM": {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_local_experts": 4,
    },
}


def tiny(architecture: str) -> nn.Module:
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes = {"vocab_size": 50} if architecture.startswith("GPT2") else sizes
    return build_huggingface(architecture, **{**sizes, **ARCHITECTURES[architecture]})


def transformer_flops(model: nn.Module, tokens: int, sequences: int, backward: int = 2) -> int:
    """Every matrix for every token, full attention, and the experts that a token meets."""
    config = model.config
    matrices = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2
        and "embed" not in name
        and ".wte." not in name
        and ".wpe." not in name
    )
    experts = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 3)
    if experts:
        matrices += experts * config.num_experts_per_tok // config.num_local_experts
    if config.tie_word_embeddings:
        matrices += config.vocab_size * config.hidden_size
    heads = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    forward = (
        2 * sequences * tokens * matrices
        + config.num_hidden_layers * sequences * 4 * tokens**2 * heads
    )
    return (1 + backward) * forward


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_with_a_mask_and_without_a_cache(architecture):
    model = tiny(architecture).train()
    ids = torch.randint(0, 50, (3, 12))
    keywords = {} if architecture.startswith("Bert") else {"use_cache": False}

    def step():
        model(
            input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, **keywords
        ).loss.backward()

    row = measured(model, step).row
    assert row["flops"] == transformer_flops(model, 12, 3)


def test_generation_token_by_token():
    model = tiny("LlamaForCausalLM").eval()
    ids, new = torch.randint(3, 50, (2, 5)), 12

    def step():
        lengths = {"max_new_tokens": new, "min_new_tokens": new}
        model.generate(
            ids, attention_mask=torch.ones_like(ids), use_cache=True, do_sample=False, **lengths
        )

    row = measured(model, step, steps=3, explicit=True).row
    config, width = model.config, model.config.hidden_size
    matrices = sum(
        p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n
    )
    if config.tie_word_embeddings:
        matrices += config.vocab_size * width
    head = config.vocab_size * width
    prompt = (
        2 * 2 * (5 * (matrices - head) + head) + config.num_hidden_layers * 2 * 4 * 5 * 5 * width
    )
    tokens = sum(
        2 * 2 * matrices + config.num_hidden_layers * 2 * 4 * (5 + n) * width for n in range(1, new)
    )
    assert (row["steps"], row["flops"]) == (2, prompt + tokens)


def test_what_a_replayed_graph_runs_is_given_by_its_batch(linear):
    linear.eval()
    row = measured(linear, lambda: None, explicit=True, batch=batch()).row
    assert (row["steps"], row["flops"]) == (4, ONE)


def test_a_batch_that_needs_data_is_counted_with_fake_tensors():
    class Model(nn.Linear):
        def forward(self, x, weights):
            return {"logits": super().forward(x), "scaled": super().forward(x * weights.to("cpu"))}

    model = Model(WIDTH, WIDTH)
    row = measured(model, lambda: None, explicit=True, batch=(batch(), torch.ones(1))).row
    assert row["flops"] == 4 * ONE


def test_flops_given_by_hand(linear):
    row = measured(linear, lambda: linear(batch()), flops_per_step=1e9).row
    assert (row["steps"], row["counted_steps"], row["flops"]) == (4, 0, 1e9)


def test_a_graph_that_nothing_describes_says_how_to_give_its_flops():
    window = measured(None, lambda: None, explicit=True)
    assert window.row["mfu_percent"] is None
    assert "flops_per_step=" in str(window.readings["flops"].reason)


def test_flops_of_a_model_are_those_that_measure_counts_and_may_be_given():
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    data = torch.randn(4, 64)
    forward = 2 * 4 * (64 * 32 + 32 * 8)
    assert mfulab.flops_of(model.eval(), data) == forward
    # The first layer's input needs no gradient.
    assert mfulab.flops_of(model.train(), data) == 3 * forward - 2 * 4 * 64 * 32
    assert mfulab.flops_of(model, {"input": data}, backward=False) == forward
    row = measured(
        model, lambda: model(data).sum().backward(), flops_per_step=mfulab.flops_of(model, data)
    ).row
    assert row["flops"] == 3 * forward - 2 * 4 * 64 * 32


def test_a_formula_that_fails_costs_the_count_and_not_the_loop(linear, monkeypatch):
    from mfulab.flops import operators

    monkeypatch.setitem(operators.FORMULAS, "aten::addmm", lambda *args, **kwargs: 1 // 0)
    window = measured(linear, lambda: linear(batch()).sum().backward())
    assert window.row["time_s"] > 0
    assert "ZeroDivisionError" in str(window.readings["flops"].reason)


@pytest.mark.parametrize(("name", "flops"), [("tensor", 5 * PRODUCT // 2), ("fsdp2", 5 * PRODUCT)])
def test_of_a_sharded_model_each_rank_reports_what_it_computes(name, flops):
    """Half of each product under tensor parallelism; all of them, of this rank's own batch, under
    FSDP2."""
    with pretended_ranks(2):
        model = WAYS[name]()
        window = measured(
            model, lambda: model(torch.randn(SHARDED_ROWS, SHARDED_WIDTH)).sum().backward()
        )
    assert window.row["flops"] == flops


def test_a_window_shows_its_ladder_where_it_is_printed():
    model = torch.nn.Linear(8, 8)
    window = mfulab.measure(model, ceiling_s=0, quiet=True)
    assert window._repr_html_() is None
    assert len(repr(window).splitlines()) == 1
    with window:
        for _ in range(8):
            model(torch.randn(4, 8)).sum().backward()
        assert len(repr(window).splitlines()) == 1
    written = io.StringIO()
    show(window, Terminal(file=written, width=100, color_system=None))
    assert repr(window) == written.getvalue().rstrip()
    assert window._repr_html_().startswith("<pre>")
    assert "█" in window._repr_html_() or "░" in window._repr_html_()


@pytest.mark.parametrize("noted", [False, True])
def test_products_outside_modules_that_nothing_shows_are_said_unless_noted(noted):
    model, weight = torch.nn.Linear(8, 8), torch.randn(8, 8)
    with mfulab.measure(model, ceiling_s=0, quiet=True) as window:
        for turn in range(30):
            comes = turn % 3 == 0
            if noted:
                window.note((torch.tensor(0.0), comes))
            with torch.no_grad():
                if comes:
                    weight @ weight
            model(torch.randn(4, 8)).sum().backward()
            window.step()
    shown = repr(window)
    assert ("window.note" in shown) == (not noted)
    if noted:
        by_hand = {2 * 2 * 4 * 8 * 8 + comes * 2 * 8 * 8 * 8 for comes in (0, 1)}
        assert {one.cost.model for one in window._steps if one.cost} == by_hand
    else:
        assert window.row["unshown_flops"] == 2 * 8 * 8 * 8
