"""`mfulab measure` on scripts that are not changed: FLOPs by hand, and nothing of a script's own is
touched."""

import atexit
import gc
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from support.processes import HANGS_S
from support.slow import few
from torch.nn.modules import module as of_modules
from torch.optim import optimizer as of_optimizers

import mfulab
from mfulab.cli.main import main
from mfulab.core.language import Texts, verdicts
from mfulab.core.said import Said
from mfulab.device.samplers.series import Series
from mfulab.loop.interactive import following, peaks, trainings, wanted
from mfulab.loop.interactive.peaks import Ceiling
from mfulab.loop.interactive.split import Split

# What a ladder's first line says before the optimiser that ends a step.
ENDS = Texts("en", "script")("optimizer_step", ends="|").partition("|")[0]

MODEL = """
import sys
import torch
import torch.utils.checkpoint
from torch import nn
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
"""
HEAD = f"{MODEL}optimizer = torch.optim.AdamW(model.parameters())\n"
STEP = "optimizer.zero_grad(); model(torch.randn(4, 32)).sum().backward(); optimizer.step()"
INFERENCE = "torch.no_grad()(model)(torch.randn(4, 32))"
FORWARD = 2 * 4 * (32 * 64 + 64 * 8)
# Forward and backward, without the gradient of what the first layer is given.
TRAINING = 3 * FORWARD - 2 * 4 * 32 * 64


@pytest.fixture
def measured(tmp_path, capsys):
    """Runs a script in this process; gives its row, None without one, and what it printed."""

    def run(script, *options, status=0, head=HEAD, arguments=()):
        gc.collect()  # optimisers of other tests
        file, row = tmp_path / "train.py", tmp_path / "row.json"
        file.write_text(head + textwrap.dedent(script))
        asked, ends = [], []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "execve", lambda *given: asked.append(given))
            patch.setattr(Series, "open", lambda series: series)  # no process for each window
            main(["measure", "--ceiling", "0", "--json", str(row), *options, str(file), *arguments])
            ((_, command, environment),) = asked
            assert command[-1 - len(arguments) :] == [str(file), *arguments]
            patch.setattr(os, "environ", environment)
            patch.setattr(atexit, "register", ends.append)
            following.start()
        ended, left = run_as_main(file, arguments)
        assert ended == status
        ends[0]()
        del left  # models and optimisers live until a script's process ends
        assert_nothing_is_left()
        return json.loads(row.read_text()) if row.exists() else None, capsys.readouterr()

    yield run
    for hooks in (of_modules._global_forward_pre_hooks, of_optimizers._global_optimizer_post_hooks):
        hooks.clear()


def run_as_main(file, arguments):
    """Runs a script as `__main__` in this process; gives its exit status and what it leaves."""
    main_module = types.ModuleType("__main__")
    status = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(file), *arguments])
        patch.setitem(sys.modules, "__main__", main_module)
        try:
            exec(compile(file.read_text(), str(file), "exec"), main_module.__dict__)
        except SystemExit as ended:
            status = ended.code
    return status, main_module


def assert_nothing_is_left():
    """No hook is on torch, its optimisers or its loaders."""
    assert not of_modules._global_forward_pre_hooks
    assert not of_optimizers._global_optimizer_pre_hooks
    assert not of_optimizers._global_optimizer_post_hooks
    assert "timed" not in torch.utils.data.dataloader._BaseDataLoaderIter.__next__.__qualname__
    assert torch.nn.Module.compile.__qualname__ == "Module.compile"
    assert "noted" not in torch.autograd._engine_run_backward.__qualname__
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_a_training_is_found_measured_and_left(measured):
    script = f"""
    print(sys.argv[1:], __name__)
    for _ in range(30):
        {STEP}
    print("hooks", len(optimizer._optimizer_step_post_hooks), len(model._forward_hooks))
    """
    row, said = measured(script, "--steps", "8", arguments=["--lr", "--", "1"])
    assert (row["flops"], row["models"], row["step_of"]) == (TRAINING, ["Sequential"], "AdamW")
    assert row["steps"] + row["counted_steps"] + row["watched_steps"] == 9
    assert said.out == "['--lr', '--', '1'] __main__\nhooks 0 0\n"
    assert f"{ENDS}AdamW" in said.err
    parts = [row[f"{name}_ms"] for name in ("forward", "backward", "optimiser", "other")]
    assert all(part > 0 for part in parts)
    found = (row["loader_ms"], row["copy_ms"])
    assert found == (None, None), "no loader was read, and nothing is copied"


