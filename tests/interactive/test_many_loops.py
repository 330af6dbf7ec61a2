"""Forty loops against hand counts, step by step: each step's FLOPs are exact, or empty with a reason."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import mfulab
from mfulab.flops.sharded import pretend_ranks

ROWS, WIDTH = 4, 16
ONE = 2 * ROWS * WIDTH * WIDTH


@dataclass
class Loop:
    """A step by its number, which returns its FLOPs by hand; `known` is the fewest steps that must have a number."""

    step: Callable[[int], int]
    model: nn.Module | list[nn.Module] | None = None
    steps: int = 8
    known: int = 4
    explicit: bool = True


def x(rows: int = ROWS, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(rows, width)


def square(count: int = 1) -> list[nn.Module]:
    return [nn.Linear(WIDTH, WIDTH) for _ in range(count)]


def linear_flops(rows: int, into: int, out: int) -> int:
    return 2 * rows * into * out


def chain(count: int) -> int:
    """Forward and backward of square layers in a row, the first of which needs no gradient of its input."""
    return (3 * count - 1) * ONE if count else 0


LOOPS: dict[str, Callable[[], Loop]] = {}


def loop(make: Callable[[], Loop]) -> Callable[[], Loop]:
    LOOPS[make.__name__] = make
    return make


def unrolled(lengths: list[int], training: bool = True) -> Loop:
    cell = nn.GRUCell(WIDTH, WIDTH)

    def step(turn: int) -> int:
        length, state = lengths[turn], torch.zeros(ROWS, WIDTH)
        with nullcontext() if training else torch.no_grad():
            for _ in range(length):
                state = cell(x(), state)
            if training:
                state.sum().backward()
        # Two products into three gates each; the first state and the inputs need no gradient.
        return 6 * ONE * length + (6 * ONE * length + 3 * ONE * (length - 1) if training else 0)

    return Loop(step, cell, len(lengths))


@loop
def a_cell_called_a_hundred_times_and_then_fewer() -> Loop:
    return unrolled([100, 9, 10, 11, 12, 13, 14, 15, 9, 12, 10, 15, 100])


@loop
def a_cell_called_as_often_as_a_sequence_is_long() -> Loop:
    return unrolled([3, 12, 5, 8, 6, 4, 11, 7, 10, 9])


@loop
def a_cell_without_gradients() -> Loop:
    return unrolled([20, 9, 12, 9, 20], training=False)


class Truncates(nn.Module):
    """Reads 64 tokens at most, with a layer or without one, so that no module shows it."""

    def __init__(self, by_layer: bool) -> None:
        super().__init__()
        self.layer, self.by_layer = nn.Linear(WIDTH, WIDTH), by_layer

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        kept = tokens[:, :64]
        return self.layer(kept) if self.by_layer else kept @ self.layer.weight


def truncated(by_layer: bool) -> Loop:
    model = Truncates(by_layer)
    lengths = [16, 24, 32, 40, 48, 128, 256, 512, 128, 256, 512, 20, 44]

    def step(turn: int) -> int:
        model(torch.randn(2, lengths[turn], WIDTH)).sum().backward()
        return 2 * linear_flops(2 * min(64, lengths[turn]), WIDTH, WIDTH)

    return Loop(step, model, len(lengths), 10)


@loop
def tokens_beyond_the_sixty_fourth_are_cut_off() -> Loop:
    return truncated(True)


@loop
def tokens_are_cut_off_and_no_module_shows_it() -> Loop:
    return truncated(False)


def strided(functional: bool, stride: int, lengths: list[int]) -> Loop:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv1d(2, 4, 3, stride), nn.Conv1d(4, 8, 3, stride)

        def forward(self, signal: torch.Tensor) -> torch.Tensor:
            for layer in (self.first, self.second):
                run = nn.functional.conv1d if functional else None
                signal = run(signal, layer.weight, layer.bias, stride) if run else layer(signal)
            return signal

    model = Model()

    def step(turn: int) -> int:
        model(torch.randn(ROWS, 2, lengths[turn])).sum().backward()
        one = (lengths[turn] - 3) // stride + 1
        two = (one - 3) // stride + 1
        return 2 * (2 * ROWS * one * 2 * 4 * 3) + 3 * (2 * ROWS * two * 4 * 8 * 3)

    return Loop(step, model, len(lengths), len(lengths) - 3)


@loop
def strided_convolutions_of_odd_lengths() -> Loop:
    return strided(False, 2, [32, 64, 96, 128, 33, 50, 70, 33, 50, 70, 101])


@loop
def strided_convolutions_that_are_no_modules() -> Loop:
    return strided(True, 2, [32, 64, 96, 128, 33, 50, 70, 36, 101, 48])


@loop
def strides_of_four() -> Loop:
    return strided(False, 4, [32, 64, 96, 128, 160, 40, 36, 33, 100, 99])


@loop
def strides_of_three_upwards() -> Loop:
    return strided(True, 3, list(range(30, 60)))


@loop
def lengths_beyond_those_counted() -> Loop:
    layer = nn.Linear(WIDTH, WIDTH)
    lengths = [*range(4, 40), *range(4, 40)]

    def step(turn: int) -> int:
        with torch.no_grad():
            layer(x(lengths[turn]))
        return linear_flops(lengths[turn], WIDTH, WIDTH)

    return Loop(step, layer, len(lengths), 60)


class Deep(nn.Module):
    """A stack of which a call runs as many layers as it is told, or as its attribute says."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.layers, self.depth = nn.ModuleList(square(count)), count

    def forward(self, inputs: torch.Tensor, depth: int | None = None) -> torch.Tensor:
        for layer in self.layers[: depth or self.depth]:
            inputs = layer(inputs)
        return inputs


