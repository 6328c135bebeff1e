"""Step counts of every kind of optimizer: right, silent, and seen when something changes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import flashback_core as fb
from flashback_core.forensics.optimizers import Lion, MuonWithAdamW
from flashback_core.watch.moments import Moments

STEPS = 10


class PlainCount(optim.Optimizer):
    """Counts its steps in plain numbers, as older optimizers do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch overloads it
        """Plain descent."""
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["step"] = self.state[p].get("step", 0) + 1
                p.sub_(p.grad, alpha=group["lr"])


OPTIMIZERS: dict[str, Callable[[nn.Sequential], optim.Optimizer]] = {
    "AdamW": lambda m: optim.AdamW(m.parameters(), lr=0.01),
    "AdamW fused": lambda m: optim.AdamW(m.parameters(), lr=0.01, fused=True),
    "AdamW foreach": lambda m: optim.AdamW(m.parameters(), lr=0.01, foreach=True),
    "Adafactor": lambda m: optim.Adafactor(m.parameters(), lr=0.01),
    "NAdam": lambda m: optim.NAdam(m.parameters(), lr=0.01),
    "ASGD": lambda m: optim.ASGD(m.parameters(), lr=0.01),
    "SGD": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "Lion": lambda m: Lion(m.parameters()),
    "Muon": lambda m: MuonWithAdamW(
        [m[0].weight], [m[0].bias, *m[2].parameters()], lr=0.02, weight_decay=0.1
    ),
    "plain numbers": lambda m: PlainCount(m.parameters()),
}
NO_COUNT = {"SGD", "Lion"}


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))


def _train(
    folder: Path,
    make: Callable[[nn.Sequential], optim.Optimizer],
    meddle: Callable[[int, optim.Optimizer], None] = lambda step, optimizer: None,
) -> fb.StepSketchIndex:
    model = _model()
    optimizer = make(model)
    with fb.Recorder(folder, model, optimizer, write_report=False) as rec:
        for step in range(STEPS):
            meddle(step, optimizer)
            x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            rec.log()
    return rec.index


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_healthy_runs_are_silent(tmp_path: Path, name: str) -> None:
    """Counts go up by one each step, not known where there is none, and nothing is reported."""
    index = _train(tmp_path, OPTIMIZERS[name])
    counts = index["exact:opt_steps"].tolist()
    assert counts == [-1] * STEPS if name in NO_COUNT else counts[1:] == list(range(1, STEPS))
    assert not index["exact:outside"].any()


@pytest.mark.parametrize("name", ["AdamW", "AdamW fused", "Adafactor", "Muon", "plain numbers"])
def test_a_count_that_is_lost(tmp_path: Path, name: str) -> None:
    """A count set to zero between two steps is named, and the field falls."""

    def lose(step: int, optimizer: optim.Optimizer) -> None:
        if step == 6:
            for state in optimizer.state.values():
                if isinstance(state.get("step"), torch.Tensor):
                    state["step"].zero_()
                elif "step" in state:
                    state["step"] = 0

    index = _train(tmp_path, OPTIMIZERS[name], lose)
    assert np.flatnonzero(index["exact:outside"]).tolist() == [6]
    assert index["exact:outside"][6] == 2
    assert index["exact:opt_steps"][5:8].tolist() == [5, 0, 1]
    (event,) = [e for e in index.events if e["event"] == "outside"]
    assert all(n.startswith("step of ") for n in event["tensors"])


@pytest.mark.parametrize("name", ["AdamW", "plain numbers", "Adafactor"])
def test_an_exact_reload_is_no_change(tmp_path: Path, name: str) -> None:
    """Loading the state dict that was just saved changes no count."""

    def reload(step: int, optimizer: optim.Optimizer) -> None:
        if step == 6:
            optimizer.load_state_dict(optimizer.state_dict())

    index = _train(tmp_path, OPTIMIZERS[name], reload)
    assert not index["exact:outside"].any()
    assert index["exact:opt_steps"][5:8].tolist() == [5, 6, 7]


def test_a_moment_that_is_replaced(tmp_path: Path) -> None:
    """Another tensor in the place of a moment is seen, where the state stays the same object."""

    def replace(step: int, optimizer: optim.Optimizer) -> None:
        if step == 6:
            state = next(iter(optimizer.state.values()))
            state["exp_avg"] = torch.zeros_like(state["exp_avg"])

    index = _train(tmp_path, OPTIMIZERS["AdamW"], replace)
    (event,) = [e for e in index.events if e["event"] == "outside"]
    assert (event["step"], event["tensors"]) == (6, ["exp_avg of 0.weight"])


def test_a_moment_in_other_memory(tmp_path: Path) -> None:
    """A moment that is given other memory with the same content is no change, then or later."""

    def move(step: int, optimizer: optim.Optimizer) -> None:
        if step in (5, 6):
            for state in optimizer.state.values():
                state["exp_avg"].data = state["exp_avg"].data.clone()

    assert not _train(tmp_path, OPTIMIZERS["AdamW"], move)["exact:outside"].any()


def test_the_list_is_made_once() -> None:
    """The same list object as long as no entry is replaced; a damaged count is not known."""
    model = _model()
    optimizer = optim.AdamW(model.parameters())
    moments = Moments(optimizer)
    assert moments.tensors() == []
    assert moments.fewest_steps(changed=False) == -1
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    tensors = moments.tensors()
    assert len(tensors) == 12
    assert moments.tensors() is tensors
    assert moments.fewest_steps(changed=True) == 1
    for state in optimizer.state.values():
        state["step"].fill_(float("inf"))
    assert moments.fewest_steps(changed=True) == -1
