"""Rules on groups of parameters that stop to move, or begin to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flashback_core.detectors.rules.rule import REST, WaitingRule
from flashback_core.detectors.rules.view import Bools, Layout, View
from flashback_core.detectors.signals import certain
from flashback_core.report.model import Finding

__all__ = ["StartedGroups", "StoppedGroups"]

LIVE = 16
"""Updates in a row after which an update of exactly zero means that a group stopped."""


class _GroupRule(WaitingRule):
    """A rule on the norms of all groups, which only matter when they turn zero or from zero."""

    parts: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.zero: dict[str, bool] = {}

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """Norms of groups."""
        return [n for n in table_names if n.startswith("group:") and n.endswith(self.parts)]

    def bind(self, layout: Layout) -> None:
        """Which groups there are; the first row says which of them are still."""
        self.gated = tuple(self.wants(layout.names))
        if not self.zero:
            self.zero = dict.fromkeys(self.gated, False)

    def bounds(self) -> tuple[Sequence[float], Sequence[float]]:
        """What turns from zero, or to it."""
        zero = [self.zero[name] for name in self.gated]
        low = [-np.inf if z else np.finfo(np.float64).smallest_subnormal for z in zero]
        return low, [0.0 if z else np.inf for z in zero]


class StoppedGroups(_GroupRule):
    """Groups whose update is exactly zero from some step on although the learning rate is not.

    Rows at which nothing was to move do not count. `since` holds, by metric, the number (among the
    rows that count) of the row at which it last began to move; `live` the metrics that have moved
    for long enough to be missed, `stopped` those that were.
    """

    parts = (":update_norm", ":grad_norm")
    keep = ("zero", "since", "live", "stopped", "n_excused", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.since: dict[str, int] = {}
        self.live: list[str] = []
        self.stopped: list[str] = []
        self.pending: dict[str, list[int]] = {}
        self.n_excused = 0

    def quiet(self) -> dict[str, tuple[float, float]]:
        """As in `Rule`, and nothing that makes a row not count."""
        tiny = float(np.finfo(np.float64).smallest_subnormal)
        return {
            **super().quiet(), "exact:step_skipped": (-np.inf, 0.0), "lr": (tiny, np.inf),
            "nonfinite": (-np.inf, 0.0),
        }  # fmt: skip

    def extra(self, view: View) -> Bools | None:
        """Rows that do not count."""
        out = None
        for name, excused in (("exact:step_skipped", 1.0), ("lr", 0.0)):
            if view.has(name):
                part = view.column(name) == excused
                out = part if out is None else out | part
        if view.has("nonfinite"):
            part = view.column("nonfinite") > 0
            out = part if out is None else out | part
        return out

    def see(self, view: View, i: int) -> None:
        """Take in which norms are zero, unless the row does not count."""
        row = view.base + i
        if view.still(i) or view.spoilt(i):
            self.n_excused += 1
            if self.pending:
                self.watch_until = row + 2
            return
        at = row - self.n_excused
        self._confirm(view, i)
        for name in self.gated:
            is_zero = view.value(name, i) == 0
            if is_zero != self.zero[name]:
                self._turn(view, i, name, at)

    def _turn(self, view: View, i: int, name: str, at: int) -> None:
        """A norm turned zero, or from zero, in the row that counts as number `at`."""
        self.zero[name], self.dirty = not self.zero[name], True
        if not self.zero[name]:
            self.since[name] = at
            return
        needed = REST if name in self.stopped else LIVE
        if at - self.since.get(name, 0) >= needed and name not in self.live:
            self.live.append(name)
        if name in self.live:
            self.pending[name] = [view.base + i, view.step(i)]
            self.watch_until = view.base + i + 2

    def _confirm(self, view: View, i: int) -> None:
        """A second zero makes a stop."""
        names = [n for n in self.pending if view.value(n, i) == 0]
        if names:
            row, step = self.pending[names[0]]
            self.live = [n for n in self.live if n not in names]
            self.stopped += [n for n in names if n not in self.stopped]
            if not view.book.near(row, view.book.freezing) and self.may_speak(row, "zero"):
                self.say(view.base + i, _stop(step, names))
        self.pending = {}


def _stop(step: int, names: Sequence[str]) -> Finding:
    groups = sorted({n.split(":")[1] for n in names})
    what = "gradient" if any("grad" in n for n in names) else "update"
    text = f"The {what} of {', '.join(groups)} was exactly zero from step {step} on."
    return certain(step, f"zero_{what}", text, metrics=dict.fromkeys(names, step))


class StartedGroups(_GroupRule):
    """Groups that were still from the first step on and begin to move: thawed, a change."""

    parts = (":update_norm",)
    keep = ("zero", "n_skipped", "is_first")

    def __init__(self) -> None:
        super().__init__()
        self.n_skipped = 0
        self.is_first = True

    def bind(self, layout: Layout) -> None:
        """All groups are still until they move."""
        super().bind(layout)
        if self.is_first:
            self.zero, self.is_first = dict.fromkeys(self.gated, True), False

    def bounds(self) -> tuple[Sequence[float], Sequence[float]]:
        """Only the first move of a group matters."""
        return [-np.inf] * len(self.gated), [
            0.0 if self.zero[name] else np.inf for name in self.gated
        ]

    def quiet(self) -> dict[str, tuple[float, float]]:
        """As in `Rule`, and no skipped step."""
        return {**super().quiet(), "exact:step_skipped": (-np.inf, 0.0)}

    def extra(self, view: View) -> Bools | None:
        """Skipped steps are counted."""
        name = "exact:step_skipped"
        return view.column(name) == 1 if view.has(name) else None

    def see(self, view: View, i: int) -> None:
        """Note the first moves; a declaration may still come with the next row."""
        row = view.base + i
        self._decide(view, row)
        names = [n for n in self.gated if self.zero[n] and view.value(n, i) > 0]
        if names:
            self.zero.update(dict.fromkeys(names, False))
            self.dirty = True
            if row - self.n_skipped >= LIVE:
                self._note(row, view.step(i), names)
        self.n_skipped += view.skipped(i)

    def _note(self, row: int, step: int, names: Sequence[str]) -> None:
        groups = ", ".join(n.split(":")[1] for n in names)
        text = f"The weights of {groups} moved for the first time at step {step}."
        metrics = dict.fromkeys(names, step)
        found = certain(step, "unfreeze", text, metrics=metrics, severity="change")
        self.wait(row, found)
        self.watch_until = row + 2

    def _decide(self, view: View, row: int) -> None:
        for at, finding in self.waiting:
            if not view.book.near(at, view.book.freezing):
                self.say(row, finding)
        self.waiting = []
