"""The events of a run in words, and where it was resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.report.text import clean, plural
from flashback_core.table import StepTable

__all__ = ["SHARD_KINDS", "event_words", "is_step", "resumed_rows", "resumes", "told"]

Event = Mapping[str, Any]

_QUIET = frozenset({"groups", "run", "reserve", "rewritten"})
"""Events that are no happening; what is rewritten stands among the checks."""

SHARD_KINDS = {"weights_changed": "weights", "state_changed": "optimizer's state"}
"""What changed in a shard, by the kind of an event ``replica_divergence``."""


def is_step(value: object) -> bool:
    """Whether `value` can be a step."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer)):
        return False
    return bool(np.isfinite(value))


def resumes(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Where the run was taken up again, one event each, in order.

    Every recording begins with an event ``session``; each but the first is a resume. A resume that
    superseded rows has an event ``resume`` of its own at the same step, which says more.
    """
    found: dict[int, dict[str, Any]] = {}
    sessions = 0
    for event in events:
        kind, step = event.get("event"), event.get("step")
        sessions += kind == "session"
        if not is_step(step) or kind not in ("resume", "session"):
            continue
        at = int(step) if step is not None else 0
        if kind == "resume":
            found[at] = dict(event)
        elif sessions > 1:
            found.setdefault(at, {"event": "resume", "step": at})
    return [found[at] for at in sorted(found)]


def resumed_rows(table: StepTable) -> npt.NDArray[np.intp]:
    """Rows at which the run was taken up again: what needs the step before is missing there."""
    steps = [int(e["step"]) for e in resumes(table.events)]
    rows = np.searchsorted(table.steps, steps)
    return rows[(rows > 0) & (rows < len(table))]


def told(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The events that happened to the run, each resume once, by step."""
    taken_up = resumes(events)
    others = (
        dict(e)
        for e in events
        if e.get("event") not in _QUIET and e.get("event") not in ("resume", "session")
    )
    return sorted([*taken_up, *others], key=_place)


def _place(event: Event) -> float:
    step = event.get("step")
    return float(step) if is_step(step) and step is not None else -1.0


def event_words(event: Event) -> str:
    """An event of the table as words."""
    step = event.get("step")
    where = f"step {step:,}: " if is_step(step) else ""
    words = _WORDS.get(str(event.get("event")), _other)(event)
    more = _rest(event)
    return f"{where}{words}" + (f" ({more})" if more else "")


def _expect(event: Event) -> str:
    return "declared: " + clean(str(event.get("kind", "a change")).replace("_", " "), 60)


def _resume(event: Event) -> str:
    after = event.get("after_step")
    if not is_step(after) or after is None:
        return "the run was resumed here"
    return f"the run was resumed here; its rows up to step {after:,} were superseded"


def _gap(event: Event) -> str:
    last = event.get("last_step")
    return "steps are missing from here" + (f" to step {last:,}" if is_step(last) else "")


def _damage(event: Event) -> str:
    return "a part of the index is damaged and was left out"


def _outside(event: Event) -> str:
    tensors = _texts(event.get("tensors"))
    n = event.get("n_tensors")
    more = n - len(tensors[:2]) if isinstance(n, int) else 0
    tail = f" and {plural(more, 'more tensor')}" if more > 0 else ""
    named = f": {', '.join(tensors[:2])}{tail}" if tensors else ""
    return f"the {clean(event.get('what', 'state'), 40)} changed outside the optimizer{named}"


def _samples(event: Event) -> str:
    what, n = clean(event.get("what", "contents"), 20), event.get("n")
    ids = _texts(event.get("ids"))
    named = f" (ids {', '.join(ids[:4])}{', …' if len(ids) > 4 else ''})" if ids else ""
    many = plural(n, "sample") if isinstance(n, int) else "samples"
    return f"{many} that had come before came with other {what}{named}"


def _config(event: Event) -> str:
    changed = event.get("changed")
    n = event.get("n_settings", len(changed) if isinstance(changed, Mapping) else 0)
    names = [clean(k, 60) for k in changed] if isinstance(changed, Mapping) else []
    many = plural(n, "setting") if isinstance(n, int) else "settings"
    return f"{many} changed" + (f": {', '.join(names[:3])}" if names else "")


def _resume_check(event: Event) -> str:
    lost = ", ".join(_texts(event.get("differs"))[:6])
    return f"the resume did not bring back: {lost}" if lost else "the resume brought all back"


def _replicas(event: Event) -> str:
    """Copies that differ, or with shards the part of one process that was written to."""
    what, rank = SHARD_KINDS.get(str(event.get("kind"))), event.get("rank")
    words = "copies of the model on different processes differ"
    if what is not None:
        words = f"the part of the {what} that one process holds changed outside the optimizer"
    known = is_step(rank) and rank is not None and rank >= 0
    return words + (f" (rank {clean(rank, 20)})" if known else "")


def _note(event: Event) -> str:
    return clean(event.get("text", "note"), 160)


def _other(event: Event) -> str:
    return clean(event.get("event", "event"), 40)


def _texts(value: object) -> list[str]:
    return [clean(v, 60) for v in value] if isinstance(value, (list, tuple)) else []


_WORDS = {
    "expect": _expect,
    "resume": _resume,
    "gap": _gap,
    "damage": _damage,
    "outside": _outside,
    "config": _config,
    "samples": _samples,
    "resume_check": _resume_check,
    "replica_divergence": _replicas,
    "note": _note,
}
_SAID = {
    "expect": {"kind"},
    "resume": {"after_step"},
    "outside": {"what", "tensors", "n_tensors", "entries"},
    "config": {"changed", "n_settings"},
    "samples": {"what", "n", "rows", "ids"},
    "resume_check": {"differs"},
    "replica_divergence": {"text", "kind", "rank"},
    "note": {"text"},
}
"""Keys that the words have said already."""


def _rest(event: Event) -> str:
    said = {"event", "step", "last_step", *_SAID.get(str(event.get("event")), ())}
    rest = {k: v for k, v in event.items() if k not in said}
    return clean(", ".join(f"{str(k).replace('_', ' ')} {v}" for k, v in rest.items()), 80)
