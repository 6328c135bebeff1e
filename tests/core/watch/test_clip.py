"""The factor of the loop's own clipping is known where gradients were seen before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import flashback_core as fb
from flashback_core.watch.clip import ClipWatch

STEPS, LIMIT = 10, 0.05


def _train(folder: Path, *, observes: bool = True, dropped: int = STEPS) -> fb.StepSketchIndex:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with fb.Recorder(folder, model, optimizer, write_report=False) as rec:
        for step in range(STEPS):
            x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            if observes:
                rec.observe_gradients()
            if step < dropped:
                nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
            optimizer.step()
            rec.log()
    return rec.index


def test_clipping_by_norm(tmp_path: Path) -> None:
    """The factor times the norm that was seen is the limit."""
    index = _train(tmp_path)
    assert (index["grad_norm"] > LIMIT).all()
    found = index["exact:clip_coef"] * index["grad_norm"]
    assert found == pytest.approx([LIMIT] * STEPS, rel=1e-4)


def test_clipping_that_stops(tmp_path: Path) -> None:
    """From the step on at which nothing is clipped any more the factor is exactly 1."""
    index = _train(tmp_path, dropped=6)
    assert (index["exact:clip_coef"][:6] < 1).all()
    assert index["exact:clip_coef"][6:].tolist() == [1.0] * 4


def test_nothing_was_observed(tmp_path: Path) -> None:
    """Without `observe_gradients` the factor is not known."""
    assert np.isnan(_train(tmp_path, observes=False)["exact:clip_coef"]).all()


def test_which_tensor_and_which_scale() -> None:
    """The largest of at most 4 096 entries tells; a loss scale on either side is divided out."""
    sizes = (5_000, 400, 300)
    tensors = [nn.Parameter(torch.zeros(n)) for n in sizes]
    for i, p in enumerate(tensors):
        p.grad = torch.full_like(p, 8.0 * (i + 1))
    watch = ClipWatch()
    watch.observe(tensors, 8.0)
    for p in tensors:
        assert p.grad is not None
        p.grad *= 0.25 / 8
    assert watch._watched is tensors[1]
    found = watch.coefficient(1.0)
    assert found is not None
    assert found == pytest.approx(0.25)
    assert watch.coefficient(1.0) is None


def test_without_gradients() -> None:
    """No gradient, or one of zeros, gives no factor."""
    p = nn.Parameter(torch.zeros(4))
    watch = ClipWatch()
    watch.observe([p], 1.0)
    assert watch.coefficient(1.0) is None
    p.grad = torch.zeros(4)
    watch.observe([p], 1.0)
    found = watch.coefficient(1.0)
    assert found is not None
    assert np.isnan(found)


@pytest.mark.parametrize("value", [1e30, float("nan"), float("inf"), 1e-30])
def test_gradients_out_of_all_bounds(value: float) -> None:
    """They give no factor, and no warning."""
    p = nn.Parameter(torch.zeros(4))
    p.grad = torch.full_like(p, value)
    watch = ClipWatch()
    watch.observe([p], 1.0)
    found = watch.coefficient(1.0)
    assert found is not None
    assert np.isnan(found)
