"""Hooks that call the phases of a fault from the model's forward and the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from flashback_core.faults.base import Fault

__all__ = ["LoopHooks"]


class LoopHooks:
    """The hooks of one fault on one loop.

    With a closure (LBFGS, Lightning) the gradients are made inside ``optimizer.step``, so they are
    damaged at the end of the closure.

    Args:
        fault: Whose phases are called.
        model: Its forward opens a step.
        optimizer: Its step closes it.
    """

    def __init__(self, fault: Fault, model: nn.Module, optimizer: Optimizer) -> None:
        """Register all hooks."""
        self._fault = fault
        self._handles = [
            model.register_forward_pre_hook(self._forward),
            optimizer.register_step_pre_hook(self._pre),
            optimizer.register_step_post_hook(self._post),
        ]

    def remove(self) -> None:
        """Leave model and optimizer as they were."""
        for handle in self._handles:
            handle.remove()

    def _forward(self, _module: nn.Module, _args: Any) -> None:
        if torch.is_grad_enabled():  # an evaluation opens no step
            self._fault.on_step_start(self._fault.next_step)

    def _pre(
        self, _optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._fault.on_step_start(self._fault.next_step)
        # hooks get the optimizer itself as the first of `args`
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._ready()
            return None
        wrapped = self._wrapped(closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _wrapped(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            loss = closure()
            self._ready()
            return loss

        return run

    def _ready(self) -> None:
        step = self._fault.next_step
        self._fault.on_gradients(step)
        self._fault.before_update(step)

    def _post(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        step = self._fault.next_step
        self._fault.after_update(step)
        self._fault.next_step = step + 1
