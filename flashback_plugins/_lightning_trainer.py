"""What is read from a trainer, and what is said through its log."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashback_core.sketch.parameters import stepped_parameters
from flashback_core.watch.schedule import is_scheduler

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder
    from flashback_core.report.model import DetectionReport

__all__ = ["Regime", "facts", "say", "scale_left", "schedulers", "summary"]


def facts(trainer: Any) -> dict[str, Any]:
    """What a report says of the trainer."""
    return {
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_val": trainer.gradient_clip_val,
        "strategy": type(trainer.strategy).__name__,
        "world_size": trainer.world_size,
    }


def schedulers(trainer: Any) -> list[Any]:
    """The learning-rate schedulers of a trainer that a recorder can read."""
    return [c.scheduler for c in trainer.lr_scheduler_configs if is_scheduler(c.scheduler)]


class Regime:
    """What a trainer may change by itself while it trains, declared when it does.

    Args:
        trainer: A trainer whose fit begins.
    """

    def __init__(self, trainer: Any) -> None:
        self._accumulate = trainer.accumulate_grad_batches
        self._n_trained = _n_trained(trainer)

    def declare(self, trainer: Any, recorder: Recorder, batch_idx: int) -> None:
        """Declare what has changed since the last batch, before the step of this one."""
        if trainer.accumulate_grad_batches != self._accumulate:
            self._accumulate = trainer.accumulate_grad_batches
            recorder.expect(recorder.next_step, "accumulation")
        if batch_idx == 0:  # fine-tuning callbacks unfreeze between epochs
            before, self._n_trained = self._n_trained, _n_trained(trainer)
            if before != self._n_trained:
                kind = "unfreeze" if self._n_trained > before else "freeze"
                recorder.expect(recorder.next_step, kind)


def _n_trained(trainer: Any) -> int:
    """Tensors that the optimizers update."""
    return sum(p.requires_grad for o in trainer.optimizers for p in stepped_parameters(o))


def scale_left(optimizer: Any, scaler: Any) -> float:
    """Loss scale that is still on the gradients: fused optimizers unscale in their own step."""
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return 1.0
    return float(scaler.get_scale())


def summary(report: DetectionReport, folder: Path) -> str:
    page = folder / "report.html"
    if report.first_bad_step is not None:
        how = f"{report.kind}, confidence {report.confidence:.2f}"
        said = f"first bad step {report.first_bad_step} ({how})"
    elif report.status == "healthy":
        said = f"no bad step in {report.n_steps} steps"
    else:
        said = f"{report.n_steps} steps are not enough to judge"
    return f"flashback: {said}; report: {page}"


def say(text: str) -> None:
    """Say it once, on rank zero, through the trainer's own log."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if name in sys.modules:
            module = importlib.import_module(f"{name}.utilities.rank_zero")
            module.rank_zero_info(text)
            return
