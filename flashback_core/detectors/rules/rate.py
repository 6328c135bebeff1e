"""Jumps of the learning rate beyond anything it did just before.

A schedule moves smoothly; what it does in one step is judged by what it did in the steps before,
both in absolute size (a linear warm-up is no jump) and in its logarithm (the end of a decay is
none). A jump that the loop declared, or that the scheduler itself made, is excused. `judge` says
what the others look like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flashback_core.baseline import delay, trailing_max
from flashback_core.bounds import bounded
from flashback_core.detectors.rules.column import ColumnRule
from flashback_core.detectors.rules.history import TAIL, History
from flashback_core.detectors.rules.jumps import AHEAD, RELATIVE, Jump, judge
from flashback_core.detectors.rules.rule import MOST
from flashback_core.detectors.rules.schedule import SCHEDULED
from flashback_core.detectors.rules.view import Bools, Floats, Ints, View
from flashback_core.report.model import Finding, MetricScore

__all__ = ["LearningRate"]

TIMES, TIMES_LOG = 3.0, 2.0
"""A step of the learning rate, and of its logarithm, is a jump from so many times the usual on."""
MEMORY = 32
"""Rows whose steps say what this schedule does."""
WAITS = 32
"""Rows after which a jump is judged by the rates that there are."""
FIRST_ROWS = 3
"""Steps of the learning rate that must be known before one is judged; also those whose logarithms
say what is usual, since in a warm-up they shrink fast."""


class LearningRate(ColumnRule):
    """Jumps of the learning rate.

    Attributes:
        history: The last known rates.
        rise: Largest step up that was no jump; `fall` the same down.
        within: Whether the rate ever moved elsewhere than at the start of an epoch.
        done: Positions of the history whose steps these three know.
        pending: Jumps that wait for the `AHEAD` rows that say what they are.
        judged: Steps of the last jumps that nobody declared.
        rows: Rows of the jumps that nobody declared, recent ones.
        masked: The same with those that were declared one row later.
    """

    keep: ClassVar[tuple[str, ...]] = (
        "rise", "fall", "within", "pending", "judged", "rows", "masked",
    )  # fmt: skip
    column = "lr"
    beside = (SCHEDULED,)

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.rise = self.fall = 0.0
        self.within = False
        self.done = 0
        self.pending: list[dict[str, Any]] = []
        self.judged: list[int] = []
        self.rows: list[int] = []
        self.masked: list[int] = []

    def run(self, view: View, hits: Bools | None) -> None:
        """Find the jumps in a view, and judge those whose following rows are there."""
        if self.is_silent:
            return
        rate = view.column("lr")
        if self.pending or not _is_calm(view, rate):
            self._look(view)
        else:
            self.history.add(view, slice(None), self._account)

    def forget(self, row: int) -> None:
        """As in `Rule`."""
        if self.masked and self.masked[0] < row:
            self.rows = [r for r in self.rows if r >= row]
            self.masked = [r for r in self.masked if r >= row]

    def _look(self, view: View) -> None:
        """Look at the known rates of a view one jump after the other."""
        rate = bounded(view.column("lr"))
        known = np.flatnonzero(self._is_known(rate))
        self._feed(view, known, rate[known])
        if not len(known):
            return
        history, at = self.history, self.history.n
        history.add(view, known, self._account)
        at += history.n - at - len(known)  # the history may have dropped old rows
        for j in self._jumps(at):
            self._account(j)
            self._begin(view, known, j, j - at)
            self.done = j + 1
        self._settle(view.book)

    def _is_known(self, rate: Floats) -> Bools:
        """Rows with a rate, from the first one above zero on."""
        finite = np.isfinite(rate)
        if self.history.n_known:
            return np.asarray(finite)
        return np.asarray(finite & (np.cumsum(finite & (rate > 0)) > 0))

    def _account(self, stop: int, shift: int = 0) -> None:
        """Take in the steps below position `stop` that are no jumps; then move by `shift`."""
        history, start = self.history, max(self.done, 1)
        moved = np.diff(history.rates[start - 1 : stop])
        if len(moved):
            self.rise = max(self.rise, float(moved.max()))
            self.fall = max(self.fall, -float(moved.min()))
            starts = np.diff(history.epochs[start - 1 : stop]) > 0
            self.within = self.within or bool(np.any((moved != 0) & ~starts))
        self.done = max(self.done, stop) - shift

    def _jumps(self, at: int) -> list[int]:
        """Positions of jumps in the history, from `at` on."""
        first = max(at - TAIL, 0)
        rates, steps = self.history.rates[first:], self.history.steps[first:]
        gaps = np.diff(steps, prepend=steps[0] - 1)
        top = np.maximum(self.history.top(first), np.maximum.accumulate(rates))
        log = np.log(np.maximum(rates, np.maximum(top * 1e-9, np.finfo(np.float64).tiny)))
        moved, moved_log = (np.abs(np.diff(x, prepend=x[:1])) for x in (rates, log))
        usual = _usual(moved / gaps, MEMORY) * gaps
        usual_log = _usual(moved_log / gaps, FIRST_ROWS) * gaps
        before = np.concatenate([rates[:1], rates[:-1]])
        jump = moved > TIMES * usual + RELATIVE * before
        jump &= moved_log > TIMES_LOG * usual_log + RELATIVE
        return [int(j) + first for j in np.flatnonzero(jump) if j + first >= at]

    def changes(self) -> list[int]:
        """As in `Rule`."""
        return self.masked

    # -- one jump ---------------------------------------------------------------------------------

    def _begin(self, view: View, known: Ints, at: int, j: int) -> None:
        """A jump at position `at` of the history, the `j`-th known rate of the view."""
        row, history = view.base + int(known[j]), self.history
        if not view.book.near(row, [e for e in view.book.lr if e <= row]):
            self.rows.append(row)
            self.masked.append(row)
        past = history.rates[:at]
        slope = abs(float(past[-1] - past[-2])) if len(past) > 1 else 0.0
        new_epoch = history.epochs[at] > history.epochs[at - 1]
        self.pending.append({
            "row": row, "step": int(view.steps[known[j]]), "before": float(past[-1]),
            "peak": max(history.top(0), float(past.max())),
            "after": [], "known": row,
            "follows": history.follows(at), "epoch": bool(new_epoch) and not self.within,
            "at": history.n_known - history.n + at, "slope": slope,
            "rise": self.rise, "fall": self.fall,
        })  # fmt: skip
        self._wait(view, self.pending[-1], known[j:], history.rates[at:])

    def _feed(self, view: View, known: Ints, new: Floats) -> None:
        """Give the rows that came to the jumps that wait for them."""
        for jump in self.pending:
            self._wait(view, jump, known, new)
        self._settle(view.book)

    def _wait(self, view: View, jump: dict[str, Any], known: Ints, new: Floats) -> None:
        """Give rates to a jump until it has `AHEAD` of them, or `WAITS` rows have passed."""
        deadline = jump["row"] + WAITS - 1
        missing = AHEAD - len(jump["after"])
        rows = known[:missing][known[:missing] <= deadline - view.base]
        jump["after"] += new[: len(rows)].tolist()
        if len(rows) == missing:
            jump["known"], jump["is_due"] = view.base + int(rows[-1]), True
        elif view.base + len(view) > deadline:
            jump["known"], jump["is_due"] = deadline, True

    def _settle(self, book: Any, *, is_end: bool = False) -> None:
        while self.pending and (is_end or self.pending[0].get("is_due")):
            data = self.pending.pop(0)
            row, step = data["row"], data["step"]
            if book is not None and book.near(row, book.lr):
                self.rows = [r for r in self.rows if r != row]
                continue
            self.judged = [*self.judged, step][-4:]
            if not data["follows"]:
                jump = Jump(**{k: data[k] for k in Jump.__slots__})
                why, severity = judge(jump)
                if _is_regular(self.judged):
                    why, severity = "as it does at equal distances", "change"
                self._speak(data["known"], step, jump, why, severity)

    def _speak(self, known: int, step: int, jump: Jump, why: str, severity: str) -> None:
        voice = self.voices.setdefault(severity, [0, 0])
        if voice[0] < MOST:
            voice[0] += 1
            self.say(known, _finding(step, jump, why, severity))

    def state(self) -> dict[str, Any]:
        """As in `Rule`, with the last rates."""
        self._account(self.history.n)
        return {**super().state(), "history": self.history.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        self.history.restore(state["history"])
        self.done = self.history.n

    def finish(self, n_rows: int) -> None:
        """Judge the last jumps by the rows that there are."""
        for data in self.pending:
            data["known"] = n_rows
        self._settle(None, is_end=True)


def _is_calm(view: View, rate: Floats) -> bool:
    """Whether no step of the rate is large enough for a jump; False where one is not known."""
    before = view.wide[view.layout.row["lr"], :-1]
    return bool((np.abs(rate - before) <= RELATIVE * before).all())


def _usual(rate: Floats, rows: int) -> Floats:
    """Largest step per step of training over the rows before; NaN while too few are known."""
    return delay(trailing_max(rate, rows, min_rows=FIRST_ROWS), 1)


def _is_regular(steps: Sequence[int]) -> bool:
    """Whether the last jumps came at equal distances: a schedule that moves once an epoch."""
    gaps = np.diff(steps)
    return len(gaps) >= 2 and bool(np.ptp(gaps) <= 2)


def _finding(step: int, jump: Jump, why: str, severity: str) -> Finding:
    before, now = jump.before, jump.after[0]
    factor = f"{now / before:.3g} times" if before > 0 else "from zero,"
    text = (
        f"The learning rate went from {before:.4g} to {now:.4g} at step {step}, {factor} the value "
        f"before, {why}; nobody declared it."
    )
    score = abs(float(np.log(max(now, before * 1e-9) / before))) / RELATIVE if before > 0 else 1e6
    return Finding(
        step=step,
        interval=(step, step),
        kind="lr_jump" if severity == "bad" else "lr_milestone",
        confidence=0.97 if severity == "bad" else 0.8,
        severity=severity,
        evidence=(text,),
        top_metrics=(MetricScore(metric="lr", score=score, step=step),),
    )
