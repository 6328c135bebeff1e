"""Healthy kinds do what they say, declare it, and learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flashback_core.forensics.config import TaskConfig
from flashback_core.forensics.healthy import HEALTHY, healthy_plan
from flashback_core.forensics.tasks import Task, build

N = 24


def task_of(name: str, **changes: Any) -> tuple[Task, list[Any]]:
    """A short run of a healthy kind."""
    fields = {"size": "micro", "planned_steps": N, "warmup": 5, "batch": 4, **changes}
    config, events = healthy_plan(name, TaskConfig(**fields), N, np.random.default_rng(3))
    if config.pretrain_steps:
        config = TaskConfig(**{**config.facts(), "pretrain_steps": 4})
    task = build(config)
    for event in events:
        event.join(task)
    return task, events


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_kind_learns_and_declares(name: str) -> None:
    """The loss falls and stays finite; what is declared lies inside the run."""
    family = "mlp" if name == "scaler_backoff" else "gpt"
    task, events = task_of(name, family=family)
    losses = [task.step(step).loss for step in range(N)]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-8:]) < np.mean(losses[:8])
    declared = {e.declares for e in events if e.declares}
    assert declared == ({HEALTHY[name].declares} if HEALTHY[name].declares else set())
    assert all(0 < e.step < N for e in events if e.declares)


def event_of(name: str, **changes: Any) -> tuple[Task, int]:
    """A task and the step of its declared event."""
    task, events = task_of(name, **changes)
    return task, next(e.step for e in events if e.declares)


@pytest.mark.parametrize(("name", "sizes"), [("batch_up", (4, 8)), ("batch_down", (4, 2))])
def test_batch_changes(name: str, sizes: tuple[int, int]) -> None:
    """The batch has another size from the declared step on."""
    task, step = event_of(name)
    seen = [len(task.step(s).batch_ids) for s in range(step + 2)]
    assert seen == [sizes[0]] * step + [sizes[1]] * 2


def test_rate_of_a_plateau_falls_at_the_declared_step() -> None:
    """The first lower rate is that of the declared step."""
    task, step = event_of("plateau_decay")
    rates: list[float] = []
    task.optimizer.register_step_pre_hook(
        lambda *_: rates.append(task.optimizer.param_groups[0]["lr"])
    )
    for s in range(step + 1):
        task.step(s)
    assert rates[step] == pytest.approx(0.3 * rates[step - 1])


@pytest.mark.parametrize(("name", "is_still_first"), [("unfreeze", True), ("freeze", False)])
def test_first_layer_stands_still(name: str, is_still_first: bool) -> None:
    """The first layer moves only after, or only before the declared step."""
    task, step = event_of(name)
    weight = dict(task.model.named_parameters())["transformer.h.0.mlp.c_fc.weight"]
    for s in range(step + 2):
        before = weight.detach().clone()
        task.step(s)
        assert torch.equal(before, weight) is ((s < step) == is_still_first)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("exact_resume", "adamw"), ("exact_resume", "muon"), ("evaluations", "adamw"),
     ("checkpoints", "lion"), ("ema_swap", "sgdm")],
)  # fmt: skip
def test_trajectory_is_that_of_a_plain_run(name: str, optimizer: str) -> None:
    """Resuming, evaluating and saving leave the trajectory as it is, bit for bit."""
    task, plain = (task_of(n, optimizer=optimizer)[0] for n in (name, "plain"))
    for step in range(N):
        assert task.step(step).loss == plain.step(step).loss
    pairs = zip(task.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_scaler_backs_off_now_and_then() -> None:
    """Some steps are skipped, most are not."""
    task, _ = task_of("scaler_backoff", family="mlp")
    skipped = [task.step(step).is_skipped for step in range(N)]
    assert 0 < sum(skipped) < N // 2


def test_curriculum_marks_the_other_text() -> None:
    """Samples of the other text have ids of their own, from the declared step on."""
    task, step = event_of("curriculum_abrupt")
    other = [bool((task.step(s).batch_ids >= 2**41).any()) for s in range(N)]
    assert not any(other[:step])
    assert any(other[step : step + 4])


def test_unknown_kind_lists_the_known() -> None:
    """The message lists the healthy kinds."""
    with pytest.raises(ValueError, match="'fine' is not one of the 43 healthy kinds: plain"):
        healthy_plan("fine", TaskConfig(), 100, np.random.default_rng(0))
