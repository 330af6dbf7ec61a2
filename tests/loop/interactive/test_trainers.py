"""The examples, run for real: what trainers log, and FLOPs on a hand count."""

import csv
import importlib
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from support.processes import HANGS_S
from support.slow import few
from support.workflow_copy import ROOT
from torch import nn

import mfulab
from mfulab.core.files import found_files
from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading
from mfulab.loop.interactive.peaks import Ceiling
from mfulab.loop.interactive.row import merged
from mfulab.loop.interactive.training import TrainingWindow
from mfulab.measurements.read_trace.reader import read_file
from mfulab.mfu.job import RankShare, as_job

EXAMPLES = ROOT / "examples"


def need(package):
    try:
        importlib.import_module(package)
    except ImportError:
        if os.environ.get("MFULAB_CI"):
            raise
        pytest.skip(f"{package} is not installed: pip install '.[test]'")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mfulab.loop.interactive.peaks.measured_ceiling", lambda *_: Ceiling(0.1))
    return lambda name: runpy.run_path(str(EXAMPLES / name))


def test_a_hugging_face_trainer_logs_it(run, capsys):
    need("accelerate")
    ran = run("huggingface_trainer.py")
    window, trainer = ran["callback"].window, ran["trainer"]
    tokens, width, layers = 32, 128, 2
    matrices = layers * 12 * width * width + 512 * width
    one = 2 * 4 * tokens * matrices + layers * 4 * 4 * tokens**2 * width
    found = window.row["flops"]
    assert found == 2 * 3 * one, "two micro-batches; what checkpoints run again is not the model's"
    assert window.row["executed_flops"] > window.row["flops"]
    seen = (window.row["steps"], window.row["counted_steps"])
    assert seen == (8, 2), "what follows the last micro-batch once more"
    logged = [entry for entry in trainer.state.log_history if "mfu" in entry]
    assert [entry["step"] for entry in logged] == [6, 10, 12]
    assert all(
        {"mfu", "hfu", "utilization", "tflops", "step_time"} <= entry.keys() for entry in logged
    )
    assert any(key.startswith("verdict/") for key in logged[-1])
    assert "device utilization" in capsys.readouterr().out


def test_a_lightning_trainer_logs_it(run, tmp_path, capsys):
    need("pytorch_lightning")
    window = run("lightning_trainer.py")["callback"].window
    assert window.row["flops"] == 2 * 32 * (64 * 256 * 2 + 256 * 8 * 3)
    assert (window.row["steps"], window.row["counted_steps"]) == (12, 1)
    [metrics] = tmp_path.glob("trained/**/metrics.csv")
    rows = [row for row in csv.DictReader(metrics.open()) if row["mfu"]]
    assert [row["step"] for row in rows] == ["7", "12", "15"]
    assert "device utilization" in capsys.readouterr().out


