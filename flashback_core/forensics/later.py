"""Kinds that were added after the list was frozen: scored apart, in no scale by themselves.

Each needs a run that does something the frozen kinds' runs do not (tie the output head to the
embedding, move images about), so each comes with a healthy kind of that, which is also what its
runs and their twins do. ``kinds.load_later`` loads this file where one of them is asked for:
``flashback forensics build --kinds added`` or by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashback_core import faults
from flashback_core.faults.batches import replaced
from flashback_core.forensics import healthy, kinds
from flashback_core.forensics.config import TaskConfig
from flashback_core.forensics.events import Event
from flashback_core.forensics.sources import Batch
from flashback_core.forensics.tasks import Task

__all__ = ["Augmented", "AugmentedAlike", "TieBroken", "TiedHead"]

WORKERS = 4
"""Data-loader workers among which a batch is divided."""


class TiedHead(Event):
    """Embedding and output head are one: same values, and each gets the gradient of both."""

    def join(self, task: Task) -> None:
        """Start with one value for both."""
        super().join(task)
        task.model.head_is_tied = True  # type: ignore[assignment]  # a flag, no module
        embedding, head = self._pair()
        with torch.no_grad():
            head.copy_(embedding)

    def _pair(self) -> tuple[Tensor, Tensor]:
        named = dict(self.task.model.named_parameters())
        (head,) = (name for name in named if name.endswith("lm_head.weight"))
        # the token embedding: its shape is that of the head, as for any tied model
        (embedding,) = (
            name for name in named if name != head and named[name].shape == named[head].shape
        )
        return named[embedding], named[head]

    @torch.no_grad()
    def on_gradients(self, step: int) -> None:
        """Add the gradients up, so that the optimizer moves both alike."""
        a, b = (parameter.grad for parameter in self._pair())
        if self.task.model.head_is_tied and a is not None and b is not None:
            a.add_(b)
            b.copy_(a)


class TieBroken(faults.Fault):
    """Embedding and head are two parameters from a step on and drift apart; nothing is said."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            self.model.head_is_tied = False  # type: ignore[assignment]  # a flag, no module


class Augmented(Event):
    """Every image is moved by up to one pixel, around the edges, drawn for each by itself."""

    def join(self, task: Task) -> None:
        """Each worker draws for itself."""
        super().join(task)
        task.model.workers_draw_alike = False  # type: ignore[assignment]  # a flag, no module

    def batch(self, step: int, batch: Batch) -> Batch:
        """Move the images."""
        x: Tensor = batch["x"]
        moves = self.rng(step).integers(-1, 2, (len(x), 2))
        if self.task.model.workers_draw_alike:
            share = -(-len(x) // WORKERS)  # a worker's samples, rounded up
            moves = moves[[i % share for i in range(len(x))]]
        moved = [image.roll(tuple(move), dims=(0, 1)) for image, move in zip(x, moves, strict=True)]
        return dict(replaced(batch, x=torch.stack(moved)))


class AugmentedAlike(faults.Fault):
    """All workers draw the same augmentations from a step on, as with one seed for all."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            self.model.workers_draw_alike = True  # type: ignore[assignment]  # a flag, no module


def _tied(config: TaskConfig, n_steps: int, rng: Any) -> healthy.Plan:
    return config, [TiedHead()]


def _augmented(config: TaskConfig, n_steps: int, rng: Any) -> healthy.Plan:
    return config, [Augmented()]


def _register() -> None:
    healthy.register(
        "tied_head",
        healthy.HealthyKind(
            doc="embedding and output head share their values", make=_tied, needs=("head", "full")
        ),
    )
    healthy.register(
        "augmented",
        healthy.HealthyKind(
            doc="images are moved by up to one pixel", make=_augmented, needs=("images",)
        ),
    )
    faults.register(
        faults.Kind(
            name="tied_weights_drift",
            family="tie",
            act=TieBroken,
            needs=("head", "full"),
            doc="the output head is no longer tied to the embedding",
            behaviour="both get their own gradients only and drift apart; the loss hardly moves",
        )
    )
    faults.register(
        faults.Kind(
            name="duplicate_augment",
            family="data_order",
            act=AugmentedAlike,
            needs=("images",),
            doc="all data workers draw the same augmentations",
            behaviour="less variety within a batch; nothing else is seen",
        )
    )
    kinds.add("tied_head")
    kinds.add("augmented")
    kinds.add("tied_weights_drift", background="tied_head")
    kinds.add("duplicate_augment", background="augmented")


_register()
