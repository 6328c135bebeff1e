"""Task: a small real training run, step by step, with its phases apart.

``task = build(config)``, then ``task.step(step)`` for step 0, 1, … A step draws a batch, runs
forward and backward, unscales, lets the acts see the gradients, clips, updates and moves the
schedule. Faults and healthy events are *acts*: objects with the phases of
`flashback_core.faults.Phases`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from flashback_core.faults.base import Fault
from flashback_core.faults.phases import Phases
from flashback_core.forensics import models
from flashback_core.forensics.config import TaskConfig
from flashback_core.forensics.lora import add_lora
from flashback_core.forensics.optimizers import make_optimizer
from flashback_core.forensics.schedules import lr_factor
from flashback_core.forensics.sources import Batch, make_source

__all__ = ["StepResult", "Task", "build", "build_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step gave.

    Args:
        loss: Mean loss of the batch, before the update, as logged.
        batch_ids: Sample ids, int64 of shape (samples,).
        is_skipped: Whether the loss scaler skipped the update.
    """

    loss: float
    batch_ids: Any
    is_skipped: bool


class Task:
    """A model, its optimizer, its schedule and its data.

    Args:
        config: All choices.
        model: The model to train; `build` makes it.

    Attributes:
        model, optimizer, scheduler: What a recorder and faults are attached to.
        scaler: The loss scaler of fp16 tasks, else None.
        acts: Faults and healthy events, in the order in which they act.
        pause: Called with the seconds that something beside training took.
        watch: Called with no argument when the gradients are ready, before clipping.
        batch_size, clip, micro_batches, source: May be changed by healthy events.
    """

    def __init__(self, config: TaskConfig, model: nn.Module) -> None:
        """Put optimizer, schedule and data around `model`."""
        self.config = config
        self.model = model
        self.optimizer = make_optimizer(
            config.optimizer,
            self.model,
            lr=config.peak_lr,
            weight_decay=config.weight_decay,
            beta2=config.beta2,
        )
        self.scheduler: Any = LambdaLR(self.optimizer, self._factor)
        self.scaler = _scaler() if config.precision == "fp16" else None
        self.source = make_source(config)
        self.batch_size, self.clip = config.batch, config.clip
        self.micro_batches = config.micro_batches
        self.acts: list[Phases] = []
        self.watch: Callable[[], None] | None = None
        self.pause: Callable[[float], None] | None = None
        self.n_drawn = 0
        self.model.train()

    def _factor(self, step: int) -> float:
        config = self.config
        return lr_factor(
            config.schedule, step, planned_steps=config.planned_steps, warmup=config.warmup
        )

    def attach(self, fault: Fault) -> Fault:
        """Attach a fault; do it before the recorder is made."""
        fault.attach(self.model, self.optimizer, scheduler=self.scheduler)
        self.acts.append(fault)
        return fault

    def step(self, step: int) -> StepResult:
        """Train one step; call it with 0, then 1, and so on."""
        for act in self.acts:
            act.on_step_start(step)
        batch = self._draw(step)
        loss = self._gradients(step, batch)
        for act in self.acts:
            act.on_backward(step)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        for act in self.acts:
            act.on_gradients(step)
        if self.watch is not None:
            self.watch()
        is_skipped = self._update(step)
        for act in self.acts:
            loss = act.logged_loss(step, loss)
        return StepResult(loss=loss, batch_ids=batch["ids"], is_skipped=is_skipped)

    def _draw(self, step: int) -> Batch:
        batch = self.source.draw(step, self.batch_size, self.n_drawn)
        self.n_drawn += self.batch_size
        for act in self.acts:
            batch = act.batch(step, batch)
        return batch

    def _gradients(self, step: int, batch: Batch) -> float:
        torch.manual_seed(self.config.seed * 1_000_003 + step)
        self.optimizer.zero_grad(set_to_none=True)
        parts, total = self.micro_batches, 0.0
        for part in range(parts):
            with ExitStack() as stack:
                for act in self.acts:
                    stack.enter_context(act.replica(step, part, parts))
                loss = self.loss(_part(batch, part, parts)) / parts
                scaled = loss if self.scaler is None else self.scaler.scale(loss)
                scaled.backward()
            total += float(loss.detach())
        return total

    def loss(self, batch: Batch) -> Tensor:
        """Mean loss of a batch under the task's precision."""
        with _autocast(self.config.precision):
            return _LOSSES.get(self.config.family, _classification_loss)(self.model, batch)

    def _update(self, step: int) -> bool:
        if self.clip is not None:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            torch.nn.utils.clip_grad_norm_(trained, self.clip)
        for act in self.acts:
            if not isinstance(act, Fault):  # a fault's own hook does it, inside the update
                act.before_update(step)
        is_skipped = self._optimizer_step()
        for act in self.acts:
            act.after_update(step)
        with warnings.catch_warnings():
            # torch warns where the first update was skipped by the loss scaler
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            self.scheduler.step()
        return is_skipped

    def _optimizer_step(self) -> bool:
        if self.scaler is None:
            self.optimizer.step()
            return False
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return bool(self.scaler.get_scale() < before)

    def evaluate(self) -> float:
        """Mean loss of one held-out batch in evaluation mode; leaves no trace."""
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            loss = float(self.loss(self.source.draw(2**30, 16, 0)))
        self.model.train(was_training)
        return loss

    @property
    def n_params(self) -> int:
        """Number of parameters, frozen ones too."""
        return sum(p.numel() for p in self.model.parameters())


