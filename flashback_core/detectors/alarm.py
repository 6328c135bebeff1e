"""Alarm: a row at which a statistic is over its threshold, and the finding that becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.dating import Onset
from flashback_core.detectors.evidence import KINDS, Moves, describe, moved_first, worth_telling
from flashback_core.detectors.score_stream import SCALES
from flashback_core.report.model import Finding

__all__ = ["STRONG", "Alarm", "finding_of_alarm", "odd_batch", "strongest"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MEMBERS = 3
"""Features of the family behind an alarm that date it."""
STRONG = 0.4
"""Share of the strongest score that a feature needs to date an alarm."""
TOLD = 3
"""Features that the evidence of a finding describes."""
WIDE = 20
"""Rows of the credible interval beyond which an onset is called gradual."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm.

    Attributes:
        row: Its row.
        statistic: The statistic behind it.
        ratio: Its value in units of the threshold.
        z: Signed deviations of that row, (tests, features).
        score: Their size over the features' own tails, (tests, features).
    """

    row: int
    statistic: str
    ratio: float
    z: Floats
    score: Floats


def finding_of_alarm(
    alarm: Alarm,
    family: str,
    onset: Onset,
    members: Ints,
    moves: Moves,
    confidence: Callable[[float], float],
) -> Finding:
    """The finding of an alarm that has been dated.

    Args:
        alarm: The alarm.
        family: Family of features behind it.
        onset: Its date.
        members: The features that dated it, the strongest first.
        moves: The rows around it.
        confidence: Confidence in an alarm, by the belief in its date.
    """
    z = alarm.z[list(SCALES).index(alarm.statistic.split("/")[1])]
    facts = [_headline(alarm, onset, moves)]
    if onset.last - onset.first > WIDE:
        facts.append("The onset is gradual: no single step explains it.")
    point = moves.at(onset.row)
    for j in worth_telling(moves, onset.row, members.tolist(), TOLD):
        at_onset = abs(point[j]) >= abs(z[j])
        row, value = (onset.row, point[j]) if at_onset else (alarm.row, z[j])
        facts.append(describe(moves, j, row, float(value)))
    return Finding(
        step=moves.step(onset.row),
        interval=(moves.step(onset.first), moves.step(onset.last)),
        kind=KINDS[family],
        confidence=confidence(onset.near),
        severity="bad",
        evidence=tuple(facts),
        top_metrics=moved_first(moves, onset.row),
    )


def odd_batch(finding: Finding, step: int, calm: int) -> Finding:
    """The finding of an alarm that was one odd batch at `step`, with `calm` rows after it."""
    text = (
        f"The gradient of step {step} was unusual, the update and the {calm} steps after it "
        "were not: an odd batch, as heavy-tailed data has them."
    )
    return replace(
        finding, step=step, interval=(step, step), kind="odd_batch", severity="info",
        evidence=(text, *finding.evidence),
    )  # fmt: skip


def _headline(alarm: Alarm, onset: Onset, moves: Moves) -> str:
    family, test, reduction = alarm.statistic.split("/")
    rows = SCALES[test]
    over = "one step" if rows == 1 else f"{rows} steps"
    who = {"largest": "the strongest", "third": "the third strongest"}.get(reduction, "the")
    what = {"rms": "mean square", "consensus": "median over groups"}.get(reduction, "member")
    later = alarm.row - onset.row
    when = f"; it spoke {later} rows after the onset" if later > 0 else ""
    return (
        f"In the {family} family {who} {what} over {over} was {alarm.ratio:.2f} times its "
        f"threshold at step {moves.step(alarm.row)}{when}."
    )


def strongest(score: Floats, family: npt.NDArray[np.str_], first: str) -> Ints:
    """The features that date an alarm: the strongest of each family, and more of the `first`."""
    order = np.argsort(-score, kind="stable")
    mine = order[family[order] == first]
    others = [order[family[order] == other][0] for other in np.unique(family) if other != first]
    chosen = np.concatenate([mine[:MEMBERS], np.array(others, np.int64)])
    return np.asarray(chosen[score[chosen] >= STRONG * score[mine[0]]], np.int64)
