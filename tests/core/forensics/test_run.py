"""A planned run is trained, recorded and labelled."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashback_core.forensics.run import NoRecorder, execute, plan, record_into
from flashback_core.forensics.tasks import Task
from flashback_core.index import StepSketchIndex


class Notes(NoRecorder):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.expected: list[tuple[int, str]] = []
        self.n_looks = 0

    def log(self, *, loss: Any = None, batch_ids: Any = None, batch: Any = None) -> None:
        """Keep the loss."""
        self.losses.append(loss)

    def expect(self, step: int, kind: str) -> None:
        """Keep what is declared."""
        self.expected.append((step, kind))

    def observe_gradients(self) -> None:
        """Count the looks."""
        self.n_looks += 1


def run_notes(kind: str, seed: int = 7, n_steps: int = 14, **options: Any) -> tuple[Any, Notes]:
    """Facts of a short run and what its recorder was told."""
    notes = Notes()
    run = plan(seed, kind, preset="tiny", n_steps=n_steps)
    return execute(run, lambda task: notes, **options), notes


def test_fault_run_and_its_twin_part_at_the_first_bad_step() -> None:
    """Losses agree up to the fault; the twin has no label."""
    facts, notes = run_notes("label_shift")
    twin, _ = run_notes("label_shift", twin=True)
    step = facts["first_bad_step"]
    assert notes.losses[:step] == twin["losses"][:step]
    assert notes.losses[step] != twin["losses"][step]
    assert (twin["first_bad_step"], twin["fault_kind"], twin["is_twin"]) == (-1, "healthy", True)
    assert facts["fault_description"].startswith("labels are off by one")


def test_run_repeats() -> None:
    """The same plan gives the same losses."""
    first, again = (run_notes("grad_noise", n_steps=8)[0]["losses"] for _ in range(2))
    assert first == again


def test_recorder_looks_once_a_step_and_is_told_of_declared_events() -> None:
    """Gradients are shown before clipping at every step; events are declared when they happen."""
    seed = next(s for s in range(9) if plan(s, "batch_up", preset="tiny").is_declared)
    facts, notes = run_notes("batch_up", seed=seed)
    assert notes.n_looks == len(notes.losses) == 14
    ((step, word),) = [e for e in notes.expected if e[1] == "batch_size"]
    assert 0 < step < 14
    assert word == "batch_size"
    assert facts["healthy_kind"] == "batch_up"


def test_undeclared_events_are_not_told() -> None:
    """In some runs nobody declares anything."""
    seeds = (s for s in range(40) if not plan(s, "batch_up", preset="tiny").is_declared)
    assert run_notes("batch_up", seed=next(seeds))[1].expected == []


def test_run_goes_on_through_nan() -> None:
    """A run that is NaN is trained to its end."""
    run = plan(2, "fp8_overflow_inf", preset="tiny", n_steps=14)
    facts = execute(run, lambda task: Notes())
    assert len(facts["losses"]) == 14
    assert math.isnan(facts["final_loss"])
    assert not facts["is_finite"]


def test_placebo_is_labelled_healthy() -> None:
    """A placebo run has its kind and no first bad step."""
    facts, _ = run_notes("placebo_state_reloaded")
    assert (facts["fault_kind"], facts["first_bad_step"]) == ("placebo_state_reloaded", -1)


@pytest.mark.parametrize("kind", ["bit_flip", "overflow_skip_loop", "exact_resume"])
def test_real_recorder_writes_one_row_per_step(kind: str, tmp_path: Path) -> None:
    """The index holds every attempted step with the loss that was logged; watching changes none."""
    run = plan(8, kind, preset="tiny", n_steps=14)
    facts = execute(run, record_into(tmp_path / "run"))
    index = StepSketchIndex(tmp_path / "run" / "sketch")
    assert index.steps.tolist() == list(range(14))
    np.testing.assert_array_equal(np.asarray(index["loss"]), np.asarray(facts["losses"]))
    assert sum(index["exact:step_skipped"]) == facts["n_skipped"]
    bare = execute(run, lambda task: NoRecorder())
    np.testing.assert_array_equal(bare["losses"], facts["losses"])


def test_recorder_sees_the_fault_in_its_metrics(tmp_path: Path) -> None:
    """lr, gradients and updates of the index show each of the loud faults at its step."""
    seen = {}
    for kind in ("lr_spike_loud", "update_not_applied", "grad_x4"):
        run = plan(0, kind, preset="tiny", n_steps=14)
        for is_twin in (False, True):
            folder = tmp_path / f"{kind}-{is_twin}"
            execute(run, record_into(folder), twin=is_twin)
            seen[kind, is_twin] = StepSketchIndex(folder / "sketch")
        step = run.first_bad_step
        seen[kind, "step"] = step
    assert ratio(seen, "lr_spike_loud", "lr") == pytest.approx(
        plan(0, "lr_spike_loud", preset="tiny", n_steps=14).faults[0].strength, rel=1e-5
    )
    assert ratio(seen, "update_not_applied", "update_norm") == 0.0
    assert ratio(seen, "grad_x4", "grad_norm") == pytest.approx(
        plan(0, "grad_x4", preset="tiny", n_steps=14).faults[0].strength, rel=1e-3
    )


def ratio(seen: dict[Any, Any], kind: str, metric: str) -> float:
    """A metric at the first bad step, over that of the twin."""
    step = seen[kind, "step"]
    broken, twin = (float(seen[kind, is_twin][metric][step]) for is_twin in (False, True))
    before = [float(seen[kind, is_twin][metric][step - 1]) for is_twin in (False, True)]
    assert before[0] == before[1]
    return broken / twin


def test_recorder_is_made_after_the_faults_are_attached() -> None:
    """The factory finds the fault's hooks on the optimizer already."""
    counts = []

    def make(task: Task) -> Notes:
        counts.append(len(task.optimizer._optimizer_step_pre_hooks))
        return Notes()

    execute(plan(7, "bit_flip", preset="tiny", n_steps=12), make)
    assert counts == [1]
