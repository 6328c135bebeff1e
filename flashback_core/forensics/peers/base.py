"""Peer: a rule that marks the rows at which it alarms, as a detector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from flashback_core.errors import NoBaselineError
from flashback_core.evaluate import episodes
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.table import StepTable

__all__ = ["CalibratedPeer", "Peer", "column", "innovations", "log_scaled"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Ints = npt.NDArray[np.int64]

BUDGET = 10.0
"""False-alarm episodes per 100 000 healthy training steps that a calibrated rule may give."""


class Peer(ABC):
    """A rule of others.

    Attributes:
        name: What it is called in tables.
        doc: The rule in one line, with its published settings.
        needs: Package that it imports; empty for none.
    """

    name: ClassVar[str]
    doc: ClassVar[str]
    needs: ClassVar[str] = ""
    version = "peer"

    @abstractmethod
    def alarms(self, table: StepTable) -> Bools:
        """Whether the rule alarms at each row."""

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Self:
        """Nothing to fit: the published settings stand."""
        return self

    def predict(self, index: StepTable) -> DetectionReport:
        """Report the first row of each alarm, alarms more than 50 steps apart."""
        rows = np.flatnonzero(self.alarms(index))
        steps = index.steps[rows]
        starts = steps[np.diff(steps, prepend=-(10**9)) > 50]
        findings = tuple(
            Finding(step=int(s), interval=(int(s), int(s)), kind="alarm", confidence=0.5,
                    severity="bad", evidence=(f"{self.name} alarmed at step {int(s)}.",))
            for s in starts
        )  # fmt: skip
        return DetectionReport(
            status="bad" if findings else "healthy",
            n_steps=len(index),
            first_step=int(index.steps[0]) if len(index) else None,
            last_step=int(index.steps[-1]) if len(index) else None,
            findings=findings,
            detector={"name": self.name, "version": self.version},
            source=index.source,
        )

    def __repr__(self) -> str:
        """The name."""
        return f"{type(self).__name__}()"


class CalibratedPeer(Peer):
    """A rule without a published threshold: the training split gives one, at a stated budget."""

    threshold: float = float("inf")

    @abstractmethod
    def score(self, table: StepTable) -> Floats:
        """Score of each row."""

    def alarms(self, table: StepTable) -> Bools:
        """Rows at or above the threshold."""
        return np.asarray(self.score(table) >= self.threshold)

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Self:
        """Take the lowest threshold with at most `BUDGET` false alarms on the training steps.

        Raises:
            NoBaselineError: If no healthy step has a score above 0.
        """
        healthy = []
        for table, bad in zip(indexes, first_bad_steps, strict=True):
            stop = len(table) if bad is None else int(np.searchsorted(table.steps, bad))
            healthy.append((table.steps[:stop], self.score(table)[:stop]))
        self.threshold = _threshold(healthy)
        if self.threshold <= 0:
            msg = f"{self.name}: no healthy step of the {len(indexes)} runs has a score above 0"
            raise NoBaselineError(msg)
        return self


def _threshold(healthy: Sequence[tuple[Ints, Floats]]) -> float:
    """The lowest threshold within the budget, by halving among the scores that occur."""
    if not healthy:
        return 0.0
    scores = np.unique(np.concatenate([score for _, score in healthy]))
    allowed = BUDGET * sum(len(steps) for steps, _ in healthy) / 100_000
    low, high = 0, len(scores) - 1  # the highest score is always allowed: it is one more
    while low < high:
        middle = (low + high) // 2
        count = sum(episodes(steps[score > scores[middle]]) for steps, score in healthy)
        low, high = (low, middle) if count <= allowed else (middle + 1, high)
    return float(np.nextafter(scores[low], np.inf)) if scores[low] > 0 else 0.0


def column(table: StepTable, name: str) -> Floats:
    """A column as float64; NaN throughout where it is missing."""
    if name not in table:
        return np.full(len(table), np.nan)
    return np.asarray(table.column(name), np.float64)


def log_scaled(x: Floats) -> Floats:
    """Logarithm of a positive series, the last finite value where there is none."""
    known = np.isfinite(x) & (x > 0)
    if not known.any():
        return np.zeros(len(x))
    last = np.maximum.accumulate(np.where(known, np.arange(len(x)), 0))
    filled = np.where(known[last], x[last], x[known][0])
    return np.asarray(np.log(filled))


def innovations(x: Floats, *, window: int = 48, scale: int = 64) -> Floats:
    """Distance from the median of the `window` values before, in units of its own recent size.

    Zero where there is no full window yet; clipped at 20 units.
    """
    n = len(x)
    out = np.zeros(n)
    if n <= window + 8:
        return out
    before = np.lib.stride_tricks.sliding_window_view(x, window)[:-1]
    step = x[window:] - np.median(before, axis=1)
    size = np.full(len(step), np.nan)
    for i in range(8, len(step)):
        size[i] = 1.4826 * np.median(np.abs(step[max(0, i - scale) : i]))
    known = np.isfinite(size)
    out[window:][known] = step[known] / np.maximum(size[known], 1e-9)
    return np.clip(out, -20.0, 20.0)
