"""A fit in two processes, started by the tests: arguments are folder, watched or alone, fault."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import lightning.pytorch as pl  # noqa: E402  # quiet first
import torch  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402

from flashback_plugins.lightning import FlashbackCallback  # noqa: E402
from tests.plugins._lightning_modules import loader, make_net, norm  # noqa: E402


class Note(pl.Callback):
    """Keeps the norm of the reduced gradient of every step, and makes the fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.gradients: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Flip one bit of one weight on rank 1, or fail there."""
        if trainer.global_rank != 1 or trainer.global_step != 5 or self.fault == "none":
            return
        if self.fault == "crash":
            raise SystemExit(3)
        with torch.no_grad():
            weight = next(pl_module.parameters()).view(-1)[:1]
            weight.view(torch.int32).bitwise_xor_(1)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Note the gradient."""
        self.gradients.append(norm([p.grad for p in pl_module.parameters()]))


def main() -> None:
    """Train, and write what each rank saw."""
    folder, watch, fault = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    note = Note(fault)
    watcher = FlashbackCallback(folder / "run", log_every_n_steps=5)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[note, watcher] if watch == "watched" else [note],
    )  # fmt: skip
    module = make_net(pl.LightningModule)
    trainer.fit(module, loader())
    out = {"losses": module.losses, "gradients": note.gradients,
           "weights": norm(list(module.parameters()))}  # fmt: skip
    (folder / f"{watch}-{trainer.global_rank}.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main()