def test_without_a_ceiling_the_attainable_says_nothing_beside_mfu(measured):
    row, said = measured(f"for _ in range(30):\n    {STEP}", "--steps", "3")
    assert row["mfu_percent"] is None
    assert "attainable" not in said.err


def test_accumulated_steps_with_a_loader_are_whole(measured):
    script = """
    loader = torch.utils.data.DataLoader(torch.randn(4 * 2 * 30, 32), batch_size=4)
    for number, batch in enumerate(loader):
        (model(batch).sum() / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    """
    row, _ = measured(script, "--steps", "8")
    assert row["flops"] == 2 * TRAINING
    assert row["loader_ms"] > 0


GAN = """
generator, critic = nn.Linear(8, 32), nn.Linear(32, 1)
of_critic = torch.optim.SGD(critic.parameters(), lr=1e-3)
of_generator = torch.optim.Adam(generator.parameters())
for _ in range(STEPS):
    for _ in range(CRITICS):
        of_critic.zero_grad()
        critic(generator(torch.randn(4, 8)).detach()).sum().backward()
        of_critic.step()
    of_generator.zero_grad()
    critic(generator(torch.randn(4, 8))).sum().backward()
    of_generator.step()
"""


@pytest.mark.parametrize("critics", [1, 5])
def test_the_rarest_optimiser_ends_a_step_of_several_models(measured, critics):
    script = GAN.replace("STEPS", "30").replace("CRITICS", str(critics))
    row, _ = measured(script, "--steps", "6")
    of_generator, of_critic = 2 * 4 * 8 * 32, 2 * 4 * 32
    whole = critics * (of_generator + 2 * of_critic) + 2 * of_generator + 3 * of_critic
    assert row["flops"] == whole
    assert (sorted(row["models"]), row["step_of"]) == (["Linear", "Linear"], "Adam")


def test_a_generator_that_steps_first_and_then_every_fifth_time_ends_the_step(measured):
    script = """
    generator, critic = nn.Linear(8, 32), nn.Linear(32, 1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=1e-3)
    of_generator = torch.optim.Adam(generator.parameters())
    for number in range(120):
        of_critic.zero_grad()
        critic(generator(torch.randn(4, 8)).detach()).sum().backward()
        of_critic.step()
        if number % 5 == 0:
            of_generator.zero_grad()
            critic(generator(torch.randn(4, 8))).sum().backward()
            of_generator.step()
    """
    row, _ = measured(script, "--steps", "6")
    of_generator, of_critic = 2 * 4 * 8 * 32, 2 * 4 * 32
    whole = 5 * (of_generator + 2 * of_critic) + 2 * of_generator + 3 * of_critic
    assert (row["flops"], row["step_of"]) == (whole, "Adam")


def test_a_forward_pass_is_a_step_where_nothing_is_trained(measured):
    script = """
    with torch.inference_mode(), torch.autocast("cpu"):
        for _ in range(60):
            model(torch.randn(4, 32))
    print(len(model._forward_hooks), len(model._forward_pre_hooks))
    """
    row, said = measured(script, "--steps", "12", head=MODEL)
    assert (row["flops"], row["step_of"], said.out) == (FORWARD, "Sequential", "0 0\n")
    assert row["forward_ms"] > 0
    assert row["backward_ms"] is None


def test_an_optimiser_that_exists_is_waited_for(measured):
    script = f"""
    with torch.no_grad():
        for _ in range(40):
            model(torch.randn(4, 32))
    for _ in range(30):
        {STEP}
    """
    row, _ = measured(script, "--steps", "5")
    assert row["flops"] == TRAINING


def test_an_optimiser_whose_steps_do_not_show_is_given_up(measured):
    """So does a compiled one: its first step shows, and no other."""
    script = f"""
    {STEP}
    for _ in range(540):
        model(torch.randn(4, 32)).sum().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 1e-3 * weight.grad
                weight.grad = None
    """
    row, _ = measured(script, "--steps", "5")
    assert (row["flops"], row["step_of"]) == (TRAINING, "Sequential")


def test_an_optimiser_that_comes_later_is_measured_instead(measured):
    script = f"""
    with torch.no_grad():
        for _ in range(40):
            model(torch.randn(4, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(200):
        {STEP}
    """
    row, _ = measured(script, "--steps", "50", head=MODEL)
    assert row["flops"] == TRAINING


