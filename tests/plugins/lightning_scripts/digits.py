"""A classifier of handwritten digits, as Lightning's MNIST example has it; knows no flashback."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(pl.LightningDataModule):
    """1797 pictures of 8 by 8, which scikit-learn brings along."""

    def setup(self, stage: str) -> None:
        """Split them."""
        pictures, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(pictures / 16).float(), torch.tensor(labels))
        split = torch.Generator().manual_seed(1)
        self.train, self.val, self.test = random_split(data, [1300, 247, 250], split)

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Shuffled."""
        return DataLoader(self.train, batch_size=64, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """In order."""
        return DataLoader(self.val, batch_size=64)

    def test_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """In order."""
        return DataLoader(self.test, batch_size=64)


class Classifier(pl.LightningModule):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(256, 10),
        )  # fmt: skip

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Cross entropy."""
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """Accuracy."""
        self.log("val_acc", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Accuracy."""
        self.log("test_acc", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


pl.seed_everything(7)
trainer = pl.Trainer(max_epochs=3, accelerator="cpu", enable_progress_bar=False)
model, data = Classifier(), Digits()
trainer.fit(model, data)
(tested,) = trainer.test(model, data)
print("steps", trainer.global_step)
print("result", repr(float(trainer.callback_metrics["test_acc"])), tested)
