"""Several processes with one model each: do they still hold the same weights?

Each rank digests its weights at the end of a step and looks again before the next update, so that
it knows at which step something else changed them. Now and then the ranks compare what they know.
A hash alone would come too late: with equal gradients a small difference often heals within a few
updates, and of two ranks it cannot say which one is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from flashback_core.report.model import Finding
from flashback_core.sketch.parameters import innermost_optimizer, stepped_parameters
from flashback_core.sketch.sharded import is_sharded
from flashback_core.warn import Guard
from flashback_core.watch.state import TensorWatch, digests

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder
    from flashback_plugins._lightning_online import Online

__all__ = ["RankNews", "Ranks", "all_or_none", "divergence", "has_shards"]

_PART = "the replica check"
_MOST_NAMES = 5
_CERTAIN = 0.99


def has_shards(trainer: Any) -> bool:
    """Whether the trained parameters are spread over ranks (FSDP2, tensor parallel)."""
    return any(is_sharded(p) for o in trainer.optimizers for p in stepped_parameters(o))


@contextmanager
def all_or_none(trainer: Any, undo: Callable[[], object]) -> Iterator[None]:
    """A block that all ranks of a sharded model have to get through, or else it is undone."""
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        if trainer.world_size > 1 and has_shards(trainer):
            succeeded = bool(trainer.strategy.reduce_boolean_decision(succeeded, all=True))
        if not succeeded:
            undo()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNews:
    """What one rank tells the others.

    Attributes:
        rank: Its number.
        step: The step that it is at.
        changed_at: First step before which its weights changed by themselves, None if never.
        tensors: Names of some that changed.
        weights: Digest of all weights, 0 where they are not in host memory.
        is_bad: Whether it has found the run to be bad.
    """

    rank: int
    step: int
    changed_at: int | None
    tensors: tuple[str, ...]
    weights: int
    is_bad: bool


class Ranks:
    """Watches the weights of this rank, and compares them with the other ranks.

    Args:
        trainer: A trainer with several processes.
        pl_module: Its module.
        guard: Warns where the watch fails; the comparison goes on, since others wait for it.
    """

    def __init__(self, trainer: Any, pl_module: Any, guard: Guard) -> None:
        self._guard, self._rank = guard, int(trainer.global_rank)
        self._is_replicated = "DDP" in type(trainer.strategy).__name__
        self._changed_at: int | None = None
        self._names: tuple[str, ...] = ()
        self._met_at = -1
        self._optimizers = [innermost_optimizer(o) for o in trainer.optimizers]
        self._watches = [TensorWatch() for _ in self._optimizers]
        names = {id(p): name for name, p in pl_module.named_parameters()}
        self._tensors: list[list[tuple[tuple[object, ...], torch.Tensor]]] = [
            [((names.get(id(p), "?"),), p) for p in stepped_parameters(o)] for o in self._optimizers
        ]
        self._handles = [
            o.register_step_post_hook(lambda *_, i=i: self._after_step(i))
            for i, o in enumerate(self._optimizers)
        ]

    def before_step(self, optimizer: Any, step: int) -> None:
        """Look whether the weights are what the last step left."""
        inner = innermost_optimizer(optimizer)
        i = next((k for k, o in enumerate(self._optimizers) if o is inner), None)
        if i is None or not self._is_replicated or self._guard.failed(_PART):
            return
        with self._guard(_PART):
            changed = self._watches[i].start(self._tensors[i])
            if changed and self._changed_at is None:
                self._changed_at = step
                self._names = tuple(str(key[0]) for key in changed[:_MOST_NAMES])

    def _after_step(self, i: int) -> None:
        if self._is_replicated and not self._guard.failed(_PART):
            with self._guard(_PART):
                self._watches[i].end(self._tensors[i])

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
        if found is not None and online.finding is None:
            online.finding, rank = found
            if recorder is not None:
                recorder.add_event({
                    "event": "replica_divergence", "rank": rank, "step": online.finding.step,
                    "text": online.finding.evidence[0],
                })  # fmt: skip
        if found is not None or any(n.is_bad for n in news):
            online.act_together(trainer)

    def compare(self, step: int, *, is_bad: bool) -> list[RankNews]:
        """What all ranks know; every rank has to call it at the same step."""
        mine = RankNews(
            rank=self._rank, step=step, changed_at=self._changed_at, tensors=self._names,
            weights=self._digest(), is_bad=is_bad,
        )  # fmt: skip
        everyone: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everyone, mine)
        return everyone

    def _digest(self) -> int:
        out = 0
        if self._is_replicated and not self._guard.failed(_PART):
            with self._guard(_PART):
                tensors = [p.detach() for named in self._tensors for _, p in named]
                if all(t.device.type == "cpu" for t in tensors):
                    out = xxhash.xxh3_64_intdigest(digests(tensors).tobytes())
        return out

    def remove(self) -> None:
        """Leave the optimizers as they were."""
        for handle in self._handles:
            handle.remove()


def divergence(news: Sequence[RankNews]) -> tuple[Finding, int] | None:
    """What the ranks' news say about their weights, and the rank that is apart.

    Returns:
        None while all agree. The rank is -1 where the majority does not tell it.
    """
    alone = [n for n in news if n.changed_at is not None]
    if alone and len(alone) < len(news):
        first = min(alone, key=lambda n: (n.changed_at or 0, n.rank))
        step = first.changed_at or 0
        text = (f"The weights of rank {first.rank} changed before the update of step {step}, "
                f"outside of the optimizer, and those of other ranks did not: "
                f"{', '.join(first.tensors)}.")  # fmt: skip
        return _finding(step, (step, step), text), first.rank
    counts = Counter(n.weights for n in news)
    if len(counts) == 1:
        return None
    common, n_common = counts.most_common(1)[0]
    apart = [n.rank for n in news if n.weights != common]
    rank = apart[0] if len(apart) == 1 and n_common > 1 else -1
    step = news[0].step
    text = f"The ranks held different weights after step {step}: {len(counts)} different digests."
    return _finding(step, (0, step), text), rank


def _finding(step: int, interval: tuple[int, int], text: str) -> Finding:
    return Finding(
        step=step, interval=interval, kind="replica_divergence", confidence=_CERTAIN,
        severity="bad", evidence=(text,),
    )  # fmt: skip
