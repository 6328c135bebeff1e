"""Slices of the outcomes: which runs stand together in a row of the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flashback_core.forensics.oracle import VISIBLE
from flashback_core.forensics.outcomes import RunOutcome

__all__ = [
    "BUDGET_SLICES", "FAULT_SLICES", "HEALTHY_SLICES", "chosen", "is_declared", "is_fault",
    "is_test", "is_undeclared", "is_visible",
]  # fmt: skip

Rows = Sequence[RunOutcome]
Choice = Callable[[RunOutcome], bool]


def is_fault(o: RunOutcome) -> bool:
    """A run with a fault."""
    return o.role == "fault"


def is_test(o: RunOutcome) -> bool:
    """A run of the test split."""
    return o.split == "test"


def is_visible(o: RunOutcome) -> bool:
    """A run whose fault an oracle sees in the metrics."""
    return o.visibility >= VISIBLE


def _in(*sets: str) -> Choice:
    return lambda o: is_fault(o) and o.kind_set in sets


def _of_list(o: RunOutcome) -> bool:
    """A fault of the frozen list: kinds that were added later are scored apart."""
    return is_fault(o) and o.kind_set != "added"


def _is_young(o: RunOutcome) -> bool:
    return o.first_bad_step is not None and 60 <= o.first_bad_step <= 250


def _is_late(o: RunOutcome) -> bool:
    """Whether all tests have enough rows behind them where the fault begins (docs/detector.md)."""
    return o.first_bad_step is not None and o.first_bad_step >= 282


def is_declared(o: RunOutcome) -> bool:
    """A healthy run whose events were declared, or that has none."""
    return o.role == "healthy" and not o.is_undeclared


def is_undeclared(o: RunOutcome) -> bool:
    """A healthy run in which something happened on purpose that nobody declared."""
    return o.role == "healthy" and o.is_undeclared


_NATURAL = ("code", "prose")
_SMOOTH = ("tables", "markov")

FAULT_SLICES: dict[str, tuple[Choice, ...]] = {
    "six kinds of the card": (_in("seed"), is_test),
    "six kinds, visible": (_in("seed"), is_test, is_visible),
    "six kinds, fault in steps 60–250": (_in("seed"), is_test, _is_young),
    "six kinds, natural text": (_in("seed"), is_test, lambda o: o.data in _NATURAL),
    "six kinds, made-up smooth text": (_in("seed"), is_test, lambda o: o.data in _SMOOTH),
    "six kinds, gpt": (_in("seed"), is_test, lambda o: o.family == "gpt"),
    "hard set": (_in("hard"), is_test),
    "hard set, visible": (_in("hard"), is_test, is_visible),
    "hard set, visible, fault from step 282 on": (_in("hard"), is_test, is_visible, _is_late),
    "reported set": (_in("reported"), is_test),
    "held-out kinds": (_of_list, is_test, lambda o: o.is_held_out),
    "added kinds": (_in("added"),),
    "fault in steps 60–250": (_of_list, is_test, _is_young),
    "other families than gpt": (_of_list, is_test, lambda o: o.family != "gpt"),
    "other families, visible": (_of_list, is_test, is_visible, lambda o: o.family != "gpt"),
    "all faults": (_of_list, is_test),
    "all faults, visible": (_of_list, is_test, is_visible),
    "all faults, invisible": (_of_list, is_test, lambda o: 0 <= o.visibility < VISIBLE),
    "all faults, train and calibration": (is_fault, lambda o: not is_test(o)),
}  # fmt: skip

HEALTHY_SLICES: dict[str, tuple[Choice, ...]] = {
    "healthy, declared or without events": (is_declared, is_test),
    "healthy, held-out kinds": (lambda o: o.role == "healthy" and o.is_held_out, is_test),
    "healthy, undeclared events": (is_undeclared, is_test),
    "twins of fault runs": (lambda o: o.role == "twin", is_test),
    "steps before a fault": (is_fault, is_test),
    "placebo runs": (lambda o: o.role == "placebo", is_test),
    "healthy, train and calibration": (lambda o: o.role == "healthy", lambda o: not is_test(o)),
}  # fmt: skip

BUDGET_SLICES: dict[str, tuple[Choice, ...]] = {
    "kinds seen in fitting": (is_declared, is_test, lambda o: not o.is_held_out),
    "held-out kinds": (is_declared, is_test, lambda o: o.is_held_out),
    "undeclared events": (is_undeclared, is_test),
    "twins of fault runs": (lambda o: o.role == "twin", is_test),
}
"""Healthy runs of which nominal and measured budgets are compared."""


def chosen(outcomes: Rows, slices: Mapping[str, tuple[Choice, ...]]) -> dict[str, Rows]:
    """The outcomes of each slice."""
    return {name: [o for o in outcomes if all(c(o) for c in cs)] for name, cs in slices.items()}
