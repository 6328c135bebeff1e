"""Moments: the state of one optimizer as a flat list of tensors, and its step counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import is_, methodcaller
from typing import Any

import torch

from flashback_core.sketch.sharded import local_part
from flashback_core.watch.state import Key, Named

__all__ = ["Moments"]

_HABIT_STEPS = 3
_LARGEST = 2**53

_values: Callable[[Any], Any] = methodcaller("values")


class Moments:
    """The state of an optimizer, listed anew only when an entry of it was replaced.

    Args:
        optimizer: The optimizer that steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._entries: list[object] = []
        self._tensors: Named = []
        self._counts: list[Callable[[], float]] | None = []
        self._numbers: list[tuple[Key, Mapping[str, Any]]] = []
        self._kept: dict[Key, float] = {}
        self._habit: set[Key] = set()
        self._steps = 0
        self._fewest: int | None = None

    def tensors(self) -> Named:
        """State tensors in host memory by (name of the moment, name of the parameter).

        The same list object as long as they are the same tensors.
        """
        # all of it runs in C: this is asked for twice a step
        entries = [*chain.from_iterable(map(_values, self._optimizer.state.values()))]
        if len(entries) != len(self._entries) or not all(map(is_, entries, self._entries)):
            self._entries = entries
            self._list()
        return self._tensors

    @property
    def listed(self) -> Named:
        """What `tensors` gave last time."""
        return self._tensors

    def _list(self) -> None:
        found: Named = []
        counts: list[Any] = []
        self._numbers = []
        for key, value, state in self._items():
            if isinstance(value, torch.Tensor):
                if value.dim() or _is_at_hand(value):
                    tensor = value if type(value) is torch.Tensor else local_part(value)
                    found.append((key, tensor))
            elif key[0] == "step" and isinstance(value, (int, float)):
                self._numbers.append((key, state))
            if key[0] == "step":
                counts.append(value)
        self._counts = _readers(counts) if all(map(_is_at_hand, counts)) else None
        last = self._tensors
        if len(found) != len(last) or any(
            a is not b for (_, a), (_, b) in zip(found, last, strict=True)
        ):
            self._tensors = found

    def _items(self) -> Iterator[tuple[Key, Any, Mapping[str, Any]]]:
        for parameter, state in self._optimizer.state.items():
            for name, value in state.items():
                yield (name, parameter), value, state

    def fewest_steps(self, *, changed: bool) -> int:
        """The smallest step count; -1 where none is in host memory.

        Args:
            changed: Whether anything in the state is not as `end` saw it; else what `end` read
                still holds.
        """
        if changed or self._fewest is None:
            return self._read()
        return self._fewest

    def _read(self) -> int:
        if self._counts is None:
            return -1
        known = [read() for read in self._counts]
        known += [float(state["step"]) for _, state in self._numbers]
        lowest = min(known, default=-1.0)
        return int(lowest) if math.isfinite(lowest) and 0 <= lowest < _LARGEST else -1

    def end(self) -> None:
        """Remember the step counts as a step leaves them."""
        self._kept = {key: state["step"] for key, state in self._numbers}
        self._fewest = self._read()

    def start(self) -> list[Key]:
        """Keys of the plain step counts that are not as `end` saw them."""
        if not self._kept:
            return []
        now = {key: state["step"] for key, state in self._numbers}
        changed = [k for k, n in now.items() if k in self._kept and n != self._kept[k]]
        self._steps += 1
        if self._steps <= _HABIT_STEPS:
            self._habit.update(changed)
        return [key for key in changed if key not in self._habit]


def _is_at_hand(value: object) -> bool:
    """Whether `value` is read without waiting for a device."""
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and value.device.type == "cpu" and value.numel() == 1
    return isinstance(value, (int, float))


def _readers(counts: list[Any]) -> list[Callable[[], float]]:
    """How to read each count that is a tensor, now and at later steps."""
    tensors = [c.detach() for c in counts if isinstance(c, torch.Tensor)]
    return [_reader(t) for t in tensors]


def _reader(tensor: torch.Tensor) -> Callable[[], float]:
    if tensor.dtype in (torch.float32, torch.float64, torch.int64):
        return tensor.numpy().item  # a view of the same memory, much quicker to read
    return tensor.item
