"""The detector online: the findings of the whole run, row by row, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flashback_core.detectors import FirstBadStepDetector
from flashback_core.detectors.stream import BLOCK_ROWS, DetectorStream
from flashback_core.errors import DetectorError
from flashback_core.table import MemoryTable, StepTable
from flashback_core.testing import FAULTS, healthy_run, run_with_fault

DETECTOR = FirstBadStepDetector()


def rows_of(table: StepTable) -> Iterator[dict[str, Any]]:
    """The rows of `table`, one by one."""
    columns = {name: table.column(name).tolist() for name in table}
    for i, step in enumerate(table.steps.tolist()):
        yield {"step": step, **{name: values[i] for name, values in columns.items()}}


def streamed(table: StepTable) -> DetectorStream:
    """A stream that has seen all of `table`."""
    stream = DETECTOR.stream()
    for event in table.events:
        stream.add_event(event)
    for row in rows_of(table):
        stream.update(row)
    stream.finish()
    return stream


@pytest.mark.parametrize("kind", FAULTS)
def test_online_is_offline(kind: str) -> None:
    """The report of the stream says what the report on the whole run says."""
    run = run_with_fault(first_bad_step=250, kind=kind)
    assert streamed(run).report().findings == DETECTOR.predict(run).findings


@pytest.mark.parametrize("step", [224, 225, 240, 249, 255])
def test_causes_do_not_depend_on_the_place_in_a_block(step: int) -> None:
    """A rule speaks some rows after the step, while the statistics have not seen that step yet."""
    run = run_with_fault(first_bad_step=step, kind="lr_jump")
    online, offline = streamed(run).report().findings, DETECTOR.predict(run).findings
    assert online == offline
    assert offline[0].step == step
    assert offline[0].causes


def test_a_finding_comes_soon() -> None:
    """What is certain comes with its row, a statistical finding a few rows later."""
    for kind, late in (("nonfinite", 1), ("update_jump", BLOCK_ROWS + 8)):
        stream = DETECTOR.stream()
        run = run_with_fault(first_bad_step=250, kind=kind)
        at = next(row["step"] for row in rows_of(run) if stream.update(row) is not None)
        assert 250 <= at <= 250 + late


def test_declared_events_are_excused() -> None:
    """What is declared before it happens is no finding."""
    run = run_with_fault(first_bad_step=250, kind="update_jump")
    stream = DETECTOR.stream()
    stream.expect(250, "batch_size")
    assert not any(stream.update(row) for row in rows_of(run))
    assert stream.report().status == "healthy"


def test_two_optimizers() -> None:
    """Rows of two optimizers are two series."""
    one, two = run_with_fault(first_bad_step=150, n_steps=220), healthy_run(220, seed=7)
    rows = np.arange(440)
    data = {
        name: np.where(rows % 2, two.column(name)[rows // 2], one.column(name)[rows // 2])
        for name in one
    }
    data["exact:optimizer"] = rows % 2
    assert streamed(MemoryTable(rows, data)).report().first_bad_step == 300


def test_short_and_empty() -> None:
    """A few rows are too few for a verdict, and none are none."""
    assert streamed(healthy_run(20)).report().status == "not_enough_data"
    assert DETECTOR.stream().report().n_steps == 0


def test_bad_rows() -> None:
    """A row without a step, and one that comes again, are clear errors."""
    stream = DETECTOR.stream()
    with pytest.raises(DetectorError, match="'step'"):
        stream.update({"loss": 1.0})
    stream.update({"step": 5, "loss": 1.0})
    with pytest.raises(DetectorError, match="order of their steps"):
        stream.update({"step": 5, "loss": 1.0})


@pytest.mark.parametrize("at", [40, 243, 255, 300])
def test_resumed(at: int) -> None:
    """Saved at any row and loaded, a stream goes on as if nothing had been."""
    run = run_with_fault(first_bad_step=250, kind="update_jump")
    rows = list(rows_of(run))
    stream = DETECTOR.stream()
    for row in rows[:at]:
        stream.update(row)
    again = DETECTOR.stream(state=stream.state())
    for row in rows[at:]:
        again.update(row)
    again.finish()
    assert again.report().findings == DETECTOR.predict(run).findings


@pytest.mark.parametrize("backends", [("flat", ""), ("", "flat")], ids=["to_numba", "to_numpy"])
@pytest.mark.parametrize("at", [100, 251, 256, 300])
def test_resumed_by_the_other_backend(
    monkeypatch: pytest.MonkeyPatch, at: int, backends: tuple[str, str]
) -> None:
    """A stream saved with numba goes on without it, and the other way round."""
    pytest.importorskip("numba")
    run = run_with_fault(first_bad_step=250, kind="update_jump")
    rows = list(rows_of(run))
    monkeypatch.setenv("FLASHBACK_BACKEND", backends[0])
    stream = DETECTOR.stream()
    for row in rows[:at]:
        stream.update(row)
    state = stream.state()
    monkeypatch.setenv("FLASHBACK_BACKEND", backends[1])
    again = DETECTOR.stream(state=state)
    for row in rows[at:]:
        again.update(row)
    again.finish()
    assert again.report().findings == DETECTOR.predict(run).findings


def test_saved_in_a_file(tmp_path: Any) -> None:
    """The state is plain: it can be written and read without pickle."""
    run = run_with_fault(first_bad_step=250, kind="update_jump")
    rows = list(rows_of(run))
    stream = DETECTOR.stream()
    for row in rows[:251]:
        stream.update(row)
    stream.save(tmp_path / "stream.npz")
    again = DetectorStream.load(tmp_path / "stream.npz", DETECTOR)
    for row in rows[251:]:
        again.update(row)
    assert again.findings[0].step == 250
    assert (tmp_path / "stream.npz").stat().st_size < 8 << 20
