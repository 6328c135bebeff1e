"""Statistical findings: the first step at which a run's own statistics leave their thresholds.

Rows come in stretches. An alarm waits until `AHEAD` rows after it are there, which say whether it
was a single odd batch and help to date it. What is kept of the past has a fixed size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.alarm import STRONG, Alarm, finding_of_alarm, odd_batch, strongest
from flashback_core.detectors.dating import AHEAD, date
from flashback_core.detectors.evidence import Moves
from flashback_core.detectors.feature_stream import FeatureStream
from flashback_core.detectors.features import Features
from flashback_core.detectors.history import History
from flashback_core.detectors.reduction import ALL, Reduction
from flashback_core.detectors.score_stream import SCALES, ScoreStream
from flashback_core.detectors.signature import EXACT, NUMBERS, ROWS, numbers_of
from flashback_core.report.model import Finding
from flashback_core.table import StepTable

__all__ = ["StatisticStream"]

Floats = npt.NDArray[np.float64]
Masks = Callable[[int, int, int], npt.NDArray[np.bool_]]
"""(first row, rows, rows of the test) → where a declared event silences the test."""

CALM = 3
"""Rows after a single odd batch at which nothing may speak any more."""
STAYS = 0.5
"""Share of a move that is still there afterwards if it is no odd batch."""
BATCH_FAMILIES = frozenset({"gradient", "loss", "composition", "sign"})
"""Families that a single odd batch moves, in the gradient alone, with no fault behind it."""
EPISODE = 64
"""Rows without an alarm after which another one is news."""
AFTER_BAD = 160
"""Rows after a finding for which alarms are taken for what follows from it."""
KEPT = 320
"""Rows that dating and evidence may look back on."""
_RECENT = 64
_SIGNATURES = 64
"""Steps whose numbers are kept."""
_ROWS = 256
"""Rows that are worked on at a time."""
_TESTS = tuple(SCALES)


class StatisticStream:
    """The statistics of a run as its rows come.

    Args:
        names: Columns of the run.
        levels: By statistic; one without a level has no say.
        masks: Where declared events silence a test.
        confidence: Confidence in an alarm, by its ratio and the belief in its date.
        scale: A statistic speaks from so many times its level on.

    Attributes:
        masks: Where declared events silence a test.
        dated: Step, ratio to its level and belief of the last findings.
        numbers: By step of a finding, what the metrics did from it on (`signature.numbers_of`).
    """

    def __init__(
        self,
        names: tuple[str, ...],
        levels: Mapping[str, float],
        masks: Masks,
        confidence: Callable[[float, float], float],
        scale: float = 1.0,
    ) -> None:
        self._features = FeatureStream(names)
        n = len(self._features.items)
        floor = Features(self._features.items, np.empty((n, 0))).floor
        self._scores = ScoreStream(floor)
        self._reduction = Reduction(self._features.items)
        known = [levels.get(name, np.inf) * scale for name in self._reduction.names]
        self._thresholds = np.array(known).reshape(-1, 1)
        self.masks, self._confidence, self._scale = masks, confidence, scale
        self._family = np.array([item.family for item in self._features.items], dtype=np.str_)
        self._x, self._point = History((n,), KEPT), History((n,), KEPT)
        self._raw = History((len(self._features.columns),), KEPT)
        self._steps = History((), KEPT, np.int64)
        self._ratios = History((len(self._reduction.names),), _RECENT)
        self._exact_names = [(i, name) for i, name in enumerate(EXACT) if name in names]
        self._exact = History((len(self._exact_names),), KEPT)
        self._watched: list[tuple[int, int]] = []  # row and step of findings
        self.numbers: dict[int, Floats] = {}
        self._waiting: list[tuple[int, Floats, Floats]] = []
        self.dated: list[tuple[int, float, float]] = []
        self._last_alarm = -EPISODE
        self._last_bad = -AFTER_BAD

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the statistics."""
        return self._reduction.names

    @property
    def n_judged(self) -> int:
        """Statistics of features that have had a value and that have a level."""
        begun = self._features.first >= 0
        families = set(self._family[begun].tolist()) | ({ALL} if begun.any() else set())
        has_level = np.isfinite(self._thresholds[:, 0])
        return sum(
            bool(known) and name.split("/")[0] in families
            for name, known in zip(self.names, has_level, strict=True)
        )

    @property
    def n_rows(self) -> int:
        """Rows that came so far."""
        return self._x.stop

    def row_of(self, step: int) -> int:
        """Row of a step among the last `KEPT` rows; the first of them for one before."""
        first = self._steps.first_of(0)
        return first + int(np.searchsorted(self._steps.rows(0, self._x.stop), step))

    @property
    def tests(self) -> npt.NDArray[np.int64]:
        """Test of each statistic, as its place in `SCALES`."""
        return self._reduction.tests

    def update(self, table: StepTable, bad_rows: tuple[int, ...] = ()) -> list[Finding]:
        """Findings whose time has come, after the rows of `table`.

        Args:
            table: The next rows.
            bad_rows: Rows of certain findings, near which an alarm says nothing new.
        """
        found: list[Finding] = []
        for start in range(0, len(table), _ROWS):
            part = table[start : start + _ROWS] if len(table) > _ROWS else table
            self.values(part)
            self._measure(self._x.stop - ROWS + 1)
            found += self._due(self._x.stop - AHEAD, bad_rows)
        return found

    def finish(self, bad_rows: tuple[int, ...] = ()) -> list[Finding]:
        """Findings that still wait for rows which will not come."""
        self._measure(self._x.stop)
        return self._due(self._x.stop + 1, bad_rows)

    def watch(self, row: int, step: int) -> None:
        """Work out `numbers` for a finding at `row`, once the rows after it are there."""
        self._watched = [*self._watched[1 - _SIGNATURES :], (row, step)]

    def _measure(self, before: int) -> None:
        """The numbers of the watched rows below `before`."""
        due = [w for w in self._watched if w[0] < before]
        self._watched = [w for w in self._watched if w[0] >= before]
        for row, step in due:
            self._note(row, step)

    def _note(self, row: int, step: int) -> None:
        """The numbers from `row` on, if they are still there and the row has this step."""
        first = self._steps.first_of(max(row - 1, 0))
        if row - 1 < first or self._step(row) != step:
            return
        stop = min(row + ROWS, self._x.stop)
        exact = np.full((len(EXACT), stop - row + 1), np.nan)
        exact[[i for i, _ in self._exact_names]] = self._exact.rows(row - 1, stop)
        raw, columns = self._raw.rows(row - 1, stop), self._features.columns
        lr = raw[columns.index("lr")] if "lr" in columns else np.empty(0)
        z = self._point.rows(row, stop)
        self.numbers.pop(step, None)
        self.numbers[step] = numbers_of(self._features.items, z, lr, exact)
        for old in list(self.numbers)[:-_SIGNATURES]:
            del self.numbers[old]

    def values(self, table: StepTable) -> Floats:
        """Take in the rows of `table`; return their statistics, (statistics, rows)."""
        x = self._features.update(table)
        z, score = self._scores.update(x, self._features.first)
        statistics = self._reduction(z, score)
        ratios = statistics / self._thresholds
        if len(ratios) and ratios.max(initial=0.0) >= 1.0:
            rows = np.flatnonzero((ratios >= 1.0).any(axis=0)).tolist()
            self._waiting += [
                (self._x.stop + row, z[..., row].copy(), score[..., row].copy()) for row in rows
            ]
        self._x.push(x)
        self._point.push(z[0])
        self._raw.push(self._features.raw)
        self._exact.push(self._exact_of(table))
        self._steps.push(np.asarray(table.steps, np.int64))
        self._ratios.push(ratios)
        return statistics

    def _exact_of(self, table: StepTable) -> Floats:
        columns = [np.asarray(table.column(name), np.float64) for _, name in self._exact_names]
        return np.stack(columns) if columns else np.empty((0, len(table)))

    def silenced(self, values: Floats, first: int) -> Floats:
        """Statistics or ratios at the rows from `first` on, 0 where a test has no say."""
        values = values.copy()
        for k, rows in enumerate(SCALES.values()):
            mask = self.masks(first, values.shape[1], rows)
            if mask.any():
                values[np.ix_(self._reduction.tests == k, mask)] = 0.0
        return values

    def _silenced_ratios(self, first: int, n: int) -> Floats:
        return self.silenced(self._ratios.rows(first, first + n), first)

    # -- alarms ------------------------------------------------------------------------------

    def _due(self, before: int, bad_rows: tuple[int, ...]) -> list[Finding]:
        found = []
        while self._waiting and self._waiting[0][0] < before:
            row, z, score = self._waiting.pop(0)
            ratios = self._silenced_ratios(row, 1)[:, 0]
            best = int(np.argmax(ratios))
            alarm = Alarm(row, self._reduction.names[best], float(ratios[best]), z, score)
            if alarm.ratio < 1.0:
                continue
            is_news = row - self._last_alarm >= EPISODE and row - self._last_bad >= AFTER_BAD
            is_news = is_news and not any(b + 2 < row < b + AFTER_BAD for b in bad_rows)
            self._last_alarm, before_it = row, self._last_alarm
            if is_news:
                finding = self._finding_of(alarm)
                if finding.severity == "bad":
                    self._last_bad = row
                else:
                    self._last_alarm = before_it  # an odd batch hides nothing after it
                found.append(finding)
        return found

    def _finding_of(self, alarm: Alarm) -> Finding:
        finding = self._dated(alarm)
        if not self._is_odd_batch(alarm):
            return finding
        self.dated.pop()  # information, which has no confidence to be fitted
        return odd_batch(finding, self._step(alarm.row), CALM)

    def _is_odd_batch(self, alarm: Alarm) -> bool:
        """Whether only the gradient of this one step was odd, and all was well right after it.

        Heavy-tailed data has such batches; a fault moves an update, a peak or more than one step.
        """
        speaking = np.flatnonzero(self._ratios.rows(alarm.row, alarm.row + 1)[:, 0] >= 1.0)
        parts = [self._reduction.names[i].split("/") for i in speaking]
        families = {family for family, _, _ in parts} - {ALL}  # `ALL` repeats the others
        if "histogram" in families and self._all_gradients_moved(alarm):
            families -= {"histogram"}
        n = min(CALM, self._x.stop - alarm.row - 1)
        after = self._silenced_ratios(alarm.row + 1, max(n, 0))
        return (
            bool(families)
            and families <= BATCH_FAMILIES
            and all(test == "point" for _, test, _ in parts)
            and after.shape[1] == CALM
            and bool((after < 1.0).all())
            and not self._stays(alarm)
        )

    def _stays(self, alarm: Alarm) -> bool:
        """Whether what moved at an alarm is still where it moved to in the rows after it.

        Their score falls although: the jump has become part of the feature's own tail.
        """
        score = alarm.score[0]
        moved = score >= STRONG * score.max()
        z = self._point.rows(alarm.row, alarm.row + 1 + CALM)[moved]
        left = np.abs(z[:, 1:]).mean(axis=1) / np.maximum(np.abs(z[:, 0]), 1e-9)
        return bool(np.median(left) >= STAYS)

    def _all_gradients_moved(self, alarm: Alarm) -> bool:
        """Whether most gradients left their own tails together, and no histogram of updates did."""
        score, family = alarm.score[0], self._family
        gradients = score[family == "gradient"]
        after = Features(self._features.items, alarm.z).is_after & (family == "histogram")
        together = bool(gradients.size) and float(np.median(gradients)) >= 1.0
        return together and bool(score[after].max(initial=0.0) <= 1.0)

    def _dated(self, alarm: Alarm) -> Finding:
        """Date an alarm and say what moved."""
        family, test, _ = alarm.statistic.split("/")
        score = alarm.score[_TESTS.index(test)]
        if family == ALL:
            family = str(self._family[int(np.argmax(score))])
        members = strongest(score, self._family, family)
        moves = self._moves(min(alarm.row + AHEAD + 1, self._x.stop))
        values = Features(moves.items, moves.values, moves.start)
        onset = date(values, members, alarm.row, SCALES[test])
        ratio = alarm.ratio * self._scale
        self.dated = [*self.dated[-20:], (self._step(onset.row), ratio, onset.near)]
        self._note(onset.row, self._step(onset.row))
        return finding_of_alarm(
            alarm, family, onset, members, moves, lambda near: self._confidence(ratio, near)
        )

    def _moves(self, stop: int) -> Moves:
        """The rows that are kept, up to `stop`."""
        return Moves(
            items=self._features.items,
            columns=self._features.columns,
            start=self._x.first_of(0),
            steps=self._steps.rows(0, stop),
            values=self._x.rows(0, stop),
            raw=self._raw.rows(0, stop),
            point=self._point.rows(0, stop),
        )

    def _step(self, row: int) -> int:
        return int(self._steps.rows(row, row + 1)[0])

    # -- going on ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that later findings depend on: numbers, and arrays by name."""
        n = len(self._features.items)
        out: dict[str, Any] = {
            "waiting": np.array([row for row, _, _ in self._waiting], np.int64),
            "waiting_z": _stacked([z for _, z, _ in self._waiting], n),
            "waiting_score": _stacked([score for _, _, score in self._waiting], n),
            "dated": np.array(self.dated, np.float64).reshape(-1, 3),
            "last_alarm": self._last_alarm,
            "last_bad": self._last_bad,
            "watched": np.array(self._watched, np.int64).reshape(-1, 2),
            "number_steps": np.array(list(self.numbers), np.int64),
            "numbers": np.array(list(self.numbers.values())).reshape(-1, len(NUMBERS)),
        }
        for name, part in self._parts().items():
            out |= {f"{name}/{key}": value for key, value in part.state().items()}
        return out

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        waiting = (state["waiting"].tolist(), state["waiting_z"], state["waiting_score"])
        self._waiting = list(zip(*waiting, strict=True))
        self.dated = [(int(step), ratio, near) for step, ratio, near in state["dated"].tolist()]
        self._last_alarm, self._last_bad = int(state["last_alarm"]), int(state["last_bad"])
        self._watched = [(int(row), int(step)) for row, step in state["watched"].tolist()]
        self.numbers = dict(
            zip(state["number_steps"].tolist(), np.array(state["numbers"]), strict=True)
        )
        for name, part in self._parts().items():
            size = len(name) + 1
            part.restore({k[size:]: v for k, v in state.items() if k.startswith(f"{name}/")})

    def _parts(self) -> dict[str, Any]:
        return {
            "features": self._features, "scores": self._scores, "x": self._x,
            "point": self._point, "raw": self._raw, "steps": self._steps, "ratios": self._ratios,
            "exact": self._exact,
        }  # fmt: skip


def _stacked(parts: list[Floats], n: int) -> Floats:
    return np.stack(parts) if parts else np.zeros((0, len(SCALES), n))
