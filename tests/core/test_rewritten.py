"""Weights that something else than the optimizer writes to, as it should: no finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flashback_core as fb
from flashback_core.errors import ModelError

STEPS = 60
After = Callable[["Net", int], None]


class Net(nn.Module):
    """An embedding and two layers."""

    def __init__(self, max_norm: float | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, max_norm=max_norm)
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 5)
        with torch.no_grad():
            self.embed.weight.mul_(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of five classes."""
        return self.head(torch.relu(self.body(self.embed(x).mean(1))))


class Lookahead:
    """Pulls the weights back to slow ones every few steps (Zhang et al. 2019)."""

    def __init__(self, optimizer: torch.optim.Optimizer, every: int) -> None:
        self.optimizer, self._every, self._n = optimizer, every, 0
        self._slow = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimizer inside."""
        return self.optimizer.param_groups

    def step(self) -> None:
        """A step, and now and then a pull."""
        self.optimizer.step()
        self._n += 1
        if self._n % self._every == 0:
            with torch.no_grad():
                for slow, p in zip(self._slow, self.param_groups[0]["params"], strict=True):
                    p.copy_(slow.lerp_(p, 0.5))


def train(folder: Path, net: Net, optimizer: Any, after: After | None = None, **more: Any) -> Any:
    """The report of a short training, and its rows with writes from outside."""
    torch.manual_seed(0)
    inner = getattr(optimizer, "optimizer", optimizer)
    with fb.Recorder(folder, net, optimizer, **more) as rec:
        for step in range(STEPS):
            x = torch.randint(0, 20, (16, 6))
            loss = nn.functional.cross_entropy(net(x), x[:, 0] % 5)
            inner.zero_grad()
            loss.backward()
            optimizer.step()
            if after is not None:
                after(net, step)
            rec.log(loss=loss)
    assert rec.report is not None
    return rec.report, np.flatnonzero(rec.index["exact:outside"]).tolist()


def flip(net: Net, step: int) -> None:
    """Write to the head, once."""
    if step == 40:
        with torch.no_grad():
            net.head.weight[0, 0] += 1.0


def test_an_embedding_with_a_largest_norm(tmp_path: Path) -> None:
    """Rows that the forward pass scales down are no finding; writes to other tensors are."""
    net = Net(max_norm=0.9)
    report, rows = train(tmp_path / "a", net, torch.optim.AdamW(net.parameters(), 3e-3))
    assert (report.findings, rows) == ((), [])
    assert any("embed.weight (max_norm of the embedding)" in c for c in report.facts["checked"])
    report, rows = train(tmp_path / "b", net, torch.optim.AdamW(net.parameters(), 3e-3), flip)
    assert (report.first_bad_step, report.kind, rows) == (41, "weights_changed", [41])


def test_a_schedule_free_optimizer(tmp_path: Path) -> None:
    """Evaluations with other weights, put back with rounding errors, are no finding."""
    schedulefree = pytest.importorskip("schedulefree")
    net = Net()
    optimizer = schedulefree.AdamWScheduleFree(net.parameters(), lr=3e-3)
    optimizer.train()

    def evaluate(net: Net, step: int) -> None:
        if step % 20 == 19:
            optimizer.eval()
            optimizer.train()

    report, rows = train(tmp_path, net, optimizer, evaluate)
    assert (report.findings, rows) == ((), [])
    assert any("written by AdamWScheduleFree" in check for check in report.facts["checked"])


@pytest.mark.parametrize("every", [5, 12])
def test_a_wrapper_that_moves_weights(every: int, tmp_path: Path) -> None:
    """What a wrapper does after the optimizer in it has stepped is no finding."""
    net = Net()
    report, rows = train(tmp_path, net, Lookahead(torch.optim.AdamW(net.parameters(), 3e-3), every))
    assert (report.findings, rows) == ((), [])


def test_names_of_what_the_loop_writes_to(tmp_path: Path) -> None:
    """A clamp that begins late is no finding where it was declared; other tensors are watched."""

    def clamp(net: Net, step: int) -> None:
        if step >= 20:
            net.body.weight.data.clamp_(-0.1, 0.1)

    net = Net()
    report, rows = train(tmp_path / "a", net, torch.optim.AdamW(net.parameters(), 3e-3), clamp)
    assert (report.first_bad_step, report.kind, rows[0]) == (21, "weights_changed", 21)
    net = Net()
    report, rows = train(
        tmp_path / "b", net, torch.optim.AdamW(net.parameters(), 3e-3), clamp, rewritten=["body.*"]
    )
    assert (report.findings, rows) == ((), [])
    assert any("body.weight, body.bias (declared)" in check for check in report.facts["checked"])


def test_a_name_that_fits_nothing_is_an_error(tmp_path: Path) -> None:
    """It says which names there are."""
    net = Net()
    with pytest.raises(ModelError, match=r"rewritten='bodies.*' fits no .* embed.weight"):
        fb.Recorder(tmp_path, net, torch.optim.SGD(net.parameters(), 0.1), rewritten=["bodies"])


def test_writes_that_are_declared_at_their_step(tmp_path: Path) -> None:
    """A reset of a layer is excused by ``expect``, before the step that starts from it."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with fb.Recorder(tmp_path, net, optimizer) as rec:
        for step in range(STEPS):
            if step == 30:
                nn.init.zeros_(net.head.bias)
                rec.expect(step, "weights")
            loss = net(torch.randint(0, 20, (16, 6))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rec.log(loss=loss)
    assert rec.report is not None
    assert "weights_changed" not in {f.kind for f in rec.report.findings}
    assert rec.index["exact:outside"][30] == 1


@pytest.mark.parametrize("parts", [1, 2])
def test_momentum_on_a_schedule(parts: int, tmp_path: Path) -> None:
    """A one-cycle policy moves momentum at every step, after a resume too; that is no finding."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2 * STEPS)
    for _ in range(parts):
        with fb.Recorder(tmp_path, net, optimizer, scheduler=cycle) as rec:
            for _ in range(STEPS // parts):
                loss = net(torch.randint(0, 20, (16, 6))).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                cycle.step()
                rec.log(loss=loss)
    assert rec.report is not None
    assert "config_changed" not in {f.kind for f in rec.report.findings}


def test_parts_that_are_frozen_in_turns(tmp_path: Path) -> None:
    """A generator and its critic freeze each other at every step: settings of each step's own."""
    parts = nn.ModuleDict({"maker": nn.Linear(4, 2), "critic": nn.Linear(2, 1)})
    optimizers = [torch.optim.SGD(parts[name].parameters(), 0.01) for name in ("maker", "critic")]
    with fb.Recorder(tmp_path, parts, optimizers) as rec:
        for step in range(2 * STEPS):
            turn = step % 2
            for i, name in enumerate(("maker", "critic")):
                parts[name].requires_grad_(i == turn)
            loss = parts["critic"](parts["maker"](torch.randn(16, 4))).square().mean()
            optimizers[turn].zero_grad()
            loss.backward()
            optimizers[turn].step()
            rec.log(loss=loss)
    assert rec.report is not None
    said = {f.kind for f in rec.report.findings}
    assert not said & {"freeze", "unfreeze", "config_changed", "zero_gradient", "zero_update"}
    assert len(set(rec.index["exact:config_hash"].tolist())) == 2
