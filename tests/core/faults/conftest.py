"""Short training runs, with and without a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from flashback_core import faults
from flashback_core.forensics.config import TaskConfig
from flashback_core.forensics.tasks import Task, build

ONSET, N_STEPS = 3, 5


@dataclass
class Trace:
    """What a short run left at the end of each step."""

    task: Task
    fault: faults.Fault | None = None
    weights: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)


def config_for(kind: str) -> TaskConfig:
    """The smallest task that has what a kind needs."""
    needs = faults.kind_of(kind).needs
    changes: dict[str, Any] = {"size": "micro", "warmup": 4, "batch": 4, "planned_steps": 400}
    if "tokens" in needs:
        changes["batch"] = 48  # a few bytes may hold no capital letter
    if "replicas" in needs:
        changes["micro_batches"] = 2
    if "router" in needs:
        changes |= {"family": "moe", "size": "mini"}
    if "buffers" in needs:
        changes |= {"family": "cnn", "size": "mini"}
    if "scaler" in needs:
        changes |= {"precision": "fp16", "family": "mlp"}
    return TaskConfig(**changes)


def flat(tensors: Any) -> Tensor:
    """All entries of some tensors."""
    return torch.cat([t.detach().reshape(-1).clone() for t in tensors if t is not None])


def run_task(config: TaskConfig, fault: faults.Fault | None, n_steps: int = N_STEPS) -> Trace:
    """Train some steps and note what they leave."""
    task = build(config)
    if fault is not None:
        task.attach(fault)
    trace = Trace(task, fault)
    rates: list[float] = []
    task.optimizer.register_step_pre_hook(
        lambda *_: rates.append(float(task.optimizer.param_groups[0]["lr"]))
    )
    for step in range(n_steps):
        result = task.step(step)
        trace.weights.append(flat(task.model.parameters()))
        trace.gradients.append(flat(p.grad for p in task.model.parameters()))
        trace.losses.append(result.loss)
        trace.ids.append([int(i) for i in result.batch_ids])
    trace.rates = rates
    return trace


@lru_cache(maxsize=16)
def twin_of(config: TaskConfig, n_steps: int) -> Trace:
    """The healthy run of a config."""
    return run_task(config, None, n_steps)


def run_broken(kind: str, n_steps: int = N_STEPS, **choices: Any) -> Trace:
    """A run with a fault at step 3."""
    fault = faults.make(kind, **{"step": ONSET, "seed": 1, **choices})
    return run_task(config_for(kind), fault, n_steps)


@pytest.fixture
def broken() -> Callable[..., tuple[Trace, Trace]]:
    """A run with a fault at step 3, and its healthy twin."""

    def make(kind: str, n_steps: int = N_STEPS, **choices: Any) -> tuple[Trace, Trace]:
        return run_broken(kind, n_steps, **choices), twin_of(config_for(kind), n_steps)

    return make
