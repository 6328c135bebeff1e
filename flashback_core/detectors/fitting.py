"""Fitting: levels, their tail and the confidence, from runs whose first bad step is known."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.calibration import Confidence, Tail, block_maxima, level_of, peaks
from flashback_core.detectors.series import Series
from flashback_core.errors import NoBaselineError
from flashback_core.table import StepTable

__all__ = ["Fitted", "fitted"]

Floats = npt.NDArray[np.float64]

FOLDS = 6
"""Parts that the kinds are divided into; each is judged by levels of the others."""
LOWEST = 0.8
"""Ratios from which on alarms are collected for the confidence."""
RIGHT = 2
"""Steps by which a finding may be off."""
FEW = 12
"""Findings below which a confidence is not fitted."""


@dataclass(frozen=True)
class Fitted:
    """What `FirstBadStepDetector.fit` sets."""

    levels: dict[str, float]
    tail: Tail
    confidence: Confidence


@dataclass(frozen=True)
class _Healthy:
    """Block maxima of the healthy rows of a run, (statistics, blocks)."""

    names: tuple[str, ...]
    maxima: Floats
    rows: int
    kind: Hashable
    counts: bool


def fitted(
    tables: Sequence[StepTable],
    first_bad_steps: Sequence[int | None],
    kinds: Sequence[Hashable] | None,
    *,
    min_steps: int,
) -> Fitted:
    """See `FirstBadStepDetector.fit`."""
    labels = list(range(len(tables))) if kinds is None else list(kinds)
    runs = [
        healthy
        for table, bad, kind in zip(tables, first_bad_steps, labels, strict=True)
        for healthy in _healthy_of(table, bad, kind)
    ]
    if not any(run.maxima.size and run.maxima.max() > 0 for run in runs):
        msg = (
            f"the {len(tables)} runs hold no healthy step with a score; give runs with more than "
            f"{min_steps} healthy steps each"
        )
        raise NoBaselineError(msg)
    levels = levels_of(runs)
    tail = _tail(runs)
    confidence = _confidence(tables, first_bad_steps, levels)
    return Fitted(levels, tail, confidence)


def _healthy_of(table: StepTable, bad: int | None, kind: Hashable) -> Iterator[_Healthy]:
    """The run as it is, and for the sake of runs that come without one, without learning rate.

    A run whose rate jumped where nobody said so is no healthy run to those who do not see the rate:
    there it counts as it is only.
    """
    from flashback_core.detectors.first_bad_step import series_of

    stop = len(table) if bad is None else int(np.searchsorted(table.steps, bad))
    without = [name for name in table if name != "lr"]
    for part, counts in ((table[:stop], True), (table[:stop][without], False)):
        for _, rows in series_of(part):
            names = (*rows.names, *rows.exact_names)
            series = Series(names, {}, Confidence())
            maxima = block_maxima(series.values(rows, table.events))
            yield _Healthy(series.statistics.names, maxima, len(rows), kind, counts)
            if counts and _rate_moved(series):
                return


def _rate_moved(series: Series) -> bool:
    """Whether something was found on the learning rate."""
    return any(m.metric == "lr" for f in series.findings() for m in f.top_metrics)


def levels_of(runs: Sequence[_Healthy]) -> dict[str, float]:
    """Level of each statistic."""
    found: dict[str, list[Floats]] = {}
    for run in runs:
        for name, maxima in zip(run.names, peaks(run.maxima), strict=True):
            found.setdefault(name, []).append(maxima)
    return {
        name: round(level_of(np.concatenate(parts)), 4) for name, parts in sorted(found.items())
    }


def _tail(runs: Sequence[_Healthy]) -> Tail:
    """Tail of the largest ratio, each kind judged by levels in which it had no part."""
    kinds = sorted({run.kind for run in runs}, key=str)
    folds = min(FOLDS, len(kinds))
    rows, found = 0, []
    for fold in range(folds):
        mine = set(kinds[fold::folds])
        others = [run for run in runs if run.kind not in mine] or list(runs)
        levels = levels_of(others)
        for run in runs:
            if run.kind in mine and run.counts and run.maxima.size:
                by = np.array([levels.get(name, np.inf) for name in run.names])
                found.append(peaks((run.maxima / by[:, None]).max(axis=0)))
                rows += run.rows
    return Tail.of(np.concatenate(found), rows)


def _confidence(
    tables: Sequence[StepTable], first_bad_steps: Sequence[int | None], levels: dict[str, float]
) -> Confidence:
    """How often alarms of a ratio and a belief were right within two steps."""
    from flashback_core.detectors.first_bad_step import series_of

    found: list[tuple[float, float, bool]] = []
    for table, bad in zip(tables, first_bad_steps, strict=True):
        for _, rows in series_of(table):
            series = Series((*rows.names, *rows.exact_names), levels, Confidence(), scale=LOWEST)
            series.update(rows, table.events)
            series.finish()
            for step, ratio, near in series.statistics.dated[:1]:
                found.append((ratio, near, bad is not None and abs(step - bad) <= RIGHT))
    if len(found) < FEW or len({right for _, _, right in found}) < 2:
        return Confidence()
    return Confidence.fitted(
        [ratio for ratio, _, _ in found], [near for _, near, _ in found], [ok for *_, ok in found]
    )
