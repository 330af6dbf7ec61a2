"""Torch works after a window, whatever contexts opened around it; counts are right or empty."""

import contextlib
import copy
import io
import os
import pickle
import random
import sys
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slow import few
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

import mfulab
from mfulab.loop.interactive import peaks

ROWS, WIDTH = 4, 8
ONE = 2 * ROWS * WIDTH * WIDTH


class Passes(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return operator(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


CONTEXTS = {
    "inference": torch.inference_mode,
    "no inference": lambda: torch.inference_mode(False),
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "dispatch mode": Passes,
    "function mode": Functions,
    "cpu": lambda: torch.device("cpu"),
    "meta": lambda: torch.device("meta"),
    "fake": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "flop counter": lambda: FlopCounterMode(display=False),
    "stance": lambda: torch.compiler.set_stance("eager_on_recompile"),
    "warnings": warnings.catch_warnings,
    "another window": lambda: mfulab.measure(quiet=True),
}
# Places of a loop at which a context may begin or end, in order.
ACTIONS = [
    "call",
    "train",
    "matmul",
    "step",
    "fail",
    "thread",
    "generator",
    "open window",
    "close window",
]


def state() -> tuple[object, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_device(),
        len(_get_current_dispatch_mode_stack()),
        torch._C._len_torch_function_stack(),
        torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python),
        torch._dynamo.eval_frame._stance,
        torch.autograd._engine_run_backward,
        torch.inference_mode.__enter__,
        list(warnings.filters),
        nn.Module.__call__,
        len(nn.modules.module._global_forward_pre_hooks),
    )


def works() -> None:
    weight = torch.ones(3, requires_grad=True)
    (weight * torch.ones(3)).sum().backward()
    assert weight.grad.tolist() == [1.0, 1.0, 1.0]
    with torch.inference_mode():
        assert torch.ones(2).is_inference()


class Program:
    """A loop made of actions, its contexts and its window; what each step costs is kept by hand.

    Matmuls outside the model show by their place alone: `between` keeps what they cost at each,
    from what it follows to what follows it. Where they come and go at a place, no count is
    promised.
    """

    def __init__(self) -> None:
        self.model, self.open = nn.Linear(WIDTH, WIDTH), []
        self.window, self.by_hand, self.spent, self.steps = None, [], 0, []
        self.names, self.since, self.outside, self.between = [], (), 0, {}

    def run(self, actions) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self.close_window)
            for kind, name in actions:
                if kind == "enter":
                    self.open.append(undo.enter_context(contextlib.ExitStack()))
                    self.open[-1].enter_context(CONTEXTS[name]())
                    self.names.append(name)
                elif kind == "leave" and self.open:
                    self.open.pop().close()
                    self.names.pop()
                elif kind == "do":
                    with contextlib.suppress(KeyError):
                        getattr(self, name.replace(" ", "_"))()
            for one in reversed(self.open):
                one.close()

    def inputs(self, rows: int = ROWS) -> torch.Tensor:
        return torch.ones(rows, WIDTH, device="cpu")

    def ran(self, tensor: torch.Tensor, flops: int) -> None:
        computed = not tensor.is_meta and type(tensor).__name__ != "FakeTensor"
        self.spent += flops if computed else 0

    def here(self, name: str) -> tuple[object, ...]:
        """A place by what shows of it: of contexts those of gradients, of autocast and of
        dispatch."""
        modes = [name for name in self.names if name in ("dispatch mode", "fake", "flop counter")]
        autocast = torch.is_autocast_enabled("cpu")
        return name, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, *modes

    def place(self, name: str) -> None:
        here = self.here(name)
        self.between.setdefault((self.since, here), set()).add(self.outside)
        self.since, self.outside = here, 0

    def call(self) -> None:
        self.place("call")
        self.ran(self.model(self.inputs()), ONE)

    def train(self) -> None:
        self.place("train")
        found = self.model(self.inputs())
        self.ran(found, ONE)
        if found.requires_grad:
            found.sum().backward()
            self.ran(found, ONE)

    def matmul(self) -> None:
        before = self.spent
        self.ran(self.inputs() @ torch.ones(WIDTH, WIDTH, device="cpu"), ONE)
        self.outside += self.spent - before

    def fail(self) -> None:
        with torch.inference_mode(), torch.no_grad():
            raise KeyError

    def thread(self) -> None:
        def elsewhere() -> None:
            with torch.inference_mode():
                torch.ones(2) + 1

        worker = threading.Thread(target=elsewhere)
        worker.start()
        worker.join()

    def generator(self) -> None:
        @torch.inference_mode()
        def items():
            for _ in range(2):
                yield torch.ones(2)

        for item in items():
            assert item.is_inference()
            break  # its context is closed as it is thrown away

    def open_window(self) -> None:
        if self.window is None:
            self.window = mfulab.measure(self.model, quiet=True, ceiling_s=0).__enter__()
            self.by_hand, self.spent, self.measures = [], 0, self.window._open is not None
            self.since, self.outside, self.between = self.here("step"), 0, {}

    def step(self) -> None:
        if self.window is not None:
            self.place("step")
            self.window.step()
            self.by_hand.append(self.spent)
            self.spent = 0

    def close_window(self) -> None:
        if self.window is not None:
            window, self.window = self.window, None
            window.__exit__(None, None, None)
            if (
                self.by_hand
                and self.measures
                and all(len(costs) == 1 for costs in self.between.values())
            ):
                self.steps.append((self.by_hand, window))


