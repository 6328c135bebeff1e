"""Hard signals: certain from the first step on, and what is not one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run
from tests.core.detectors.rules_on import HARD, said


def found(
    columns: Mapping[str, npt.ArrayLike], events: list[dict[str, object]] | None = None
) -> list[Finding]:
    """Hard findings of a table of `columns`."""
    rows = len(np.asarray(next(iter(columns.values()))))
    table = MemoryTable(np.arange(rows), columns, events=events or [])
    return said(table, HARD)


def own(rows: int = 60, **changes: npt.ArrayLike) -> dict[str, npt.ArrayLike]:
    """Columns of our own recording: metrics and exact fields."""
    run = healthy_run(rows)
    return {name: run.column(name) for name in run} | changes


def at(rows: int, where: npt.ArrayLike, value: float = 1.0) -> npt.NDArray[np.float64]:
    """Zeros but for `value` at the rows `where`."""
    out = np.zeros(rows)
    out[where] = value
    return out


def log(rows: int = 40) -> dict[str, npt.NDArray[np.float64]]:
    """Columns of another tool's log."""
    return {"loss": 3.0 - 0.01 * np.arange(rows), "grad_norm": np.full(rows, 1.0)}


@pytest.mark.parametrize("row", [0, 1, 30])
def test_one_entry_is_enough(row: int) -> None:
    """One non-finite gradient entry is certain, from the very first step on."""
    (finding,) = found(own(nonfinite=at(60, row)))
    assert (finding.step, finding.kind, finding.severity) == (row, "nonfinite", "bad")
    assert finding.evidence[0] == f"1 gradient entry was NaN or infinite at step {row}."


def test_the_group_and_the_update_are_named() -> None:
    """The evidence says which group's update was not finite."""
    (finding,) = found(own(**{"group:head:update_nonfinite": at(60, 9, 4)}))
    assert finding.evidence == ("4 update entries of group head were NaN or infinite at step 9.",)


def test_skipped_steps_are_healthy() -> None:
    """Gradients that overflowed in a step that the scaler skipped are its daily work."""
    skipped = at(60, [0, 1, 2, 20, 45])
    assert found(own(nonfinite=9 * skipped, **{"exact:step_skipped": skipped})) == []


def test_skipping_that_does_not_end() -> None:
    """Twenty skipped steps in a row are no search for a loss scale."""
    (finding,) = found(own(**{"exact:step_skipped": at(60, slice(30, 55))}))
    assert (finding.step, finding.kind) == (30, "skip_loop")


def test_a_loss_never_logged_is_no_signal() -> None:
    """Where the loop logs no loss at all, or only every fifth step, nothing is missing."""
    assert found(own(loss=np.full(60, np.nan))) == []
    sparse = np.where(np.arange(60) % 5 == 0, 2.0, np.nan)
    assert found(own(loss=sparse)) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_was_always_there(value: float) -> None:
    """One NaN or infinity in a loss that was logged at each step is certain."""
    loss = np.full(60, 2.0)
    loss[17] = value
    (finding,) = found(own(loss=loss))
    assert (finding.step, finding.kind) == (17, "nonfinite")


def test_evaluation_rows_are_no_loss() -> None:
    """A row without a loss that carries other cells is an evaluation."""
    columns = log()
    columns["loss"][[10, 20, 30]] = np.nan
    columns["eval_loss"] = np.full(40, np.nan)
    columns["eval_loss"][[10, 20, 30]] = 2.5
    assert found(columns) == []


def test_a_loss_that_turns_empty_for_good() -> None:
    """A loss of a sparse log that is overdue by more than twice its usual gap is gone."""
    loss = np.where(np.arange(80) % 4 == 0, 2.0, np.nan)
    loss[41:] = np.nan
    (finding,) = found({"loss": loss, "grad_norm": np.ones(80)})
    assert finding.kind == "nonfinite"
    assert 41 <= finding.step <= 52


def test_a_log_of_nan_only() -> None:
    """A log whose loss is NaN from its first row is broken from there."""
    (finding,) = found({"loss": np.full(12, np.nan)})
    assert (finding.step, finding.kind) == (0, "nonfinite")


