"""Outcome: what one detector said of one labelled run, as plain data for all tables."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.base import Detector
from flashback_core.evaluate import episodes
from flashback_core.forensics.attribution import is_attributed, is_in_top, is_same_family, ranked
from flashback_core.forensics.budgets import alarms_at_budgets
from flashback_core.forensics.tables import LabelledRun
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.table import StepTable

__all__ = [
    "DECLARABLE",
    "NEAR",
    "RunOutcome",
    "has_undeclared_event",
    "judge",
    "outcome_from_json",
]

NEAR = 2
"""Steps of error that still count as found."""
MISSED = 100
"""Error in steps of a fault that was missed, in the mean error."""

DECLARABLE = frozenset({
    "step_decay", "sgdr", "plateau_decay", "curriculum_abrupt", "curriculum_ramp",
    "longer_samples", "batch_up", "batch_down", "accumulation", "weight_decay_up", "clip_changed",
    "dropout_ends", "unfreeze", "freeze",
})  # fmt: skip
"""Healthy kinds of which the owner could have declared the event."""
_JUMPING = ("step", "sgdr")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What a detector said of a run.

    Attributes:
        detector: Its name.
        run_id: The run.
        role: ``fault``, ``placebo``, ``healthy`` or ``twin``.
        kind: Fault kind, or healthy kind.
        kind_set, split, family, optimizer, data: As in ``runs``.
        is_held_out: Whether the kind is in no training split.
        is_undeclared: Whether something happened on purpose that nobody declared.
        has_event: Whether something happened on purpose at all.
        visibility: d′ of the fault; −1 where no twin is there.
        first_bad_step: The truth; None for healthy runs and placebos.
        injected_step: Step of a fault or placebo.
        found: First bad step of the report.
        found_near: First bad finding at or after the fault minus `NEAR`: what would have been said
            had the monitoring begun there.
        low, high: Credible interval of `found`.
        confidence: Of `found`.
        found_kind: Kind of the finding.
        is_attributed: Whether the kind fits the fault; None where it claims none.
        is_in_top: Whether the fault's kind is among the first three that the finding ranks; None
            where it ranks none.
        alarm: Step of the first alarm at or after the fault; None where the detector has none.
        n_bad: Faults of the run.
        n_bad_found: Faults with a bad finding within `NEAR` steps.
        healthy_steps: Steps without a fault.
        false_alarms: Episodes of alarms among them.
        changes: Findings of severity ``change``.
        cpu_us: CPU time per step.
        at_budget: Episodes among the healthy steps by nominal budget, see `budgets`; empty for a
            detector without one.
    """

    detector: str
    run_id: str
    role: str
    kind: str
    kind_set: str
    split: str
    family: str
    optimizer: str
    is_held_out: bool
    is_undeclared: bool
    has_event: bool
    visibility: float
    n_steps: int
    first_bad_step: int | None
    injected_step: int | None
    found: int | None
    found_near: int | None
    low: int | None
    high: int | None
    confidence: float
    found_kind: str | None
    is_attributed: bool | None
    alarm: int | None
    n_bad: int
    n_bad_found: int
    healthy_steps: int
    false_alarms: int
    changes: int
    cpu_us: float
    data: str = "code"
    is_in_top: bool | None = None
    at_budget: Mapping[str, int] = field(default_factory=dict)

    @property
    def error(self) -> int | None:
        """Found minus true step; None where either is missing."""
        if self.found is None or self.first_bad_step is None:
            return None
        return self.found - self.first_bad_step

    @property
    def verdict(self) -> str:
        """One of exact, within, early, late, missed; of a healthy run false_alarm or quiet."""
        if self.first_bad_step is None:
            return "quiet" if self.found is None else "false_alarm"
        if self.error is None:
            return "missed"
        if abs(self.error) <= NEAR:
            return "exact" if self.error == 0 else "within"
        return "early" if self.error < 0 else "late"

    @property
    def cost(self) -> int:
        """Steps of error; `MISSED` where nothing was said."""
        return MISSED if self.error is None else abs(self.error)

    def to_dict(self) -> dict[str, Any]:
        """All fields and the verdict, as plain JSON values."""
        return asdict(self) | {"verdict": self.verdict, "error": self.error}


