"""Rules on what changed outside the optimizer: weights, states, settings, and what was told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from flashback_core.detectors.rules.book import EventBook
from flashback_core.detectors.rules.rule import HABIT_ROWS, Rule, WaitingRule
from flashback_core.detectors.rules.view import Bools, View
from flashback_core.detectors.signals import certain
from flashback_core.report.model import Finding

__all__ = ["OUTSIDE", "Outside", "Settings", "Told", "named", "setting_kind"]

OUTSIDE = (
    (1, "weights", "weights_changed"),
    (2, "optimizer state", "state_changed"),
    (4, "buffers", "buffers_changed"),
)
"""Bit of the exact field ``outside``, what it stands for, and the kind of finding."""
MODERATE = 10.0
"""Factor by which a person or a schedule may change the weight decay, rather than a mistake."""


class Outside(WaitingRule):
    """Something other than the optimizer changed weights, its state, or buffers.

    `early` counts the breaches in the first rows by bit; two of them are a habit.
    """

    gates = ("exact:outside",)
    keep: ClassVar[tuple[str, ...]] = ("early", "habits")

    def __init__(self) -> None:
        super().__init__()
        self.early: dict[str, int] = {}
        self.habits = 0

    def extra(self, view: View) -> Bools | None:
        """Bits that no habit explains; used in place of the gate."""
        if not self.gated:
            return None
        bits = np.nan_to_num(view.column("exact:outside")).astype(np.int64)
        return np.asarray((bits & ~self.habits & 7) > 0)

    def bounds(self) -> tuple[list[float], list[float]]:
        """`extra` says it all."""
        return [-np.inf], [np.inf]

    def quiet(self) -> dict[str, tuple[float, float]]:
        """No bit at all."""
        return dict.fromkeys(self.gated, (-np.inf, 0.0))

    def see(self, view: View, i: int) -> None:
        """Note a breach, and say it once it cannot be a habit any more."""
        row = view.base + i
        if row >= HABIT_ROWS - 1:
            self._decide(row)
        bits = max(view.whole("exact:outside", i), 0) & ~self.habits
        if not bits or row in view.book.starts or row in view.book.writes:
            return
        for bit, what, kind in OUTSIDE:
            if bits & bit:
                self._breach(view, i, bit, what, kind)

    def _breach(self, view: View, i: int, bit: int, what: str, kind: str) -> None:
        row, step = view.base + i, view.step(i)
        if row < HABIT_ROWS:
            self.early[str(bit)] = self.early.get(str(bit), 0) + 1
            self.watch_until = HABIT_ROWS
            if self.early[str(bit)] >= 2:
                self._learn(bit, kind)
                return
        if self.may_speak(row, kind):
            found = _outside(step, what, kind, named(view.book, step, what))
            self.wait(row, found)
            if row >= HABIT_ROWS - 1:
                self._decide(row)

    def _learn(self, bit: int, kind: str) -> None:
        self.habits |= bit
        self.dirty = True
        self.waiting = [(r, f) for r, f in self.waiting if f.kind != kind]

    def _decide(self, row: int) -> None:
        for _, finding in self.waiting:
            self.say(row, finding)
        self.waiting = []


def _outside(step: int, what: str, kind: str, names: str) -> Finding:
    return certain(
        step, kind,
        f"Something other than the optimizer changed the {what} between the end of step "
        f"{step - 1} and the update of step {step}{names}.",
        metrics={"exact:outside": step},
    )  # fmt: skip


def named(book: EventBook, step: int, what: str) -> str:
    """Names of the tensors of an ``outside`` event, as the tail of a sentence."""
    for e in book.noted("outside", step):
        if e.get("what") == what:
            tensors = [str(t) for t in e.get("tensors", ())]
            more = int(e.get("n_tensors", len(tensors))) - len(tensors[:3])
            tail = f" and {more} more" if more > 0 else ""
            entries = e.get("entries") or []
            count = f" ({entries[0]} of its entries)" if len(tensors) == 1 and entries else ""
            return f": {', '.join(tensors[:3])}{tail}{count}"
    return ""


class Told(Rule):
    """What an adapter found out by itself: replicas that differ, a resume that lost something."""

    always = True

    def hits(self, view: View) -> Bools | None:
        """Rows that have something told; there is no column to it."""
        if not view.book.told:
            return None
        told, view.book.told = view.book.told, []
        for event in told:
            self._tell(event, view.base + int(np.searchsorted(view.steps, event["step"])))
        return None

    def _tell(self, event: Mapping[str, Any], row: int) -> None:
        kind, step = event["event"], event["step"]
        if kind == "replica_divergence":
            text = str(event.get("text", f"Replicas differ from step {step} on."))
            metrics = {"exact:params_hash": step}
            found = certain(step, str(event.get("kind", kind)), text, metrics=metrics)
        elif event.get("differs"):
            lost = ", ".join(str(name) for name in event["differs"])
            text = f"The run resumed at step {step}, and this did not carry over: {lost}."
            metrics = {"exact:state_hash": step}
            found = certain(step, "resume_discontinuity", text, metrics=metrics)
        else:
            return
        if isinstance(step, int) and self.may_speak(row, str(kind)):
            self.say(row, found)

    def tell_rest(self, book: EventBook, n_rows: int) -> None:
        """What was told of steps that never came."""
        for event in book.remaining():
            self._tell(event, n_rows + 1)


class Settings(WaitingRule):
    """The digest of the configuration changed; a declaration may still come one row later.

    A setting that is on a schedule (momentum in a one-cycle policy) changes at each of the first
    steps of a recording, until its watch leaves it out: two changes of a kind among these are none.

    Attributes:
        early: Changes among the first rows of a recording, by kind; row of that start as "start".
    """

    always = True
    keep: ClassVar[tuple[str, ...]] = ("digest", "early")
    name: ClassVar[str] = "exact:config_hash"

    def __init__(self) -> None:
        super().__init__()
        self.digest = 0
        self.early: dict[str, int] = {}

    def hits(self, view: View) -> Bools | None:
        """Rows with another digest than the row before; digests do not fit into a float."""
        if self.name not in view.layout.exact:
            return None
        digests = view.table.column(self.name)
        if bool((digests == self.digest).all()):
            return None
        changed = np.empty(len(digests), dtype=bool)
        changed[1:] = digests[1:] != digests[:-1]
        changed[0] = digests[0] != self.digest
        return changed

    def see(self, view: View, i: int) -> None:
        """Note a change that the start of a recording does not explain."""
        row = view.base + i
        self._decide(view, row)
        digest = _digest(view, i)
        old, self.digest = self.digest, digest or self.digest
        if not digest or not old or digest == old or row in view.book.starts:
            return
        finding = _changed(view.book, view.step(i))
        since = view.book.since_start(row)
        if since >= HABIT_ROWS:
            self.wait(row, finding)
            self.watch_until = max(self.watch_until, row + 2)
        else:
            self._early(row, row - since, finding)

    def _early(self, row: int, start: int, finding: Finding) -> None:
        """A change among the first rows of a recording."""
        if self.early.get("start") != start:
            self.early = {"start": start}
        n = self.early[finding.kind] = self.early.get(finding.kind, 0) + 1
        if n == 1:
            self.wait(row, finding)
            self.watch_until = start + HABIT_ROWS + 1
        else:
            self.waiting = [(r, f) for r, f in self.waiting if f.kind != finding.kind]

    def _decide(self, view: View, row: int) -> None:
        """Say what waited long enough; the first rows of a recording wait for one another."""
        book, later = view.book, []
        for at, finding in self.waiting:
            if book.since_start(at) < HABIT_ROWS and book.since_start(row) < HABIT_ROWS:
                later.append((at, finding))
            elif not book.near(at, book.freezing, book.relearn) and self.may_speak(
                at, finding.kind
            ):
                self.say(row, finding)
        self.waiting = later

    def finish(self, n_rows: int) -> None:
        """Nothing comes that could excuse what waits."""
        for at, finding in self.waiting:
            if self.may_speak(at, finding.kind):
                self.say(n_rows, finding)
        self.waiting = []


def _digest(view: View, i: int) -> int:
    value = view.table.column(Settings.name)[i]
    return int(value) if value == value and value > 0 else 0


def _changed(book: EventBook, step: int) -> Finding:
    changed: dict[str, tuple[Any, Any]] = {}
    for e in book.noted("config", step):
        changed |= {str(n): (v[0], v[1]) for n, v in e.get("changed", {}).items()}
    kind, severity = setting_kind(changed)
    text = "; ".join(f"{n}: {b!r} → {a!r}" for n, (b, a) in list(changed.items())[:4])
    more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
    return certain(
        step, kind,
        f"The configuration changed at step {step}: {text or 'not recorded'}{more}.",
        metrics={"exact:config_hash": step}, severity=severity,
    )  # fmt: skip


def setting_kind(changed: Mapping[str, tuple[Any, Any]]) -> tuple[str, str]:
    """Kind and severity: who is trained is often changed on purpose, what trains is not."""
    names = list(changed)
    frozen = [n for n in names if n.startswith("requires_grad of ")]
    if frozen and len(frozen) == len(names):
        thawed = all(now for _, now in changed.values())
        return ("unfreeze" if thawed else "freeze"), "change"
    modes = [n for n in names if n.startswith("training of ")]
    if modes and len(modes) == len(names):
        evaluating = all(not now for _, now in changed.values())
        return ("eval_mode" if evaluating else "train_mode"), "bad" if evaluating else "change"
    decays = [pair for n, pair in changed.items() if n.startswith("weight_decay of ")]
    if decays and len(decays) == len(names) and all(_is_moderate(*pair) for pair in decays):
        return "config_changed", "change"
    return "config_changed", "bad"


def _is_moderate(before: Any, after: Any) -> bool:
    """Whether a number stayed within a factor of `MODERATE`, as where a schedule moves it."""
    numbers = isinstance(before, (int, float)) and isinstance(after, (int, float))
    return numbers and before > 0 and before < MODERATE * after and after < MODERATE * before