def _part(batch: Batch, part: int, parts: int) -> Batch:
    if parts == 1:
        return batch
    rows = len(batch["x"])
    bounds = np.linspace(0, rows, parts + 1).astype(int)
    return {key: value[bounds[part] : bounds[part + 1]] for key, value in batch.items()}


def _scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=200)


def _autocast(precision: str) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    return torch.autocast("cpu", dtype=dtype)


def _text_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["x"]).float()
    loss = F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())
    extra = getattr(model, "extra_loss", None)
    return loss if extra is None else loss + extra()


def _classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]).float(), batch["y"])


def _denoising_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["x"], batch["level"]).float(), batch["y"])


_LOSSES = {
    "gpt": _text_loss,
    "moe": _text_loss,
    "lora": _text_loss,
    "lstm": _text_loss,
    "denoiser": _denoising_loss,
}


def build_model(config: TaskConfig) -> nn.Module:
    """The model of a task with initial weights from its seed, before pre-training and adapters."""
    torch.manual_seed(config.seed * 7919 + 1)
    shape, family = dict(config.shape), config.family
    shape.pop("rank", None)
    if family == "lstm":
        return models.CharLSTM(width=shape["width"], dropout=config.dropout)
    classes: dict[str, Any] = {
        "mlp": models.MLP,
        "cnn": models.ConvNet,
        "vit": models.VisionTransformer,
        "denoiser": models.Denoiser,
    }
    model: nn.Module = classes.get(family, models.GPT)(**shape, dropout=config.dropout)
    return model


def build(config: TaskConfig) -> Task:
    """The task of a config. Fine-tuning tasks are pre-trained first, unrecorded."""
    model = build_model(config)
    if config.pretrain_steps:
        _pretrain(config, model)
    if config.family == "lora":
        add_lora(model, rank=config.shape["rank"], dropout=config.dropout)
    return Task(config, model)


def _pretrain(config: TaskConfig, model: nn.Module) -> None:
    steps = config.pretrain_steps
    source = "code" if config.data != "code" else "prose"
    before = replace(
        config, optimizer="adamw", precision="fp32", lr=None, data=source, schedule="constant",
        warmup=min(50, steps), planned_steps=steps, pretrain_steps=0,
    )  # fmt: skip
    task = Task(before, model)
    for step in range(steps):
        task.step(step)
    model.zero_grad(set_to_none=True)