@pytest.mark.parametrize("validated_every", few([2, None, 4]))
def test_lightning_with_two_optimisers_counts_both(validated_every):
    """A GAN by manual optimisation; validation also falls on the batch at which the window
    opens."""
    need("pytorch_lightning")
    lightning = importlib.import_module("pytorch_lightning")

    class Gan(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
            self.critic = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

        def configure_optimizers(self):
            return [torch.optim.Adam(each.parameters()) for each in (self.generator, self.critic)]

        def made(self, batch):
            return self.generator(torch.randn(len(batch), 16))

        def training_step(self, batch, place):
            for optimizer, of_generator in zip(self.optimizers(), (True, False), strict=True):
                optimizer.zero_grad()
                judged = self.critic(
                    self.made(batch) if of_generator else self.made(batch).detach()
                )
                loss = judged.mean() if of_generator else judged.mean() - self.critic(batch).mean()
                self.manual_backward(loss)
                optimizer.step()

        def validation_step(self, batch, place):
            self.critic(self.made(batch))

    callback = mfulab.LightningCallback(every=4, warm_up=2, quiet=True, ceiling_s=0)
    options = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    loader = torch.utils.data.DataLoader(torch.randn(16 * 8, 32), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=1,
        logger=False,
        accelerator="cpu",
        callbacks=[callback],
        val_check_interval=validated_every,
        **options,
    )
    trainer.fit(Gan(), loader, *([loader] if validated_every else []))
    first, second, third, fourth = (2 * 8 * size for size in (16 * 64, 64 * 32, 32 * 64, 64))
    # all layers; no gradient of what the first one is given
    of_generator = 2 * first + 3 * second + 3 * third + 3 * fourth
    # forward alone, then two batches through the critic
    of_critic = first + second + 2 * (2 * third + 3 * fourth)
    assert callback.window.row["flops"] == of_generator + of_critic


class FailsOnce(nn.Module):
    """A model of one layer whose forward pass fails at its sixth call, and never again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 6:
            raise RuntimeError("the sixth batch is broken")
        loss = self.layer(x).square().mean()
        return {"loss": loss}


def trained_twice(train, model, callback):
    """Trains into an error, then again; the window between the two is closed and the second
    training is measured."""
    with pytest.raises(RuntimeError, match="the sixth batch is broken"):
        train()
    first = callback.window
    assert first._open is None
    assert not model.layer._forward_hooks
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    with mfulab.measure(model, quiet=True, ceiling_s=0) as between:
        model(torch.randn(2, 4))
    assert between.row, "no window is left open"
    train()
    assert callback.window is not first
    assert callback.window.row["flops"] == 2 * 2 * 2 * 4 * 4
    assert not model._forward_hooks


@pytest.mark.slow
def test_after_an_error_a_hugging_face_trainer_trains_and_measures_again(tmp_path):
    need("accelerate")
    transformers, model = importlib.import_module("transformers"), FailsOnce()
    options = {"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=8, per_device_train_batch_size=2, **options
    )
    data = [{"x": torch.randn(4)} for _ in range(16)]

    class Logger(transformers.TrainerCallback):
        """As those of TensorBoard and MLflow: told before callbacks of the user's, and closed as
        training ends."""

        def on_train_begin(self, *_, **__):
            self.logged, self.closed = [], False

        def on_log(self, args, state, control, logs=None, **_):
            assert not self.closed or "mfu" not in logs
            self.logged += [state.global_step] if "step_time" in logs else []

        def on_train_end(self, *_, **__):
            self.closed = True

    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, callbacks=[logger := Logger()]
    )
    trainer.add_callback(
        callback := mfulab.TrainerCallback(trainer, every=2, warm_up=2, quiet=True, ceiling_s=0)
    )
    trained_twice(trainer.train, model, callback)
    assert logger.logged == [4, 6, 8, 8]


@pytest.mark.slow
def test_after_an_error_a_lightning_trainer_trains_and_measures_again(tmp_path):
    need("pytorch_lightning")
    lightning = importlib.import_module("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = FailsOnce()

        def training_step(self, batch):
            return self.model(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    callback = mfulab.LightningCallback(every=2, warm_up=2, quiet=True, ceiling_s=0)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=2
    )
    options = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }

    def train():
        trainer = lightning.Trainer(
            max_epochs=1, logger=False, accelerator="cpu", callbacks=[callback], **options
        )
        trainer.fit(module, data)

    trained_twice(train, module.model, callback)


@pytest.mark.parametrize(("error", "is_told"), [(KeyboardInterrupt(), True), (ValueError(), False)])
def test_ctrl_c_ends_a_training_with_its_ladder(error, is_told, capsys):
    callback, model = TrainingWindow(every=5, warm_up=1, ceiling_s=0), nn.Linear(16, 16)
    callback._begin(0)
    for step in range(1, 9):
        model(torch.randn(4, 16)).sum().backward()
        callback._step(lambda: model, lambda metrics: None, step)
    callback._close(error)
    assert ("█" in capsys.readouterr().out) is is_told


def test_a_loop_of_accelerate(run):
    need("accelerate")
    importlib.import_module("accelerate.state").AcceleratorState._reset_state(
        reset_partial_state=True
    )
    row = run("accelerate_loop.py")["window"].row
    assert row["flops"] == 2 * 32 * (64 * 256 * 2 + 256 * 8 * 3)
    assert row["effective_precision"] == "bf16", "accelerate puts autocast inside forward"
    assert (row["steps"], row["counted_steps"]) == (9, 1)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_ranks_and_their_job():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", "2", "examples/fsdp2.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    flops = 2 * 32 * 128 * 128 * (2 + 3 + 3)
    for rank in range(2):
        assert f"rank {rank}: {flops} FLOPs a step" in done.stdout
    assert "job: 2 ranks" in done.stdout
    assert done.stdout.count("device utilization") == 1, "rank 0 speaks for all"


def test_a_job_by_hand():
    one = RankShare(
        time_s=1.0, flops=2e12, executed_flops=3e12, mfu_percent=20.0, peak_tflop_s=10.0
    )
    slow = replace(one, time_s=2.0, mfu_percent=10.0)
    job = as_job([one, slow])
    assert (job["ranks"], job["tflop_s"], job["slowest_rank"]) == (2, 2.0, 1)
    assert job["mfu_percent"] == pytest.approx(10.0), "4 TFLOP in 2 s on peaks of 10 TFLOP/s each"
    assert job["hfu_percent"] == pytest.approx(15.0)
    unknown = as_job([one, replace(one, flops=None, mfu_percent=None)])
    assert unknown["mfu_percent"] is None


def test_readings_of_laps():
    laps = []
    for seconds, busy, energy_j in ((1.0, 90.0, 5.0), (3.0, 50.0, 7.0)):
        lap = {"utilization_percent": Reading(busy, "%", "x", seconds)}
        laps.append((seconds, lap | {"window_energy_j": Reading(energy_j, "J", "x")}))
    refused = Reading(None, "%", "x", reason=Said("refused_by_driver"))
    laps.append((9.0, {"utilization_percent": refused}))
    found = merged(laps)
    seen = (found["utilization_percent"].value, found["utilization_percent"].window_s)
    assert seen == (60.0, 4.0)
    assert found["window_energy_j"].value == 12.0


def test_a_decorated_step():
    model, seen = nn.Linear(16, 16), []

    @mfulab.measured(steps=4, warm_up=2, quiet=True, ceiling_s=0)
    def train_step(model, rows):
        seen.append(rows)
        model(torch.randn(rows, 16)).sum().backward()
        return rows

    assert [train_step(model, 4) for _ in range(10)] == [4] * 10
    found = (train_step.window.row["steps"], train_step.window.row["flops"])
    assert found == (4, 2 * 2 * 4 * 16 * 16)
    assert len(seen) == 10
    assert not model._forward_pre_hooks


def test_a_decorated_method_finds_its_model_and_passes_errors_on():
    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Linear(16, 16)

        @mfulab.measured(steps=4, warm_up=1, quiet=True, ceiling_s=0)
        def train_step(self, columns):
            return self.model(torch.randn(4, columns))

    trainer = Trainer()
    for _ in range(2):
        trainer.train_step(16)
    assert trainer.train_step.window.models == [trainer.model]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trainer.train_step(3)
    assert not trainer.model._forward_pre_hooks
    assert trainer.train_step(16).shape == (4, 16)


def recipes():
    """The Python blocks of docs/traces.md by the framework that each needs."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/traces.md").read_text(), re.DOTALL)
    needs = ("torch", "pytorch_lightning", "transformers")
    assert len(blocks) == len(needs)
    return dict(zip(needs, blocks, strict=True))


