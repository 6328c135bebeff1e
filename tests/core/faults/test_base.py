"""A fault on a plain PyTorch loop: hooks, order, counting, detaching."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashback_core import faults
from flashback_core.errors import ModelError


def make_loop(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small classifier and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def data(step: int) -> tuple[Tensor, Tensor]:
    """The batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 6, generator=generator)
    return x, torch.randint(0, 3, (8,), generator=generator)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, fault: Any = None
) -> Tensor:
    """A plain loop; returns all weights."""
    for step in steps:
        batch = data(step) if fault is None else fault.batch(step, data(step))
        torch.manual_seed(step)
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_fault_of_the_future_changes_nothing() -> None:
    """A run that ends before the fault is the healthy run bit for bit."""
    healthy = train(*make_loop(), range(5))
    model, optimizer = make_loop()
    fault = faults.make("data_poison_heavy", step=5).attach(model, optimizer)
    assert torch.equal(train(model, optimizer, range(5), fault), healthy)


def test_detached_fault_leaves_the_run_alone() -> None:
    """Detaching before the onset gives the healthy run, and the hooks are gone."""
    healthy = train(*make_loop(), range(8))
    model, optimizer = make_loop()
    fault = faults.make("lr_spike_subtle", step=4).attach(model, optimizer)
    train(model, optimizer, range(4))
    fault.detach()
    fault.detach()
    assert torch.equal(train(model, optimizer, range(4, 8)), healthy)
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize(
    "kind", ["eps_large", "wd_x100", "beta2_changed", "dropout_off", "stuck_in_eval", "lr_x1_5"]
)
def test_detach_gives_settings_back(kind: str) -> None:
    """Settings, dropout and modes are as before once a fault is detached."""
    model, optimizer = make_loop()

    def settings() -> Any:
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        return groups, [m.training for m in model.modules()], model[2].p

    before = settings()
    fault = faults.make(kind, step=2).attach(model, optimizer)
    train(model, optimizer, range(4))
    fault.on_step_start(4)
    assert settings() != before
    fault.detach()
    assert settings() == before


def test_recorder_attached_later_sees_the_damage() -> None:
    """Hooks run in the order of registering, so a fault comes first."""
    model, optimizer = make_loop()
    seen = []
    faults.make("nan_one", step=2).attach(model, optimizer)
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(any(bool(p.grad.isnan().any()) for p in model.parameters()))
    )
    train(model, optimizer, range(3))
    assert seen == [False, False, True]


def test_explicit_phase_is_not_run_twice() -> None:
    """A loop that calls on_gradients before clipping gets the fault once."""
    model, optimizer = make_loop()
    fault = faults.make("grad_x4", step=0, strength=4.0).attach(model, optimizer)
    x, y = data(0)
    F.cross_entropy(model(x), y).backward()
    before = model[0].weight.grad.clone()
    fault.on_gradients(0)
    optimizer.step()
    torch.testing.assert_close(model[0].weight.grad, before * 4.0)


def test_closure_is_damaged_at_its_end() -> None:
    """With a closure the gradients are made inside the step; the fault acts after it."""
    model, optimizer = make_loop()
    faults.make("grad_x4", step=0).attach(model, optimizer)
    clean = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data(0)[0]), data(0)[1])
        loss.backward()
        clean.append(model[0].weight.grad.clone())
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(model[0].weight.grad, clean[0] * 4.0)


def test_evaluation_opens_no_step() -> None:
    """A forward pass without gradients does not start the next step."""
    model, optimizer = make_loop()
    faults.make("w_flip_exp", step=1).attach(model, optimizer)
    train(model, optimizer, range(1))
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        model(data(1)[0])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    model(data(1)[0])
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_steps_are_counted_from_start_step() -> None:
    """A resumed loop says at which step it goes on."""
    model, optimizer = make_loop()
    seen = []
    faults.make("lr_zero", step=11).attach(model, optimizer, start_step=10)
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    train(model, optimizer, range(3))
    assert seen == [0.01, 0.0, 0.0]


def test_loader_and_in_place_batches_agree() -> None:
    """`loader`, `batch` and `batch_` give the same poisoned samples."""
    model, optimizer = make_loop()
    faults_ = [faults.make("data_poison_heavy", step=0, seed=3) for _ in range(3)]
    for fault in faults_:
        fault.attach(model, optimizer)
    x, _ = faults_[0].batch(0, data(0))
    (from_loader, _), *_ = list(faults_[1].loader([data(0)]))
    in_place = data(0)
    faults_[2].batch_(0, in_place)
    assert torch.equal(x, from_loader)
    assert torch.equal(x, in_place[0])
    assert not torch.equal(x, data(0)[0])


def test_unattached_and_twice_attached_are_errors() -> None:
    """A fault belongs to one loop at a time."""
    fault = faults.make("bit_flip", step=1)
    with pytest.raises(ModelError, match="attached to no loop"):
        fault.on_gradients(1)
    fault.attach(*make_loop())
    with pytest.raises(ModelError, match="attached already"):
        fault.attach(*make_loop())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sched_restart", "scheduler=scheduler"),
        ("attn_scale", "needs attention"),
        ("router_collapse", "mixture of experts"),
        ("buffer_flip", "buffers"),
        ("untied_head_on_resume", "untied output head"),
    ],
)
def test_loop_that_lacks_something_is_told_so(kind: str, message: str) -> None:
    """A kind that a model cannot have says what it needs, and stays unattached."""
    fault = faults.make(kind, step=1)
    for _ in range(2):
        with pytest.raises(ModelError, match=message):
            fault.attach(*make_loop())


def test_wrapped_optimizer_is_unwrapped() -> None:
    """A wrapper such as accelerate's is looked into."""

    class Wrapper:
        """Holds an optimizer."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    model, optimizer = make_loop()
    fault = faults.make("lr_zero", step=0).attach(model, Wrapper(optimizer))
    assert fault.optimizer is optimizer
    with pytest.raises(ModelError, match=r"expected a torch\.optim\.Optimizer"):
        faults.make("lr_zero", step=0).attach(model, "adam")


def test_facts_are_plain_values() -> None:
    """What a table of runs says of a fault."""
    fault = faults.make("bit_flip", step=4, seed=2).attach(*make_loop())
    facts = json.loads(json.dumps(fault.facts()))
    assert (facts["kind"], facts["step"], facts["bit"]) == ("bit_flip", 4, 30)
    assert facts["tensor"] in {"0.weight", "3.weight"}