TRAIN = """
def train(width, kind, steps, batch=4):
    model = nn.Sequential(nn.Linear(32, width), nn.Linear(width, 8))
    optimizer = kind(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad(); model(torch.randn(batch, 32)).sum().backward(); optimizer.step()
    return model, optimizer
SGD, Adam = torch.optim.SGD, torch.optim.Adam
"""


def flops_of(width):
    """A step of `train`: the first layer's input needs no gradient."""
    return 2 * 4 * (2 * 32 * width + 3 * width * 8)


@pytest.mark.parametrize("kept", ["", "first = "])
def test_the_long_training_after_a_short_one_is_measured(measured, kept):
    row, said = measured(
        f"{kept}train(16, SGD, 10)\ntrain(64, Adam, 200)", "--steps", "20", head=MODEL + TRAIN
    )
    assert (row["flops"], row["step_of"]) == (flops_of(64), "Adam")
    assert row["steps"] + row["counted_steps"] + row["watched_steps"] == 21
    first, second = row["trainings"]
    assert (first["step_of"], second["step_of"]) == ("SGD", "Adam")
    assert first["steps"] <= 10 < second["steps"] <= 200
    assert 0 < first["share_percent"] + second["share_percent"] <= 100
    assert said.err.count(ENDS) == 1


def test_two_long_trainings_have_a_ladder_each(measured):
    row, said = measured(
        "train(16, SGD, 60)\ntrain(64, Adam, 60)", "--steps", "10", head=MODEL + TRAIN
    )
    assert [one["flops"] for one in row["trainings"]] == [flops_of(16), flops_of(64)]
    assert said.err.count(ENDS) == 2


def test_folds_of_a_kind_are_one_training(measured):
    script = """
    kept = [train(16, SGD, 14) for _ in range(6)]
    """
    row, said = measured(script, "--steps", "50", head=MODEL + TRAIN)
    [one] = row["trainings"]
    assert (row["flops"], one["flops"]) == (flops_of(16), flops_of(16))
    assert one["steps"] > 30
    assert one["measured_steps"] > 5
    assert said.err.count(ENDS) == 1


def test_an_optimiser_made_anew_every_ten_steps_goes_on_with_the_training(measured):
    script = f"""
    for _ in range(8):
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(10):
            {STEP}
    """
    row, _ = measured(script, "--steps", "20", head=MODEL)
    [one] = row["trainings"]
    assert (row["flops"], one["measured_steps"]) == (TRAINING, 21)


def test_an_inner_optimiser_of_each_task_leaves_the_outer_step_whole(measured):
    script = """
    import copy
    for _ in range(40):
        inner = copy.deepcopy(model)
        of_inner = torch.optim.SGD(inner.parameters(), lr=1e-3)
        for _ in range(5):
            of_inner.zero_grad(); inner(torch.randn(4, 32)).sum().backward(); of_inner.step()
        optimizer.zero_grad(); model(torch.randn(4, 32)).sum().backward(); optimizer.step()
    """
    row, _ = measured(script, "--steps", "10")
    assert (row["step_of"], row["flops"]) == ("AdamW", 6 * TRAINING)


def test_a_training_after_inference_is_measured_too(measured):
    script = f"""
    for _ in range(60):
        {INFERENCE}
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(60):
        {STEP}
    """
    row, _ = measured(script, "--steps", "10", head=MODEL)
    assert [one["flops"] for one in row["trainings"]] == [FORWARD, TRAINING]


def test_an_optimiser_that_never_steps_is_named(measured):
    row, said = measured(f"for _ in range(80):\n    {INFERENCE}")
    assert "AdamW never stepped in 80 forward passes" in row["reason"]
    assert row["reason"] in said.err


@pytest.mark.parametrize(
    ("script", "key", "numbers"),
    [
        ("print(1)", "no_module_called", {}),
        (STEP, "ended_with_step", {"step": 1, "warm_up": 3}),
        (INFERENCE, "ended_with_pass", {"passes": 1, "warm_up": 3}),
    ],
)
def test_why_nothing_is_measured_is_said_in_the_language_asked_for_and_written_in_english(
    measured, monkeypatch, script, key, numbers
):
    monkeypatch.setattr(wanted, "CHILDREN_S", math.inf)  # other tests start processes
    row, said = measured(script, "--language", "ko")
    why = Said(key, numbers)
    assert row["reason"] == str(why)
    sentence = verdicts.say(
        Said("nothing_is_measured", {"script": row["script"], "why": why}), "ko"
    )
    assert sentence in said.err


