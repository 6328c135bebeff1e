"""One loss of several ranks: how it is exchanged, and what is known of a bad one."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashback_core.warn import Guard
from flashback_plugins import _lightning_loss
from flashback_plugins._lightning_loss import AllReduce, SharedLoss, SharedMemory, bad_ranks


@pytest.fixture
def memory(tmp_path: Path) -> list[SharedMemory]:
    """The shared memory of three ranks."""
    path = tmp_path / "losses"
    path.write_bytes(bytes(4 * 3 * 2 * 8))
    return [SharedMemory(path, rank, 3) for rank in range(3)]


class Events:
    """Stands for a recorder: keeps events."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def add_event(self, event: dict[str, Any]) -> None:
        """Keep it."""
        self.kept.append(event)


def shared(monkeypatch: pytest.MonkeyPatch, exchange: Any, scaler: Any = None) -> SharedLoss:
    """The loss of three ranks through `exchange`."""
    monkeypatch.setattr(_lightning_loss, "_exchange", lambda _: exchange)
    trainer = SimpleNamespace(
        world_size=3, accumulate_grad_batches=1, precision_plugin=SimpleNamespace(scaler=scaler)
    )
    return SharedLoss(trainer, Guard())


def test_memory_holds_the_mean(memory: list[SharedMemory]) -> None:
    """The mean over the ranks that are there; a rank that is one step ahead changes nothing."""
    assert memory[0].read(0)[0] is None
    for rank, loss in enumerate((1.0, 2.0, 6.0)):
        memory[rank].write(0, loss)
    memory[1].write(1, 50.0)
    assert memory[0].read(0)[0] == 3.0
    assert memory[0].read(1)[0] == 50.0


def test_old_steps_are_no_loss(memory: list[SharedMemory]) -> None:
    """What a rank said four steps ago is not taken for its loss now."""
    for step in range(9):
        memory[0].write(step, float(step))
    memory[1].write(4, 100.0)
    assert memory[2].read(8)[0] == 8.0


def test_bad_ranks_are_named(memory: list[SharedMemory]) -> None:
    """NaN on one rank makes the mean NaN, and the rank is known."""
    for rank, loss in enumerate((1.0, float("nan"), float("inf"))):
        memory[rank].write(0, loss)
    mean, losses = memory[0].read(0)
    assert mean is not None
    assert math.isnan(mean)
    assert bad_ranks(losses) == (2, ": ranks 1, 2")
    assert bad_ranks(torch.tensor([1.0, 3.0, 1.0, 2.0])) == (1, ": rank 2")
    assert bad_ranks(torch.tensor([1.0, 3.0, 2.0, 3.0])) == (2, "")


@pytest.mark.parametrize(
    ("loss", "numbers"),
    [(None, [0, 0, 0, 0]), (2.5, [2.5, 1, 0, 0]), (torch.tensor(2.5), [2.5, 1, 0, 0]),
     (float("inf"), [float("inf"), 1, 1, 2]), (torch.tensor(torch.inf), [torch.inf, 1, 1, 2])],
)  # fmt: skip
def test_what_is_sent(loss: Any, numbers: list[float]) -> None:
    """A number and a tensor are sent alike; a rank without a loss sends zeros."""
    assert AllReduce(2, torch.device("cpu"))._numbers(loss).tolist() == numbers


def test_accumulated_losses(monkeypatch: pytest.MonkeyPatch, memory: list[SharedMemory]) -> None:
    """The loss of a window is the mean of its batches, without loss scale and division."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    losses = [shared(monkeypatch, m, scaler) for m in memory]
    for rank, one in enumerate(losses):
        one._trainer.accumulate_grad_batches = 2
        for batch in (1.0, 3.0):
            one.begin_batch()
            one.see(torch.tensor(8.0 * (batch + rank) / 2), is_automatic=True)
        one.before_step(is_automatic=True)
    assert losses[0].take(0) == 3.0
    assert losses[0].take(0) is None


def test_further_evaluations(monkeypatch: pytest.MonkeyPatch, memory: list[SharedMemory]) -> None:
    """Of several evaluations of a closure the first one counts, and one thing is sent."""
    loss = shared(monkeypatch, memory[0])
    loss.begin_batch()
    for value in (1.0, 9.0, 9.0):
        loss.see(torch.tensor(value), is_automatic=True)
        loss.before_step(is_automatic=True)
    assert loss.take(0) == 1.0
    assert loss._step == 1


@pytest.mark.parametrize("is_told", [True, False])
def test_manual_steps(
    monkeypatch: pytest.MonkeyPatch, memory: list[SharedMemory], is_told: bool
) -> None:
    """Each manual step has its own loss, whether Lightning tells of the step or not."""
    loss, got = shared(monkeypatch, memory[0]), []
    loss.begin_batch()
    for value in (1.0, 9.0):
        loss.see(torch.tensor(value), is_automatic=False)
        if is_told:
            loss.before_step(is_automatic=False)
        loss.after_step(is_automatic=False)
        got.append(loss.take(0))
    assert got == [1.0, 9.0]


def test_a_bad_stretch_is_said_once(
    monkeypatch: pytest.MonkeyPatch, memory: list[SharedMemory]
) -> None:
    """An event at the first step of a stretch of bad losses, not at each."""
    loss, events = shared(monkeypatch, memory[0]), Events()
    for step, bad in enumerate([False, True, True, False, True]):
        value = float("nan") if bad else 1.0
        loss.begin_batch()
        loss.see(torch.tensor(value), is_automatic=True)
        loss.before_step(is_automatic=True)
        loss.see_row(events, step, loss.take(step))  # type: ignore[arg-type]  # what it needs of one
    assert [(e["step"], e["n_ranks"]) for e in events.kept] == [(1, 1), (4, 1)]
    assert events.kept[0]["text"] == "the loss was NaN or infinite on 1 of 3 ranks: rank 0"


def test_a_failure_sends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose loss cannot be read still takes part, since the others wait for it."""
    sent: list[Any] = []
    exchange = SimpleNamespace(
        write=lambda *_: None, send=lambda step, loss: sent.append((step, loss))
    )
    loss = shared(monkeypatch, exchange)
    with pytest.warns(UserWarning, match="the mean loss of the ranks failed"):
        loss.see(SimpleNamespace(), is_automatic=True)  # type: ignore[arg-type]  # not a tensor
    loss.before_step(is_automatic=True)
    assert sent == [(0, None)]
    assert loss.take(0) is None
