"""What `demo.py` trains: a GPT on the standard library's files, with two loggers and a fault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import MLFlowLogger, WandbLogger
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.data import DataLoader, Dataset

from flashback_core import faults
from flashback_core.forensics.config import SIZES
from flashback_core.forensics.corpus import text, windows
from flashback_core.forensics.models import GPT
from flashback_core.forensics.schedules import lr_factor
from flashback_core.report.model import DetectionReport
from flashback_plugins.lightning import FlashbackCallback

SHAPE = SIZES["gpt", "tiny"]
EXPERIMENT = "flashback-demo"
BATCH, WARMUP, PEAK_LR = 8, 100, 3e-3


class Windows(Dataset[dict[str, Any]]):
    """Windows of source text at random places, each with its place as sample id."""

    def __init__(self, n: int, seed: int) -> None:
        self.text = text("code")
        rng = np.random.default_rng([seed, 2])
        self.starts = rng.integers(0, len(self.text) - SHAPE["context"] - 1, n)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.starts)

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Inputs, the bytes that follow them, and the place."""
        tokens = torch.from_numpy(windows(self.text, self.starts[i : i + 1], SHAPE["context"] + 1))
        return {"x": tokens[0, :-1], "y": tokens[0, 1:], "ids": int(self.starts[i])}


class Writer(pl.LightningModule):
    """A byte-level GPT that learns to write Python."""

    def __init__(self, n_steps: int) -> None:
        super().__init__()
        self.model = GPT(**SHAPE, dropout=0.1)
        self.n_steps = n_steps

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Mean cross-entropy of the next byte."""
        logits = self.model(batch["x"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW, a warm-up and a cosine."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=PEAK_LR, betas=(0.9, 0.99))

        def factor(step: int) -> float:
            return lr_factor("cosine", step, planned_steps=self.n_steps, warmup=WARMUP)

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class InjectFault(pl.Callback):
    """Lets a fault act at each place of Lightning's loop where a real one could."""

    def __init__(self, fault: faults.Fault) -> None:
        self.fault = fault

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Attach it, before flashback puts its own hooks on the optimizer."""
        scheduler = trainer.lr_scheduler_configs[0].scheduler
        self.fault.attach(pl_module.model, trainer.optimizers[0], scheduler=scheduler)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, _: int) -> None:
        """Damage weights, settings or the batch."""
        self.fault.on_step_start(trainer.global_step)
        self.fault.batch_(trainer.global_step, batch)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Damage gradients; the optimizer's hooks do the rest."""
        self.fault.on_gradients(trainer.global_step)


class ShowProgress(pl.Callback):
    """One bar for the whole run, with the loss beside it."""

    def __init__(self) -> None:
        columns = "training", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, TextColumn("loss {task.fields[loss]}"))

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Show it."""
        self.task = self.bar.add_task("training", total=trainer.max_steps, loss="")
        self.bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Move on."""
        if trainer.global_step % 10 == 0:
            loss = f"{float(outputs['loss']):.3f}"
            self.bar.update(self.task, completed=trainer.global_step, loss=loss)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Leave it where it is."""
        self.bar.stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Give the terminal back."""
        self.bar.stop()


@dataclass(frozen=True)
class Outcome:
    """What came of it, and where it lies."""

    report: DetectionReport | None
    fault: str
    run_id: str
    experiment_id: str
    wandb_folder: Path


def run(plan: Any) -> Outcome:
    """Train as `demo.Plan` says, with everything attached."""
    torch.set_num_threads(1)  # the tensors are small, and other programs may want the other cores
    plan.root.mkdir(parents=True, exist_ok=True)
    pl.seed_everything(plan.seed, verbose=False)
    name = plan.folder.name
    mlflow = MLFlowLogger(
        EXPERIMENT, run_name=name, tracking_uri=f"sqlite:///{plan.root / 'mlflow.db'}",
        artifact_location=(plan.root / "mlartifacts").absolute().as_uri(),
    )  # fmt: skip
    wandb = WandbLogger(name=name, project=EXPERIMENT, save_dir=plan.root, offline=True)
    recorder = FlashbackCallback(plan.folder)
    fault = None if plan.kind is None else faults.make(plan.kind, step=plan.step, seed=plan.seed)
    first = [] if fault is None else [InjectFault(fault)]
    data = DataLoader(Windows(plan.n_steps * BATCH, plan.seed), batch_size=BATCH)
    trainer = pl.Trainer(
        max_steps=plan.n_steps, accelerator="cpu", logger=[wandb, mlflow], gradient_clip_val=0.5,
        callbacks=[*first, recorder, ShowProgress()], log_every_n_steps=10,
        enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
        default_root_dir=plan.root,
    )  # fmt: skip
    trainer.fit(Writer(plan.n_steps), data)
    wandb_folder = Path(wandb.experiment.dir).parent
    wandb.experiment.finish()
    return Outcome(
        recorder.report, fault.description if fault else "",
        str(mlflow.run_id), str(mlflow.experiment_id), wandb_folder,
    )  # fmt: skip
