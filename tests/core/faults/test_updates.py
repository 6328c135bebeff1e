"""Update faults: weights after the optimizer has stepped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ONSET = 3


def test_update_is_not_applied(broken: Callable[..., Any]) -> None:
    """Weights stand still while gradients differ from step to step."""
    run, _ = broken("update_not_applied")
    assert torch.equal(run.weights[ONSET - 1], run.weights[-1])
    assert not torch.equal(run.gradients[ONSET], run.gradients[-1])


def test_recorder_hook_sees_no_update(broken: Callable[..., Any]) -> None:
    """A post hook that is registered after the fault's finds the weights undone."""
    run, _ = broken("update_not_applied", n_steps=4)
    weights = list(run.task.model.parameters())
    before, seen = [w.detach().clone() for w in weights], []
    run.task.optimizer.register_step_post_hook(
        lambda *_: seen.append(all(map(torch.equal, before, weights)))
    )
    run.task.step(4)
    assert seen == [True]


def test_frozen_module_stands_still(broken: Callable[..., Any]) -> None:
    """Weight and bias of one module do not move; their gradients are not zero."""
    run, _ = broken("layer_frozen", n_steps=4, place="transformer.h.1.mlp.c_fc.weight")
    named = dict(run.task.model.named_parameters())
    before = {n: p.detach().clone() for n, p in named.items()}
    run.task.step(4)
    still = {n for n in named if torch.equal(named[n], before[n])}
    assert still == {"transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_fc.bias"}
    assert all(bool(named[n].grad.any()) for n in still)


def test_rounded_update_leaves_bfloat16(broken: Callable[..., Any]) -> None:
    """After each update the weights are what bfloat16 can hold."""
    run, _ = broken("bf16_update_lost")
    assert torch.equal(run.weights[-1], run.weights[-1].bfloat16().float())
