"""Training one planned run, recorded, with its label.

run = plan(seed=7, kind="bit_flip", preset="tiny")
facts = execute(run, record_into("runs/bit_flip__s7"))
twin = execute(run, record_into("runs/bit_flip__s7-twin"), twin=True)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from flashback_core.faults import Fault
from flashback_core.faults.phases import Phases
from flashback_core.forensics.events import Event
from flashback_core.forensics.kinds import load_kinds
from flashback_core.forensics.plans import PRESETS, FaultPlan, RunPlan, plan, prepared
from flashback_core.forensics.sources import Batch
from flashback_core.forensics.tasks import Task, build

__all__ = [
    "PRESETS", "FaultPlan", "NoRecorder", "RunPlan", "RunRecorder", "execute", "plan",
    "record_into",
]  # fmt: skip


class RunRecorder(Protocol):
    """What `execute` needs of a recorder; `flashback_core.Recorder` has it."""

    def log(self, *, loss: Any = None, batch_ids: Any = None, batch: Any = None) -> None:
        """Take loss, sample ids and batch of the step that has just ended."""

    def expect(self, step: int, kind: str) -> None:
        """Take note of a declared change."""

    def observe_gradients(self) -> None:
        """Look at the gradients before clipping."""

    def pause(self, seconds: float) -> None:
        """Leave `seconds` out of the step's wall time."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""


class NoRecorder:
    """Records nothing, for measuring and for tests."""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def log(self, *, loss: Any = None, batch_ids: Any = None, batch: Any = None) -> None:
        """Do nothing."""

    def expect(self, step: int, kind: str) -> None:
        """Do nothing."""

    def observe_gradients(self) -> None:
        """Do nothing."""

    def pause(self, seconds: float) -> None:
        """Do nothing."""


RecorderFactory = Callable[[Task], RunRecorder]


class _LastBatch(Phases):
    """Keeps the batch that a step trains on, after all that faults and events did to it."""

    def __init__(self) -> None:
        self.inputs_and_labels: tuple[Any, Any] | None = None

    def batch(self, step: int, batch: Batch) -> Batch:
        """Look at the batch."""
        self.inputs_and_labels = (batch["x"], batch["y"])
        return batch


def record_into(folder: str | Path) -> RecorderFactory:
    """A factory of recorders that write the run folder `folder` and no report."""
    from flashback_core.recorder import Recorder

    def make(task: Task) -> RunRecorder:
        return Recorder(
            folder, task.model, task.optimizer, scaler=task.scaler, scheduler=task.scheduler,
            write_report=False,
        )  # fmt: skip

    return make


def execute(run: RunPlan, recorder: RecorderFactory, *, twin: bool = False) -> dict[str, Any]:
    """Train a planned run to its end, through NaN too.

    Args:
        run: The plan.
        recorder: Makes the recorder, after the faults are attached.
        twin: Leave the faults out: same weights, data and dropout, and nothing goes wrong.

    Returns:
        The label and facts of the run; ``losses`` holds the loss of every step.
    """
    config, events = prepared(run)
    task = build(config)
    for event in events:
        event.join(task)
    injected = [] if twin else [task.attach(f.make()) for f in run.faults]
    seen = _LastBatch()
    task.acts.append(seen)  # last, so that it sees what the model sees
    losses: list[float] = []
    n_skipped, start = 0, time.process_time()
    with recorder(task) as rec:
        task.watch, task.pause = rec.observe_gradients, rec.pause
        for step in range(run.n_steps):
            _declare(run, events, rec, step)
            result = task.step(step)
            n_skipped += result.is_skipped
            losses.append(result.loss)
            rec.log(loss=result.loss, batch_ids=result.batch_ids, batch=seen.inputs_and_labels)
    cpu_ms = (time.process_time() - start) * 1e3 / run.n_steps
    facts = _label(run, injected) | _facts(run, task, losses)
    return facts | {"n_skipped": n_skipped, "cpu_ms_per_step": cpu_ms, "is_twin": twin}


def _declare(run: RunPlan, events: list[Event], rec: RunRecorder, step: int) -> None:
    if not run.is_declared:
        return
    for event in events:
        if event.declares is not None and event.step == step:
            rec.expect(step, event.declares)


def _label(run: RunPlan, injected: list[Fault]) -> dict[str, Any]:
    """What is wrong with the run, and from when on."""
    bad = [f for f in injected if load_kinds()[f.kind].set != "placebo"]
    first = min(bad, key=lambda f: f.step, default=None)
    return {
        "run_id": run.run_id,
        "fault_kind": run.kind if injected else "healthy",
        "healthy_kind": run.healthy,
        "fault_description": "; then ".join(f.description for f in injected),
        "expected_behaviour": "; then ".join(f.expected_behaviour for f in injected),
        "first_bad_step": -1 if first is None else first.step,
        "all_bad_steps": [f.step for f in bad],
        "all_kinds": [f.kind for f in injected],
        "strength": float("nan") if not injected else injected[0].strength,
        "tensor": "" if not injected else injected[0].place.tensor or "",
        "split": run.split,
    }


def _facts(run: RunPlan, task: Task, losses: list[float]) -> dict[str, Any]:
    config = task.config
    return {
        "n_steps": run.n_steps,
        "planned_steps": config.planned_steps,
        "seed": run.seed,
        "preset": run.preset,
        "is_declared": run.is_declared,
        "model_family": config.family,
        "model_size": config.size,
        "optimizer": config.optimizer,
        "precision": config.precision,
        "schedule": config.schedule,
        "data": config.data if config.is_text else "digits",
        "param_count": task.n_params,
        "batch": config.batch,
        "lr": config.peak_lr,
        "clip": float("nan") if config.clip is None else config.clip,
        "dropout": config.dropout,
        "final_loss": losses[-1],
        "is_finite": bool(np.isfinite(losses).all()),
        "losses": losses,
    }
