"""State faults: what is lost and what is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashback_core import faults
from flashback_core.errors import ModelError


def trained(optimizer_class: Any, **settings: Any) -> tuple[torch.nn.Module, Any]:
    """A layer after three updates."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    optimizer = optimizer_class(layer.parameters(), lr=0.01, **settings)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(2, 4)).square().sum().backward()
        optimizer.step()
    return layer, optimizer


def lost(kind: str, optimizer_class: Any = torch.optim.AdamW, **settings: Any) -> set[str]:
    """Keys of the state that are all 0 after the fault."""
    layer, optimizer = trained(optimizer_class, **settings)
    fault = faults.make(kind, step=3).attach(layer, optimizer, start_step=3)
    fault.on_step_start(3)
    return {k for k, v in optimizer.state[layer.weight].items() if not bool(v.any())}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("opt_lost", {"step", "exp_avg", "exp_avg_sq"}),
        ("opt_lost_nobc", {"exp_avg", "exp_avg_sq"}),
        ("m_lost", {"exp_avg"}),
        ("adam_step_reset", {"step"}),
    ],
)
def test_what_is_lost(kind: str, keys: set[str]) -> None:
    """Exactly these entries of Adam's state are 0."""
    assert lost(kind) == keys


def test_momentum_of_sgd_is_lost_too() -> None:
    """`m_lost` works for SGD with momentum."""
    assert lost("m_lost", torch.optim.SGD, momentum=0.9) == {"momentum_buffer"}


@pytest.mark.parametrize(("kind", "is_larger"), [("v_flip_up", True), ("v_flip_down", False)])
def test_second_moment_of_one_element(kind: str, is_larger: bool) -> None:
    """One element of the second moment is far too large or small, and all stay finite."""
    layer, optimizer = trained(torch.optim.AdamW)
    before = optimizer.state[layer.weight]["exp_avg_sq"].clone()
    fault = faults.make(kind, step=3).attach(layer, optimizer, start_step=3)
    fault.on_step_start(3)
    after = optimizer.state[layer.weight]["exp_avg_sq"]
    changed = (after != before).nonzero()
    assert len(changed) == 1
    place = tuple(changed[0])
    ratio = float(after[place] / before[place])
    assert ratio > 1e15 if is_larger else ratio < 1e-4
    assert bool(after.isfinite().all())


@pytest.mark.parametrize(("kind", "message"), [("m_lost", "nothing of the kind"),
                                               ("v_flip_up", "second moment")])  # fmt: skip
def test_optimizer_without_it_is_told(kind: str, message: str) -> None:
    """Plain SGD has no moments to lose."""
    layer, optimizer = trained(torch.optim.SGD)
    fault = faults.make(kind, step=3).attach(layer, optimizer, start_step=3)
    with pytest.raises(ModelError, match=message):
        fault.on_step_start(3)
