"""`mfulab measure` on scripts that are not changed: FLOPs by hand, and nothing of a script's own is touched."""

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.utils.checkpoint
from support.processes import HANGS_S
from support.slow import few
from torch.nn.modules import module as of_modules
from torch.optim import optimizer as of_optimizers

from mfulab.cli.main import main
from mfulab.loop.interactive import peaks, script
from mfulab.loop.interactive.peaks import Ceiling

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
def measured(tmp_path, monkeypatch, capsys):
    """Runs a script in this process; gives its row, None without one, and what it printed."""

    def run(script, *options, status=0, head=HEAD, arguments=()):
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        gc.collect()  # optimisers of other tests
        file, row = tmp_path / "train.py", tmp_path / "row.json"
        file.write_text(head + textwrap.dedent(script))
        options = ["--ceiling", "0", "--json", str(row), *options]
        assert main(["measure", *options, str(file), *arguments]) == status
        assert_nothing_is_left()
        return json.loads(row.read_text()) if row.exists() else None, capsys.readouterr()

    yield run
    for hooks in (of_modules._global_forward_pre_hooks, of_optimizers._global_optimizer_post_hooks):
        hooks.clear()


def assert_nothing_is_left():
    """No hook is on torch, its optimisers or its loaders."""
    assert not of_modules._global_forward_pre_hooks
    assert not of_optimizers._global_optimizer_pre_hooks
    assert not of_optimizers._global_optimizer_post_hooks
    assert "timed" not in torch.utils.data.dataloader._BaseDataLoaderIter.__next__.__qualname__
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
    assert "a step ends with AdamW.step()" in said.err
    parts = [row[f"{name}_ms"] for name in ("forward", "backward", "optimiser", "other")]
    assert all(part > 0 for part in parts)
    assert (row["loader_ms"], row["copy_ms"]) == (None, None), "no loader was read, and nothing is copied"


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
    for _ in range(30):
        {STEP}
    """
    row, _ = measured(script, "--steps", "50", head=MODEL)
    assert row["flops"] == TRAINING


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
    assert row is None
    assert why in said.err


def test_a_script_that_refuses_its_options_keeps_its_status_and_no_module_is_blamed(measured, capsys):
    with pytest.raises(SystemExit, match="2"):
        measured("import argparse; argparse.ArgumentParser().parse_args()", arguments=["--bogus"])
    assert_nothing_is_left()
    said = capsys.readouterr().err
    assert "unrecognized arguments: --bogus" in said
    assert "nothing is measured: it ended before its main thread called a module with parameters" in said


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
    assert (row, said.out) == (None, "whole\n")
    assert said.err.count("measuring broke") == 1


def test_copies_to_a_device_are_a_phase_and_recomputation_is_none(monkeypatch):
    """A checkpoint's forward pass inside the backward pass is backward; a copy inside the forward pass is forward."""
    monkeypatch.setattr(script, "is_gpu", lambda _: True)
    model = torch.nn.Linear(4, 4)

    def fail(error):
        raise error

    split = script.Split([model], torch.device("cpu"), fail)
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

    monkeypatch.setattr(script, "write_text", full)
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


def python(tmp_path, text, *options, mode=(), after=()):
    """Runs a script by python and by mfulab; gives (status, output, errors) of both."""
    (tmp_path / "package").mkdir(exist_ok=True)
    for place in ("train.py", "package/train.py"):
        (tmp_path / place).write_text(textwrap.dedent(text))
    (tmp_path / "package/__init__.py").touch()
    target = ["package.train"] if mode else ["train.py"]
    found = []
    for way in ([], ["-m", "mfulab", "measure", *options]):
        done = subprocess.run(
            [sys.executable, *way, *mode, *target, *after],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
        )
        found.append((done.returncode, done.stdout, done.stderr))
    return found


@pytest.mark.parametrize("mode", [(), ("-m",)])
@pytest.mark.parametrize(
    "end", ["", "sys.exit(7)", "sys.exit('no')", "raise ValueError(1)", "raise KeyboardInterrupt", "import nowhere"]
)
def test_a_script_runs_as_by_python(tmp_path, mode, end):
    text = f"""
    import atexit, os, sys
    print(sys.argv, sys.path[0], __name__, __file__, __spec__ and __spec__.name, __package__)
    print(sys.modules["__main__"].__dict__ is globals(), sys.stdout.errors, sys.stderr.errors, sorted(globals()))
    atexit.register(print, "at exit")
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
    fails = end.startswith(("raise", "import"))
    assert ("before importing torch" if fails else "ended without importing torch") in own_errors
    assert status == (-signal.SIGINT if "Keyboard" in end else own_status)


@pytest.mark.parametrize(
    ("error", "step"),
    few([("KeyboardInterrupt", STEP), ("ValueError", INFERENCE), ("KeyboardInterrupt", INFERENCE)], 2),
)
def test_ctrl_c_tells_of_the_steps_until_then_and_an_error_of_none(tmp_path, error, step):
    (tmp_path / "train.py").write_text(
        f"{HEAD if 'step' in step else MODEL}for _ in range(20):\n    {step}\nraise {error}"
    )
    command = [sys.executable, "-m", "mfulab", "measure", "--ceiling", "0", "--json", "row.json", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS_S)
    assert done.stderr.rstrip().endswith(error)
    if error == "KeyboardInterrupt":
        row = json.loads((tmp_path / "row.json").read_text())
        assert row["flops"] == (TRAINING if "step" in step else FORWARD)
        assert "a step over" in done.stderr
    else:
        assert not (tmp_path / "row.json").exists()
        assert "nothing is measured: ended by ValueError after" in done.stderr


@pytest.mark.parametrize(("option", "value"), [("--ceiling", "-1"), ("--steps", "0"), ("--seconds", "0")])
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
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "mfulab"]
    options = ["measure", "--steps", "5", "--ceiling", "0", "--json", "row.json", "train.py"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=HANGS_S, env=environment
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads((tmp_path / name).read_text()) for name in ("row.json", "row.rank1.json")]
    assert [(row["rank"], row["ranks"], row["flops"]) for row in rows] == [(0, 2, TRAINING), (1, 2, TRAINING)]
    assert done.stderr.count("a step ends with") == 1
