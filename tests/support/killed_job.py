"""One rank of a small training by Hugging Face or Lightning over gloo, which can be killed and
resumes from checkpoints.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=… python -m support.killed_job huggingface FOLDER

A separate stopwatch, independent of the package, records each begin and end in FOLDER/watch.
"""

import os
import sys
import time
from pathlib import Path

import torch

import mfulab

STEPS, EVERY, WIDTH, ROWS = 160, 20, 256, 256


class Stopwatch:
    """Appends lines of `name nanoseconds`, to compare with the journal."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{os.environ['RANK']}-{time.time_ns()}"
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, name: str) -> None:
        os.write(self._file, f"{name} {time.perf_counter_ns()}\n".encode())


def read(folder: Path) -> dict[str, float]:
    """Total seconds between each `begin x` and `end x`, over all attempts. `exit` is the time at
    which the last rank ended."""
    found: dict[str, float] = {"exit": 0.0}
    for file in folder.iterdir():
        open_since: dict[str, int] = {}
        for line in file.read_text().splitlines():
            edge, name, now = line.split()
            if name == "exit":
                found[name] = max(found[name], int(now) / 1e9)
            elif edge == "begin":
                open_since[name] = int(now)
            elif name in open_since:
                found[name] = found.get(name, 0.0) + (int(now) - open_since.pop(name)) / 1e9
    return found


def layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(24)))


def huggingface(folder: Path, watch: Stopwatch) -> None:
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layers(x).square().mean()}

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            watch.note("begin step")

        def on_step_end(self, *_: object, **__: object) -> None:
            watch.note("end step")

    options = {
        "save_strategy": "steps",
        "save_steps": EVERY,
        "save_total_limit": 2,
        "ddp_backend": "gloo",
    }
    options |= {
        "eval_strategy": "steps",
        "eval_steps": 2 * EVERY,
        "logging_strategy": "no",
        "report_to": "none",
    }
    arguments = transformers.TrainingArguments(
        str(folder / "checkpoints"),
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    data = [{"x": torch.randn(WIDTH)} for _ in range(2 * ROWS * 8)]
    trainer = transformers.Trainer(
        Model(), arguments, train_dataset=data, eval_dataset=data[: 2 * ROWS], callbacks=[Watch]
    )
    trainer.add_callback(
        mfulab.TrainerCallback(trainer, every=40, quiet=True, ceiling_s=0.2, job=folder / "job")
    )
    last = (
        transformers.trainer_utils.get_last_checkpoint(folder / "checkpoints")
        if (folder / "checkpoints").is_dir()
        else None
    )
    trainer.train(resume_from_checkpoint=last)


def lightning(folder: Path, watch: Stopwatch) -> None:
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Watch(pytorch_lightning.Callback):
        def on_train_batch_start(self, *_: object) -> None:
            watch.note("begin step")

        def on_train_batch_end(self, *_: object) -> None:
            watch.note("end step")

    saved = pytorch_lightning.callbacks.ModelCheckpoint(
        folder / "checkpoints", every_n_train_steps=EVERY, save_last=True
    )
    callback = mfulab.LightningCallback(every=40, quiet=True, ceiling_s=0.2, job=folder / "job")
    trainer = pytorch_lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Watch(), callback, saved],
    )
    loader = torch.utils.data.DataLoader(torch.randn(2 * ROWS * 8, WIDTH), batch_size=ROWS)
    last = folder / "checkpoints/last.ckpt"
    trainer.fit(Module(), loader, ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = Path(sys.argv[2])
    stopwatch = Stopwatch(here / "watch")
    {"huggingface": huggingface, "lightning": lightning}[sys.argv[1]](here, stopwatch)
    stopwatch.note("begin exit")
