"""The detector's compiled kernels, where they can be had (extra ``fast``)."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Kernels", "kernels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The compiled functions.

    Attributes:
        score_pass: Scores of a block of rows.
        sort_windows: Puts the windows of `score_pass` in order.
        median_pass: Medians of two windows in order and one value more.
        width: Room that it takes for a window.
        reduce_pass: Statistics of a block of rows.
        histogram_pass: Moments of histograms.
        fill_pass: Fills holes in features.
    """

    score_pass: Callable[..., None]
    sort_windows: Callable[..., None]
    median_pass: Callable[..., None]
    width: int
    reduce_pass: Callable[..., None]
    histogram_pass: Callable[..., None]
    fill_pass: Callable[..., None]


def kernels(*, is_worth_it: bool) -> Kernels | None:
    """The compiled functions, loaded if need be; None to go on with numpy.

    None where numba is not installed, where it does not work or finds no folder to keep kernels in,
    and under ``FLASHBACK_BACKEND=flat``. Loading takes a fraction of a second, the first time on a
    machine some seconds, in which numba compiles.

    Args:
        is_worth_it: Whether to load numba for it, if nobody else did yet.
    """
    if os.environ.get("FLASHBACK_BACKEND") == "flat":
        return None
    if not is_worth_it and "numba" not in sys.modules:
        return None
    return _loaded()


@lru_cache(1)
def _loaded() -> Kernels | None:
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        from flashback_core.detectors import (
            feature_kernels,
            reduction_kernels,
            score_kernels,
            window_kernels,
        )
    except Exception:  # whatever is wrong with numba here, numpy gives the same numbers
        return None
    return Kernels(
        score_pass=score_kernels.score_pass,
        sort_windows=score_kernels.sort_windows,
        median_pass=window_kernels.median_pass,
        width=score_kernels.WIDTH,
        reduce_pass=reduction_kernels.reduce_pass,
        histogram_pass=feature_kernels.histogram_pass,
        fill_pass=feature_kernels.fill_pass,
    )