def run(actions) -> None:
    before, program = state(), Program()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        within = state()
        program.run(actions)
        assert state() == within
    assert state() == before
    works()
    for by_hand, window in program.steps:
        costs = [step.cost and step.cost.model for step in window._steps]
        assert len(costs) == len(by_hand)
        wrong = [
            pair for pair in zip(by_hand, costs, strict=True) if pair[1] not in (pair[0], None)
        ]
        assert not wrong, (costs, by_hand, window._loop.phases.failure)


ANY = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from(sorted(CONTEXTS))),
    st.tuples(st.just("leave"), st.just("")),
    st.tuples(st.just("do"), st.sampled_from(ACTIONS)),
)
EXAMPLES = int(os.environ.get("MFULAB_EXAMPLES", "2"))  # `make test ALL=1` takes 30


@settings(max_examples=EXAMPLES)
@given(st.lists(ANY, max_size=4), st.lists(ANY, max_size=8), st.lists(ANY, max_size=4))
def test_any_contexts_around_and_inside_a_window(before, body, after):
    run([*before, ("do", "open window"), *body * 3, ("do", "step"), *after])


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.sampled_from(sorted(CONTEXTS)), max_size=2),
    st.sampled_from(["call", "train"]),
    *(st.integers(0, most) for most in (4, 2, 2, 2)),
)
def test_matmuls_outside_the_model_that_stand_at_the_same_places_in_each_step(
    names, action, passes, first, after, last
):
    each = [("do", action)] + [("do", "matmul")] * after
    final = [("do", action)] + [("do", "matmul")] * last
    body = (
        [("do", "matmul")] * first + each * (passes - 1) + final * bool(passes) + [("do", "step")]
    )
    run([*(("enter", name) for name in names), ("do", "open window"), *body * 3])


@pytest.mark.parametrize("name", few(CONTEXTS))
def test_a_context_that_begins_before_the_window_or_ends_after_it(name):
    loop = [("do", "train"), ("do", "matmul"), ("do", "step")] * 2
    enter, mode, leave = [("enter", name)], [("enter", "inference")], [("leave", "")]
    opened, closed = [("do", "open window")], [("do", "close window")]
    run([*enter, *opened, *loop, *leave, *loop, *closed])
    run([*opened, *loop, *enter, *mode, *loop, *closed, *leave, *leave])
    run([*opened, *mode, *enter, *loop, *leave, *loop, *leave, *loop, *closed])


def test_a_count_that_the_end_of_the_window_cut_off_is_that_of_no_other_phase():
    calls = [("do", "call")] * 3
    run([("do", "open window"), *calls, ("do", "matmul"), ("do", "step"), ("do", "call")])


def drawn() -> tuple[object, ...]:
    return random.random(), torch.rand(1).item()