def judge(name: str, detector: Detector, run: LabelledRun) -> RunOutcome:
    """Let `detector` report on a run, and compare with its label."""
    facts, table = run.facts, run.table
    start = time.process_time()
    report = detector.predict(table)
    cpu_us = (time.process_time() - start) * 1e6 / max(len(table), 1)
    truth = None if run.is_twin else run.first_bad_step
    injected = _injected(run)
    bad = sorted(f.step for f in report.findings if f.severity == "bad")
    score = _score(detector, table)
    alarms = _alarms(detector, table, report, score)
    healthy = table.steps if truth is None else table.steps[table.steps < truth - NEAR]
    false = alarms[np.isin(alarms, healthy)]
    near = [] if injected is None else [s for s in bad if s >= injected - NEAR]
    later = alarms[alarms >= truth] if truth is not None else alarms[:0]
    faults = [] if truth is None else run.bad_steps
    interval = report.interval
    return RunOutcome(
        detector=name,
        run_id=run.run_id,
        role=_role(run),
        kind=_kind(run),
        kind_set=str(facts.get("kind_set", "seed")),
        split=run.split,
        family=str(facts.get("model_family", "gpt")),
        optimizer=str(facts.get("optimizer", "adamw")),
        is_held_out=bool(facts.get("is_held_out", False)),
        is_undeclared=has_undeclared_event(facts),
        has_event=_has_event(facts),
        visibility=-1.0 if run.is_twin else float(facts.get("visibility", -1.0)),
        n_steps=len(table),
        first_bad_step=truth,
        injected_step=injected,
        found=report.first_bad_step,
        found_near=near[0] if near else None,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        confidence=report.confidence,
        found_kind=report.kind,
        is_attributed=_attributed(report, run, truth),
        alarm=int(later[0]) if len(later) else None,
        n_bad=len(faults),
        n_bad_found=sum(any(abs(s - t) <= NEAR for s in bad) for t in faults),
        healthy_steps=len(healthy),
        false_alarms=episodes(false),
        changes=sum(f.severity == "change" for f in report.findings),
        cpu_us=cpu_us,
        data=str(facts.get("data", "code")),
        is_in_top=_in_top(report, run, truth),
        at_budget=alarms_at_budgets(detector, table, score, healthy),
    )


def _score(detector: Detector, table: StepTable) -> npt.NDArray[np.float64] | None:
    """The score of each row, where the detector has one of which 1 is an alarm."""
    if not hasattr(detector, "score") or getattr(detector, "version", "") != "2":
        return None
    return np.asarray(detector.score(table), np.float64)


def _alarms(
    detector: Detector,
    table: StepTable,
    report: DetectionReport,
    score: npt.NDArray[np.float64] | None,
) -> Any:
    """Steps at which the detector speaks: its bad findings, and where its score reaches 1.

    A report names a fault once; the score goes on and shows every episode.
    """
    rows = getattr(detector, "alarms", None)
    if rows is not None:
        found = table.steps[np.asarray(rows(table), bool)]
    elif score is not None:
        found = table.steps[score >= 1.0]
    else:
        found = table.steps[:0]
    bad = [f.step for f in report.findings if f.severity == "bad"]
    return np.unique(np.concatenate([found, np.asarray(bad, np.int64)]))


def _right(report: DetectionReport, truth: int | None) -> Finding | None:
    """The first bad finding, where it is within `NEAR` of the truth."""
    bad = report.bad
    if truth is None or bad is None or abs(bad.step - truth) > NEAR:
        return None
    return bad


def _attributed(report: DetectionReport, run: LabelledRun, truth: int | None) -> bool | None:
    """Whether the family is right: of the cause that is named, else of the kind ranked first."""
    bad, fault = _right(report, truth), str(run.facts.get("fault_kind", ""))
    if bad is None:
        return None
    named, names = is_attributed(bad.kind, fault), ranked(bad)
    return is_same_family(names[0], fault) if named is None and names else named


def _in_top(report: DetectionReport, run: LabelledRun, truth: int | None) -> bool | None:
    bad = _right(report, truth)
    return None if bad is None else is_in_top(bad, str(run.facts.get("fault_kind", "")))


def _role(run: LabelledRun) -> str:
    if run.is_twin:
        return "twin"
    if run.facts.get("kind_set") == "placebo":
        return "placebo"
    return "healthy" if run.first_bad_step is None else "fault"


def _kind(run: LabelledRun) -> str:
    kind = str(run.facts.get("fault_kind", "healthy"))
    return str(run.facts.get("healthy_kind", kind)) if kind == "healthy" else kind


def _injected(run: LabelledRun) -> int | None:
    step = int(run.facts.get("injected_step", run.facts.get("first_bad_step", -1)))
    return None if run.is_twin or step < 0 else step


def _has_event(facts: dict[str, Any]) -> bool:
    return facts.get("healthy_kind") in DECLARABLE or facts.get("schedule") in _JUMPING


def has_undeclared_event(facts: dict[str, Any]) -> bool:
    """Whether a regime change of the run was not declared to the recorder."""
    return _has_event(facts) and not facts.get("is_declared", True)


def outcome_from_json(text: str) -> RunOutcome:
    """The outcome that `to_dict` gave."""
    data = json.loads(text)
    for name in ("verdict", "error"):
        data.pop(name, None)
    return RunOutcome(**data)
