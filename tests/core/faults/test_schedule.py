"""Schedule faults act on the scheduler that the loop goes on stepping."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from flashback_core import faults

ONSET = 4


def rates(kind: str | None, make: object, strength: float | None = None) -> list[float]:
    """Rates at eight updates."""
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scheduler = make(optimizer)  # type: ignore[operator]  # a class or a function
    if kind is not None:
        fault = faults.make(kind, step=ONSET, strength=strength)
        fault.attach(layer, optimizer, scheduler=scheduler)
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    for _ in range(8):
        optimizer.zero_grad()
        layer(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        scheduler.step()
    return seen


def steps(optimizer: torch.optim.Optimizer) -> LambdaLR:
    """A schedule that tells its own step."""
    return LambdaLR(optimizer, lambda step: 1.0 + step)


@pytest.mark.parametrize(
    ("kind", "strength", "expected"),
    [
        ("sched_restart", None, [0, 1, 2, 3, 0, 1, 2, 3]),
        ("sched_offset", 10.0, [0, 1, 2, 3, 14, 15, 16, 17]),
        ("lr_resume_offset", None, [0, 1, 2, 3, 3, 4, 5, 6]),
        ("lr_schedule_xN", 3.0, [0, 1, 2, 3, 6, 9, 12, 15]),
    ],
)
def test_schedule_is_at_the_wrong_step(
    kind: str, strength: float | None, expected: list[int]
) -> None:
    """Which step of the schedule each update uses."""
    assert [round(r - 1.0) for r in rates(kind, steps, strength)] == expected


def test_restart_works_with_a_recursive_scheduler() -> None:
    """A cosine schedule of torch starts over with its first rates."""
    healthy = rates(None, lambda o: CosineAnnealingLR(o, 8))
    broken = rates("sched_restart", lambda o: CosineAnnealingLR(o, 8))
    assert broken == pytest.approx(healthy[:4] + healthy[:4])
