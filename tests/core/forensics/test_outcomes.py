"""What a detector said of a labelled run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytest

from flashback_core.forensics.attribution import CAUSES, is_attributed, is_same_family, ranked
from flashback_core.forensics.healthy import HEALTHY
from flashback_core.forensics.kinds import load_kinds
from flashback_core.forensics.outcomes import DECLARABLE, MISSED, judge, outcome_from_json
from flashback_core.forensics.tables import LabelledRun
from flashback_core.report.model import Cause, DetectionReport, Finding
from flashback_core.table import MemoryTable, StepTable

N = 300


class Says:
    """A detector that names given steps."""

    version = "test"

    def __init__(self, *steps: int, kind: str = "lr_jump") -> None:
        self.steps, self.kind = steps, kind

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Self:
        """Nothing to fit."""
        return self

    def predict(self, index: StepTable) -> DetectionReport:
        """Name the steps."""
        findings = tuple(
            Finding(step=s, interval=(s - 1, s + 1), kind=self.kind, confidence=0.9, severity="bad")
            for s in self.steps
        )
        return DetectionReport(
            status="bad" if findings else "healthy", n_steps=len(index), first_step=0,
            last_step=len(index) - 1, findings=findings,
        )  # fmt: skip


def labelled(bad: int = 150, **facts: Any) -> LabelledRun:
    """A run of 300 steps."""
    table = MemoryTable(np.arange(N), {"loss": np.ones(N)})
    known = {"first_bad_step": bad, "fault_kind": "lr_spike_loud" if bad >= 0 else "healthy",
             "split": "test", "kind_set": "seed", "injected_step": bad,
             "healthy_kind": "plain"} | facts  # fmt: skip
    return LabelledRun(run_id="x__s6", table=table, facts=known, is_twin=bool(facts.get("is_twin")))


@pytest.mark.parametrize(
    ("said", "verdict"),
    [(150, "exact"), (152, "within"), (148, "within"), (147, "early"), (153, "late")],
)
def test_verdicts(said: int, verdict: str) -> None:
    """Two steps off still count as found; the error is signed."""
    outcome = judge("a", Says(said), labelled())
    assert (outcome.verdict, outcome.error) == (verdict, said - 150)
    assert outcome.cost == abs(said - 150)


def test_missed_costs_a_hundred() -> None:
    """Nothing said of a fault."""
    outcome = judge("a", Says(), labelled())
    assert (outcome.verdict, outcome.cost) == ("missed", MISSED)


def test_false_alarm_before_a_fault_is_counted_apart() -> None:
    """It makes the verdict early; from the fault on the run was found."""
    outcome = judge("a", Says(20, 24, 90, 150), labelled())
    assert outcome.verdict == "early"
    assert outcome.false_alarms == 2
    assert outcome.found_near == 150
    assert outcome.healthy_steps == 148


def test_healthy_run_is_all_exposure() -> None:
    """Every alarm in it is false."""
    outcome = judge("a", Says(20, 200), labelled(-1))
    assert (outcome.role, outcome.verdict, outcome.false_alarms) == ("healthy", "false_alarm", 2)
    assert outcome.healthy_steps == N
    assert judge("a", Says(), labelled(-1)).verdict == "quiet"


def test_placebo_and_twin_are_healthy() -> None:
    """Nothing is wrong in them, whatever was put in."""
    placebo = judge("a", Says(151), labelled(-1, kind_set="placebo", injected_step=150,
                                             fault_kind="placebo_nothing"))  # fmt: skip
    assert (placebo.role, placebo.found_near, placebo.false_alarms) == ("placebo", 151, 1)
    assert judge("a", Says(), labelled(150, is_twin=True)).role == "twin"


def test_second_fault_counts() -> None:
    """Each fault of a run is found or not."""
    outcome = judge("a", Says(150, 221), labelled(all_bad_steps="[150, 220, 260]"))
    assert (outcome.n_bad, outcome.n_bad_found) == (3, 2)


def test_attribution_is_of_causes_only() -> None:
    """A cause is right or wrong, a symptom claims nothing."""
    assert judge("a", Says(150), labelled()).is_attributed is True
    assert judge("a", Says(150, kind="config_changed"), labelled()).is_attributed is False
    assert judge("a", Says(150, kind="update_shift"), labelled()).is_attributed is None
    assert is_attributed("lr_jump", "a kind of tomorrow") is None


class Ranks(Says):
    """A detector that ranks fault kinds."""

    def predict(self, index: StepTable) -> DetectionReport:
        """Name the steps, with likely kinds."""
        report = super().predict(index)
        return replace(report, findings=tuple(replace(f, causes=LIKELY) for f in report.findings))


LIKELY = tuple(
    Cause(name=name, probability=0.2, family="")
    for name in ("opt_lost", "lr_x1_5", "lr_spike_loud", "bit_flip")
)


def test_ranked_kinds_are_attributions_too() -> None:
    """Among the first three, or of the family of the first; a named cause goes before the ranks."""
    outcome = judge("a", Ranks(150, kind="update_shift"), labelled())
    assert (outcome.is_in_top, outcome.is_attributed) == (True, False)
    other = judge("a", Ranks(150, kind="update_shift"), labelled(fault_kind="m_lost"))
    assert (other.is_in_top, other.is_attributed) == (False, True)
    named = judge("a", Ranks(150), labelled())
    assert named.is_attributed is True
    assert judge("a", Ranks(20), labelled()).is_in_top is None
    assert ranked(Finding(step=1, interval=(1, 1), kind="x", confidence=0, severity="bad")) == ()
    assert is_same_family("opt_lost", "v_flip_up")
    assert not is_same_family("a kind of tomorrow", "a kind of tomorrow")


def test_outcome_survives_json() -> None:
    """All fields come back."""
    outcome = judge("a", Says(150), labelled())
    assert outcome_from_json(json.dumps(outcome.to_dict())) == outcome


def test_causes_are_families_of_the_list() -> None:
    """No family is misspelt."""
    families = {entry.family for entry in load_kinds().entries.values()}
    assert {family for found in CAUSES.values() for family in found} <= families


def test_declarable_kinds_are_those_that_declare() -> None:
    """The list says of each healthy kind whether its owner has something to declare."""
    frozen = load_kinds().names("healthy")
    assert {name for name in frozen if HEALTHY[name].declares} == DECLARABLE