def test_phases_are_those_of_every_model(measured):
    script = """
    import time
    class Slow(nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.layer, self.seconds = nn.Linear(32, 32), seconds
        def forward(self, x):
            time.sleep(self.seconds)
            return self.layer(x)
    encoder, decoder = Slow(0.02), Slow(0.005)
    with torch.no_grad():
        for _ in range(60):
            decoder(encoder(torch.randn(4, 32)))
    """
    row, _ = measured(script, "--steps", "10", head=MODEL)
    assert row["forward_ms"] >= 25
    assert row["models"] == ["Slow", "Slow"]
    assert row["flops"] == 2 * 2 * 4 * 32 * 32


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_a_model_compiled_in_place_is_measured(measured, training):
    script = f"""
    model.compile(backend="aot_eager")
    for _ in range(60):
        {STEP if training else INFERENCE}
    """
    row, _ = measured(script, "--steps", "20", head=HEAD if training else MODEL)
    assert row["flops"] == (TRAINING if training else FORWARD)
    assert row["forward_ms"] > 0


def test_a_model_inside_another_is_part_of_its_step(measured):
    script = """
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.others = nn.Linear(32, 32), [model]
        def forward(self, x):
            return self.others[0](self.own(x))
    outer = Outer()
    optimizer.add_param_group({"params": list(outer.parameters())})
    for _ in range(30):
        optimizer.zero_grad(); outer(torch.randn(4, 32)).sum().backward(); optimizer.step()
    """
    row, _ = measured(script, "--steps", "5")
    assert row["flops"] == 3 * FORWARD + 2 * (2 * 4 * 32 * 32)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["model = torch.compile(model)", "step = torch.compile(step)"])
def test_compiled_code_is_compiled_once_and_measured(measured, form):
    script = f"""
    import torch._dynamo.utils
    def step(batch):
        return model(batch).sum()
    {form}
    for _ in range(40):
        optimizer.zero_grad(); step(torch.randn(4, 32)).backward(); optimizer.step()
    print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    """
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    row, said = measured(script, "--steps", "8")
    assert row["flops"] == TRAINING
    assert int(said.out) == before + 1


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("print(1)", "it ended before its main thread called a module"),
        (STEP, "it ended with step 1; measuring begins after --warm-up 3 and one more"),
    ],
)
def test_a_script_that_ends_early_keeps_its_status_and_says_why(measured, script, why):
    row, said = measured(script)
    assert row["reason"] in said.err
    assert why in row["reason"]
    assert "flops" not in row


def test_a_script_that_refuses_its_options_keeps_its_status_and_no_module_is_blamed(measured):
    script = "import argparse; argparse.ArgumentParser().parse_args()"
    _, shown = measured(script, arguments=["--bogus"], status=2)
    said = shown.err
    assert "unrecognized arguments: --bogus" in said
    assert (
        "nothing is measured: it ended before its main thread called a module with parameters"
        in said
    )


def test_a_short_script_tells_what_was_measured(measured):
    row, _ = measured(f"""
    for _ in range(8):
        {STEP}
    """)
    assert row["flops"] == TRAINING
    assert row["forward_ms"] is None if "forward_ms" in row else True


def test_an_error_of_measuring_never_reaches_the_script(measured, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("measuring broke")

    monkeypatch.setattr("mfulab.loop.interactive.measure.Measurement.__enter__", broken)
    row, said = measured(f"""
    for _ in range(9):
        {STEP}
    print("whole")
    """)
    assert ("measuring broke" in row["reason"], said.out) == (True, "whole\n")
    assert said.err.count("measuring broke") == 1


def test_copies_to_a_device_are_a_phase_and_recomputation_is_none(monkeypatch):
    """A checkpoint's forward pass inside the backward pass is backward; a copy inside the forward
    pass is forward."""
    monkeypatch.setattr("mfulab.loop.interactive.split.is_gpu", lambda _: True)
    model = torch.nn.Linear(4, 4)

    def fail(error):
        raise error

    split = Split([model], torch.device("cpu"), fail)
    for _ in range(3):
        batch = torch.randn(2, 4, dtype=torch.float64).to(torch.float32)
        batch.requires_grad_()
        torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=False).sum().backward()
        split.step()
    split.close()
    assert split.steps[0] == ["other", "copy", "other", "forward", "other", "backward", "other"]
    row = split.row()
    assert row["copy_ms"] > 0
    assert (row["loader_ms"], row["optimiser_ms"]) == (None, None)
    assert "to" not in vars(torch.Tensor)
    assert_nothing_is_left()


