"""Invariants: what must hold at every step, read off the exact fields.

Each rule speaks once, at the step where it was first broken, and is silent where the run breaks it
by habit: a loader that never shuffles repeats its batches, an embedding with `max_norm` is scaled
outside the optimizer at every step. A rule needs no baseline of metrics and looks only back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.bounds import bounded, whole
from flashback_core.detectors.declared import Declared
from flashback_core.detectors.signals import Bools, certain, column_is, first_run
from flashback_core.report.model import Finding
from flashback_core.table import StepTable

__all__ = ["invariant_findings"]

HABIT_ROWS = 8
"""Rows from the start within which something that happens twice is a habit of the run."""
CLEAN_ROWS = 32
"""Rows without a breach after which one is no habit."""
LASTING = 3
"""Rows on end for which something must last that can happen by chance."""

Ints = npt.NDArray[np.int64]

_OUTSIDE = (
    (1, "weights", "weights_changed"),
    (2, "optimizer state", "state_changed"),
    (4, "buffers", "buffers_changed"),
)


def invariant_findings(table: StepTable, events: Declared) -> list[Finding]:
    """Every invariant of `table` that was broken, at the step where it first was."""
    rules = (
        _told, _outside, _settings, _repeats, _duplicates, _labels, _updates, _gradients,
        _precision,
    )  # fmt: skip
    return [finding for rule in rules for finding in rule(table, events)]


def _column(table: StepTable, name: str) -> Ints | None:
    """An exact field, None where no row knows it."""
    column = f"exact:{name}"
    if column not in table or not len(table):
        return None
    values = whole(table.column(column))
    return None if np.all(values == -1) else values


def _first_breach(broken: Bools, clean: int = HABIT_ROWS) -> int | None:
    """First broken row that is no habit: behind the start, where breaches stay single."""
    rows = np.flatnonzero(broken)
    early = rows[rows < clean]
    if len(early) >= 2:
        return None
    return int(rows[0]) if len(rows) else None


def _starts(table: StepTable) -> set[int]:
    """Rows at which a recording began: what came before them was not watched."""
    steps = [e["step"] for e in table.events if e.get("event") in ("resume", "session")]
    found = np.searchsorted(table.steps, [s for s in steps if isinstance(s, int)])
    return {0, *(int(row) for row in found)}


# -- what changed outside the optimizer ----------------------------------------------------------


def _outside(table: StepTable, events: Declared) -> Iterator[Finding]:
    bits = _column(table, "outside")
    if bits is None:
        return
    known = bits.copy()
    known[[row for row in _starts(table) if row < len(known)]] = 0
    for bit, what, kind in _OUTSIDE:
        row = _first_breach((known & bit) > 0)
        if row is None:
            continue
        step = int(table.steps[row])
        names = _named(table, "outside", step, what)
        yield certain(
            step, kind,
            f"Something other than the optimizer changed the {what} between the end of step "
            f"{step - 1} and the update of step {step}{names}.",
            metrics={"exact:outside": step},
        )  # fmt: skip


def _told(table: StepTable, events: Declared) -> Iterator[Finding]:
    """What an adapter found out by itself: replicas that differ, a resume that lost something."""
    for event in table.events:
        kind, step = event.get("event"), event.get("step")
        if not isinstance(step, int):
            continue
        if kind == "replica_divergence":
            text = str(event.get("text", f"Replicas differ from step {step} on."))
            yield certain(step, kind, text, metrics={"exact:params_hash": step})
        elif kind == "resume_check" and event.get("differs"):
            lost = ", ".join(str(name) for name in event["differs"])
            text = f"The run resumed at step {step}, and this did not carry over: {lost}."
            yield certain(step, "resume_discontinuity", text, metrics={"exact:state_hash": step})


def _named(table: StepTable, event: str, step: int, what: str) -> str:
    """Names of the tensors of an event, as the tail of a sentence."""
    for e in table.events:
        if e.get("event") == event and e.get("step") == step and e.get("what") == what:
            tensors = [str(t) for t in e.get("tensors", ())]
            more = int(e.get("n_tensors", len(tensors))) - len(tensors[:3])
            tail = f" and {more} more" if more > 0 else ""
            entries = e.get("entries") or []
            count = f" ({entries[0]} of its entries)" if len(tensors) == 1 and entries else ""
            return f": {', '.join(tensors[:3])}{tail}{count}"
    return ""


# -- settings ------------------------------------------------------------------------------------


def _settings(table: StepTable, events: Declared) -> Iterator[Finding]:
    digests = _column(table, "config_hash")
    if digests is None:
        return
    rows = np.flatnonzero(np.diff(digests) != 0) + 1
    starts = _starts(table)
    for row in (int(r) for r in rows if r not in starts):
        step = int(table.steps[row])
        changed = _changed_settings(table.events, step)
        kind, severity = _setting_kind(changed)
        if events.near(row, [*events.freezing, *events.relearn]):
            continue
        text = "; ".join(f"{n}: {b!r} → {a!r}" for n, (b, a) in list(changed.items())[:4])
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        yield certain(
            step, kind,
            f"The configuration changed at step {step}: {text or 'not recorded'}{more}.",
            metrics={"exact:config_hash": step}, severity=severity,
        )  # fmt: skip
        return


def _changed_settings(events: Sequence[dict[str, Any]], step: int) -> dict[str, tuple[Any, Any]]:
    for e in events:
        if e.get("event") == "config" and e.get("step") == step:
            return {str(n): (v[0], v[1]) for n, v in e.get("changed", {}).items()}
    return {}


def _setting_kind(changed: dict[str, tuple[Any, Any]]) -> tuple[str, str]:
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
    return "config_changed", "bad"


# -- data ----------------------------------------------------------------------------------------


def _repeats(table: StepTable, events: Declared) -> Iterator[Finding]:
    """A batch again at once, or a stretch of batches again, where the run had none before."""
    seen = _column(table, "batch_seen")
    if seen is None:
        return
    again = seen >= 0
    lag = np.where(again, table.steps - seen, 0)
    row = _first_breach(again)
    if row is None:
        return
    step, source = int(table.steps[row]), int(seen[row])
    if lag[row] == 1:
        text = f"Step {step} had the very batch of step {source}, the step before."
        yield certain(step, "batch_repeated", text, metrics={"exact:batch_seen": step})
        return
    stretch = np.flatnonzero(again[:-1] & again[1:] & (lag[:-1] == lag[1:]))
    if not len(stretch):
        return
    row = int(stretch[0])
    step, source = int(table.steps[row]), int(seen[row])
    left, epoch = _column(table, "ids_left"), _column(table, "epoch")
    wrapped = left is not None and left[row] == 0
    new_epoch = epoch is not None and row > 0 and epoch[row] > epoch[row - 1]
    if wrapped or new_epoch:
        text = f"From step {step} on the batches of step {source} on came again in the same order."
        yield certain(step, "no_reshuffle", text, metrics={"exact:batch_seen": step},
                      severity="info")  # fmt: skip
        return
    unseen = f", while {left[row]} samples had not been seen yet" if left is not None else ""
    yield certain(
        step, "data_replay",
        f"From step {step} on the batches came again that steps from {source} on had had{unseen}.",
        metrics={"exact:batch_seen": step},
    )  # fmt: skip


def _lasting(table: StepTable, broken: Bools) -> int | None:
    """First row of a breach that lasts, after `CLEAN_ROWS` rows that were clean."""
    row = first_run(broken, LASTING)
    if row is None or row < CLEAN_ROWS or broken[:row].mean() > 0.05:
        return None
    return row


def _duplicates(table: StepTable, events: Declared) -> Iterator[Finding]:
    copies = _column(table, "duplicates")
    if copies is None:
        return
    row = _lasting(table, copies > 0)
    if row is not None:
        step = int(table.steps[row])
        text = f"From step {step} on batches hold the same sample more than once ({copies[row]})."
        yield certain(step, "duplicate_samples", text, metrics={"exact:duplicates": step})


def _labels(table: StepTable, events: Declared) -> Iterator[Finding]:
    relation = _column(table, "labels")
    if relation is None:
        return
    usual = int(relation[0])
    broken = (relation != usual) & (relation >= 0)
    row = _first_breach(broken, CLEAN_ROWS)
    if usual <= 0 or row is None or row < CLEAN_ROWS:
        return
    step = int(table.steps[row])
    was = "the inputs shifted by one" if usual == 1 else "the inputs"
    text = f"The labels were {was} at every step before, and were not at step {step}."
    yield certain(step, "labels_misaligned", text, metrics={"exact:labels": step})


# -- updates and gradients that are not there ----------------------------------------------------


def _applied(table: StepTable) -> Bools:
    """Rows at which an update should have moved something."""
    skipped = column_is(table, "exact:step_skipped", 1)
    still = column_is(table, "lr", 0.0)
    return ~(skipped | still)


def _updates(table: StepTable, events: Declared) -> Iterator[Finding]:
    lost = _column(table, "lost_updates")
    if lost is None:
        return
    broken = (lost > 0) & _applied(table)
    row = first_run(broken, LASTING)
    if row is None:
        return
    step = int(table.steps[row])
    from_start = row <= max(_starts(table)) and broken[: row + CLEAN_ROWS].all()
    clean = row >= CLEAN_ROWS and broken[:row].mean() <= 0.05
    if not (clean or (from_start and _all_lost(table, row))):
        return
    if events.near(row, events.freezing):
        return
    text = (
        f"From step {step} on {lost[row]} tensors have a gradient and do not move: their update is "
        "not applied, or is too small for their precision."
    )
    yield certain(step, "update_lost", text, metrics={"exact:lost_updates": step})


def _all_lost(table: StepTable, row: int) -> bool:
    """Whether nothing at all moved at `row`."""
    return "update_norm" in table and float(table.column("update_norm")[row]) == 0.0


def _gradients(table: StepTable, events: Declared) -> Iterator[Finding]:
    for name, kind in (("zero_grads", "zero_gradient"), ("no_grads", "missing_gradient")):
        counts = _column(table, name)
        if counts is None or len(counts) <= CLEAN_ROWS:
            continue
        if "nonfinite" in table:  # what is left of a NaN gradient is no zero gradient
            spoilt = np.asarray(table.column("nonfinite"), np.float64) > 0
            counts = np.where(spoilt, counts[0], counts)
        usual = np.maximum.accumulate(counts)
        usual = np.concatenate([counts[:1], usual[:-1]])
        row = first_run(_rise(counts, usual), LASTING)
        if row is None or row < CLEAN_ROWS or events.near(row, events.freezing):
            continue
        step = int(table.steps[row])
        what = "a gradient of exactly zero" if name == "zero_grads" else "no gradient"
        text = (
            f"From step {step} on {counts[row]} tensors have {what}, {usual[row]} at most before."
        )
        yield certain(step, kind, text, metrics={f"exact:{name}": step})
        return


def _rise(counts: Ints, usual: Ints) -> Bools:
    """Rows above all that came before the rise began."""
    rising = counts > usual
    for row in np.flatnonzero(rising):
        level = usual[row]
        if np.all(counts[row : row + LASTING] > level):
            held = np.zeros(len(counts), bool)
            held[row:] = counts[row:] > level
            return held
    return np.zeros(len(counts), bool)


def _precision(table: StepTable, events: Declared) -> Iterator[Finding]:
    """Float32 weights that have nothing in their low bits any more: rounded to bfloat16."""
    low, bins = _column(table, "low16"), [f"hist_update:{i}" for i in range(16)]
    if low is None or not all(b in table for b in bins):
        return
    entries = np.nan_to_num(
        np.stack([bounded(table.column(b)) for b in bins]), posinf=0.0, neginf=0.0
    )
    entries = entries.sum(axis=0)
    share = low / np.maximum(entries, 1)
    row = first_run(share > 0.5, 1)
    if row is None or row < HABIT_ROWS or share[:row].max() > 0.1:
        return
    step = int(table.steps[row])
    text = f"After step {step} {share[row]:.0%} of the weights have the precision of bfloat16 only."
    yield certain(step, "precision_lost", text, metrics={"exact:low16": step})
