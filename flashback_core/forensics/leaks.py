"""Leak checks: changes of a run that mean nothing, after which no verdict may change.

A detector that fails one of them looks at something that it should not: the length of the run, the
future, the order or the names of columns, or units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.base import Detector
from flashback_core.forensics.tables import LabelledRun
from flashback_core.report.model import DetectionReport
from flashback_core.table import MemoryTable, StepTable

__all__ = ["CHECKS", "LeakCheck", "check_leaks"]

Columns = dict[str, npt.NDArray[Any]]
LeakCheck = Callable[[StepTable], StepTable]


def _rebuilt(table: StepTable, columns: Columns) -> StepTable:
    return MemoryTable(table.steps, columns, events=table.events, source=table.source)


def _columns(table: StepTable) -> Columns:
    return {name: table.column(name) for name in table}


def permuted(table: StepTable) -> StepTable:
    """The columns in another order."""
    columns = _columns(table)
    order = np.random.default_rng(0).permutation(len(columns))
    names = list(columns)
    return _rebuilt(table, {names[i]: columns[names[i]] for i in order})


def renamed(table: StepTable) -> StepTable:
    """The groups under other names, in the columns and in the events."""
    groups = list(dict.fromkeys(n.split(":")[1] for n in table.names if n.startswith("group:")))
    names = {group: f"part{i}" for i, group in enumerate(groups)}

    def new(name: str) -> str:
        if not name.startswith("group:"):
            return name
        _, group, metric = name.split(":", 2)
        return f"group:{names[group]}:{metric}"

    columns = {new(name): values for name, values in _columns(table).items()}
    events = [
        {**e, "groups": {names.get(g, g): v for g, v in e["groups"].items()}}
        if e.get("event") == "groups"
        else e
        for e in table.events
    ]
    return MemoryTable(table.steps, columns, events=events, source=table.source)


_SCALE = 2.0**-4
"""A power of 16, so that histogram bins (a factor of 4 each) move by exactly two."""
_BINS = 2


def gradients_scaled(table: StepTable) -> StepTable:
    """All gradients divided by 16, as for another unit of the loss; updates stay."""
    columns = _columns(table)
    for name, values in columns.items():
        metric = name.rpartition(":")[2] if name.startswith("group:") else name
        if metric in ("grad_norm", "grad_max", "max_abs") or metric.startswith("grad_norm_p"):
            columns[name] = np.asarray(values * np.asarray(_SCALE, values.dtype))
        elif metric == "var":
            columns[name] = np.asarray(values * np.asarray(_SCALE**2, values.dtype))
    return _rebuilt(table, columns | _bins_moved(columns, "hist_grad"))


def _bins_moved(columns: Columns, kind: str) -> Columns:
    """The histogram with all entries two bins lower; what falls out is in the lowest."""
    names = [f"{kind}:{i}" for i in range(16)]
    if not all(name in columns for name in names):
        return {}
    counts = np.stack([columns[name] for name in names])
    # the top bin is open and must be empty for this to be what a smaller gradient gives
    moved = np.zeros_like(counts)
    moved[: 16 - _BINS] = counts[_BINS:]
    moved[0] += counts[:_BINS].sum(axis=0)
    return dict(zip(names, moved, strict=True))


def lr_units_changed(table: StepTable) -> StepTable:
    """The learning rate logged in thousandths."""
    columns = _columns(table)
    if "lr" in columns:
        columns["lr"] = columns["lr"] * 1000.0
    return _rebuilt(table, columns)


def steps_shifted(table: StepTable) -> StepTable:
    """The same run counted from 100 000 on, as the continuation of a much longer one."""
    columns = _columns(table)
    seen = columns.get("exact:batch_seen")
    if seen is not None:
        columns["exact:batch_seen"] = np.where(seen >= 0, seen + _SHIFT, seen)
    events = [
        {**e, "step": e["step"] + _SHIFT} if isinstance(e.get("step"), int) else e
        for e in table.events
    ]
    return MemoryTable(table.steps + _SHIFT, columns, events=events, source=table.source)


_SHIFT = 100_000

CHECKS: dict[str, tuple[LeakCheck, int]] = {
    "columns permuted": (permuted, 0),
    "groups renamed": (renamed, 0),
    "gradients scaled": (gradients_scaled, 0),
    "lr in other units": (lr_units_changed, 0),
    "counted from 100 000": (steps_shifted, _SHIFT),
}
"""What is done to a run, and by how much its steps move."""


def check_leaks(detector: Detector, runs: Iterable[LabelledRun]) -> dict[str, dict[str, Any]]:
    """Do all changes to all runs, and say where a verdict changed.

    Beside `CHECKS`: ``prefix`` (what is found in a run is found in a prefix that reaches `SETTLED`
    steps past it, and nothing else is), ``score of a prefix`` (it is the prefix of the score).

    Returns:
        By check: ``n`` runs, and the ids of those whose verdict ``changed``.
    """
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        before = detector.predict(run.table)
        for name, (change, shift) in CHECKS.items():
            after = detector.predict(change(run.table))
            _note(found, name, run, _verdict(before, shift) == _verdict(after))
        for share in (0.5, 0.8):
            _prefix(found, detector, run, before, int(share * len(run.table)))
    return found


def _note(found: dict[str, dict[str, Any]], name: str, run: LabelledRun, is_same: bool) -> None:
    entry = found.setdefault(name, {"n": 0, "changed": []})
    entry["n"] += 1
    if not is_same:
        entry["changed"].append(run.run_id)


def _verdict(report: DetectionReport, shift: int = 0) -> tuple[Any, ...]:
    step = report.first_bad_step
    return report.status, None if step is None else step + shift, report.kind


SETTLED = 100
"""Steps after which a finding must be known: alarms come late, dates do not."""


def _prefix(
    found: dict[str, dict[str, Any]],
    detector: Detector,
    run: LabelledRun,
    whole: DetectionReport,
    length: int,
) -> None:
    part = run.table[:length]
    if not length:
        return
    end = int(part.steps[-1])
    report = detector.predict(part)
    step, early = whole.first_bad_step, report.first_bad_step
    is_settled = step is not None and step <= end - SETTLED
    is_same = early == step if is_settled else early is None or early == step
    _note(found, "prefix", run, is_same)
    score = getattr(detector, "score", None)
    if score is not None:
        a, b = np.asarray(score(part)), np.asarray(score(run.table))[:length]
        _note(found, "score of a prefix", run, bool(np.allclose(a, b, equal_nan=True)))
