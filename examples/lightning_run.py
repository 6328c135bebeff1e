"""Lightning: one line records a run, and says at which step it went wrong.

The model is a small regression. At step 150 a bug multiplies the learning rate by 20.

    python examples/lightning_run.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flashback_plugins.lightning import FlashbackCallback

WRONG = 150


class Regression(pl.LightningModule):
    """Two layers, trained with AdamW."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Mean squared error; with a bug in it."""
        if self.global_step == WRONG:
            self.optimizers().param_groups[0]["lr"] *= 20
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """A constant learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(folder: Path) -> None:
    """Train 300 steps and print what was found."""
    pl.seed_everything(1, verbose=False)
    x = torch.randn(2000, 20)
    data = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=32, shuffle=True)
    watcher = FlashbackCallback(folder)
    trainer = pl.Trainer(
        max_steps=300, accelerator="cpu", callbacks=[watcher], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Regression(), data)
    report = watcher.report
    assert report is not None
    print(f"{report.status}: first bad step {report.first_bad_step} ({report.kind}); "
          f"the learning rate jumped at {WRONG}")  # fmt: skip
    print(f"report: {folder / 'report.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="flashback-example-")))