def deep(training: bool, by_argument: bool) -> Loop:
    model = Deep()

    def step(turn: int) -> int:
        depth = (4, 4, 2, 2, 3, 2, 4, 3, 2, 3)[turn]
        if not by_argument:
            model.depth = depth
        with nullcontext() if training else torch.no_grad():
            found = model(x(), depth) if by_argument else model(x())
        if training:
            found.sum().backward()
        return chain(depth) if training else depth * ONE

    return Loop(step, model, 10)


@loop
def fewer_layers_by_an_attribute() -> Loop:
    return deep(True, False)


@loop
def fewer_layers_by_an_attribute_without_gradients() -> Loop:
    return deep(False, False)


@loop
def fewer_layers_by_an_argument() -> Loop:
    return deep(True, True)


@loop
def fewer_layers_in_inference_mode() -> Loop:
    model = Deep()

    @torch.inference_mode()
    def step(turn: int) -> int:
        model.depth = (4, 1, 4, 1, 2, 4, 1, 2)[turn]
        model(x())
        return model.depth * ONE

    return Loop(step, model, known=3)


@loop
def a_weight_used_as_often_as_an_attribute_says() -> Loop:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.depth = nn.Parameter(torch.randn(WIDTH, WIDTH)), 1

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for _ in range(self.depth):
                inputs = inputs @ self.weight
            return inputs

    model = Model()

    def step(turn: int) -> int:
        model.depth = 1 + turn % 2
        model(x()).sum().backward()
        return chain(model.depth)

    return Loop(step, model)


def swapped(training: bool) -> Loop:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    widths = {0: 16, 3: 48, 6: 32, 9: 16}

    def step(turn: int) -> int:
        if turn in widths:
            model[0], model[2] = nn.Linear(WIDTH, widths[turn]), nn.Linear(widths[turn], WIDTH)
        width = model[0].out_features
        with nullcontext() if training else torch.no_grad():
            found = model(x())
        if training:
            found.sum().backward()
        return linear_flops(ROWS, WIDTH, width) * (5 if training else 2)

    return Loop(step, model, 12)


@loop
def submodules_that_are_swapped() -> Loop:
    return swapped(True)


@loop
def submodules_that_are_swapped_without_gradients() -> Loop:
    return swapped(False)


