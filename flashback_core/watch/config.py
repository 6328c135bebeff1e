"""ConfigWatch: hyper-parameters, train/eval flags, dropout rates and who is frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
import xxhash

__all__ = ["ConfigWatch"]

_SCHEDULED = {"lr", "initial_lr", "max_lr", "min_lr", "params", "param_names"}
_HABIT = 3

Config = dict[str, Hashable]


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
        self._changes: Counter[str] = Counter()
        self._last: tuple[Any, ...] | None = None
        self._config: Config = {}
        self._digest = 0

    def look(self) -> tuple[int, dict[str, tuple[Hashable, Hashable]]]:
        """The digest of the configuration, and what changed: name -> (before, now)."""
        now = self._snapshot()
        if now == self._last:
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
        return self._digest, {n: c for n, c in changed.items() if self._changes[n] <= _HABIT}

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
        for i, optimizer in enumerate(self._optimizers):
            for j, group in enumerate(optimizer.param_groups):
                where = f"optimizer {i} group {j}" if len(self._optimizers) > 1 else f"group {j}"
                config |= _options(group, where)
        config |= {f"training of {n}": t for n, t in zip(self._names, training, strict=True)}
        config |= {f"p of {n}": p for (n, _), p in zip(self._rates, rates, strict=True)}
        config |= {
            f"requires_grad of {n}": r
            for (n, _), r in zip(self._parameters, trainable, strict=True)
        }
        return config


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
