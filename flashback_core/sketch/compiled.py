"""The sketch's compiled kernels, where they can be had (extra ``fast``)."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from types import ModuleType

from flashback_core.warn import Guard

__all__ = ["load_kernels"]


@lru_cache(1)
def load_kernels() -> ModuleType | None:
    """The module of compiled passes; None without numba, or where numba does not work.

    Then everything is worked out in torch and numpy, after one warning if numba is installed.
    """
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        from flashback_core.sketch import kernels
    except Exception as error:  # no folder to keep kernels in, or a numba that does not work here
        Guard().warn("numba", f"numba cannot be used ({type(error).__name__}: {error}); the sketch "
                     "is worked out without it, which takes longer")  # fmt: skip
        return None
    return kernels
