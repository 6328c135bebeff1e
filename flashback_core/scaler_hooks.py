"""Hooks on a GradScaler: which steps it skips, and with which scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["ScalerHooks"]


class ScalerHooks:
    """Calls back around each ``scaler.step(optimizer)``.

    The method of this one object is wrapped; several of these may be nested and let go in any
    order.

    Args:
        scaler: The scaler; one that is not enabled skips nothing and is left alone.
        before: Called with the scale that is on the gradients.
        after: Called with the optimizer after the step, made or skipped.
    """

    def __init__(
        self,
        scaler: torch.amp.GradScaler,
        before: Callable[[float], None],
        after: Callable[[Any], None],
    ) -> None:
        self._before, self._after = before, after
        self._scaler = scaler
        self._wrapper: Callable[..., Any] | None = None
        self._active = scaler.is_enabled()
        if self._active:
            self._wrap(scaler.step)

    def _wrap(self, original: Callable[..., Any]) -> None:
        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._active:
                self._before(float(self._scaler.get_scale()))
            result = original(optimizer, *args, **kwargs)
            if self._active:
                self._after(optimizer)
            return result

        self._wrapper = step
        self._scaler.step = step  # type: ignore[method-assign]  # of this object only

    @property
    def enabled(self) -> bool:
        """Whether the scaler can skip steps."""
        return self._scaler.is_enabled()

    def remove(self) -> None:
        """Call back no more. The class's own method is there again if nobody wrapped ours."""
        self._active = False
        if self._wrapper is not None and self._scaler.__dict__.get("step") is self._wrapper:
            del self._scaler.step
        self._wrapper = None