@loop
def layers_dropped_at_random() -> Loop:
    model, chance = nn.ModuleList(square(5)), torch.Generator().manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.ran = model, 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.ran = 0
            for layer in self.layers:
                if float(torch.rand((), generator=chance)) > 0.3:
                    inputs, self.ran = layer(inputs), self.ran + 1
            return inputs

    whole = Model()

    def step(turn: int) -> int:
        found = whole(x())
        if found.requires_grad:
            found.sum().backward()
        return chain(whole.ran)

    return Loop(step, whole, 30, 15)


@loop
def an_early_exit_by_the_data() -> Loop:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = square(2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden, kept = self.first(inputs), inputs[:, 0] > 0
            return self.rest(hidden[kept])

    model = Model()

    def step(turn: int) -> int:
        inputs, kept = x(8), (3, 8, 3, 5, 8, 5, 3, 8)[turn]
        inputs[:, 0] = -1.0
        inputs[:kept, 0] = 1.0
        with torch.no_grad():
            model(inputs)
        return linear_flops(8, WIDTH, WIDTH) + linear_flops(kept, WIDTH, WIDTH)

    return Loop(step, model, known=3)


class Mixture(nn.Module):
    """Each token goes to the expert that its first feature names; experts may differ in width."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, width) for width in widths)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        chosen = inputs[:, 0].long()
        return sum(self.experts[place](inputs[chosen == place]).sum() for place in range(len(self.experts)))


def routed(widths: tuple[int, ...], known: int, steps: int) -> Loop:
    model, chance = Mixture(widths), torch.Generator().manual_seed(1)

    def step(turn: int) -> int:
        inputs = x(16)
        chosen = torch.randint(len(widths), (16,), generator=chance)
        inputs[:, 0] = chosen
        model(inputs).backward()
        return sum(2 * linear_flops(int((chosen == place).sum()), WIDTH, width) for place, width in enumerate(widths))

    return Loop(step, model, steps, known)


@loop
def a_mixture_of_equal_experts() -> Loop:
    return routed((8, 8, 8), 8, 16)


@loop
def a_mixture_of_experts_of_their_own_widths() -> Loop:
    return routed((4, 8, 32), 3, 16)


def adversaries(listed: bool, explicit: bool, widths: tuple[int, int] = (32, 8)) -> Loop:
    hidden, inner = widths
    generator = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH))
    critic = nn.Sequential(nn.Linear(WIDTH, inner), nn.ReLU(), nn.Linear(inner, 1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (critic, generator)]
    made, told = 2 * linear_flops(ROWS, WIDTH, hidden), linear_flops(ROWS, WIDTH, inner) + linear_flops(ROWS, inner, 1)

    def step(turn: int) -> int:
        for place, optimizer in enumerate(optimizers):
            optimizer.zero_grad()
            fake = generator(x())
            loss = critic(fake).mean() if place else critic(fake.detach()).mean() - critic(x()).mean()
            loss.backward()
            optimizer.step()
        of_critic = 2 * told + 2 * (told + linear_flops(ROWS, inner, 1))  # two calls; the inputs need no gradient
        of_generator = made + told + 2 * told + made + linear_flops(ROWS, hidden, WIDTH)
        return made + of_critic + of_generator

    return Loop(step, [generator, critic] if listed else None, 8, 4, explicit)


@loop
def adversaries_without_a_model() -> Loop:
    return adversaries(False, True)


@loop
def adversaries_given_both() -> Loop:
    return adversaries(True, True)


@loop
def one_optimizer_after_the_other() -> Loop:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 64)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (first, second)]

    def step(turn: int) -> int:
        for model, optimizer in zip((first, second), optimizers, strict=True):
            model(x()).sum().backward()
            optimizer.step()
        return 2 * ONE + 2 * linear_flops(ROWS, WIDTH, 64)

    return Loop(step, None)


@loop
def two_losses_without_modules_of_one_size_of_graph() -> Loop:
    weights = [nn.Parameter(torch.randn(WIDTH, width)) for width in (8, 32)]

    def step(turn: int) -> int:
        weight = weights[turn // 2 % 2]
        (x() @ weight).sum().backward()
        return 2 * linear_flops(ROWS, WIDTH, weight.shape[1])

    return Loop(step, None)


@loop
def validation_as_the_window_opens() -> Loop:
    model, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def step(turn: int) -> int:
        if turn == 0:
            with torch.no_grad():
                for _ in range(5):
                    other(x())
        model(x()).sum().backward()
        return 2 * ONE + (5 * ONE if turn == 0 else 0)

    return Loop(step, None)


@loop
def lbfgs() -> Loop:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=4)

    def step(turn: int) -> int:
        calls = 0
        inputs, targets = x(), x()

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        return calls * 2 * ONE

    return Loop(step, model)


@loop
def lbfgs_without_a_model() -> Loop:
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)

    def step(turn: int) -> int:
        calls = 0
        inputs = x()

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = (inputs @ weight).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        return calls * 2 * ONE

    return Loop(step, None)


def orthogonal(gradient: torch.Tensor) -> torch.Tensor:
    found = gradient / (gradient.norm() + 1e-7)
    for _ in range(5):
        outer = found @ found.T
        found = 3.4445 * found + (-4.775 * outer + 2.0315 * outer @ outer) @ found
    return found


def muon(momentum: bool, given: bool) -> Loop:
    model = nn.Sequential(*square(2))
    kept = [torch.zeros_like(each) for each in model.parameters()]

    def step(turn: int) -> int:
        model.zero_grad()
        model(x()).sum().backward()
        with torch.no_grad():
            for weight, buffer in zip(model.parameters(), kept, strict=True):
                if weight.ndim == 2:
                    update = buffer.mul_(0.9).add_(weight.grad) if momentum else weight.grad
                    weight.add_(orthogonal(update), alpha=-0.01)
        return chain(2)

    return Loop(step, model if given else None)


@loop
def muon_by_hand() -> Loop:
    return muon(False, True)


@loop
def muon_with_momentum_by_hand() -> Loop:
    return muon(True, True)


@loop
def muon_by_hand_without_a_model() -> Loop:
    return muon(True, False)


@loop
def accumulation_that_changes() -> Loop:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(turn: int) -> int:
        batches = (1, 4, 2, 8, 3, 1, 5, 2)[turn]
        for _ in range(batches):
            model(x()).sum().backward()
        optimizer.step()
        return batches * 2 * ONE

    return Loop(step, model, known=7)


def inference(outside: bool, around_calls: bool) -> Loop:
    model = nn.Linear(WIDTH, WIDTH)

    def step(turn: int) -> int:
        for _ in range(2):
            with torch.inference_mode() if around_calls else nullcontext():
                model(x())
        if outside:
            with torch.inference_mode():
                x() @ x(WIDTH)
        return 2 * ONE + (ONE if outside else 0)

    return Loop(step, model)


@loop
def inference_mode_around_each_call() -> Loop:
    return inference(False, True)


@loop
def inference_mode_between_calls() -> Loop:
    return inference(True, False)


@loop
def training_and_evaluation_in_inference_mode() -> Loop:
    model = nn.Linear(WIDTH, WIDTH)

    def step(turn: int) -> int:
        model(x()).sum().backward()
        with torch.inference_mode():
            model(x(8))
        return 2 * ONE + 2 * ONE

    return Loop(step, model)


@loop
def an_optimizer_in_the_backward_pass() -> Loop:
    model = nn.Sequential(*square(2))
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))

    def step(turn: int) -> int:
        model(x()).sum().backward()
        return chain(2)

    return Loop(step, model)


@loop
def packed_sequences_of_their_own_lengths() -> Loop:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.RNN(WIDTH, WIDTH, batch_first=True)

        def forward(self, padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
            return self.recurrent(packed)[0].data

    model = Model()

    def step(turn: int) -> int:
        lengths = torch.tensor(((9, 2, 1), (9, 9, 9), (9, 5, 1), (9, 2, 1), (9, 9, 9), (9, 5, 1), (9, 9, 9))[turn])
        with torch.no_grad():
            model(torch.randn(3, 9, WIDTH), lengths)
        return 2 * linear_flops(int(lengths.sum()), WIDTH, WIDTH)

    return Loop(step, model, 7, 3)


@loop
def checkpoints_of_some_layers_some_of_the_time() -> Loop:
    first, second = square(2)
    model = nn.ModuleList([first, second])

    def step(turn: int) -> int:
        hidden = first(x())
        again = turn % 2
        found = checkpoint(second, hidden, use_reentrant=False) if again else second(hidden)
        found.sum().backward()
        return chain(2)

    return Loop(step, [first], known=4) if model else Loop(step)


@loop
def a_forward_pass_under_vmap() -> Loop:
    model = nn.Linear(WIDTH, WIDTH)

    def step(turn: int) -> int:
        rows = (8, 8, 24, 8, 24, 8)[turn]
        with torch.no_grad():
            torch.vmap(model)(x(rows))
        return linear_flops(rows, WIDTH, WIDTH)

    return Loop(step, model, 6, 6)


@loop
def a_loss_with_a_matmul_now_and_then() -> Loop:
    model = nn.Linear(WIDTH, WIDTH)

    def step(turn: int) -> int:
        hidden = model(x())
        contrast = turn % 2
        (hidden @ hidden.T).sum().backward() if contrast else hidden.sum().backward()
        return 2 * ONE + (3 * 2 * ROWS * ROWS * WIDTH if contrast else 0)

    return Loop(step, model)


@loop
def weights_frozen_and_thawed() -> Loop:
    model = nn.Sequential(*square(3))

    def step(turn: int) -> int:
        model[0].requires_grad_(bool(turn // 2 % 2))
        model(x()).sum().backward()
        return chain(3) if turn // 2 % 2 else chain(3) - 2 * ONE

    return Loop(step, model)


@loop
def a_gradient_penalty_now_and_then() -> Loop:
    model = nn.Linear(WIDTH, 1, bias=False)

    def step(turn: int) -> int:
        inputs, penalised = x().requires_grad_(), turn % 2
        score, one = model(inputs).sum(), linear_flops(ROWS, WIDTH, 1)
        if penalised:
            [gradient] = torch.autograd.grad(score, inputs, create_graph=True)
            gradient.square().sum().backward()
        else:
            score.backward()
        return 3 * one  # the penalty's own gradient is elementwise

    return Loop(step, model, known=4)


@loop
def fsdp2_on_one_rank() -> Loop:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    pretend_ranks(1)
    model = Deep(3)
    for layer in model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))

    def step(turn: int) -> int:
        model.depth = 2 + turn % 2
        model(x()).sum().backward()
        return chain(model.depth)

    return Loop(step, model)


def compiled(change: bool) -> Loop:
    inner = Deep(3)
    model = torch.compile(inner, backend="aot_eager")
    for inner.depth in (3, 2):
        model(x()).sum().backward()
    inner.depth = 3

    def step(turn: int) -> int:
        if change and turn == 4:
            inner.depth = 2
        model(x()).sum().backward()
        return chain(inner.depth)

    return Loop(step, model)


@loop
def a_compiled_model() -> Loop:
    return compiled(False)


def found_steps(made: Loop) -> Iterator[tuple[int, int | None]]:
    by_hand = []
    with mfulab.measure(made.model, quiet=True, ceiling_s=0) as window:
        for turn in range(made.steps):
            by_hand.append(made.step(turn))
            window.step()
    assert len(window._steps) == made.steps
    sure = [step for step in window._steps if step.cost is not None]
    if window.row["flops"] is None:
        assert window.readings["flops"].reason
    timed = [step for step in window._steps if not step.counted] or window._steps
    known = [step.cost.model for step in timed if step.cost is not None]
    assert window.row["flops"] == (pytest.approx(sum(known) / len(known)) if known else None)
    assert len(sure) >= made.known, window._phases.failure
    return zip(by_hand, [None if step.cost is None else step.cost.model for step in window._steps], strict=True)


@pytest.mark.parametrize("name", LOOPS)
def test_each_step_costs_what_it_costs_by_hand_or_nothing_is_said(name):
    torch.manual_seed(0)
    wrong = {turn: pair for turn, pair in enumerate(found_steps(LOOPS[name]())) if pair[1] not in (pair[0], None)}
    assert not wrong
