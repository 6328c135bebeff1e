"""The first step at which two runs part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import SourceError
from flashback_core.table import StepTable

__all__ = ["Parting", "first_difference"]

_TIMES = frozenset({"step_wall_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two runs part.

    Attributes:
        step: First step with a difference, None where all common steps are equal.
        metrics: (metric, value in a, value in b) that differ at that step, in schema order.
        n_common: Steps that both runs have.
        n_metrics: Metrics that were compared.
    """

    step: int | None
    metrics: tuple[tuple[str, float, float], ...]
    n_common: int
    n_metrics: int


def first_difference(a: StepTable, b: StepTable, *, rtol: float = 0.0) -> Parting:
    """Compare two runs step by step over the metrics and steps that both have.

    Args:
        a: One run.
        b: The other.
        rtol: Relative difference that counts as equal; 0 asks for equal values (NaN equals NaN).

    Raises:
        SourceError: If the runs have no metric or no step in common.
        ValueError: If `rtol` is negative or NaN.
    """
    if not rtol >= 0:
        msg = f"rtol {rtol} is negative or NaN; expected 0 (equal) or a relative difference"
        raise ValueError(msg)
    names = [n for n in a.names if n in b.names and n not in _TIMES]
    common, rows_a, rows_b = np.intersect1d(a.steps, b.steps, return_indices=True)
    if not names or not len(common):
        msg = (
            f"{a.source} and {b.source} have {len(names)} metrics and {len(common)} steps in "
            "common; give two recordings of the same model"
        )
        raise SourceError(msg)
    first = len(common)
    for name in names:
        same = _equal(a[name][rows_a[:first]], b[name][rows_b[:first]], rtol)
        first = first if same.all() else int(np.argmin(same))
    counts = {"n_common": len(common), "n_metrics": len(names)}
    if first == len(common):
        return Parting(step=None, metrics=(), **counts)
    step = int(common[first])
    return Parting(step=step, metrics=_differing(a, b, names, step, rtol), **counts)


def _differing(
    a: StepTable, b: StepTable, names: list[str], step: int, rtol: float
) -> tuple[tuple[str, float, float], ...]:
    x, y = a.between(step, step), b.between(step, step)
    return tuple(
        (n, float(x[n][0]), float(y[n][0])) for n in names if not _equal(x[n], y[n], rtol)[0]
    )


def _equal(x: npt.NDArray[Any], y: npt.NDArray[Any], rtol: float) -> npt.NDArray[np.bool_]:
    if rtol:
        return np.asarray(np.isclose(x, y, rtol=rtol, atol=0.0, equal_nan=True))
    return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))