def test_a_row_that_cannot_be_written_is_said(measured, tmp_path, monkeypatch, capsys):
    assert main(["measure", "--json", str(tmp_path / "nowhere/row.json"), __file__]) == 2
    assert "row.json: no such folder" in capsys.readouterr().err

    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(trainings, "write_text", full)
    row, said = measured(f"for _ in range(30):\n    {STEP}\nprint('whole')", "--steps", "3")
    assert (row, said.out) == (None, "whole\n")
    assert "the row is not written: the disk is full" in said.err
    assert "nothing is measured" not in said.err


def test_random_numbers_are_the_scripts_own(measured, monkeypatch, capsys):
    monkeypatch.setattr(peaks, "measured_ceiling", lambda *_: Ceiling(torch.rand(9).max().item()))
    script = f"""
    torch.manual_seed(0)
    for _ in range(20):
        {STEP}
    print(torch.rand(1).item())
    """
    _, said = measured(script, "--steps", "3", "--ceiling", "1")
    exec(compile(HEAD + textwrap.dedent(script), "plain", "exec"), {})
    assert said.out == capsys.readouterr().out


def python(tmp_path, text, *options, mode="", after=()):
    """Runs a script by python and by mfulab; gives (status, output, errors) of both. A mode of
    `folder` runs that of `__main__.py`."""
    (tmp_path / "package").mkdir(exist_ok=True)
    for place in ("train.py", "package/train.py", "package/__main__.py"):
        (tmp_path / place).write_text(textwrap.dedent(text))
    (tmp_path / "package/__init__.py").touch()
    target = {
        "": ["train.py"],
        "-m": ["-m", "package.train"],
        "folder": ["package"],
    }[mode]
    found = []
    for way in ([], ["-m", "mfulab", "measure", *options]):
        done = subprocess.run(
            [sys.executable, *way, *target, *after],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
        )
        found.append((done.returncode, done.stdout, done.stderr))
    return found


@pytest.mark.parametrize("mode", few(["-m", "", "folder"]))
@pytest.mark.parametrize(
    "end",
    few(
        [
            "sys.exit(7)",
            "raise ValueError(1)",
            "raise KeyboardInterrupt",
            "",
            "sys.exit('no')",
            "import nowhere",
        ],
        3,
    ),
)
def test_a_script_runs_as_by_python(tmp_path, mode, end):
    text = f"""
    import atexit, inspect, os, signal, sys
    print(sys.argv, sys.orig_argv, sys.path, __name__, __file__, __spec__ and __spec__.name, __package__)
    print(sys.modules["__main__"].__dict__ is globals(), sys.stdout.errors, sys.stderr.errors, sorted(globals()))
    print([signal.getsignal(number) for number in signal.valid_signals()], sys.flags, sys.warnoptions)
    print([frame.function for frame in inspect.stack()], sys.excepthook is sys.__excepthook__)
    print(sys.getrecursionlimit(), sorted(os.environ.items()), "sitecustomize" in sys.modules)
    def deepest(depth):
        try:
            return deepest(depth + 1)
        except RecursionError:
            return depth
    print(deepest(0))
    for number in range(3):
        atexit.register(print, "at exit", number)
    def inner():
        {end or "pass"}
    inner()
    """
    (status, out, errors), (own_status, own_out, own_errors) = python(
        tmp_path, text, mode=mode, after=["-x", "--", "1"]
    )
    assert (own_status, own_out) == (status, out)
    kept = [line for line in own_errors.splitlines() if "mfulab measure" not in line]
    assert kept == errors.splitlines()
    assert errors.strip() in own_errors
    fails = end.startswith(("raise", "import"))
    assert ("before importing torch" if fails else "ended without importing torch") in own_errors
    assert status == (-signal.SIGINT if "Keyboard" in end else own_status)


