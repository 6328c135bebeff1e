"""What of the model lies on this rank, watched from the end of a step to the next update."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import xxhash

from flashback_core.sketch.parameters import stepped_parameters
from flashback_core.sketch.sharded import local_part
from flashback_core.watch.state import Named, TensorWatch, digests
from flashback_plugins._lightning_news import STATE, WEIGHTS, Change

__all__ = ["Continuity"]

_MOST_NAMES = 5
_MOST_CHANGES = 16


_Tensors = tuple[Callable[[], list[tuple[object, ...]]], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class _Found:
    tensors: list[torch.Tensor]
    named: Named


class Continuity:
    """Digests of weights, and of optimizer state where it is asked for, from step to step.

    A part that is one number, or that lies on a device, is not watched.

    Args:
        optimizers: Those that step.
        name_of: Name of a parameter.
        with_state: Whether to watch the optimizer state too.

    Attributes:
        changes: What was found changed since the last `clear`, at most 16.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        name_of: Callable[[torch.Tensor], str],
        *,
        with_state: bool,
    ) -> None:
        self._optimizers, self._name_of = optimizers, name_of
        kinds: dict[str, Callable[[torch.optim.Optimizer], _Tensors]] = {WEIGHTS: self._weights}
        if with_state:
            kinds[STATE] = self._state
        self._find = kinds
        self._watches = {(i, what): TensorWatch() for i in range(len(optimizers)) for what in kinds}
        self._lists = {key: _Found([], []) for key in self._watches}
        self._is_new = [False] * len(optimizers)  # whether an update was seen and not looked at
        self.changes: list[Change] = []

    def look(self, i: int, step: int) -> None:
        """Just before optimizer `i` makes the update of `step`: is all as the last one left it?"""
        if not self._is_new[i]:
            return
        self._is_new[i] = False
        for what in self._find:
            changed = self._watches[i, what].start(self._tensors(i, what))
            if changed and len(self.changes) < _MOST_CHANGES:
                names = tuple(self._words(key) for key in changed[:_MOST_NAMES])
                self.changes.append(Change(step=step, what=what, tensors=names))

    def keep(self, i: int) -> None:
        """Remember how the update of optimizer `i` leaves things."""
        self._is_new[i] = True
        for what in self._find:
            self._watches[i, what].end(self._tensors(i, what))

    def clear(self) -> None:
        """The changes have been told."""
        self.changes.clear()

    @property
    def is_watching(self) -> bool:
        """Whether anything that could be found changed lies on this rank."""
        named = [t for i in range(len(self._optimizers)) for _, t in self._tensors(i, WEIGHTS)]
        return any(t.device.type == "cpu" and t.numel() > 1 for t in named)

    def weights(self) -> int:
        """Digest of all weights on this rank; 0 where some are not in host memory."""
        tensors = [t.detach() for i in range(len(self._optimizers))
                   for _, t in self._tensors(i, WEIGHTS)]  # fmt: skip
        if any(t.device.type != "cpu" for t in tensors):
            return 0
        return xxhash.xxh3_64_intdigest(digests(tensors).tobytes())

    def _tensors(self, i: int, what: str) -> Named:
        """The same list object as long as the tensors are the same ones."""
        keys, tensors = self._find[what](self._optimizers[i])
        last = self._lists[i, what]
        if len(tensors) == len(last.tensors) and all(map(operator.is_, tensors, last.tensors)):
            return last.named
        self._lists[i, what] = _Found(tensors, list(zip(keys(), tensors, strict=True)))
        return self._lists[i, what].named

    def _weights(self, optimizer: torch.optim.Optimizer) -> _Tensors:
        parameters = stepped_parameters(optimizer)
        return lambda: [(p,) for p in parameters], [_here(p) for p in parameters]

    def _state(self, optimizer: torch.optim.Optimizer) -> _Tensors:
        found = [
            ((name, parameter), value)
            for parameter, state in optimizer.state.items()
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and value.dim()
        ]
        return lambda: [key for key, _ in found], [_here(value) for _, value in found]

    def _words(self, key: tuple[object, ...]) -> str:
        *moment, parameter = key
        name = self._name_of(parameter) if isinstance(parameter, torch.Tensor) else "?"
        return f"{moment[0]} of {name}" if moment else name


def _here(tensor: torch.Tensor) -> torch.Tensor:
    """The part of `tensor` that lies on this rank: the same object, as long as it does."""
    return tensor if type(tensor) in (torch.Tensor, torch.nn.Parameter) else local_part(tensor)
