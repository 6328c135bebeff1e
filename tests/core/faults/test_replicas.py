"""Replica faults act on one part of a batch and leave the weights as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashback_core import faults
from flashback_core.errors import ModelError


@pytest.mark.parametrize("kind", ["rank_desync", "one_rank_corrupt"])
def test_only_the_second_half_is_wrong(kind: str) -> None:
    """The weights differ inside the broken part, and only there."""
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    fault = faults.make(kind, step=0).attach(layer, optimizer)
    right = layer.weight.detach().clone()
    fault.on_step_start(0)
    for part in range(4):
        with fault.replica(0, part, 4):
            assert torch.equal(layer.weight, right) is (part < 2)
    assert torch.equal(layer.weight, right)


def test_stale_rank_misses_updates() -> None:
    """The broken rank computes on the weights from before the last good update."""
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    fault = faults.make("stale_half", step=2).attach(layer, optimizer)
    for step in range(4):
        layer.weight.data.fill_(float(step))
        fault.on_step_start(step)
        with fault.replica(step, 1, 2):
            seen = float(layer.weight.detach()[0, 0])
        assert seen == (step if step < 2 else 1)


def test_loop_without_parts_is_told(broken: Callable[..., Any]) -> None:
    """One part cannot stand for two ranks, and a loop that does not ask is told to."""
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    fault = faults.make("rank_desync", step=0).attach(layer, optimizer)
    fault.on_step_start(0)
    with pytest.raises(ModelError, match="the batch has one part"):
        fault.replica(0, 0, 1)
    with pytest.raises(ModelError, match=r"fault\.replica\(step, part, parts\)"):
        fault.on_gradients(0)
