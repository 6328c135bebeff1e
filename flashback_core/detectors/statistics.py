"""Statistical findings: the first step at which the run's own statistics leave their thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.dating import Onset, date
from flashback_core.detectors.declared import Declared
from flashback_core.detectors.evidence import KINDS, describe, moved_first
from flashback_core.detectors.features import Features, features
from flashback_core.detectors.scores import ALL, EVERY, SCALES, deviations, scores
from flashback_core.report.model import Finding
from flashback_core.table import StepTable

__all__ = ["Alarm", "Statistics", "statistics"]

Floats = npt.NDArray[np.float64]

MEMBERS = 3
"""Features of the family behind an alarm that date it."""
STRONG = 0.4
"""Share of the strongest score that a feature needs to date an alarm."""
CALM = 3
"""Rows after a single odd batch at which nothing may speak any more."""
BATCH_FAMILIES = frozenset({"gradient", "loss", "composition", "sign"})
"""Families that a single odd batch moves, in the gradient alone, with no fault behind it."""
WIDE = 20
"""Rows of the credible interval beyond which an onset is called gradual."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Row of an alarm, the statistic behind it and its value in units of the threshold."""

    row: int
    statistic: str
    ratio: float


@dataclass(frozen=True)
class Statistics:
    """The statistics of a run beside their thresholds.

    Attributes:
        table: The run.
        found: Its features.
        names: Statistics that have a threshold.
        ratios: Their values over the thresholds, 0 where they have no say; (names, rows).
    """

    table: StepTable
    found: Features
    names: tuple[str, ...]
    ratios: Floats

    @property
    def score(self) -> Floats:
        """Largest ratio at each row; 1 is an alarm. Depends on no later row."""
        if not self.names:
            return np.zeros(len(self.table))
        return np.asarray(self.ratios.max(axis=0))

    def alarms(self, before: int) -> Iterator[Alarm]:
        """Alarms at rows below `before`, in order, one per row."""
        for row in np.flatnonzero(self.score[:before] >= 1.0):
            best = int(np.argmax(self.ratios[:, row]))
            yield Alarm(int(row), self.names[best], float(self.ratios[best, row]))

    def first_alarm(self, before: int) -> Alarm | None:
        """The first alarm at a row below `before`."""
        return next(self.alarms(before), None)

    def is_odd_batch(self, alarm: Alarm) -> bool:
        """Whether only the gradient of this one step was odd, and all was well right after it.

        Heavy-tailed data has such batches; a fault moves an update, a peak or more than one step.
        """
        speaking = [self.names[i] for i in np.flatnonzero(self.ratios[:, alarm.row] >= 1.0)]
        parts = [name.split("/") for name in speaking]
        families = {family for family, _, _ in parts} - {ALL}  # `ALL` repeats the others
        after = self.score[alarm.row + 1 : alarm.row + 1 + CALM]
        return (
            bool(families)
            and families <= BATCH_FAMILIES
            and all(test == "point" for _, test, _ in parts)
            and len(after) == CALM
            and bool((after < 1.0).all())
        )

    def finding(self, alarm: Alarm) -> Finding:
        """Date an alarm and say what moved."""
        family, test, _ = alarm.statistic.split("/")
        start = alarm.row // EVERY * EVERY
        both = deviations(self.found, start, alarm.row + 1)[test]
        score = both.score[:, -1]
        if family == ALL:
            family = self.found.items[int(np.argmax(score))].family
        members = _strongest(score, self.found.family, family)
        onset = date(self.found, members, alarm.row, SCALES[test])
        return self._finding(alarm, family, onset, members, both.z[:, -1])

    def odd_batch(self, alarm: Alarm) -> Finding:
        """An odd batch as information."""
        found = self.finding(alarm)
        step = int(self.table.steps[alarm.row])
        text = (
            f"The gradient of step {step} was unusual, the update and the {CALM} steps after it "
            "were not: an odd batch, as heavy-tailed data has them."
        )
        return replace(
            found, step=step, interval=(step, step), kind="odd_batch", severity="info",
            evidence=(text, *found.evidence),
        )  # fmt: skip

    def _finding(
        self, alarm: Alarm, family: str, onset: Onset, members: npt.NDArray[np.int64], z: Floats
    ) -> Finding:
        steps = self.table.steps
        start, stop = onset.row // EVERY * EVERY, min(onset.row + 17, len(self.table))
        point = deviations(self.found, start, stop)["point"].z[:, onset.row - start :]
        facts = [self._headline(alarm, onset)]
        if onset.last - onset.first > WIDE:
            facts.append("The onset is gradual: no single step explains it.")
        for j in members[:3]:
            at = onset.row if abs(point[j, 0]) >= abs(z[j]) else alarm.row
            value = point[j, 0] if at == onset.row else z[j]
            facts.append(describe(self.table, self.found, int(j), at, float(value)))
        return Finding(
            step=int(steps[onset.row]),
            interval=(int(steps[onset.first]), int(steps[onset.last])),
            kind=KINDS[family],
            confidence=confidence(alarm.ratio),
            severity="bad",
            evidence=tuple(facts),
            top_metrics=moved_first(self.table, self.found, point, onset.row),
        )

    def _headline(self, alarm: Alarm, onset: Onset) -> str:
        family, test, reduction = alarm.statistic.split("/")
        rows = SCALES[test]
        over = "one step" if rows == 1 else f"{rows} steps"
        who = {"largest": "the strongest", "third": "the third strongest"}.get(reduction, "the")
        what = {"rms": "mean square", "consensus": "median over groups"}.get(reduction, "member")
        later = alarm.row - onset.row
        when = f"; it spoke {later} rows after the onset" if later > 0 else ""
        return (
            f"In the {family} family {who} {what} over {over} was {alarm.ratio:.2f} times its "
            f"threshold at step {int(self.table.steps[alarm.row])}{when}."
        )


