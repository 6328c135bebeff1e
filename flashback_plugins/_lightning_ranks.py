"""Several processes with one model: the loss of all, and does each still hold what it should?

Each rank digests what it holds at the end of a step and looks again before the next update, so that
it knows at which step something else changed it: the weights, and where the model is sharded its
part of the optimizer state too. Now and then the ranks compare what they know. A hash alone would
come too late: with equal gradients a small difference often heals within a few updates, and of two
ranks it cannot say which one is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from flashback_core.sketch.parameters import innermost_optimizer, stepped_parameters
from flashback_core.sketch.sharded import is_sharded
from flashback_core.warn import Guard
from flashback_plugins._lightning_continuity import Continuity
from flashback_plugins._lightning_loss import SharedLoss
from flashback_plugins._lightning_news import RankNews, divergence

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder
    from flashback_plugins._lightning_online import Online

__all__ = ["Ranks", "all_or_none", "has_shards"]

_PART = "the replica check"


def has_shards(trainer: Any) -> bool:
    """Whether the trained parameters are spread over ranks (FSDP2, tensor parallel)."""
    return any(is_sharded(p) for o in trainer.optimizers for p in stepped_parameters(o))


@contextmanager
def all_or_none(trainer: Any, undo: Callable[[], object]) -> Iterator[None]:
    """A block that all ranks have to get through, or else it is undone on all of them."""
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        if trainer.world_size > 1:
            succeeded = bool(trainer.strategy.reduce_boolean_decision(succeeded, all=True))
        if not succeeded:
            undo()


class Ranks:
    """Watches what lies on this rank, and compares it with the other ranks.

    Its hooks are called on every rank, whatever has failed there, since others wait for it.

    Args:
        trainer: A trainer with several processes.
        pl_module: Its module.
        guard: Warns where the watch fails; the comparison goes on, since others wait for it.

    Attributes:
        loss: The loss of all ranks, None until `share_loss`.
    """

    def __init__(self, trainer: Any, pl_module: Any, guard: Guard) -> None:
        self._guard, self._rank = guard, int(trainer.global_rank)
        self._is_sharded = has_shards(trainer)
        self._is_replicated = "DDP" in type(trainer.strategy).__name__ and not self._is_sharded
        self._watches = self._is_sharded or self._is_replicated
        self.loss: SharedLoss | None = None
        self._met_at, self._is_told = -1, False
        self._is_automatic = bool(getattr(pl_module, "automatic_optimization", True))
        self._optimizers = [innermost_optimizer(o) for o in trainer.optimizers]
        names = {id(p): name for name, p in pl_module.named_parameters()}
        self._continuity = Continuity(
            self._optimizers, lambda p: names.get(id(p), "?"), with_state=self._is_sharded
        )
        self._handles = [
            hook
            for i, o in enumerate(self._optimizers)
            for hook in (
                o.register_step_pre_hook(lambda *_, i=i: self._before_manual(trainer, i)),
                o.register_step_post_hook(lambda *_, i=i: self._after_step(i)),
            )
        ]

    def share_loss(self, trainer: Any) -> None:
        """Give the rows the loss of all ranks; each rank has to call it at the same time."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.loss = SharedLoss(trainer, self._guard)

    # -- hooks, called as Lightning calls them -----------------------------------------------

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """A batch begins."""
        self._is_automatic = bool(pl_module.automatic_optimization)
        if self.loss is not None:
            self.loss.begin_batch()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        """Keep the loss of a backward pass."""
        if self.loss is not None:
            self.loss.see(loss, is_automatic=self._is_automatic)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Look at the weights, and let the others know the loss."""
        self.before_step(optimizer, int(trainer.global_step))
        if self.loss is not None:
            self.loss.before_step(is_automatic=self._is_automatic)

    def before_step(self, optimizer: Any, step: int) -> None:
        """Look whether the weights are what the last step left."""
        inner = innermost_optimizer(optimizer)
        i = next((k for k, o in enumerate(self._optimizers) if o is inner), None)
        if i is not None:
            self._look(i, step)

    def _before_manual(self, trainer: Any, i: int) -> None:
        """Torch's own hook: a manual step may be one that Lightning does not see."""
        if not self._is_automatic:
            self._look(i, int(trainer.global_step))

    def _look(self, i: int, step: int) -> None:
        if self._watches and not self._guard.failed(_PART):
            with self._guard(_PART):
                self._continuity.look(i, step)

    def _after_step(self, i: int) -> None:
        if self._watches and not self._guard.failed(_PART):
            with self._guard(_PART):
                self._continuity.keep(i)
        if self.loss is not None:
            self.loss.after_step(is_automatic=self._is_automatic)

    # -- the loss of a row, on rank zero -----------------------------------------------------

    def loss_of_row(self, recorder: Recorder, loss: Any) -> Any:
        """The loss of all ranks for the row that is about to be closed; `loss` if it is unknown."""
        if self.loss is None:
            return loss
        shared = self.loss.take(recorder.next_step - int(recorder.has_open_row))
        return loss if shared is None else shared

    def see_row(self, recorder: Recorder, step: int, loss: float) -> None:
        """Look at the loss of a row that has been written."""
        if self.loss is not None:
            self.loss.see_row(recorder, step, loss)

    # -- meetings ----------------------------------------------------------------------------

    def meet(self, trainer: Any, online: Online, recorder: Recorder | None) -> None:
        """Let all ranks tell each other what they know; all have to come here at the same step.

        Args:
            trainer: The trainer.
            online: Gets the finding, and acts on all ranks.
            recorder: Keeps the finding as an event; None on other ranks than zero.
        """
        step = int(trainer.global_step) - 1
        if step < 0 or step == self._met_at:
            return
        self._met_at = step
        news: list[RankNews] = []
        with self._guard("the comparison of ranks"):
            news = self.compare(step, is_bad=online.finding is not None)
        found = divergence(news) if news else None
        if found is not None and not self._is_told:
            self._is_told = True
            finding, rank = found
            online.finding = online.finding or finding
            if recorder is not None:
                recorder.add_event({
                    "event": "replica_divergence", "kind": finding.kind, "rank": rank,
                    "step": finding.step, "text": finding.evidence[0],
                })  # fmt: skip
        if found is not None or any(n.is_bad for n in news):
            online.act_together(trainer)

    def compare(self, step: int, *, is_bad: bool) -> list[RankNews]:
        """What all ranks know; every rank has to call it at the same step."""
        mine = RankNews(
            rank=self._rank, step=step, changes=tuple(self._continuity.changes),
            weights=self._digest(), is_bad=is_bad, is_sharded=self._is_sharded,
            is_watching=not self._is_sharded or self._continuity.is_watching,
        )  # fmt: skip
        everyone: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everyone, mine)
        self._continuity.clear()
        return everyone

    def _digest(self) -> int:
        """Digest of the whole model, which all ranks should hold; 0 where none does."""
        if not self._is_replicated or self._guard.failed(_PART):
            return 0
        with self._guard(_PART):
            return self._continuity.weights()
        return 0

    def remove(self) -> None:
        """Leave the optimizers as they were."""
        for handle in self._handles:
            handle.remove()
