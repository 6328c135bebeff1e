"""CertainRules: every rule that needs no baseline, over the rows of a run as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.rules.batches import Duplicates, Labels, Repeats
from flashback_core.detectors.rules.book import SMALL_LR_STEP, EventBook
from flashback_core.detectors.rules.capped import Capped
from flashback_core.detectors.rules.clipping import Clipping
from flashback_core.detectors.rules.contents import InputsChanged, LabelsChanged
from flashback_core.detectors.rules.counters import OptimizerSteps, ScheduleStep
from flashback_core.detectors.rules.explosion import Explosion
from flashback_core.detectors.rules.gate import Gate
from flashback_core.detectors.rules.groups import StartedGroups, StoppedGroups
from flashback_core.detectors.rules.kept import KeptGradients
from flashback_core.detectors.rules.leap import Leap
from flashback_core.detectors.rules.learning import Learning
from flashback_core.detectors.rules.nonfinite import NonFinite
from flashback_core.detectors.rules.outside import Outside, Settings, Told
from flashback_core.detectors.rules.rate import LearningRate
from flashback_core.detectors.rules.rule import RECENT, Rule
from flashback_core.detectors.rules.scaler import SkipLoop, ZeroLoss
from flashback_core.detectors.rules.schedule import OffSchedule
from flashback_core.detectors.rules.shape import ScheduleShape
from flashback_core.detectors.rules.tensors import Gradients, LostUpdates, Precision
from flashback_core.detectors.rules.urgent import Urgent
from flashback_core.detectors.rules.view import Bools, Floats, Layout, View
from flashback_core.detectors.score_stream import LEVEL
from flashback_core.errors import DetectorError
from flashback_core.report.model import Finding
from flashback_core.table import StepTable

__all__ = ["OUTCOMES", "RULES", "CertainRules"]

Ints = npt.NDArray[np.int64]

STATE_VERSION = 1
BLOCK = 512
"""Rows that the rules see at a time."""
SETTLE = 16
"""Rows that a run may take to settle after a declared event, beyond the windows themselves."""

RULES: dict[str, Callable[[], Rule]] = {
    "told": Told,
    "outside": Outside,
    "settings": Settings,
    "clipping": Clipping,
    "nonfinite": NonFinite,
    "skip_loop": SkipLoop,
    "loss_zero": ZeroLoss,
    "stopped": StoppedGroups,
    "started": StartedGroups,
    "repeats": Repeats,
    "duplicates": Duplicates,
    "labels": Labels,
    "labels_changed": LabelsChanged,
    "inputs_changed": InputsChanged,
    "kept": KeptGradients,
    "lost_updates": LostUpdates,
    "zero_grads": lambda: Gradients("zero_grads"),
    "no_grads": lambda: Gradients("no_grads"),
    "precision": Precision,
    "capped": Capped,
    "opt_steps": OptimizerSteps,
    "off_schedule": OffSchedule,
    "schedule_step": ScheduleStep,
    "lr": LearningRate,
    "shape": ScheduleShape,
    "leap": Leap,
}
"""All rules by name, in the order in which they give a shared finding its kind: causes first."""


OUTCOMES: dict[str, Callable[[], Rule]] = {"explosion": Explosion, "learning": Learning}
"""Rules on what a fault ends in, which are the last resort."""


class CertainRules:
    """All certain rules over one optimizer's series.

    The findings depend neither on how the rows are cut into chunks nor on later rows; a finding is
    given once, at most 32 rows after its step (a slow divergence later), and stays as it is. An
    event should be known when its row is given, a declaration at the latest one row later.

    Args:
        only: Names of the rules, of those in `RULES` and `OUTCOMES`; None for all.

    Examples:
        >>> from flashback_core.testing import run_with_fault
        >>> rules = CertainRules()
        >>> [f.kind for f in rules.update(run_with_fault(first_bad_step=120, kind="nonfinite"), ())]
        ['nonfinite']
    """

    def __init__(self, *, only: Sequence[str] | None = None) -> None:
        known = RULES | OUTCOMES
        self._rules = {name: known[name]() for name in (known if only is None else only)}
        self._book = EventBook()
        self._layout: Layout | None = None
        self._gate = Gate()
        self._n_rows = 0
        self._last: Floats = np.empty(0)
        self._restored: dict[str, float] = {}
        self._last_step: int | None = None
        self._rates: Floats = np.empty(0)
        self._urgent: Urgent | None = None

    @property
    def n_rows(self) -> int:
        """Rows given so far."""
        return self._n_rows

    def update(self, chunk: StepTable, events: Sequence[Mapping[str, Any]]) -> list[Finding]:
        """Look at the next rows.

        Args:
            chunk: Rows that follow the last ones, any number, always with the same columns.
            events: All events of the run that are known by now.

        Returns:
            What is new, in the order in which it became known.
        """
        if not len(chunk):
            return []
        if self._layout is None:
            self._bind(chunk)
        self._forget(self._n_rows - RECENT)
        self._book.read(events)
        found: list[Finding] = []
        with np.errstate(invalid="ignore", over="ignore"):  # rows may hold infinities
            for view in self._views(chunk):
                found += self._see(view)
        self._urgent = None
        return found

    def _forget(self, row: int) -> None:
        if row > 0:
            self._book.forget(row)
            for rule in self._rules.values():
                rule.forget(row)

    def _bind(self, chunk: StepTable) -> None:
        names = tuple(chunk)
        wanted = [n for rule in self._rules.values() for n in rule.wants(names)]
        self._layout = Layout(chunk, wanted)
        for rule in self._rules.values():
            rule.bind(self._layout)
        last = self._restored
        self._last = np.array([last.get(name, np.nan) for name in self._layout.names])

    def _views(self, chunk: StepTable) -> Iterator[View]:
        layout = self._layout
        assert layout is not None  # bound before
        steps = chunk.steps
        wide = np.empty((len(layout.names), len(steps) + 1))
        wide[:, 0], wide[:, 1:] = self._last, layout.matrix(chunk)
        for start in range(0, len(steps), BLOCK):
            stop = min(start + BLOCK, len(steps))
            part = chunk if stop - start == len(steps) else chunk[start:stop]
            before = int(steps[start - 1]) if start else self._step_before(steps)
            rows = wide[:, start : stop + 1]
            yield View(
                self._n_rows, steps[start:stop], layout, rows, before, rows[:, 1:], part, self._book
            )
        self._last, self._last_step = wide[:, -1].copy(), int(steps[-1])

    def _step_before(self, steps: Ints) -> int:
        last = self._last_step
        return int(steps[0]) - 1 if last is None or not self._n_rows else last

    def _see(self, view: View) -> list[Finding]:
        self._book.place(view.steps, view.base)
        odd = self._gate.odd(view, self._rules)
        for name, rule in self._rules.items():
            if rule.always or name in odd or rule.watch_until > view.base:
                rule.run(view, rule.hits(view))
            rule.after(view)
        self._n_rows += len(view)
        self._declared_rates(view)
        return self._collect()

    def _collect(self) -> list[Finding]:
        """What the rules said, in order of the rows at which it became known."""
        said: list[tuple[int, Finding]] = []
        for rule in self._rules.values():
            if rule.out:
                said += rule.out
                rule.out.clear()
        said.sort(key=lambda one: one[0])
        return [finding for _, finding in said]

    def _declared_rates(self, view: View) -> None:
        """Learn anew after a declared step of the rate, once it is known to be a large one."""
        if not view.has("lr"):
            self._book.relearn += self._book.undecided
            self._book.undecided.clear()
            return
        before, new = self._rates, view.column("lr")
        rates = np.concatenate([before, new])
        self._rates = rates[-3:]
        for row in [r for r in self._book.undecided if r + 1 < self._n_rows]:
            at = row - (view.base - len(before))
            if abs(_log_step(rates[max(at - 2, 0) : at + 2])) > SMALL_LR_STEP:
                self._book.relearn.append(row)
            self._book.undecided.remove(row)

    def finish(self) -> list[Finding]:
        """What still waits for rows that will not come."""
        for rule in self._rules.values():
            rule.finish(self._n_rows)
        told = self._rules.get("told")
        if isinstance(told, Told):
            told.tell_rest(self._book, self._n_rows)
        return self._collect()

    # -- for the statistics -----------------------------------------------------------------------

    @property
    def lr_jump_rows(self) -> list[int]:
        """Rows of the last 2048 at which the rate jumped and nobody declared it."""
        rule = self._rules.get("lr")
        rows = rule.rows if isinstance(rule, LearningRate) else []
        return [row for row in rows if row >= self._n_rows - RECENT]

    def masked(self, first_row: int, n_rows: int, window: int) -> Bools:
        """Rows at which a test of `window` rows has no say.

        Args:
            first_row: First row asked for; not more than 2048 rows before the last chunk.
            n_rows: How many.
            window: Rows that the test looks at.

        Returns:
            A mask of shape (n_rows,). It is final, but that an event which becomes known with its
            own row also excuses the row before.
        """
        mask = np.zeros(n_rows, dtype=bool)
        # a declaration may be one row late; what the rules saw themselves is not
        starts = [(row, row - 1) for row in self._book.relearn]
        starts += [(row, row) for rule in self._rules.values() for row in rule.changes()]
        for row, start in starts:
            stop = max(row + LEVEL + window + SETTLE - first_row, 0)
            mask[max(start - first_row, 0) : stop] = True
        for row in self._book.lr:
            mask[max(row - 1 - first_row, 0) : max(row + 2 - first_row, 0)] = True
        return mask

    def is_urgent(self, row: Mapping[str, float]) -> bool:
        """Whether a row holds anything that a rule would act on at once.

        Args:
            row: Values by column; what is missing is as usual.
        """
        if self._urgent is None:
            last = np.abs(np.diff(self._rates[-2:]))
            moved = float(last[0]) if len(last) and np.isfinite(last[0]) else 0.0
            self._urgent = Urgent(self._rules, self._last_row(), moved)
        return self._urgent.is_urgent(row)

    def _last_row(self) -> dict[str, float]:
        """The last row given, by column."""
        if self._layout is None:
            return self._restored
        return dict(zip(self._layout.names, self._last.tolist(), strict=True))

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that has to be remembered, as plain JSON values; its size does not grow."""
        return {
            "version": STATE_VERSION,
            "n_rows": self._n_rows,
            "last": {name: str(x) for name, x in self._last_row().items()},
            "last_step": self._last_step,
            "rates": [x if np.isfinite(x) else str(x) for x in self._rates.tolist()],
            "book": self._book.state(),
            "rules": {name: rule.state() for name, rule in self._rules.items()},
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The rules as they were when `state` was taken.

        Raises:
            DetectorError: If the state is one of another version.
        """
        if state.get("version") != STATE_VERSION:
            msg = (
                f"the state of the rules has version {state.get('version')!r}, and this flashback "
                f"reads {STATE_VERSION}; give the run's rows to new rules instead"
            )
            raise DetectorError(msg)
        rules = cls(only=list(state["rules"]))
        for name, rule in rules._rules.items():
            rule.restore(state["rules"][name])
        rules._book.restore(state["book"])
        rules._n_rows, rules._last_step = int(state["n_rows"]), state["last_step"]
        rules._restored = {name: float(x) for name, x in state["last"].items()}
        rules._rates = np.array([float(x) for x in state["rates"]])
        return rules


def _log_step(rates: Floats) -> float:
    """Step of the log learning rate within these rows; infinite where it is not known."""
    known = rates[np.isfinite(rates) & (rates > 0)]
    return float(np.log(known.max() / known.min())) if len(known) > 1 else np.inf
