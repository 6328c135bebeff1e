"""Rules on tensors that do not move, have no gradient, or lost their precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flashback_core.bounds import bounded
from flashback_core.detectors.rules.rule import CLEAN_ROWS, HABIT_ROWS, LASTING, Rule
from flashback_core.detectors.rules.view import Layout, View
from flashback_core.detectors.signals import certain
from flashback_core.schema import N_BINS

__all__ = ["Gradients", "LostUpdates", "Precision"]

SAME_RISE = 8
"""Rows for which more tensors than ever must have no gradient."""
FLICKER_ROWS = 32
"""The same where they come and go, or their number does not stay, as of experts without tokens."""
COMINGS = 2
"""Rises that passed again which make coming and going a habit."""
FADING = 1.2
"""Weights that do not move, over those of the row before, up to which a tensor only fades out."""
COARSE = 0.5
"""Share of weights without low bits from which their precision is lost."""
FINE = 0.1
"""Largest share until then."""


class LostUpdates(Rule):
    """Tensors with a gradient that do not move, for some rows on end."""

    gates = ("exact:lost_updates",)
    keep: ClassVar[tuple[str, ...]] = ("streak", "last", "first", "n_broken", "total")

    def __init__(self) -> None:
        super().__init__()
        self.streak, self.last, self.n_broken = 0, -2, 0
        self.first: list[int] = []
        self.total = 1.0

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """Counts, and whether anything moved at all."""
        wanted = (*self.gates, "update_norm", "exact:unmoved")
        return [name for name in wanted if name in table_names]

    def see(self, view: View, i: int) -> None:
        """Count rows on end; a run that never moved is known after `CLEAN_ROWS` of them."""
        row, lost = view.base + i, view.whole("exact:lost_updates", i)
        if lost <= 0 or view.still(i):
            return
        if row != self.last + 1:
            if _fades(view, i):
                return
            self.streak, self.first = 0, [row, view.step(i), lost]
            self.total = 0.0 if view.value("update_norm", i, 1.0) == 0.0 else 1.0
        self.streak, self.last, self.n_broken = self.streak + 1, row, self.n_broken + 1
        if self.streak >= LASTING:
            self._lasts(view, row)

    def _lasts(self, view: View, row: int) -> None:
        start = self.first[0]
        share = (self.n_broken - self.streak) / max(start, 1)
        if start >= CLEAN_ROWS and (share <= 0.05 or self.voices):
            if not view.book.near(start, view.book.freezing):
                self._speak(row)
        elif start > 0 or self.total > 0:
            if not self.voices:
                self.silence()
        elif self.streak >= CLEAN_ROWS:
            self._speak(row)

    def _speak(self, row: int) -> None:
        if self.may_speak(row, "update_lost"):
            _, step, lost = self.first
            text = (
                f"From step {step} on {lost} tensors have a gradient and do not move: their update "
                "is not applied, or is too small for their precision."
            )
            found = certain(step, "update_lost", text, metrics={"exact:lost_updates": step})
            self.say(row, found)

    def finish(self, n_rows: int) -> None:
        """A short run in which nothing ever moved."""
        whole = self.first[:1] == [0] and self.streak == n_rows and not self.is_silent
        if whole and LASTING <= n_rows < CLEAN_ROWS and self.total == 0.0:
            self._speak(n_rows)


def _fades(view: View, i: int) -> bool:
    """Whether hardly more weights stand still than in the row before.

    Where gradients and learning rate shrink, more and more entries of a tensor are below its
    precision until none moves; where an update is lost, all its entries stop at once.
    """
    before = view.before("exact:unmoved", i)
    return before > 0 and 0 <= view.value("exact:unmoved", i) <= FADING * before


class Gradients(Rule):
    """More tensors than ever have no gradient, or one of exactly zero, and it stays so.

    Args:
        field: Exact field with the count, ``zero_grads`` or ``no_grads``.

    Attributes:
        usual: Largest count so far that was no fault.
        rise: Row, step, count, largest count so far in it, and `usual` before it, of the rise that
            goes on; empty for none.
        comings: Rises that passed again.
    """

    keep: ClassVar[tuple[str, ...]] = ("usual", "lowest", "rise", "comings", "above")

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = f"exact:{field}"
        self.gates = (self.field,)  # type: ignore[misc]  # a class variable of the other rules
        self.usual: int | None = None
        self.lowest = 0
        self.rise: list[int] = []
        self.comings = 0
        self.above = False

    def bounds(self) -> tuple[Sequence[float], Sequence[float]]:
        """Counts between the lowest and the highest so far; coming and going is counted."""
        if self.usual is None:
            return [-np.inf], [-1.0]  # until one is known
        floor = -np.inf if self.comings >= COMINGS or not self.above else self.lowest + 0.5
        roof = self.usual if self.above or self.comings >= COMINGS else self.lowest
        return [floor], [float(max(roof, self.lowest))]

    def see(self, view: View, i: int) -> None:
        """Take in a count."""
        count, row = view.whole(self.field, i), view.base + i
        if count < 0:
            return
        if self.usual is None:
            self.usual = self.lowest = count
            self.dirty = True
        if view.spoilt(i):
            count = self.lowest
        self._come_and_go(count)
        if self.rise and count >= self.rise[2]:
            self._goes_on(view, row, count)
        elif self.rise or count > self.usual:
            self._turn(view, i, count)

    def _come_and_go(self, count: int) -> None:
        was, self.above = self.above, count > self.lowest
        self.comings += was and not self.above
        self.lowest = min(self.lowest, count)
        self.dirty |= was != self.above

    def _turn(self, view: View, i: int, count: int) -> None:
        """A rise begins, or one ends."""
        row = view.base + i
        if self.rise:
            self.usual = max(self.usual or 0, self.rise[3])
        self.rise, self.dirty = [], True
        if count > (self.usual or 0):
            self.rise = [row, view.step(i), count, count, self.usual or 0]
            self.watch_until = row + self._needed()
        else:
            self.watch_until = min(self.watch_until, row + 1)

    def _needed(self) -> int:
        flickers = self.comings >= COMINGS or self.rise[3] > self.rise[2]
        return FLICKER_ROWS if flickers else SAME_RISE

    def _goes_on(self, view: View, row: int, count: int) -> None:
        self.rise[3] = max(self.rise[3], count)
        start, step, first, largest, usual = self.rise
        if row - start + 1 < self._needed():
            self.watch_until = start + self._needed()
            return
        self.rise, self.usual, self.dirty = [], largest, True
        if start < CLEAN_ROWS or view.book.near(start, view.book.freezing):
            return
        kind = "zero_gradient" if self.field.endswith("zero_grads") else "missing_gradient"
        if self.may_speak(start, kind):
            what = "a gradient of exactly zero" if kind == "zero_gradient" else "no gradient"
            text = f"From step {step} on {first} tensors have {what}, {usual} at most before."
            metrics = {self.field: step}
            self.say(row, certain(step, kind, text, metrics=metrics))


class Precision(Rule):
    """Float32 weights that have nothing in their low bits any more: rounded to bfloat16.

    Attributes:
        largest: Largest share so far of weights without low bits.
        entries: Most weights that a histogram of updates counted.
    """

    gates = ("exact:low16",)
    keep: ClassVar[tuple[str, ...]] = ("largest", "entries")
    bins: ClassVar[tuple[str, ...]] = tuple(f"hist_update:{i}" for i in range(N_BINS))

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.entries = 0.0

    def bind(self, layout: Layout) -> None:
        """Whether there is a histogram that says how many weights there are."""
        super().bind(layout)
        if not set(self.bins) <= set(layout.metrics):
            self.silence()

    def bounds(self) -> tuple[Sequence[float], Sequence[float]]:
        """Counts far below what matters, for the number of weights last seen."""
        return [-np.inf], [0.5 * FINE * self.entries]

    def see(self, view: View, i: int) -> None:
        """Compare with the number of weights."""
        row, low = view.base + i, view.whole("exact:low16", i)
        entries = float(sum(_count(view, name, i) for name in self.bins))
        if low <= 0 or entries <= 0 or _is_spoilt(view, i):
            return
        self.dirty |= self.entries == 0.0
        self.entries = max(self.entries, entries)  # weights that stand still are in no histogram
        share = min(low / self.entries, 1.0)
        if share <= COARSE:
            self.largest = max(self.largest, share)
            return
        if not self.voices and (row < HABIT_ROWS or self.largest > FINE):
            self.silence()
        elif self.may_speak(row, "precision_lost"):
            step = view.step(i)
            text = (
                f"After step {step} {share:.0%} of the weights have the precision of bfloat16 only."
            )
            metrics = {"exact:low16": step}
            self.say(row, certain(step, "precision_lost", text, metrics=metrics))


def _is_spoilt(view: View, i: int) -> bool:
    """Whether updates were NaN or infinite: a NaN has no low bits either."""
    name = "update_nonfinite"
    return name in view.table and _count(view, name, i) > 0


def _count(view: View, name: str, i: int) -> float:
    value = float(bounded(view.table.column(name)[i : i + 1])[0])
    return value if np.isfinite(value) else 0.0
