"""The rules on exact fields: habits, what is excused, and when a rule speaks again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import flashback_core as fb
from flashback_core.detectors.rules import CertainRules
from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run, run_with_fault

Ints = npt.NDArray[np.int64]
N, T0 = 400, 160


def found(events: list[dict[str, Any]] | None = None, **fields: npt.ArrayLike) -> list[Finding]:
    """Findings on a run with these exact fields, row by row."""
    columns: dict[str, Any] = {"loss": np.linspace(3, 1, N), "lr": np.full(N, 1e-3)}
    columns |= {"update_norm": np.full(N, 0.1)}
    columns |= {f"hist_update:{i}": np.full(N, 1000) for i in range(16)}
    columns |= {f"exact:{name}": np.asarray(values) for name, values in fields.items()}
    table = MemoryTable(np.arange(N), columns, events=events or ())
    rules = CertainRules()
    chunks = (table[start : start + 3] for start in range(0, N, 3))
    return [f for chunk in chunks for f in rules.update(chunk, table.events)] + rules.finish()


def kinds(findings: list[Finding]) -> list[tuple[str, int, str]]:
    """Kind, step and severity of each."""
    return [(f.kind, f.step, f.severity) for f in findings]


def at(*steps: int, value: int = 1, before: int = 0, rows: int = 1) -> Ints:
    """`before` everywhere but for `rows` rows from each of `steps` on."""
    out = np.full(N, before)
    for step in steps:
        out[step : step + rows] = value
    return out


def test_a_rule_speaks_again_after_clean_rows() -> None:
    """A breach within 64 rows of the last one belongs to it; a later one is a new finding."""
    steps = (100, 130, 164, 164 + 65)
    expected = [("weights_changed", step, "bad") for step in (100, 164 + 65)]
    assert kinds(found(outside=at(*steps))) == expected


def test_a_rule_speaks_at_most_twenty_times() -> None:
    """The rest of a long list helps nobody."""
    n = 64 * 100
    outside = np.zeros(n, int)
    outside[66::66] = 1
    table = MemoryTable(np.arange(n), {"lr": np.ones(n), "exact:outside": outside})
    assert len(CertainRules().update(table, ())) == 20


@pytest.mark.parametrize("steps", [(3, 6), (0, 1, 2, 3, 4), tuple(range(N))])
def test_what_happens_twice_at_the_start_is_a_habit(steps: tuple[int, ...]) -> None:
    """Breaches in the first rows make the rule silent for good, a single one does not."""
    assert found(outside=at(*steps, 200)) == []
    assert kinds(found(outside=at(3))) == [("weights_changed", 3, "bad")]


def test_a_habit_of_one_bit_hides_no_other() -> None:
    """Weights that are scaled at every step leave the optimizer's state to be watched."""
    bits = np.ones(N, int)
    bits[T0] = 3
    assert kinds(found(outside=bits)) == [("state_changed", T0, "bad")]


def test_a_setting_may_be_declared_one_row_late() -> None:
    """A declaration at the row itself, or at its neighbours, excuses a change of settings."""
    for step in (T0 - 1, T0, T0 + 1):
        event = {"event": "expect", "step": step, "kind": "weight_decay"}
        assert found([event], config_hash=at(*range(T0, N), value=7, before=5)) == []
    assert kinds(found(config_hash=at(*range(T0, N), value=7, before=5))) == [
        ("config_changed", T0, "bad")
    ]


@pytest.mark.parametrize("start", [0, T0])
def test_a_setting_on_a_schedule_is_none(start: int) -> None:
    """What changes at each of the first steps of a recording does so all along."""
    digests = np.full(N, 5)
    for later in range(1, 4):
        digests[start + later :] = 5 + later
    events = [{"event": "session", "step": start}]
    assert found(events, config_hash=digests) == []


def test_a_setting_that_changes_once_at_the_start_is_told() -> None:
    """One change among the first rows is told when they are over; so is one right after them."""
    assert kinds(found(config_hash=at(*range(3, N), value=7, before=5))) == [
        ("config_changed", 3, "bad")
    ]
    assert kinds(found(config_hash=at(*range(8, N), value=7, before=5))) == [
        ("config_changed", 8, "bad")
    ]


@pytest.mark.parametrize(
    ("kind", "excused"), [("weights", True), ("pruning", True), ("data", False), ("freeze", False)]
)
def test_declared_writes_are_excused(kind: str, excused: bool) -> None:
    """The loop may write to weights where it says so; a change of the data writes to none."""
    event = {"event": "expect", "step": T0, "kind": kind}
    expected = [] if excused else [("weights_changed", T0, "bad")]
    assert kinds(found([event], outside=at(T0))) == expected
    assert kinds(found([event], outside=at(T0 + 70))) == [("weights_changed", T0 + 70, "bad")]


def test_a_digest_that_was_not_taken_is_no_change() -> None:
    """Rows without a digest say nothing of the settings."""
    digests = np.full(N, 5)
    digests[T0 : T0 + 9] = 0
    assert found(config_hash=digests) == []


def test_digests_differ_beyond_a_float() -> None:
    """Two digests that are the same number as floats are two digests."""
    digests = np.full(N, 2**63 + 5, np.uint64)
    digests[T0:] += np.uint64(1)
    assert kinds(found(config_hash=digests)) == [("config_changed", T0, "bad")]


def test_experts_come_and_go() -> None:
    """Experts that get no tokens for a while are no dead tensors, though ever more of them."""
    zero = at(40, 90, 150, value=2, rows=5) + at(92, 200, 260, value=1, rows=12)
    assert found(zero_grads=zero) == []


