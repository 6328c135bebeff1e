"""A fit of a sharded model in two processes, started by the tests: folder and name of a case."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import lightning.pytorch as pl  # noqa: E402  # quiet first
import torch  # noqa: E402
from lightning.pytorch.strategies import ModelParallelStrategy  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from flashback_plugins.lightning import FlashbackCallback  # noqa: E402
from tests.plugins._lightning_modules import loader  # noqa: E402


class Regression(pl.LightningModule):
    """A regression with a first layer that can be left whole, and a last layer of one row."""

    def __init__(self, mesh: str | None, *, whole: bool = False, wrong: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.body = nn.Sequential(
            nn.Linear(6, 15), nn.LayerNorm(15), nn.ReLU(), nn.Linear(15, 8), nn.Linear(8, 1)
        )
        self.mesh, self.whole, self.wrong = mesh, whole, wrong

    def configure_model(self) -> None:
        """Shard it; of the last layer's one row, rank one has nothing."""
        if self.mesh is None:
            return
        mesh = self.device_mesh[self.mesh]
        ignored = set(self.body[0].parameters()) if self.whole else set()
        for layer in self.body[1:]:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.body, mesh=mesh, ignored_params=ignored)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """The loss, infinite at one step."""
        loss = nn.functional.mse_loss(self.body(batch["x"]), batch["y"])
        return loss * float("inf") if self.wrong == self.global_step else loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """A forward pass alone, which leaves whole parameters in the root module."""
        self.body(batch["x"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Fault(pl.Callback):
    """Changes what lies on rank one, before step 9; or fails inside of flashback."""

    def __init__(self, case: str, watcher: Any) -> None:
        self.case, self.watcher = case, watcher

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Make the fault."""
        if trainer.global_rank != 1 or trainer.global_step != 9:
            return
        if self.case == "outside":
            weight = trainer.optimizers[0].param_groups[0]["params"][-4]
            with torch.no_grad():
                weight.to_local()[0, 0] += 1.0
        if self.case in ("weight_bit", "state_bit"):
            optimizer = trainer.optimizers[0]
            weight = optimizer.param_groups[0]["params"][-4]
            flip = weight if self.case == "weight_bit" else optimizer.state[weight]["exp_avg"]
            with torch.no_grad():
                flip.to_local().view(-1)[:1].view(torch.int32).bitwise_xor_(1)
        if self.case == "broken":
            (sketcher,) = self.watcher._recorder._sketchers
            sketcher._backend._inner.gradients = None
        if self.case == "crash":
            raise SystemExit(3)


def fit(folder: Path, case: str, epochs: int = 3, checkpoint: Path | None = None) -> None:
    """Train epochs of seven batches, the same batches on each rank."""
    watcher = FlashbackCallback(folder / "run", log_every_n_steps=5,
                                prevent_nonfinite=case == "prevented")  # fmt: skip
    sizes = {"data_parallel_size": 1, "tensor_parallel_size": 2} if case == "copies" else {
        "data_parallel_size": 2, "tensor_parallel_size": 1}  # fmt: skip
    mesh = ModelParallelStrategy(process_group_backend="gloo", **sizes)
    alone = case == "alone"
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1 if alone else 2,
        strategy="auto" if alone else mesh, use_distributed_sampler=False,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Fault(case, watcher), watcher],
        num_sanity_val_steps=1, val_check_interval=3,
    )  # fmt: skip
    module = Regression(
        None if alone else "data_parallel", whole=case == "whole",
        wrong=9 if case == "prevented" else None,
    )  # fmt: skip
    trainer.fit(module, loader(), loader(), ckpt_path=checkpoint)
    if case == "resumed" and checkpoint is None:
        trainer.save_checkpoint(folder / "kept.ckpt")
        fit(folder, case, 3, folder / "kept.ckpt")


if __name__ == "__main__":
    fit(Path(sys.argv[1]), sys.argv[2], 2 if sys.argv[2] == "resumed" else 3)