@pytest.mark.slow
@pytest.mark.parametrize("laps", few([True, False]))
def test_random_numbers_after_a_printed_window_are_those_without_it(laps, monkeypatch):
    # What is printed with is imported anew, and draws as it is; the ceiling's matmuls are of random
    # numbers.
    for name in [
        name
        for name in sys.modules
        if name.split(".")[0] == "rich" or name.endswith((".show", ".terminal"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(peaks, "_known", {})
    random.seed(0)
    torch.manual_seed(0)
    expected = drawn()
    random.seed(0)
    torch.manual_seed(0)
    model, inputs = nn.Linear(WIDTH, WIDTH), torch.ones(ROWS, WIDTH)
    random.seed(0)
    torch.manual_seed(0)
    with mfulab.measure(model, ceiling_s=0.01) as window:
        for _ in range(3):
            model(inputs)
            window.step()
        assert not laps or window.lap()["mfu"] > 0
    assert window.row["ceiling_tflop_s"] > 0
    assert drawn() == expected


class Sees(TorchFunctionMode):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_function_modes_of_the_loop_see_nothing_of_measuring():
    model, inputs, mode = nn.Linear(WIDTH, WIDTH), torch.ones(ROWS, WIDTH), Sees()
    with mode, mfulab.measure(model, ceiling_s=0.01, quiet=True) as window:
        for _ in range(12):
            model(inputs)
            window.note(inputs)
            window.step()
    assert mode.seen == ["linear"] * 12


def pickled(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", few([copy.deepcopy, pickled, saved]))
@pytest.mark.parametrize("traced", few([True, False]))
def test_a_copy_of_the_model_made_inside_has_no_hook_of_measuring(copied, traced):
    model, inputs = nn.Sequential(nn.Linear(WIDTH, WIDTH)), torch.ones(ROWS, WIDTH)
    model = torch.fx.symbolic_trace(model) if traced else model
    model.register_forward_pre_hook(nothing)
    copies = []
    with mfulab.measure(model, ceiling_s=0, quiet=True):
        for _ in range(30):  # watched at first, then at rest
            model(inputs)
            copies.append(copied(model))
            assert len(model._forward_pre_hooks) == 2
    for other in copies:
        assert {*other._forward_pre_hooks.values()} <= {nothing}
        assert other._forward_pre_hooks or traced  # torch's own copies of traced modules lose hooks
        assert not other._forward_hooks
        assert not other._forward_pre_hooks_with_kwargs
    assert "__reduce_ex__" not in vars(nn.Module)


def nothing(*_: object) -> None:
    """Stands for a hook of the user's own, which copies keep."""


@pytest.mark.parametrize("body", [lambda model: None, lambda model: model(torch.ones(2, 3))])
def test_where_warnings_are_errors_a_message_of_measuring_is_printed(body, capsys):
    model = nn.Linear(WIDTH, WIDTH)
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("error")
        with mfulab.measure(model, ceiling_s=0, quiet=True), mfulab.measure(model, quiet=True):
            body(model)
    assert "mfulab: another window is open" in capsys.readouterr().err
    assert mfulab.measure._running is None


def test_a_fork_that_leaves_the_block_measures_and_prints_nothing(capfd):
    model = nn.Linear(WIDTH, WIDTH)
    with mfulab.measure(model, ceiling_s=0) as window:
        parent = os.getpid()
        try:
            model(torch.ones(ROWS, WIDTH))
            window.step()
            if child := os.fork():
                os.waitpid(child, 0)
            else:
                window.step()
                window.__exit__(None, None, None)
        finally:
            if os.getpid() != parent:
                os._exit(0)
        assert not capfd.readouterr().out
    assert window.row["steps"] == 1


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


# Each ends in, or holds, operators that torch both takes apart and has a kernel for, or that it
# takes apart in Python.
BY_DAY = ("BatchNorm", "LSTM", "attention")
LAYERS = {
    "SiLU": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()),
    "Mish": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Mish()),
    "BatchNorm": lambda: nn.Sequential(nn.Conv1d(ROWS, ROWS, 3, padding=1), nn.BatchNorm1d(ROWS)),
    "Upsample": lambda: nn.Sequential(
        nn.Conv1d(ROWS, ROWS, 3), nn.Upsample(scale_factor=2, mode="linear")
    ),
    "nearest": lambda: nn.Sequential(nn.Conv1d(ROWS, ROWS, 3), nn.Upsample(scale_factor=2)),
    "shuffle": lambda: nn.Sequential(
        nn.Conv1d(ROWS, ROWS, 3), nn.Unflatten(-1, (2, 3)), nn.ChannelShuffle(2)
    ),
    "LSTM": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    "attention": Attends,
    "encoder": lambda: nn.TransformerEncoderLayer(
        WIDTH, 2, 4 * WIDTH, 0.1, batch_first=True, activation="gelu"
    ),
}


@pytest.mark.parametrize(
    "name", few(sorted(LAYERS, key=lambda name: name not in BY_DAY), len(BY_DAY))
)
def test_what_a_counted_step_computes_is_bit_by_bit_what_it_computes_without(name):
    results = []
    for measures in (False, True):
        torch.manual_seed(0)
        model, inputs = LAYERS[name](), torch.randn(2, ROWS, WIDTH)
        window = (
            mfulab.measure(model, ceiling_s=0, quiet=True) if measures else contextlib.nullcontext()
        )
        with window:
            trained = model(inputs)
            leaves = torch.utils._pytree.tree_leaves(trained)
            sum(leaf.square().sum() for leaf in leaves).backward()
            gradients = [weight.grad for weight in model.parameters()]
            with torch.inference_mode():
                inferred = model.eval()(inputs)
        results.append([*leaves, *gradients, *torch.utils._pytree.tree_leaves(inferred)])
    assert window.row["counted_steps"] == 2
    assert window.row["flops"] > 0
    assert all(map(torch.equal, *results))