@pytest.mark.parametrize(("rows", "expected"), [(7, []), (8, [("zero_gradient", T0, "bad")])])
def test_a_rise_must_last(rows: int, expected: list[tuple[str, int, str]]) -> None:
    """Eight rows with more dead tensors than ever are a finding, seven are none."""
    assert kinds(found(zero_grads=at(T0, value=3, before=1, rows=rows))) == expected


def test_a_rise_must_exceed_all_before() -> None:
    """As many dead tensors as in an earlier stretch are nothing new; more of them are."""
    early = at(60, value=3, rows=6)
    assert found(zero_grads=early + at(T0, value=3, rows=100)) == []
    more = kinds(found(zero_grads=early + at(T0, value=4, rows=100)))
    assert more == [("zero_gradient", T0, "bad")]


def test_a_declared_freeze_raises_what_is_usual() -> None:
    """Tensors without a gradient after a declared freeze are as wanted, more of them are not."""
    counts = at(T0, value=4, rows=N) + at(T0 + 100, value=2, rows=N)
    events = [{"event": "expect", "step": T0, "kind": "freeze"}]
    assert kinds(found(events, no_grads=counts)) == [("missing_gradient", T0 + 100, "bad")]


STEPS = np.arange(N) + 1


def test_the_optimizers_own_count() -> None:
    """A count that goes on is healthy, also from where another run stopped."""
    assert found(opt_steps=STEPS) == []
    assert found(opt_steps=STEPS + 5000) == []
    assert found(opt_steps=np.full(N, -1)) == []


@pytest.mark.parametrize("name", ["reset", "ahead", "resumed from nothing"])
def test_a_count_that_does_not_go_on(name: str) -> None:
    """A state that was reset or replaced is bad at its step, at the start of a session too."""
    counts = STEPS.copy()
    counts[T0:] += 40 if name == "ahead" else -T0
    events = [{"event": "session", "step": T0}] if name.startswith("resumed") else []
    assert kinds(found(events, opt_steps=counts)) == [("optimizer_step_reset", T0, "bad")]


def test_skipped_steps_do_not_count() -> None:
    """A step that the scaler skipped leaves the count where it was."""
    skipped = at(20, 21, 90, 200)
    assert found(opt_steps=STEPS - np.cumsum(skipped), step_skipped=skipped) == []


def test_a_tensor_that_is_new_begins_at_one() -> None:
    """The smallest count falls when a tensor gets its first gradient, which is no reset."""
    counts = STEPS.copy()
    counts[T0:] = np.arange(N - T0) + 1
    assert found(opt_steps=counts, no_grads=at(*range(T0), value=2)) == []
    events = [{"event": "expect", "step": T0, "kind": "unfreeze"}]
    assert found(events, opt_steps=counts) == []


def test_what_was_told_of_steps_that_never_came() -> None:
    """A resume that lost something is said at the end where no row follows it."""
    event = {"event": "resume_check", "step": N + 5, "differs": ["scheduler"]}
    assert kinds(found([event])) == [("resume_discontinuity", N + 5, "bad")]


def test_a_loss_that_is_logged_now_and_then() -> None:
    """A loss of every 25th row that stays away is missed after twice that distance."""
    loss = np.full(N, np.nan)
    loss[:200:25] = 2.0
    table = MemoryTable(np.arange(N), {"loss": loss, "exact:step_skipped": np.zeros(N, int)})
    rules = CertainRules()
    findings = [f for row in range(N) for f in rules.update(table[row : row + 1], ())]
    assert kinds(findings) == [("nonfinite", 175 + 51, "bad")]


def test_a_write_that_leads_to_nan_is_named_first() -> None:
    """A weight that was changed from outside and spoilt the gradients is the headline."""
    run = run_with_fault(first_bad_step=120, kind="nonfinite")
    columns = {name: run.column(name) for name in run}
    columns["exact:outside"] = (np.arange(len(run)) == 120).astype(np.int64)
    report = fb.FirstBadStepDetector().predict(MemoryTable(run.steps, columns))
    assert (report.first_bad_step, report.kind) == (120, "weights_changed")
    assert any("NaN or infinite" in text for text in report.evidence)


def test_precision_is_silent_about_nan() -> None:
    """Weights that are NaN have no low bits either, and are no rounded weights."""
    run = healthy_run(80)
    entries = sum(run.column(f"hist_update:{i}") for i in range(16))
    columns = {name: np.array(run.column(name)) for name in run}
    late = np.arange(80) >= 40
    columns["exact:low16"] = np.where(late, entries, 4).astype(np.int64)
    rules = CertainRules(only=["precision"])
    assert [f.step for f in rules.update(MemoryTable(run.steps, columns), ())] == [40]
    columns["update_nonfinite"] = np.where(late, 1e4, 0.0)
    rules = CertainRules(only=["precision"])
    assert rules.update(MemoryTable(run.steps, columns), ()) == []


def test_a_count_that_the_optimizer_began_itself() -> None:
    """A thawed tensor counts from 1: no reset, as nothing wrote to the state from outside."""
    counts = np.where(np.arange(N) < T0, np.arange(N) + 1, np.arange(N) - T0 + 1)
    outside = np.zeros(N, np.int64)
    assert found(opt_steps=counts, outside=outside) == []
    outside[T0] = 2
    assert ("optimizer_step_reset", T0, "bad") in kinds(found(opt_steps=counts, outside=outside))
