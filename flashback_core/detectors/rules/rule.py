"""Rule: a state machine that sees the few rows of a series that can matter to it.

A rule names ranges of columns outside of which a row matters; the rows inside of them cost next to
nothing, whatever their number. What it needs to know of them follows from the row numbers. So a
rule needs no earlier row, its memory does not grow, and chunks of any size give the same findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from flashback_core.detectors.rules.view import Bools, Floats, Layout, View
from flashback_core.report.model import Finding, MetricScore

__all__ = [
    "CLEAN_ROWS", "HABIT_ROWS", "LASTING", "MOST", "RECENT", "REST", "Rule", "WaitingRule",
]  # fmt: skip

REST = 64
"""Rows without a breach after which a rule may speak again."""
MOST = 20
"""Findings of one kind that a rule makes."""
HABIT_ROWS = 8
"""Rows from the start within which something that happens twice is a habit of the run."""
CLEAN_ROWS = 32
"""Rows without a breach after which one is no habit."""
RECENT = 2048
"""Rows for which rows of changes are remembered."""
LASTING = 3
"""Rows on end for which something must last that can happen by chance."""


def finding_from(data: Mapping[str, Any]) -> Finding:
    """The finding that `dataclasses.asdict` made `data` of."""
    top = tuple(MetricScore(**m) for m in data["top_metrics"])
    more = {
        "interval": tuple(data["interval"]),
        "evidence": tuple(data["evidence"]),
        "top_metrics": top,
        "causes": (),  # a rule names none
    }
    return Finding(**{**data, **more})


class Rule:
    """Base of the rules; see the docstring of this file.

    Attributes:
        keep: Names of the attributes that are its state, plain JSON values.
        watch_until: Rows below this one are all seen, whether they matter or not.
        is_silent: Whether the run breaks the rule by habit, so that it says nothing any more.
        dirty: Set by `see` when `bounds` or `extra` would give something else from here on.
        is_stale: Whether `quiet` may have changed since somebody looked.
        always: Whether the rule looks at each view, whatever `quiet` says.
        out: Findings, each with the row at which it became known, for the engine to take.
    """

    keep: ClassVar[tuple[str, ...]] = ()
    gates: ClassVar[tuple[str, ...]] = ()
    always: ClassVar[bool] = False

    def __init__(self) -> None:
        self.watch_until = 0
        self.is_silent = False
        self.dirty = False
        self.is_stale = True
        self.out: list[tuple[int, Finding]] = []
        self.voices: dict[str, list[int]] = {}
        self.gated: tuple[str, ...] = ()

    # -- what a rule says of itself ---------------------------------------------------------------

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """Columns that it looks at, of all columns of the table."""
        return [name for name in self.gates if name in table_names]

    def bind(self, layout: Layout) -> None:
        """Learn which columns there are; called once, before the first row."""
        self.gated = tuple(name for name in self.gates if name in layout.row)

    def bounds(self) -> tuple[Sequence[float], Sequence[float]]:
        """Lowest and highest value of each gated column that does not matter."""
        return [-np.inf] * len(self.gated), [0.0] * len(self.gated)

    def quiet(self) -> dict[str, tuple[float, float]]:
        """Ranges within which all values must lie for a view not to matter; NaN never does."""
        if self.is_silent or not self.gated:
            return {}
        return dict(zip(self.gated, zip(*self.bounds(), strict=True), strict=True))

    def extra(self, view: View) -> Bools | None:
        """Rows that matter for another reason; None for none."""
        return None

    def see(self, view: View, i: int) -> None:
        """Look at row `i` of the view."""

    def after(self, view: View) -> None:
        """Called when all rows of a view are done."""

    def finish(self, n_rows: int) -> None:
        """Say what still waits for rows that will not come."""

    def changes(self) -> list[int]:
        """Recent rows from which statistics must learn anew."""
        return []

    def forget(self, row: int) -> None:
        """Forget the changes before `row`."""

    # -- speaking ---------------------------------------------------------------------------------

    def may_speak(self, row: int, kind: str) -> bool:
        """Note a breach at `row`; whether it follows `REST` rows without one, or is the first."""
        voice = self.voices.setdefault(kind, [0, row - REST - 1])
        rested = row - voice[1] > REST
        voice[1] = max(voice[1], row)
        if not rested or voice[0] >= MOST:
            return False
        voice[0] += 1
        return True

    def say(self, known: int, finding: Finding) -> None:
        """Give a finding that became certain at row `known`."""
        self.out.append((known, finding))

    def silence(self) -> None:
        """Say nothing from here on and look at nothing."""
        self.is_silent = True
        self.dirty = True
        self.watch_until = 0

    # -- the rows that matter ---------------------------------------------------------------------

    def hits(self, view: View) -> Bools | None:
        """Rows of the view that matter, None for none."""
        if self.is_silent:
            return None
        found = self.extra(view)
        if self.gated:
            rows = [view.layout.row[name] for name in self.gated]
            low, high = (np.asarray(b, np.float64)[:, None] for b in self.bounds())
            part: Floats = view.matrix[rows]
            outside: Bools = np.asarray(((part < low) | (part > high)).any(axis=0))
            found = outside if found is None else np.asarray(found | outside)
        return found

    def run(self, view: View, hits: Bools | None) -> None:
        """See every row of the view that matters, in order."""
        i, n, base = 0, len(view), view.base
        while i < n and not self.is_silent:
            if base + i >= self.watch_until:
                if hits is None:
                    break
                i += int(hits[i:].argmax())
                if not hits[i]:
                    break
            self.see(view, i)
            i += 1
            if self.dirty:
                hits, self.dirty, self.is_stale = self.hits(view), False, True

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that it has to remember, as plain JSON values."""
        kept = {name: getattr(self, name) for name in self.keep}
        voices = {kind: list(voice) for kind, voice in self.voices.items()}
        return {"watch": self.watch_until, "silent": self.is_silent, "voices": voices, **kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.watch_until, self.is_silent = int(state["watch"]), bool(state["silent"])
        self.voices = {kind: list(voice) for kind, voice in state["voices"].items()}
        for name in self.keep:
            setattr(self, name, state[name])


def packed(findings: Sequence[tuple[int, Finding]]) -> list[Any]:
    """Findings that wait, as plain JSON values."""
    return [[row, asdict(finding)] for row, finding in findings]


def unpacked(data: Sequence[Sequence[Any]]) -> list[tuple[int, Finding]]:
    """The inverse of `packed`."""
    return [(int(row), finding_from(finding)) for row, finding in data]


class WaitingRule(Rule):
    """A rule whose findings wait a few rows for what may excuse or cancel them.

    Attributes:
        waiting: Findings and the row of their breach.
        changed: Recent rows of findings of severity ``change``, excused ones too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[int, Finding]] = []
        self.changed: list[int] = []

    def wait(self, row: int, finding: Finding) -> None:
        """Let a finding wait, of a breach at `row`."""
        self.waiting.append((row, finding))
        if finding.severity == "change":
            self.changed.append(row)

    def changes(self) -> list[int]:
        """As in `Rule`."""
        return self.changed

    def forget(self, row: int) -> None:
        """As in `Rule`."""
        if self.changed and self.changed[0] < row:
            self.changed = [r for r in self.changed if r >= row]

    def state(self) -> dict[str, Any]:
        """As in `Rule`, with what is waiting."""
        return {**super().state(), "waiting": packed(self.waiting), "changed": self.changed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        self.waiting = unpacked(state["waiting"])
        self.changed = list(state["changed"])

    def finish(self, n_rows: int) -> None:
        """Nothing comes any more that could cancel what waits."""
        for _, finding in self.waiting:
            self.say(n_rows, finding)
        self.waiting = []
