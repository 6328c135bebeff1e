"""The first step at which two runs part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
        rtol: Relative difference that counts as equal; 0 compares bit for bit (NaN equals NaN).

    Raises:
        SourceError: If the runs have no metric or no step in common.
    """
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
        x, y = a[name][rows_a[:first]], b[name][rows_b[:first]]
        same = np.isclose(x, y, rtol=rtol, atol=0.0, equal_nan=True)
        if not same.all():
            first = int(np.argmin(same)) + 1
    if first == len(common) and _equal_at(a, b, names, rows_a[-1], rows_b[-1], rtol):
        return Parting(step=None, metrics=(), n_common=len(common), n_metrics=len(names))
    i, j = rows_a[first - 1], rows_b[first - 1]
    differ = tuple(
        (n, float(a[n][i]), float(b[n][j])) for n in names if not _close(a[n][i], b[n][j], rtol)
    )
    step = int(common[first - 1])
    return Parting(step=step, metrics=differ, n_common=len(common), n_metrics=len(names))


def _close(x: float, y: float, rtol: float) -> bool:
    return bool(np.isclose(x, y, rtol=rtol, atol=0.0, equal_nan=True))


def _equal_at(a: StepTable, b: StepTable, names: list[str], i: int, j: int, rtol: float) -> bool:
    return all(_close(a[n][i], b[n][j], rtol) for n in names)
