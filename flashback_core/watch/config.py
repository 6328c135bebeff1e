"""ConfigWatch: hyper-parameters, train/eval flags, dropout rates and who is frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter, is_, itemgetter, methodcaller
from typing import Any

import torch
import xxhash

__all__ = ["ConfigWatch"]

_SCHEDULED = {"lr", "initial_lr", "max_lr", "min_lr", "params", "param_names"}
_HABIT = 3

Config = dict[str, Hashable]

_training, _p, _trains = itemgetter("training"), attrgetter("p"), attrgetter("requires_grad")
_values: Callable[[Any], Any] = methodcaller("values")


class ConfigWatch:
    """Tells which settings changed since the step before, and gives them one digest.

    Learning rates are left to the metric ``lr``. A setting that changed at three steps is on a
    schedule (momentum in a one-cycle policy) and counts as a setting no more.

    Args:
        model: Its modules' ``training`` flags, their dropout probabilities and its parameters'
            ``requires_grad`` are watched.
        optimizers: Their groups' options are watched.
    """

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        modules = list(model.named_modules())
        self._names = [name or type(model).__name__ for name, _ in modules]
        self._modules = [module for _, module in modules]
        self._rates = [
            (name, module)
            for name, module in modules
            if isinstance(getattr(module, "p", None), float)
        ]
        self._parameters = list(model.named_parameters())
        # what is looked at at every step, with as few objects on the way as there can be
        self._dicts = [module.__dict__ for module in self._modules]
        self._dropouts = [module for _, module in self._rates]
        self._all_parameters = [p for _, p in self._parameters]
        self._changes: Counter[str] = Counter()
        self._last: tuple[Any, ...] | None = None
        self._config: Config = {}
        self._digest = 0
        self._flags_before: list[Any] = []
        self._keys: list[str] | None = None  # of all groups, None where values may change in place
        self._counts: list[bool] = []  # which of the values are settings
        self._values: list[Any] = []

    def look(self) -> tuple[int, dict[str, tuple[Hashable, Hashable]]]:
        """The digest of the configuration, and what changed: name -> (before, now)."""
        if self._is_as_before():
            return self._digest, {}
        now = self._snapshot()
        if now == self._last:
            self._remember()
            return self._digest, {}
        first = self._last is None
        self._last = now
        config = self._named(now)
        changed = {
            name: (self._config.get(name), config.get(name))
            for name in (config.keys() | self._config.keys())
            if self._config.get(name) != config.get(name)
        }
        self._config = config
        if first:
            changed = {}
        self._changes.update(changed.keys())
        settled = {n: v for n, v in config.items() if self._changes[n] < _HABIT}
        self._digest = xxhash.xxh3_64_intdigest(repr(sorted(settled.items())).encode())
        self._remember()
        return self._digest, {n: c for n, c in changed.items() if self._changes[n] <= _HABIT}

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _flags(self) -> list[Any]:
        return [
            *map(_training, self._dicts),
            *map(_p, self._dropouts),
            *map(_trains, self._all_parameters),
        ]

    def _is_as_before(self) -> bool:
        """Whether every setting is the same object as at the last look; runs in C."""
        groups = self._groups()
        if self._keys is None or [*chain.from_iterable(groups)] != self._keys:
            return False
        values = compress(chain.from_iterable(map(_values, groups)), self._counts)
        return all(map(is_, values, self._values)) and self._flags() == self._flags_before

    def _remember(self) -> None:
        """Keep what `_is_as_before` compares with: settings that are not on a schedule."""
        several = len(self._optimizers) > 1
        self._counts = [
            name not in _SCHEDULED and self._changes[f"{name} of {where}"] < _HABIT
            for where, group in _named_groups(self._optimizers, several=several)
            for name in group
        ]
        groups = self._groups()
        values = chain.from_iterable(map(_values, groups))
        self._values = [*compress(values, self._counts)]
        changes_in_place = any(map(_has_list, self._values))
        self._keys = None if changes_in_place else [*chain.from_iterable(groups)]
        self._flags_before = self._flags()

    def _snapshot(self) -> tuple[Any, ...]:
        """All settings as one tuple that is cheap to take and to compare."""
        return (
            tuple(
                _plain(value)
                for optimizer in self._optimizers
                for group in optimizer.param_groups
                for name, value in group.items()
                if name not in _SCHEDULED
            ),
            tuple(module.training for module in self._modules),
            tuple(module.p for _, module in self._rates),
            tuple(p.requires_grad for _, p in self._parameters),
        )

    def _named(self, snapshot: tuple[Any, ...]) -> Config:
        _, training, rates, trainable = snapshot
        config: Config = {}
        for where, group in _named_groups(self._optimizers, several=len(self._optimizers) > 1):
            config |= _options(group, where)
        config |= {f"training of {n}": t for n, t in zip(self._names, training, strict=True)}
        config |= {f"p of {n}": p for (n, _), p in zip(self._rates, rates, strict=True)}
        config |= {
            f"requires_grad of {n}": r
            for (n, _), r in zip(self._parameters, trainable, strict=True)
        }
        return config


def _named_groups(
    optimizers: Sequence[torch.optim.Optimizer], *, several: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    for i, optimizer in enumerate(optimizers):
        for j, group in enumerate(optimizer.param_groups):
            yield f"optimizer {i} group {j}" if several else f"group {j}", group


def _has_list(value: Any) -> bool:
    """Whether `value` may change and stay the same object."""
    if isinstance(value, tuple):
        return any(map(_has_list, value))
    return isinstance(value, list)


def _options(group: Mapping[str, Any], where: str) -> Config:
    return {
        f"{name} of {where}": _plain(value)
        for name, value in group.items()
        if name not in _SCHEDULED
    }


def _plain(value: Any) -> Hashable:
    """A value that compares by content: tensors as their type, lists as tuples."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    return type(value).__name__
