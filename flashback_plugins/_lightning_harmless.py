"""What every hook of the callback goes through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["PART", "harmless"]

PART = "FlashbackCallback"

_F = TypeVar("_F", bound=Callable[..., Any])


def harmless(hook: _F) -> _F:
    """A hook that costs one warning when it fails, and is left out from then on.

    A hook of the same name of `_lightning_ranks.Ranks` comes first, whatever has failed here: the
    other ranks wait for this one.
    """

    @functools.wraps(hook)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        together = getattr(self._ranks, hook.__name__, None)
        if together is not None:
            together(*args, **kwargs)
        if not self._guard.failed(PART):
            with self._guard(PART):
                hook(self, *args, **kwargs)

    return call  # type: ignore[return-value]  # the same call, None instead of an exception
