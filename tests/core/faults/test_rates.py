"""Learning-rate faults, with schedulers that compute a rate from the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashback_core import faults

ONSET = 3


@pytest.mark.parametrize(
    ("kind", "factors"),
    [
        ("lr_spike_loud", [1, 1, 1, 60, 1, 1]),
        ("lr_spike_subtle", [1, 1, 1, 4, 4, 4]),
        ("lr_x1_5", [1, 1, 1, 1.5, 1.5, 1.5]),
        ("lr_zero", [1, 1, 1, 0, 0, 0]),
        ("lr_ramp", [1, 1, 1, 1.01, 1.02, 1.03]),
    ],
)
def test_rate_is_multiplied_and_the_schedule_goes_on(kind: str, factors: list[float]) -> None:
    """The rate at the update is the schedule's times the factor, with a recursive scheduler too."""
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    faults.make(kind, step=ONSET).attach(layer, optimizer)
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    for _ in range(6):
        optimizer.zero_grad()
        layer(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        scheduler.step()
    assert seen == pytest.approx([0.5**i * f for i, f in enumerate(factors)])


def test_strength_is_the_factor(broken: Callable[..., Any]) -> None:
    """A strength of one's own is the factor of the rate."""
    run, twin = broken("lr_spike_subtle", strength=2.5)
    ratios = [a / b for a, b in zip(run.rates, twin.rates, strict=True)]
    assert ratios == pytest.approx([1, 1, 1, 2.5, 2.5])


def test_every_group_is_hit() -> None:
    """All groups of an optimizer get the wrong rate."""
    layer = torch.nn.Linear(1, 1)
    groups = [{"params": [layer.weight], "lr": 1.0}, {"params": [layer.bias], "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    fault = faults.make("lr_spike_loud", step=0).attach(layer, optimizer)
    fault.on_step_start(0)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([60.0, 6.0])
    fault.after_update(0)
    assert [g["lr"] for g in optimizer.param_groups] == [1.0, 0.1]