# A step of milliseconds: beside one of microseconds that a busy machine stalls, the last step has
# so little work that it is read as a stub.
BATCH, WIDTH, OUTPUTS = 256, 1024, 1024


def linear_steps():
    model = nn.Linear(WIDTH, OUTPUTS)
    return {
        "batches": [torch.randn(BATCH, WIDTH)] * 14,
        "train_step": lambda batch: model(batch).sum().backward(),
    }


def lightning_steps():
    pytorch_lightning = importlib.import_module("pytorch_lightning")

    class Model(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, OUTPUTS)

        def training_step(self, batch):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = torch.utils.data.DataLoader(torch.randn(BATCH * 14, WIDTH), batch_size=BATCH)
    return {"pytorch_lightning": pytorch_lightning, "model": Model(), "batches": batches}


def hugging_face_steps():
    transformers = importlib.import_module("transformers")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, OUTPUTS)

        def forward(self, x):
            return {"loss": self.layer(x).sum()}

    arguments = transformers.TrainingArguments(
        "trained",
        max_steps=14,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
    )
    data = [{"x": torch.randn(WIDTH)} for _ in range(BATCH * 14)]
    return {
        "transformers": transformers,
        "trainer": transformers.Trainer(Model(), arguments, train_dataset=data),
    }


STEPS = {
    "torch": linear_steps,
    "pytorch_lightning": lightning_steps,
    "transformers": hugging_face_steps,
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", STEPS)
def test_the_documented_way_to_record_a_trace_gives_one(framework, tmp_path, monkeypatch):
    need(framework)
    if framework == "transformers":
        need("accelerate")
    monkeypatch.chdir(tmp_path)
    exec(compile(recipes()[framework], "docs/traces.md", "exec"), STEPS[framework]())
    (trace,) = found_files(".", (".json", ".json.gz")) or found_files(
        "traces", (".json", ".json.gz")
    )
    (read,) = read_file(trace)
    assert read.row.steps in (1, 2, 3), "a first step that is slower is left out as warm-up"
    assert read.row.last_step == 9
    assert read.row.mode == "training"
    assert read.row.flops == 2 * 2 * BATCH * WIDTH * OUTPUTS, (
        "forward and weight gradient of three steps alike"
    )