FAILING = """
import traceback
from torch import nn
import torch

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x) @ torch.ones(8 + fails, 8)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        assert not in_backward, "in the backward pass"
        return 2 * gradient

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        assert not in_loader, "in the loader"
        return torch.ones(8)

def closure():
    assert not in_closure, "in the closure"

def step():
    (batch,) = torch.utils.data.DataLoader(Data())
    Double.apply(model(batch)).sum().backward()
    optimizer.step(closure)

fails = in_backward = in_loader = in_closure = 0
model = Model()
COMPILED
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(40):
    step()
    fails, in_backward, in_loader, in_closure = (number % 4 == one for one in range(4))
    try:
        step()
    except Exception as error:
        seen = traceback.extract_tb(error.__traceback__)
        print(number, repr(error), [(frame.name, frame.line) for frame in seen if "/torch/" not in frame.filename])
        assert "mfulab" not in traceback.format_exc()
    fails = in_backward = in_loader = in_closure = 0
"""


@pytest.mark.parametrize("compiled", few(["", 'model.compile(backend="eager")'], 0))
def test_a_traceback_shows_the_scripts_frames_and_none_of_ours(tmp_path, compiled):
    script = FAILING.replace("COMPILED", compiled)
    (status, out, _), own = python(tmp_path, script, "--steps", "9", "--ceiling", "0")
    assert (own[0], own[1]) == (status, out)
    assert out.count("\n") == 40
    assert f"Model, {ENDS}SGD" in own[2]


def test_options_of_python_are_passed_on(tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys; print(sys.flags, sys._xoptions, sys.warnoptions)"
    )
    python_itself = [sys.executable, "-u", "-O", "-X", "utf8", "-W", "error", "-P"]
    outs = {
        subprocess.check_output([*python_itself, *way, "train.py"], cwd=tmp_path, text=True)
        for way in ([], ["-m", "mfulab", "measure"])
    }
    assert len(outs) == 1


def test_a_sitecustomize_of_the_users_own_is_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.ours = 7")
    (tmp_path / "train.py").write_text(
        "import sys; print(ours, sys.modules['sitecustomize'].__file__)"
    )
    given = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    outs = {
        subprocess.check_output(
            [sys.executable, *way, "train.py"],
            cwd=tmp_path,
            text=True,
            env={**os.environ, "PYTHONPATH": given},
        )
        for way in ([], ["-m", "mfulab", "measure"])
    }
    assert len(outs) == 1