@pytest.mark.parametrize("values", [2, 3])
def test_a_loss_that_ends_after_its_first_values(values: int) -> None:
    """Two values, then none to the end: NaN from there; one value may be a loss logged rarely."""
    columns = log(60)
    columns["loss"][values:] = np.nan
    (finding,) = found(columns)
    assert (finding.step, finding.kind, finding.severity) == (values, "nonfinite", "bad")
    assert found({name: values[: values.size // 3] for name, values in columns.items()}) == []
    columns["loss"][1:] = np.nan
    assert found(columns) == []
    columns["loss"][:2] = columns["loss"][50:] = 1.0
    assert found(columns) == []


def test_a_passing_overflow_in_a_log_is_said_but_not_bad() -> None:
    """An infinite gradient norm that passes, with a finite loss, is most likely a skipped step."""
    columns = log()
    columns["grad_norm"][[3, 20]] = np.inf
    (finding,) = found(columns)
    assert (finding.severity, finding.kind, finding.step) == ("info", "skipped_step", 3)


def test_a_step_that_moved_no_weight_in_a_log() -> None:
    """Non-finite gradients and an update of exactly zero: a skipped step, unless it never ends."""
    columns = log(60) | {"update_norm": np.ones(60), "nonfinite": np.zeros(60)}
    for rows in ([0, 1, 2, 3, 4, 5, 30], [*range(40, 50)]):
        columns["nonfinite"][rows] = 7
        columns["update_norm"][rows] = 0.0
    assert {(f.kind, f.severity) for f in found(columns)} == {("skipped_step", "info")}
    columns["nonfinite"][35:], columns["update_norm"][35:] = 7, 0.0
    assert [(f.step, f.kind) for f in found(columns) if f.severity == "bad"] == [(35, "nonfinite")]
    applied = log(60) | {"update_norm": np.ones(60), "nonfinite": at(60, 30)}
    assert [(f.step, f.kind) for f in found(applied)] == [(30, "nonfinite")]


def test_an_overflow_that_stays_or_reaches_the_loss_is_bad() -> None:
    """The same norm is bad where it stays, or where the loss follows."""
    stays, follows = log(), log()
    stays["grad_norm"][20:] = np.inf
    follows["grad_norm"][20] = np.inf
    follows["loss"][21:] = np.nan
    assert [(f.step, f.severity) for f in found(stays)] == [(20, "bad")]
    assert [(f.step, f.severity) for f in found(follows)] == [(20, "bad")]


def test_a_loss_of_exactly_zero() -> None:
    """A loss that falls to exactly 0.0 from a large one was filtered; one that shrank was not."""
    columns = log()
    columns["loss"][25:] = 0.0
    (finding,) = found(columns)
    assert (finding.step, finding.kind) == (25, "loss_zero")
    fitted = np.maximum(2.0 * 0.5 ** np.arange(60), 1e-12)
    fitted[50:] = 0.0
    assert found({"loss": fitted}) == []


def test_a_group_that_stops() -> None:
    """A group whose update turns exactly zero has stopped; one that never moved has not."""
    still = at(60, slice(0, 30), 0.1)
    names = {"group:head:update_norm": still, "group:head:grad_norm": still}
    (finding,) = found(own(**names))
    assert (finding.step, finding.kind) == (30, "zero_gradient")
    frozen = {"group:head:update_norm": np.zeros(60), "group:head:grad_norm": np.zeros(60)}
    assert found(own(**frozen)) == []


def test_a_declared_freeze_and_a_learning_rate_of_zero_are_excused() -> None:
    """A group may stop where that was declared, and everything may where the rate is zero."""
    still = {"group:head:update_norm": at(60, slice(0, 30), 0.1)}
    event = {"event": "expect", "step": 30, "kind": "freeze"}
    assert found(own(**still), [event]) == []
    assert found(own(**still, lr=at(60, slice(0, 30), 1e-3))) == []


def test_a_group_that_thaws_is_a_change() -> None:
    """A group that was still from the start and moves was frozen; declared, that is nothing."""
    thaws = {"group:head:update_norm": at(60, slice(30, 60), 0.1)}
    (finding,) = found(own(**thaws))
    assert (finding.step, finding.kind, finding.severity) == (30, "unfreeze", "change")
    assert found(own(**thaws), [{"event": "expect", "step": 30, "kind": "unfreeze"}]) == []
