"""Rules on the data: batches that come again, copies within a batch, labels beside their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flashback_core.detectors.rules.rule import CLEAN_ROWS, HABIT_ROWS, LASTING, Rule, WaitingRule
from flashback_core.detectors.rules.view import Layout, View
from flashback_core.detectors.signals import certain
from flashback_core.report.model import Finding

__all__ = ["Duplicates", "Labels", "Repeats"]


_LEFT = "exact:ids_left"


class Repeats(WaitingRule):
    """A batch again at once, or a stretch of batches again, where the run had none before.

    Attributes:
        early: Repeats in the first rows; two are a habit.
        is_new: Whether no repeat has come yet that was said to no one.
        before: Row, distance, step, source, samples left and whether an epoch began there, of the
            last repeat.
        emptied: Row at which all samples had come; -1 before.
    """

    gates = ("exact:batch_seen",)
    keep: ClassVar[tuple[str, ...]] = ("early", "is_new", "before", "emptied")

    def __init__(self) -> None:
        super().__init__()
        self.early = 0
        self.is_new = True
        self.before: list[int] = []
        self.emptied = -1

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """The batch that came again, and what was left of the epoch."""
        return [n for n in (*self.gates, _LEFT) if n in table_names]

    def after(self, view: View) -> None:
        """Note when all samples had come."""
        if not self.is_silent and view.has(_LEFT):
            self.emptied = self._emptied(view)

    def _emptied(self, view: View) -> int:
        """Row at which all samples had come, up to the end of the view; -1 before."""
        if self.emptied >= 0:
            return self.emptied
        empty = view.column(_LEFT) == 0
        return view.base + int(empty.argmax()) if empty.any() else -1

    def bounds(self) -> tuple[list[float], list[float]]:
        """Batches that none before was equal to."""
        return [-np.inf], [-0.5]

    def see(self, view: View, i: int) -> None:
        """Judge a repeat."""
        row = view.base + i
        if row >= HABIT_ROWS - 1:
            self._decide(row)
        source = view.whole("exact:batch_seen", i)
        if source < 0:
            return
        if row < HABIT_ROWS:
            self.early += 1
            self.watch_until = HABIT_ROWS
            if self.early >= 2:
                self.waiting = []
                self.silence()
                return
        self._repeat(view, i, source)
        if row >= HABIT_ROWS - 1:
            self._decide(row)

    def _repeat(self, view: View, i: int, source: int) -> None:
        row, step = view.base + i, view.step(i)
        lag, before = step - source, self.before
        left, new_epoch = view.whole(_LEFT, i), self._new_epoch(view, i)
        self.before = [row, lag, step, source, left, int(new_epoch)]
        goes_on = bool(before) and before[0] == row - 1 and before[1] == lag
        if lag == 1 and self.is_new:
            if self.may_speak(row, "repeat"):
                self.wait(row, _at_once(step, source))
        elif goes_on and self.may_speak(row, "repeat"):
            self.wait(row, _stretch(before, view.has(_LEFT)))
            self.is_new = True
        elif "repeat" in self.voices and goes_on:
            self.voices["repeat"][1] = row
        elif not goes_on:
            self.is_new = False

    def _new_epoch(self, view: View, i: int) -> bool:
        """Whether an epoch begins here, as far as is known."""
        row = view.base + i
        if row and view.has("exact:epoch") and view.whole("exact:epoch", i) >= 0:
            return view.whole("exact:epoch", i) > view.whole_before("exact:epoch", i)
        is_empty = view.has(_LEFT) and view.whole(_LEFT, i) == 0
        return is_empty and self._emptied(view) >= row - LASTING

    def _decide(self, row: int) -> None:
        for _, finding in self.waiting:
            self.say(row, finding)
        self.waiting = []


def _at_once(step: int, source: int) -> Finding:
    text = f"Step {step} had the very batch of step {source}, the step before."
    return certain(step, "batch_repeated", text, metrics={"exact:batch_seen": step})


def _stretch(before: list[int], knows_left: bool) -> Finding:
    _, _, step, source, left, new_epoch = before
    metrics = {"exact:batch_seen": step}
    if new_epoch:
        text = f"From step {step} on the batches of step {source} on came again in the same order."
        return certain(step, "no_reshuffle", text, metrics=metrics, severity="info")
    unseen = f", while {left} samples had not been seen yet" if left > 0 else ""
    unseen = ", in the middle of an epoch of another order" if knows_left and not left else unseen
    return certain(
        step, "data_replay",
        f"From step {step} on the batches came again that steps from {source} on had had{unseen}.",
        metrics=metrics,
    )  # fmt: skip


class Duplicates(Rule):
    """The same sample more than once in a batch, for some rows on end, after a clean stretch."""

    gates = ("exact:duplicates",)
    keep: ClassVar[tuple[str, ...]] = ("streak", "first", "last", "n_broken")

    def __init__(self) -> None:
        super().__init__()
        self.streak, self.last, self.n_broken = 0, -2, 0
        self.first: list[int] = []

    def see(self, view: View, i: int) -> None:
        """Count copies on end."""
        row, copies = view.base + i, view.whole("exact:duplicates", i)
        if copies <= 0:
            return
        if row != self.last + 1:
            self.streak, self.first = 0, [row, view.step(i), copies]
        self.streak, self.last, self.n_broken = self.streak + 1, row, self.n_broken + 1
        if self.streak >= LASTING:
            self._lasts(row)

    def _lasts(self, row: int) -> None:
        start, step, copies = self.first
        clean = start >= CLEAN_ROWS and self.n_broken - self.streak <= 0.05 * start
        if not clean and not self.voices:
            self.silence()
        elif self.may_speak(row, "duplicate_samples"):
            text = f"From step {step} on batches hold the same sample more than once ({copies})."
            metrics = {"exact:duplicates": step}
            self.say(row, certain(step, "duplicate_samples", text, metrics=metrics))


class Labels(Rule):
    """Labels that followed the inputs and do not any more."""

    gates = ("exact:labels",)
    keep: ClassVar[tuple[str, ...]] = ("usual",)

    def __init__(self) -> None:
        super().__init__()
        self.usual: int | None = None
        self.watch_until = HABIT_ROWS

    def bind(self, layout: Layout) -> None:
        """Whether labels are known."""
        super().bind(layout)
        if not self.gated:
            self.silence()

    def bounds(self) -> tuple[list[float], list[float]]:
        """Labels as usual."""
        usual = 1.0 if self.usual is None else float(self.usual)
        return [usual], [usual]

    def see(self, view: View, i: int) -> None:
        """Judge labels that follow in another way, or in none."""
        relation, row, step = view.whole("exact:labels", i), view.base + i, view.step(i)
        if self.usual is None:
            if relation == -1 and row < HABIT_ROWS - 1:
                return  # a batch that cannot tell
            self.usual = relation
            self.dirty = True
            if relation <= 0:
                self.silence()
        elif relation not in (self.usual, -1):
            if row < CLEAN_ROWS:
                self.silence()
            elif self.may_speak(row, "labels_misaligned"):
                was = "the inputs shifted by one" if self.usual == 1 else "the inputs"
                text = f"The labels were {was} at every step before, and were not at step {step}."
                metrics = {"exact:labels": step}
                self.say(row, certain(step, "labels_misaligned", text, metrics=metrics))