def test_python_without_its_environment_is_refused(tmp_path):
    (tmp_path / "train.py").touch()
    source = str(Path(mfulab.__file__).parents[1])
    start = f"import sys; sys.path.insert(0, {source!r}); from mfulab.cli.main import main; main()"
    command = [sys.executable, "-E", "-c", start, "measure", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "without -E, -I and -S" in done.stderr


SPAWNED = """
import multiprocessing
import sys

import torch

STEPS = 30

def train(rank, uses_ranks):
    if uses_ranks:
        torch.distributed.init_process_group(
            "gloo", rank=rank, world_size=2, init_method="file://" + sys.argv[2]
        )
    model = torch.nn.Linear(16, 8 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
    if uses_ranks:
        torch.distributed.destroy_process_group()

if __name__ == "__main__":
    if sys.argv[1] == "ranks":
        torch.multiprocessing.spawn(train, (True,), nprocs=2)
    else:
        process = multiprocessing.get_context("spawn").Process(target=train, args=(0, False))
        process.start()
        process.join()
"""


@pytest.mark.parametrize(
    ("kind", "options", "flops"),
    few(
        [
            ("alone", ["--children"], [1024]),
            ("ranks", ["--children"], [1024, 1152]),
            ("alone", [], []),
        ]
    ),
)
def test_processes_that_a_script_spawns_are_followed_where_asked(tmp_path, kind, options, flops):
    (tmp_path / "train.py").write_text(SPAWNED)
    command = [sys.executable, "-m", "mfulab", "measure", "--ceiling", "0", "--steps", "5"]
    done = subprocess.run(
        [*command, *options, "--json", "row.json", "train.py", kind, str(tmp_path / "store")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("row.*.json"))]
    # Forward and the weights' gradients: 4 × 16 × outputs × 2, twice.
    assert [row["flops"] for row in rows] == [2 * each for each in flops]
    whole = json.loads((tmp_path / "row.json").read_text())
    assert ("report for themselves" if options else "--children") in whole["reason"]


LAUNCHED = """
import sys
import pytorch_lightning as pl
import torch

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 8)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.ones(160, 16))
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=sys.argv[1],
        max_epochs=1,
        **dict.fromkeys(silent, False),
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "files"),
    [("ddp", ["row.json", "row.rank1.json"]), ("ddp_spawn", ["row.rank0.json", "row.rank1.json"])],
)
def test_lightnings_launchers_are_followed(tmp_path, strategy, files):
    (tmp_path / "train.py").write_text(LAUNCHED)
    options = ["--children", "--ceiling", "0", "--steps", "4", "--json", "row.json"]
    subprocess.run(
        [sys.executable, "-m", "mfulab", "measure", *options, "train.py", strategy],
        cwd=tmp_path,
        timeout=HANGS_S,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        check=True,
    )
    rows = [json.loads((tmp_path / name).read_text()) for name in files]
    forward = 2 * 4 * 16 * 8  # of a rank's batch of 4; the weights' gradients cost as much
    assert [(row["rank"], row["flops"]) for row in rows] == [(0, 2 * forward), (1, 2 * forward)]


def test_a_step_that_accelerates_scaler_skips_is_part_of_the_next(measured):
    pytest.importorskip("accelerate")
    script = """
    import accelerate
    from accelerate.optimizer import AcceleratedOptimizer
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    accelerate.Accelerator(cpu=True)
    optimizer = AcceleratedOptimizer(optimizer, scaler=scaler)
    skipped = 0
    for number in range(40):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(4, 32)).sum()
        if number == 12:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        optimizer.step()
        skipped += optimizer.step_was_skipped
        optimizer.zero_grad()
    print(skipped)
    """
    row, said = measured(script, "--steps", "20")
    assert (row["flops"] - TRAINING) * row["steps"] in (0, TRAINING)
    assert int(said.out) >= 1
    assert row["step_of"] == "AdamW"


@pytest.mark.parametrize(
    ("error", "step"),
    few([("KeyboardInterrupt", STEP), ("ValueError", INFERENCE), ("KeyboardInterrupt", INFERENCE)]),
)
def test_ctrl_c_tells_of_the_steps_until_then_and_an_error_of_none(tmp_path, error, step):
    (tmp_path / "train.py").write_text(
        f"{HEAD if 'step' in step else MODEL}for _ in range(20):\n    {step}\nraise {error}"
    )
    options = ["--ceiling", "0", "--json", "row.json", "train.py"]
    command = [sys.executable, "-m", "mfulab", "measure", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS_S)
    assert f"\n{error}\n" in done.stderr
    if error == "KeyboardInterrupt":
        row = json.loads((tmp_path / "row.json").read_text())
        assert row["flops"] == (TRAINING if "step" in step else FORWARD)
        assert "per step over" in done.stderr
    else:
        row = json.loads((tmp_path / "row.json").read_text())
        assert "ended by ValueError after" in row["reason"]
        assert "nothing is measured: ended by ValueError after" in done.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--ceiling", "-1"), ("--steps", "0"), ("--seconds", "0")]
)
def test_an_option_that_cannot_be_is_said_before_the_script_runs(option, value, tmp_path, capsys):
    (tmp_path / "train.py").write_text("print('ran')")
    assert main(["measure", option, value, str(tmp_path / "train.py")]) == 2
    said = capsys.readouterr()
    assert f"Invalid value for '{option}'" in said.err
    assert said.out == ""


def test_a_script_that_is_not_there(capsys):
    assert main(["measure", "nowhere.py"]) == 2
    said = capsys.readouterr().err
    assert "nowhere.py: no such script" in said
    assert "`mfulab measure -m nowhere`" in said


@pytest.mark.slow
def test_each_rank_has_its_row_and_the_first_prints(tmp_path):
    (tmp_path / "train.py").write_text(
        HEAD
        + textwrap.dedent(f"""
        import torch.distributed as dist
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        for _ in range(30):
            {STEP}
        dist.destroy_process_group()
        """)
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    options = ["measure", "--steps", "5", "--ceiling", "0", "--json", "row.json", "train.py"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    caught = {"capture_output": True, "text": True, "timeout": HANGS_S}
    command = [*launcher, "-m", "mfulab", *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment, **caught)
    assert done.returncode == 0, done.stderr
    rows = [json.loads((tmp_path / name).read_text()) for name in ("row.json", "row.rank1.json")]
    found = [(row["rank"], row["ranks"], row["flops"]) for row in rows]
    assert found == [(0, 2, TRAINING), (1, 2, TRAINING)]
    assert [row["answer"]["reason"] for row in rows] == [{"no_ceiling": {}}] * 2
    assert done.stderr.count(ENDS) == 1
