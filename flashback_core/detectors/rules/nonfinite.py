"""Numbers that are not finite: the rule of one, and what only looks like it.

One NaN or infinite entry is enough, no votes. Steps that a gradient scaler skipped are its healthy
work. In the log of another tool a missing cell may be a NaN that was not written, an evaluation
row, or a metric that is logged now and then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flashback_core.detectors.rules.presence import REGULAR, Presence, Spread
from flashback_core.detectors.rules.rule import Rule
from flashback_core.detectors.rules.scaler import SKIP_LOOP
from flashback_core.detectors.rules.view import Bools, Layout, View
from flashback_core.detectors.signals import certain
from flashback_core.report.model import Finding

__all__ = ["NonFinite"]

LOG_RUN = 4
"""Non-finite gradient norms in a row of a log that are more than a skipped step."""
NORMS = ("grad_norm", "grad_max", "update_norm", "update_max", "param_norm")
COUNTABLE = 1e15
"""Counts from here on are no counts of a recorder."""


class NonFinite(Rule):
    """The first step with a number that is not finite; passing ones of a log as `info`."""

    keep: ClassVar[tuple[str, ...]] = (
        "first_step", "queue", "was_bad", "broken", "left_out", "lost_at",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.first_step: int | None = None
        self.queue: list[list[Any]] = []
        self.was_bad = -2
        self.broken = False
        self.left_out: list[Any] = []
        self.lost_at: int | None = None  # step from which on the loss has had no value
        self.watched: list[str] = []
        self.rows: list[int] = []
        self.presence: dict[str, Presence] = {}
        self.is_log = False
        self.spread: Spread | None = None

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """Counts, the loss and the norms of the whole model."""
        counts = [n for n in table_names if n.split(":")[-1] in ("nonfinite", "update_nonfinite")]
        return [*counts, *(n for n in ("loss", *NORMS) if n in table_names)]

    def bind(self, layout: Layout) -> None:
        """Which columns there are."""
        names = self.wants(layout.names)
        self.is_log = layout.is_log
        self.watched = [n for n in names if n == "loss" or n in NORMS]
        self.gated = tuple(n for n in names if n not in self.watched)
        self.rows = [layout.row[n] for n in self.watched]
        for name in self.watched:
            self.presence.setdefault(name, Presence())
        if self.is_log and self.spread is None:
            self.spread = Spread(self.watched, layout.metrics)
        self.expected = np.ones((len(self.watched), 1), dtype=bool)

    def quiet(self) -> dict[str, tuple[float, float]]:
        """Finite values; nothing is quiet while one is missing."""
        there = float(np.finfo(np.float64).max)
        highest = {n: there if p.is_there else -np.inf for n, p in self.presence.items()}
        return {**super().quiet(), **{n: (-there, highest[n]) for n in self.watched}}

    def extra(self, view: View) -> Bools | None:
        """Rows at which a value appears or disappears, or is infinite."""
        if not self.watched:
            return None
        part = view.matrix[self.rows]
        for j, name in enumerate(self.watched):
            self.expected[j, 0] = self.presence[name].is_there
        out = ((np.isfinite(part) != self.expected) | np.isinf(part)).any(axis=0)
        for presence in self.presence.values():
            due = presence.overdue_at - view.base
            if not presence.is_there and presence.seen >= REGULAR and 0 <= due < len(out):
                out[due] = True
        return np.asarray(out)

    def run(self, view: View, hits: Bools | None) -> None:
        """As in `Rule`; rows that go on as the one before was are counted at once."""
        voice = self.voices.get("nonfinite")
        if hits is not None and voice and voice[1] == view.base - 1 and not self.is_log:
            rows = [view.layout.row[n] for n in self.gated]
            same = (view.matrix[rows] > 0).any(axis=0) & ~self._odd(view)
            n = len(same) if same.all() else int(same.argmin())
            voice[1] += n
            hits[:n] = False
        super().run(view, hits)

    def _odd(self, view: View) -> Bools:
        odd = self.extra(view)
        odd = np.zeros(len(view), dtype=bool) if odd is None else odd
        if view.has("exact:step_skipped"):
            odd |= view.column("exact:step_skipped") == 1
        return odd

    def see(self, view: View, i: int) -> None:
        """Look for numbers that are not finite; in a log, wait for what follows them."""
        row = view.base + i
        lost = self._lost(view, i)
        if view.skipped(i):
            return
        names = [n for n in self.gated if view.value(n, i) > 0]
        if self.is_log and names and not lost and view.value("update_norm", i) == 0:
            self._leave_out(view, i, names)
        elif self.is_log:
            self._log(view, i, names + [n for n in lost if n == "loss"], [*lost])
        elif names or lost:
            self._break(row, row, view.step(i), _texts(view, i, [*names, *lost]))

    def _lost(self, view: View, i: int) -> list[str]:
        """Watched columns that are infinite in this row, or missing though they were regular."""
        row, out = view.base + i, []
        for name in self.watched:
            presence, value = self.presence[name], view.value(name, i)
            if np.isfinite(value):
                self._back(name, row)
                continue
            self.dirty |= presence.is_there
            if name == "loss" and presence.is_there:
                self.lost_at = view.step(i)
            missing = presence.missing(row)
            if self.is_log or view.skipped(i):
                self.watch_until = max(self.watch_until, row + 2)
            if np.isinf(value) or (missing and not self._is_other(view, name, i)):
                out.append(name)
        return out

    def _back(self, name: str, row: int) -> None:
        presence = self.presence[name]
        if not presence.is_there:
            self.dirty = True
            if presence.missing(row - 1) and "nonfinite" in self.voices:
                self.voices["nonfinite"][1] = row - 1  # it had been away until now
            presence.present(row)

    def _is_other(self, view: View, name: str, i: int) -> bool:
        return self.spread is not None and self.spread.is_other_kind(view, name, i)

    def _break(self, known: int, row: int, step: int, told: list[list[str]]) -> None:
        """A breach at `row` that is certain at row `known`."""
        self.broken = True
        if self.may_speak(row, "nonfinite"):
            names, texts = told
            metrics = dict.fromkeys(names, step)
            self.say(known, certain(step, "nonfinite", *texts, metrics=metrics))

    # -- logs of other tools ----------------------------------------------------------------------

    def _log(self, view: View, i: int, sure: list[str], lost: list[str]) -> None:
        """Norms of a log wait `LOG_RUN` rows: do they stay away, does the loss follow?"""
        row, norms = view.base + i, [n for n in lost if n in NORMS]
        self._settle(row - LOG_RUN, row)
        if norms:
            self.queue.append([row, view.step(i), _texts(view, i, [*sure, *norms]), not sure])
            self.watch_until = max(self.watch_until, row + LOG_RUN + 1)
        elif sure:
            self.queue.append([row, view.step(i), _texts(view, i, sure), False])
        if sure:
            self._settle(row, row, follows=True)
        elif len(self.queue) >= LOG_RUN and self.queue[-LOG_RUN][0] == row - LOG_RUN + 1:
            self._settle(row - LOG_RUN + 1, row, follows=True)

    def _leave_out(self, view: View, i: int, names: list[str]) -> None:
        """A step with a finite loss that moved no weight, as where a loss scaler skips it."""
        row = view.base + i
        if not self.left_out or self.left_out[0] != row - 1:
            self.left_out = [row, 0, row, view.step(i), _texts(view, i, names)]
        self.left_out[:2] = row, self.left_out[1] + 1
        if self.left_out[1] >= SKIP_LOOP:
            self._break(row, *self.left_out[2:])
        elif self.left_out[1] == 1 and self.may_speak(row, "skipped_step"):
            self.say(row, _passing(view.step(i), "no weight moved"))

    def _settle(self, until: int, known: int, *, follows: bool = False) -> None:
        """Decide on the queued rows up to row `until`."""
        while self.queue and self.queue[0][0] <= until:
            row, step, told, waits = self.queue.pop(0)
            if follows or not waits or self.was_bad == row - 1:
                self.was_bad = row if any(n in NORMS for n in told[0]) else self.was_bad
                self._break(known, row, step, told)
            elif self.may_speak(row, "skipped_step"):
                self.say(known, _passing(step))

    def after(self, view: View) -> None:
        """Count, and decide on what waited for rows that are there now."""
        if self.first_step is None:
            self.first_step = view.step(0)
        if self.spread is not None and self.watched:
            self.spread.after(view)

    def finish(self, n_rows: int) -> None:
        """Norms at the very end of a log; a log without a single loss."""
        self._settle(n_rows, n_rows)
        loss = self.presence.get("loss")
        empty = loss is not None and loss.last < 0 and not (loss.is_there and loss.since < n_rows)
        step = self.first_step if empty else self.lost_at
        is_over = loss is not None and (empty or loss.has_ended(n_rows))
        if self.is_log and is_over and not self.broken and step is not None:
            text = f"loss was nan at step {step}, and had no value after it."
            self.say(n_rows, certain(step, "nonfinite", text, metrics={"loss": step}))

    def state(self) -> dict[str, Any]:
        """As in `Rule`, with what is known of each column."""
        presence = {name: p.state() for name, p in self.presence.items()}
        spread = self.spread.state() if self.spread else None
        return {**super().state(), "presence": presence, "spread": spread}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        for name, numbers in state["presence"].items():
            self.presence[name] = Presence()
            self.presence[name].restore(numbers)
        if state["spread"] is not None:
            self.spread = Spread(tuple(self.presence), ())
            self.spread.restore(state["spread"])


def _texts(view: View, i: int, names: Sequence[str]) -> list[list[str]]:
    return [list(names), [_sentence(name, view.value(name, i), view.step(i)) for name in names[:4]]]


def _sentence(name: str, value: float, step: int) -> str:
    if name.endswith("nonfinite"):
        what = "update" if "update" in name else "gradient"
        of = f" of group {name.split(':')[1]}" if name.startswith("group:") else ""
        entries = "entry was" if value == 1 else "entries were"
        count = f"{int(value)}" if value < COUNTABLE else "countless"
        lead = f"{count} {what} {entries.replace(' ', of + ' ')}"
        return f"{lead} NaN or infinite at step {step}."
    return f"{name} was {value} at step {step}."


def _passing(step: int, why: str = "it was finite again soon after") -> Finding:
    text = (
        f"The gradient was not finite at step {step}, and {why}: most likely a step that a loss "
        "scaler skipped."
    )
    return Finding(
        step=step, interval=(step, step), kind="skipped_step", confidence=0.5, severity="info",
        evidence=(text,),
    )  # fmt: skip
