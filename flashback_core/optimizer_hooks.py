"""Hooks on one optimizer: when gradients are final, and when the update has been applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["OptimizerHooks"]


class OptimizerHooks:
    """Calls back before and after each step of `optimizer`.

    With a closure (LBFGS, Lightning) gradients exist only after its first evaluation: the closure
    is wrapped for that one call, and `before` runs right behind the first evaluation.

    Args:
        optimizer: The optimizer that really steps.
        before: Called once per step when its gradients are there.
        after: Called once per step after the update.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        self._before, self._after = before, after
        self._handles = [
            optimizer.register_step_pre_hook(self._pre),
            optimizer.register_step_post_hook(self._post),
        ]

    def _pre(
        self, _optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # hooks get the optimizer itself as the first of `args`
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._before()
            return None
        wrapped = _FirstCall(closure, self._before)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _post(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._after()

    def remove(self) -> None:
        """Leave the optimizer as it was. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _FirstCall:
    """A closure that calls `then` after its first evaluation."""

    def __init__(self, closure: Callable[[], Any], then: Callable[[], None]) -> None:
        self._closure, self._then, self._called = closure, then, False

    def __call__(self) -> Any:
        result = self._closure()
        if not self._called:
            self._called = True
            self._then()
        return result