def confidence(ratio: float) -> float:
    """Confidence in an alarm: 0.5 at the threshold, 0.8 at twice it, 0.95 at ten times.

    A weight of evidence, not yet a measured probability: at the threshold, which lies a margin over
    the largest value of all healthy runs of the fit, a finding is as likely as not to be a rare
    healthy step, and each doubling beyond it closes a good half of the distance to 0.97.
    """
    return float(round(0.97 - 0.47 * max(ratio, 1.0) ** -1.3, 4))


def _strongest(score: Floats, family: npt.NDArray[np.str_], first: str) -> npt.NDArray[np.int64]:
    """The features that date an alarm: the strongest of each family, and more of the `first`."""
    order = np.argsort(-score, kind="stable")
    mine = order[family[order] == first]
    others = [order[family[order] == other][0] for other in np.unique(family) if other != first]
    chosen = np.concatenate([mine[:MEMBERS], np.array(others, np.int64)])
    return np.asarray(chosen[score[chosen] >= STRONG * score[mine[0]]], np.int64)


def statistics(
    table: StepTable,
    thresholds: Mapping[str, float],
    events: Declared,
    relearn: Sequence[int] = (),
) -> Statistics:
    """The statistics of `table` in units of their thresholds.

    Args:
        table: The run.
        thresholds: By statistic; one without a threshold has no say.
        events: Declared events, after which the tests are silent for a while.
        relearn: More rows after which they are.
    """
    found = features(table)
    values = scores(found)
    names = tuple(name for name in values if name in thresholds)
    ratios = np.zeros((len(names), len(table)))
    masks = {test: events.masked(rows, relearn) for test, rows in SCALES.items()}
    for i, name in enumerate(names):
        ratios[i] = values[name] / thresholds[name]
        ratios[i, masks[name.split("/")[1]]] = 0.0
    return Statistics(table, found, names, ratios)
