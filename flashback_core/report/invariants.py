"""Invariants that broke, from exact fields and events: each with its value before and then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flashback_core.report.check import Check
from flashback_core.report.events import SHARD_KINDS, is_step, resumes
from flashback_core.report.field_words import FIELD_WORDS
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.text import clean, number, plural
from flashback_core.report.window import Window
from flashback_core.table import StepTable

__all__ = ["broken_invariants", "row_before"]

_OUTSIDE = ((1, "weights"), (2, "optimizer state"), (4, "buffers"))
_WRITER = "something other than the optimizer wrote to them after the step before"
_SETTINGS = 6
"""Settings of one step that are listed."""
_FIELDS_SHOWN = 12
_HASH = "config_hash"


def broken_invariants(window: Window, report: DetectionReport) -> Iterator[Check]:
    """Invariants that broke round the finding, and those that a finding anywhere names.

    Args:
        window: The rows round the finding that the report is about.
        report: All findings, and the whole run.
    """
    table = report.table if report.table is not None else window.table
    named = list(_named(report.findings))
    for step in _steps(named, "outside", _outside_row(window)):
        yield from _outside(table, step)
    for step in _steps(named, _HASH, _config_row(window)):
        yield from _config(table, step)
    for field in ("clipped", "accum_count"):
        row = _changed_row(window, field)
        if row is not None:
            yield _changed(window.table, field, int(window.table.steps[row]))
    yield from _told(table)
    for field, step in named[:_FIELDS_SHOWN]:
        if field in FIELD_WORDS:
            yield from _field(table, field, step)


def _named(findings: tuple[Finding, ...]) -> Iterator[tuple[str, int]]:
    """Exact fields that findings name, each once with its step."""
    seen = set()
    for finding in findings:
        for m in finding.top_metrics:
            field = m.metric.removeprefix("exact:")
            if field != m.metric and (field, m.step) not in seen:
                seen.add((field, m.step))
                yield field, m.step


def _steps(named: list[tuple[str, int]], field: str, found: int | None) -> list[int]:
    steps = {step for name, step in named if name == field}
    return sorted(steps | ({found} if found is not None else set()))


# -- rows of the window --------------------------------------------------------------------------


def _exact(table: StepTable, field: str) -> np.ndarray | None:
    name = f"exact:{field}"
    return table.column(name) if name in table.exact_names else None


def _first(window: Window, bad: np.ndarray) -> int | None:
    start = max(0, window.row - 1)
    rows = np.flatnonzero(bad[start:])
    return start + int(rows[0]) if len(rows) else None


def _outside_row(window: Window) -> int | None:
    """Step from the finding on at which something was written to, where that is no habit."""
    bits = _exact(window.table, "outside")
    if bits is None:
        return None
    unwatched = [int(e["step"]) for e in resumes(window.table.events)]
    wrote = (bits != 0) & ~np.isin(window.table.steps, unwatched)
    if wrote[: window.row].any():
        return None  # such as averaging weights
    row = _first(window, wrote)
    return None if row is None else int(window.table.steps[row])


def _config_row(window: Window) -> int | None:
    row = _changed_row(window, _HASH)
    return None if row is None else int(window.table.steps[row])


def _changed_row(window: Window, field: str) -> int | None:
    """Row from the finding on at which a field changed that had kept its value."""
    values = _exact(window.table, field)
    if values is None or window.row == 0:
        return None
    changed = (values[1:] != values[:-1]) & (values[1:] > 0) & (values[:-1] > 0)
    if changed[: max(window.row - 2, 0)].any():
        return None
    return _first(window, np.concatenate([[False], changed]))


# -- checks --------------------------------------------------------------------------------------


def _events(table: StepTable, kind: str, step: int) -> list[dict[str, Any]]:
    return [e for e in table.events if e.get("event") == kind and e.get("step") == step]


def _pair(table: StepTable, field: str, step: int) -> tuple[Any, Any] | None:
    """Values of an exact field in the row before `step` and at it."""
    values = _exact(table, field)
    row = int(np.searchsorted(table.steps, step))
    if values is None or row >= len(values) or table.steps[row] != step:
        return None
    before = row_before(table, row)
    return (values[before] if before is not None else None), values[row]


def row_before(table: StepTable, row: int) -> int | None:
    """The row before `row`, of the same optimizer where a run has several; None without one."""
    optimizers = _exact(table, "optimizer")
    if optimizers is None:
        return row - 1 if row else None
    same = np.flatnonzero(optimizers[:row] == optimizers[row])
    return int(same[-1]) if len(same) else None


def _outside(table: StepTable, step: int) -> Iterator[Check]:
    events = _events(table, "outside", step)
    for event in events:
        what = clean(event.get("what", "state"), 40)
        yield Check(
            step=step, name="exact:outside", before=f"{what} as the step before left it",
            at=_tensors(event, what), meaning=_WRITER,
        )  # fmt: skip
    pair = _pair(table, "outside", step)
    if events or pair is None:
        return
    what = " and ".join(word for bit, word in _OUTSIDE if _integer(pair[1]) & bit)
    yield Check(
        step=step, name="exact:outside", before="unchanged between steps",
        at=f"{what or 'something'} changed", meaning=_WRITER,
    )  # fmt: skip


def _tensors(event: Mapping[str, Any], what: str) -> str:
    """What of the tensors of an event changed."""
    tensors, entries = event.get("tensors") or [], event.get("entries") or []
    if not isinstance(tensors, (list, tuple)) or not tensors:
        return f"{what} changed"
    count = f" ({clean(entries[0], 20)} of its entries)" if entries and len(tensors) == 1 else ""
    more = event.get("n_tensors", len(tensors))
    tail = f" and {more - 2:,} more" if isinstance(more, int) and more > 2 else ""
    return f"{', '.join(clean(t, 60) for t in tensors[:2])}{tail} changed{count}"


def _config(table: StepTable, step: int) -> Iterator[Check]:
    changed = {
        str(name): pair
        for event in _events(table, "config", step)
        for name, pair in _pairs(event.get("changed"))
    }
    if not changed:
        yield _changed(table, _HASH, step)
        return
    for name, (before, now) in list(changed.items())[:_SETTINGS]:
        yield Check(
            step=step, name=clean(name, 80), before=clean(_value(before), 60),
            at=clean(_value(now), 60), meaning="this setting is not the one of the step before",
        )  # fmt: skip
    if len(changed) > _SETTINGS:
        more = plural(len(changed) - _SETTINGS, "more setting")
        yield Check(step=step, name="exact:config_hash", before="", at="", meaning=f"and {more}")


def _pairs(changed: object) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(changed, Mapping):
        for name, pair in changed.items():
            if isinstance(pair, (list, tuple)) and len(pair) == 2:
                yield str(name), (pair[0], pair[1])


def _value(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not there"}[value]
    return number(value, 6) if isinstance(value, float) else str(value)


def _changed(table: StepTable, field: str, step: int) -> Check:
    what = {"config_hash": "configuration", "clipped": "clipping"}.get(field, "accumulation")
    before, at = _pair(table, field, step) or (None, None)
    return Check(
        step=step, name=f"exact:{field}", before=_plain(field, before), at=_plain(field, at),
        meaning=f"the {what} is not the one of the step before",
    )  # fmt: skip


def _plain(field: str, value: Any) -> str:
    if value is None:
        return "not recorded"
    return f"{_integer(value):016x}" if field.endswith("hash") else number(float(value))


def _integer(value: Any) -> int:
    return int(value) if np.isfinite(value) else 0


def _told(table: StepTable) -> Iterator[Check]:
    """What an adapter found out by itself."""
    for event in table.events:
        kind, step = event.get("event"), event.get("step")
        if not is_step(step) or step is None:
            continue
        if kind == "replica_divergence":
            yield _divergence(event, int(step))
        elif kind == "resume_check" and isinstance(event.get("differs"), (list, tuple)):
            for lost in event["differs"][:_SETTINGS]:
                yield Check(
                    step=int(step), name=clean(lost, 60), before="as saved", at="different",
                    meaning="the resume did not bring it back",
                )  # fmt: skip


def _divergence(event: Mapping[str, Any], step: int) -> Check:
    """What ranks found out about each other: copies that differ, or a shard that was written to."""
    rank, what = event.get("rank"), SHARD_KINDS.get(str(event.get("kind")))
    whose = f"process {clean(rank, 20)}" if is_step(rank) and (rank or 0) >= 0 else ""
    if what is not None:
        return Check(
            step=step, name="exact:state_hash" if "state" in what else "exact:params_hash",
            before="as the step before left it",
            at=f"changed on {whose or 'one process'}", meaning=_WRITER,
        )  # fmt: skip
    return Check(
        step=step, name="exact:params_hash", before="the same on every process",
        at=f"{whose} differs" if whose else "different",
        meaning="copies of the model are not one model any more",
    )  # fmt: skip


def _field(table: StepTable, field: str, step: int) -> Iterator[Check]:
    pair = _pair(table, field, step)
    if pair is None:
        return
    words, meaning = FIELD_WORDS[field]
    before, at = ("no step before" if v is None else words(float(v)) for v in pair)
    yield Check(step=step, name=f"exact:{field}", before=before, at=at, meaning=meaning)
