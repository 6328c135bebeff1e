"""Does the loss learn at all, and does it keep what it learnt?

Two absolute checks on the loss alone, for logs that hold little else. `divergence`: the loss gave
back more than half of all that it had gained, however slowly, which no trailing baseline shows;
gains count from the last declared change on, since other data have another loss.
`never_learns`: the loss does not fall below its start; that is known at the end only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from flashback_core.baseline import MAD_TO_SIGMA, trailing_median
from flashback_core.bounds import LARGEST, bounded
from flashback_core.detectors.rules.batched import BatchedRule
from flashback_core.detectors.rules.samples import Samples
from flashback_core.detectors.rules.view import Bools, Floats, Ints
from flashback_core.report.model import Finding, MetricScore

__all__ = ["Learning"]

EXCUSED = 64
"""Rows after a declared change in which a divergence is its transient."""
SMOOTH = 5
"""Rows of the median that stands for the loss."""
ROWS_DENSE, ROWS_SPARSE = 100, 20
"""Rows before a run of single steps, and one of sparse logs, can be said to learn nothing."""
GIVEN_BACK = 0.5
"""Share of the gain whose loss is a divergence."""
CLEAR = 4.0
"""Robust deviations of one loss that a gain must have to be one, and its loss likewise."""
SMALL_GAIN = 0.15
"""Share of the first loss below which a gain is none yet."""
SLIGHT = 0.1
"""Share of the whole climb up to which it has not begun."""
HOLDS = 8
"""Rows for which a divergence must hold."""
NOISE_ROWS = 64
"""Steps of the loss whose median is its noise."""
TAIL = NOISE_ROWS + SMOOTH + 2


class Learning(BatchedRule):
    """The loss against its own best.

    Attributes:
        tail: The last losses, with their `steps`.
        n_single: Losses that came one step after the one before.
        first: Step of the first loss, None before it.
        start: The first smooth loss; `lowest` the smallest.
        n_since: Smooth losses since the last declared change, or the start; these have
        top: the largest of the first six,
        best: the smallest so far, its step and the noise there; empty before the first,
        held: the rows on end for which the loss has been lost, and
        has_diverged: whether it was for `HOLDS` rows, once; `n_diverged` counts all of these.
        last: Step of the last loss, and its smooth value.
        smooth, moved: Samples of the smooth loss and of the size of the loss's steps.
        climb, climb_steps: Samples since the best of what was lost, and their steps.
    """

    column = "loss"
    keep: ClassVar[tuple[str, ...]] = (
        "tail", "steps", "n_single", "first", "start", "lowest", "n_since", "top", "best", "held",
        "has_diverged", "n_diverged", "last",
    )  # fmt: skip
    samples: ClassVar[tuple[str, ...]] = ("smooth", "moved", "climb", "climb_steps")

    def __init__(self) -> None:
        super().__init__()
        self.tail: list[float] = []
        self.steps: list[int] = []
        self.n_single = self.n_since = self.held = self.n_diverged = 0
        self.first: int | None = None
        self.start, self.lowest, self.top = 0.0, LARGEST, -LARGEST
        self.best: list[float] = []
        self.has_diverged = False
        self.last: list[float] = []
        self.smooth, self.moved = Samples(), Samples()
        self.climb, self.climb_steps = Samples(), Samples()

    def take(self, values: Floats, steps: Ints, base: int) -> None:
        """Take in the losses of the next rows, from each declared change on anew."""
        n = len(values)
        declared = sorted({row - base for row in self.relearn if base <= row < base + n})
        for begin, end in pairwise([0, *declared, n]):
            if begin in declared:
                self._start_anew()
            self._take(values[begin:end], steps[begin:end], base + begin)

    def _start_anew(self) -> None:
        """Forget what was gained, and the losses that would be smoothed with the next ones."""
        self.tail, self.steps, self.best = [], [], []
        self.n_since, self.held, self.top, self.has_diverged = 0, 0, -LARGEST, False
        self.climb, self.climb_steps = Samples(), Samples()

    def _take(self, values: Floats, steps: Ints, base: int) -> None:
        loss = bounded(values)
        known = np.flatnonzero(np.isfinite(loss))
        if not len(known):
            return
        losses, at = np.concatenate([self.tail, loss[known]]), len(self.tail)
        self._count(steps[known], np.abs(np.diff(losses[max(at - 1, 0) :])))
        steps = np.array([*self.steps, *steps[known].tolist()])
        skip = max(SMOOTH - 1 - at, 0)
        if len(known) > skip:
            smooth = _medians(losses[at + skip - SMOOTH + 1 :])
            self._follow(_Part(losses, steps, at + skip, smooth, known[skip:]), base)
        self.tail, self.steps = losses[-TAIL:].tolist(), steps[-TAIL:].tolist()

    def _count(self, steps: Ints, moved: Floats) -> None:
        self.moved.add(moved)
        if self.first is None:
            self.first, self.last = int(steps[0]), [float(steps[0]) - 2, 0.0]
        self.n_single += int(np.count_nonzero(np.diff(steps, prepend=self.last[0]) == 1))
        self.last[0] = float(steps[-1])

    def _follow(self, part: _Part, base: int) -> None:
        """Follow the smooth loss: its best, and what is lost of the gain."""
        smooth, n = part.smooth, self.n_since
        self.start = self.start if self.smooth.n else float(smooth[0])
        self.lowest = min(self.lowest, float(smooth.min()))
        self.n_since += len(smooth)
        top = np.maximum.accumulate(np.concatenate([[self.top], smooth[: max(SMOOTH + 1 - n, 0)]]))
        tops = np.concatenate([top[1:], np.full(max(len(smooth) - len(top) + 1, 0), top[-1])])
        self.top = float(top[-1])
        self.smooth.add(smooth)
        self.last[1] = float(smooth[-1])
        if self.has_diverged:
            return
        before = self.best[0] if self.best else np.inf
        best = np.minimum(np.minimum.accumulate(smooth), before)
        lost, gain = smooth - best, tops - best
        bad = (lost > GIVEN_BACK * gain) & (gain > SMALL_GAIN * abs(self.start))
        if bad.any():
            noise = part.noise()
            bad &= (gain > CLEAR * noise) & (lost > CLEAR * noise)
        end = self._end(bad)
        self._climb(part, best, lost, len(smooth) if end is None else end + 1)
        if end is not None:
            self.has_diverged = True
            self.n_diverged += 1
            row = base + int(part.rows[end])
            if not any(row - EXCUSED <= declared <= row for declared in self.relearn):
                self.say(self.known(row), self._diverged(part, best, lost, end))

    def _end(self, bad: Bools) -> int | None:
        """Position of the row at which the loss has been lost for `HOLDS` rows on end."""
        if not bad.any():
            self.held = 0
            return None
        at = np.arange(len(bad))
        since = np.maximum.accumulate(np.where(bad, -1 - self.held, at))
        ends = np.flatnonzero(bad & (at - since >= HOLDS))
        self.held = int(at[-1] - since[-1])
        return int(ends[0]) if len(ends) else None

    def _climb(self, part: _Part, best: Floats, lost: Floats, stop: int) -> None:
        """Remember what was lost since the best, from a new best on anew."""
        low, before = int(np.argmin(part.smooth[:stop])), self.best[0] if self.best else np.inf
        if best[stop - 1] < before:
            noise = float(part.noise(low)[-1])
            self.best = [float(best[stop - 1]), float(part.step(low, SMOOTH - 1)), noise]
            self.climb, self.climb_steps = Samples(), Samples()
        else:
            low = 0
        self.climb.add(lost[low:stop])
        # a median of five rows shows a step two rows late
        self.climb_steps.add(part.steps_before(SMOOTH // 2)[low:stop].astype(np.float64))

    def _diverged(self, part: _Part, best: Floats, lost: Floats, end: int) -> Finding:
        _, low, noise = self.best
        slight = max(noise, SLIGHT * float(lost[end]))
        climb, steps = self.climb.values, self.climb_steps.values
        calm = np.flatnonzero(climb <= slight)
        step = int(steps[min(int(calm[-1]) + 1, len(steps) - 1)])
        last = part.step(end)
        text = (
            f"The loss climbed from {best[end]:.4g} to {part.smooth[end]:.4g} by step {last}: more "
            f"than half of what the run had learnt is lost; the climb began near step {step}."
        )
        score = float(lost[end] / (noise + 1e-12))
        return _finding(step, (min(int(low), step), last), "divergence", text, score)

    def finish(self, n_rows: int) -> None:
        """Whether the loss of the whole run never fell below its start."""
        super().finish(n_rows)
        n = self.smooth.n + SMOOTH - 1
        is_dense = 2 * self.n_single > n - 1
        if self.is_silent or self.first is None or self.n_diverged:
            return
        if self.smooth.n > SMOOTH and n >= (ROWS_DENSE if is_dense else ROWS_SPARSE):
            finding = self._never(self.first)
            if finding:
                self.say(n_rows, finding)

    def _never(self, first: int) -> Finding | None:
        smooth, start = self.smooth.values, self.start
        noise = MAD_TO_SIGMA * float(np.median(self.moved.values)) / np.sqrt(2.0)
        size, gain = max(abs(start), 1e-12), start - self.lowest
        rose = float(np.median(smooth[len(smooth) // 2 :])) - start
        climbs = gain <= noise and rose > 3 * noise
        # the best of so many medians of noise, with a fifth to spare
        luck = 1.5 * np.sqrt(2 * np.log(self.smooth.n) / SMOOTH)
        flat = gain <= 0.01 * size and gain <= luck * noise and noise < 0.01 * size
        if not (climbs or flat):
            return None
        text = (
            f"The loss never fell below its start: {start:.4g} at step {first}, "
            f"{self.last[1]:.4g} at step {int(self.last[0])}, best {self.lowest:.4g}."
        )
        return _finding(first, (first, first), "never_learns", text, rose / max(noise, 1e-12))

    def state(self) -> dict[str, Any]:
        """As in `Rule`, with the samples."""
        return {**super().state(), **{name: getattr(self, name).state() for name in self.samples}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        for name in self.samples:
            getattr(self, name).restore(state[name])


@dataclass(frozen=True, slots=True)
class _Part:
    """New smooth losses with what lies behind them.

    Attributes:
        losses: The losses below them, and more before.
        steps: The steps of those.
        at: Position among them of the last loss of the first smooth one.
        smooth: The smooth losses.
        rows: Their rows in the view.
    """

    losses: Floats
    steps: Ints
    at: int
    smooth: Floats
    rows: Ints

    def steps_before(self, rows: int) -> Ints:
        """Step of the loss so many rows before the last one of each smooth loss."""
        return self.steps[self.at - rows :][: len(self.smooth)]

    def step(self, i: int, rows: int = 0) -> int:
        """The same of smooth loss `i` alone."""
        return int(self.steps[self.at - rows + i])

    def noise(self, upto: int | None = None) -> Floats:
        """Robust deviation of the losses until each row, or of row `upto` alone.

        Args:
            upto: Position among them.
        """
        if upto is not None:
            stop = self.at + upto + 1
            part = self.losses[max(stop - NOISE_ROWS - 1, 0) : stop]
            moved = np.sort(np.abs(part[1:] - part[:-1]) / np.sqrt(2.0))
            middle = (moved[(len(moved) - 1) // 2] + moved[len(moved) // 2]) / 2
            return np.array([MAD_TO_SIGMA * middle])
        moved = np.abs(np.diff(self.losses)) / np.sqrt(2.0)
        noise = trailing_median(moved, NOISE_ROWS, min_rows=1)
        return np.asarray(MAD_TO_SIGMA * noise[-len(self.smooth) :])


def _medians(losses: Floats) -> Floats:
    """Median of each `SMOOTH` losses on end; much faster than a trailing median for few rows."""
    n = len(losses) - SMOOTH + 1
    windows = np.stack([losses[i : i + n] for i in range(SMOOTH)])
    windows.sort(axis=0)
    return np.asarray(windows[SMOOTH // 2])


def _finding(step: int, interval: tuple[int, int], kind: str, text: str, score: float) -> Finding:
    return Finding(
        step=step, interval=interval, kind=kind, confidence=0.8, severity="bad",
        evidence=(text,), top_metrics=(MetricScore(metric="loss", score=score, step=step),),
    )  # fmt: skip
