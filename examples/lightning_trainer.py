"""Logs MFU to the loggers of a Lightning Trainer by one added line: `python
examples/lightning_trainer.py`."""

import pytorch_lightning
import torch
from pytorch_lightning.loggers import CSVLogger

import mfulab


class Classifier(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
        )

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self.model(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.TensorDataset(torch.randn(480, 64), torch.randint(8, (480,)))
trainer = pytorch_lightning.Trainer(
    max_epochs=1,
    logger=CSVLogger("trained"),
    callbacks=[callback := mfulab.LightningCallback(every=5, warm_up=2)],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), torch.utils.data.DataLoader(data, batch_size=32))
