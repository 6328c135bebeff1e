"""Rules on what samples hold: one that came before comes with other inputs or other labels.

Augmentation, noise and odd documents change samples too, at their own rate and all along. So a rule
learns the run's rate, and speaks where samples change so much more often that chance does not do it
(a Chernoff bound on the binomial tail); a run whose samples change by habit has no such rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log
from typing import Any, ClassVar

import numpy as np

from flashback_core.detectors.rules.column import ColumnRule
from flashback_core.detectors.rules.rule import REST
from flashback_core.detectors.rules.view import Bools, Floats, View
from flashback_core.detectors.signals import certain

__all__ = ["Contents", "InputsChanged", "LabelsChanged"]

KNOWN = 64
"""Samples that came again as they were, before one that did not can say anything."""
HABIT = 0.02
"""Share of changed samples from which changing is the run's habit."""
SURE = 18.4
"""The tail's bound is e to the minus this: 1e-8."""
_COMPARED = "exact:samples_known"


class Contents(ColumnRule):
    """Counts samples that came again and samples that changed; subclasses name the column.

    Attributes:
        n, changed: Samples that came again before the present stretch, and those that changed.
        stretch: Row and step of the first change of the stretch, samples that came again in it,
            those that changed, and the row of the last change; empty outside of one.
        is_said: Whether the stretch was reported.
        since: Row of the last declared change.
    """

    kind: ClassVar[str] = ""
    what: ClassVar[str] = ""
    keep: ClassVar[tuple[str, ...]] = ("n", "changed", "stretch", "is_said", "since")

    def __init__(self) -> None:
        super().__init__()
        self.n = self.changed = 0
        self.stretch: list[int] = []
        self.is_said = False
        self.since = -1

    @property
    def is_ready(self) -> bool:
        """Whether enough came again, hardly any changed, and none does at present."""
        return self.n >= KNOWN and self._usual <= HABIT and not self.stretch

    @property
    def _usual(self) -> float:
        return (self.changed + 1) / (self.n + 2)

    def compared(self, view: View) -> Floats:
        """Samples of each row that came again and can be compared."""
        return view.column(_COMPARED)

    def run(self, view: View, hits: Bools | None) -> None:
        """Count; look at the rows at which samples changed, and at those of a stretch."""
        if self.is_silent:
            return
        compared, changed = self.compared(view).clip(0), view.column(self.column)
        declared = [r for r in view.book.relearn if self.since < r < view.base + len(view)]
        if not self.stretch and not declared and not bool((changed > 0).any()):
            self.n += int(np.nansum(compared))
            return
        for i, (n, k) in enumerate(zip(compared.tolist(), changed.tolist(), strict=True)):
            if declared and declared[0] <= view.base + i:
                self._start_anew(declared.pop(0))
            self._row(view, i, 0 if n != n else int(n), 0 if k != k else max(int(k), 0))

    def _start_anew(self, row: int) -> None:
        """Forget the run's rate at a declared change: the data may be another."""
        self.n, self.changed, self.stretch, self.is_said, self.since = 0, 0, [], False, row

    def _row(self, view: View, i: int, n: int, k: int) -> None:
        row = view.base + i
        if self.stretch and row - self.stretch[4] > REST:
            self._end()
        if k and not self.stretch:
            self.stretch = [row, view.step(i), 0, 0, row]
        if not self.stretch:
            self.n += n
            return
        self.stretch[2] += n
        self.stretch[3] += k
        if k:
            self.stretch[4] = row
            self._judge(view, row)
        if not self.is_said and row - self.stretch[0] > REST:
            self._end()

    def _end(self) -> None:
        """The stretch is over; what was not reported is part of the run's rate."""
        if not self.is_said:
            self.n, self.changed = self.n + self.stretch[2], self.changed + self.stretch[3]
        self.stretch, self.is_said = [], False

    def _judge(self, view: View, row: int) -> None:
        _, step, n, k, _ = self.stretch
        usual = self._usual
        if self.is_said:
            self.may_speak(row, self.kind)
            return
        if self.n < KNOWN or usual > HABIT or _bound(k, n, usual) < SURE:
            return
        self.is_said = True
        if self.may_speak(row, self.kind):
            text = (
                f"Samples that had come before came with {self.what} from step {step} on: {k} of "
                f"{n}, and {self.changed or 'none'} of {self.n} in the steps before."
            )
            texts = (text, *_named(view, step, self.kind.removesuffix("_changed")))
            self.say(row, certain(step, self.kind, *texts, metrics={self.column: step}))

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        self.stretch = [int(x) for x in state["stretch"]]


class InputsChanged(Contents):
    """Other inputs under the same sample id."""

    column = "exact:inputs_changed"
    beside = (_COMPARED,)
    kind, what = "inputs_changed", "other inputs"


class LabelsChanged(Contents):
    """Other labels on the same inputs."""

    column = "exact:labels_changed"
    beside = (_COMPARED, "exact:inputs_changed")
    kind, what = "labels_changed", "other labels on the same inputs"

    def compared(self, view: View) -> Floats:
        """Samples that came again with the inputs that they had."""
        known = view.column(_COMPARED)
        if not view.has(InputsChanged.column):
            return known
        return np.asarray(known - view.column(InputsChanged.column).clip(0))


def _named(view: View, step: int, what: str) -> Iterator[str]:
    """Which samples changed at `step`, where the recorder noted it."""
    for event in view.book.noted("samples", step):
        if event.get("what") == what:
            where = "ids" if event.get("ids") else "rows"
            names = [str(x) for x in event.get(where, ())]
            more = int(event.get("n", len(names))) - len(names)
            tail = f" and {more} more" if more > 0 else ""
            of = "ids" if where == "ids" else f"rows of the batch of step {step}"
            yield f"The first of them: {of} {', '.join(names)}{tail}."


def _bound(k: int, n: int, share: float) -> float:
    """How far in its tail `k` of `n` lies where `share` is usual: minus the log of its bound."""
    n = max(n, k)
    if k <= n * share:
        return 0.0
    rest = (n - k) * log((n - k) / (n * (1 - share))) if n > k else 0.0
    return k * log(k / (n * share)) + rest
