"""KeptGradients: gradients that are the tensors of the step before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import flashback_core as fb
from flashback_core.watch.kept import KeptGradients

X = torch.ones(4, 3)


def train(folder: Path, n: int, *, forgotten: range = range(0), **zero: Any) -> fb.StepSketchIndex:
    """Record a loop that leaves out zero_grad before the steps `forgotten`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with fb.Recorder(folder, model, optimizer, write_report=False) as rec:
        for step in range(n):
            if step not in forgotten:
                optimizer.zero_grad(**zero)
            for _ in range(2):  # two backward passes for an update
                loss = (model(X) - 1.0).square().mean() / 2
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rec.log(loss=loss)
    return fb.StepSketchIndex(folder / "sketch")


def test_a_loop_that_forgets(tmp_path: Path) -> None:
    """New tensors at every step, the old ones where zero_grad was left out; said once."""
    index = train(tmp_path, 30, forgotten=range(20, 23))
    kept = index.column("exact:grads_kept").tolist()
    assert kept == [-1, *[0] * 19, 1, 1, 1, *[0] * 7]
    finding = fb.detect(tmp_path).bad
    assert (finding.step, finding.kind) == (20, "gradients_kept")


@pytest.mark.parametrize("settings", [{"set_to_none": False}, {"forgotten": range(1, 40)}])
def test_tensors_that_are_kept_from_the_start(tmp_path: Path, settings: dict[str, Any]) -> None:
    """A loop that zeroes its tensors in place cannot be told from one that never does."""
    index = train(tmp_path, 40, **settings)
    assert index.column("exact:grads_kept").tolist() == [-1, *[1] * 39]
    assert fb.detect(tmp_path).bad is None


def test_gradients_that_are_not_there() -> None:
    """Without a gradient before or now, nothing is known; other tensors may be given."""
    weights = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
    watch = KeptGradients()
    assert watch.look() == -1
    watch.end(weights)
    weights[0].sum().backward()
    assert watch.look() == -1
    watch.end(weights)
    assert watch.look() == 1
    weights[0].grad = None
    assert watch.look() == -1
    watch.end([torch.ones(3)])
    assert watch.look() == -1


def test_passes_of_another_optimizer(tmp_path: Path) -> None:
    """A backward pass that runs through weights of another optimizer in between is no fault."""
    torch.manual_seed(0)
    maker, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (maker, judge)]
    with fb.Recorder(tmp_path, torch.nn.ModuleList([maker, judge]), optimizers) as rec:
        for _ in range(20):
            for optimizer in optimizers:
                optimizer.zero_grad()
                loss = judge(maker(X)).square().mean()
                loss.backward()
                optimizer.step()
                rec.log(loss=loss)
    kept = rec.index.column("exact:grads_kept").tolist()
    assert kept == [-1, -1, *[0] * 38]
