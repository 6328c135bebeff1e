"""A fit in two processes, started by the tests.

Arguments are the folder, watched or alone, the fault, and how: plain, reduce (losses by an
all-reduce, as between machines), accumulate, scaler, manual, raw.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from flashback_core.errors import FlashbackWarning

warnings.filterwarnings("ignore")
warnings.filterwarnings("default", category=FlashbackWarning)

import lightning.pytorch as pl  # noqa: E402  # quiet first
import torch  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402

from flashback_plugins import _lightning_loss  # noqa: E402
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
        if self.fault == "nan":
            pl_module.blow_up_at = len(pl_module.losses)
            return
        with torch.no_grad():
            weight = next(pl_module.parameters()).view(-1)[:1]
            weight.view(torch.int32).bitwise_xor_(1)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Note the gradient."""
        self.gradients.append(norm([p.grad for p in pl_module.parameters() if p.grad is not None]))


class Broken(FlashbackCallback):
    """A callback of which a hook fails on rank zero, or whose recorder cannot be made there."""

    fault = "none"

    def _record(self, trainer: Any, *more: Any) -> None:
        if self.fault == "no_recorder" and trainer.is_global_zero:
            msg = "no recorder"
            raise RuntimeError(msg)
        super()._record(trainer, *more)

    def _end_batch(self, trainer: Any, *more: Any) -> None:
        if self.fault == "hook" and trainer.global_step > 5:
            msg = "a hook"
            raise RuntimeError(msg)
        super()._end_batch(trainer, *more)


def settings(how: str) -> dict[str, Any]:
    """What the trainer is given more."""
    if how == "scaler":
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    return {"accumulate_grad_batches": 3} if how == "accumulate" else {}


def main() -> None:
    """Train, and write what each rank saw."""
    folder, watch, fault, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    if how == "reduce":
        _lightning_loss._shared_memory = lambda *_: None
    note = Note(fault)
    watcher = Broken(folder / "run", log_every_n_steps=5)
    watcher.fault = fault
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", find_unused_parameters=how == "manual"),
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[note, watcher] if watch == "watched" else [note],
        **settings(how),
    )  # fmt: skip
    is_manual = how in ("manual", "raw")
    module = make_pair(how == "manual") if is_manual else make_net(pl.LightningModule)
    trainer.fit(module, loader())
    out = {"losses": module.losses, "gradients": note.gradients,
           "weights": norm(list(module.parameters()))}  # fmt: skip
    (folder / f"{watch}-{trainer.global_rank}.json").write_text(json.dumps(out))


def make_pair(use_pl_optimizer: bool) -> Any:
    """A module that is trained by hand, by one optimizer."""

    class Pair(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(12)
            self.automatic_optimization = False
            self.net = torch.nn.Linear(6, 1)
            self.losses: list[float] = []

        def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:
            optimizer = self.optimizers(use_pl_optimizer=use_pl_optimizer)
            loss = torch.nn.functional.mse_loss(self.net(batch["x"]), batch["y"])
            self.losses.append(float(loss.detach()))
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.02)

    return Pair()


if __name__ == "__main__":
    main()
