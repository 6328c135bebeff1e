"""Settings, dropout and modes are changed at the step and given back when detached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashback_core import faults
from flashback_core.errors import ModelError


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("eps_small", "eps", 1e-30),
        ("eps_large", "eps", 1e-3),
        ("wd_x100", "weight_decay", 1.0),
        ("beta2_changed", "betas", (0.9, 0.9)),
    ],
)
def test_group_setting(kind: str, key: str, value: Any, broken: Callable[..., Any]) -> None:
    """The setting has the wrong value after the onset and the right one after detaching."""
    run, twin = broken(kind)
    (group, *_), (right, *_) = run.task.optimizer.param_groups, twin.task.optimizer.param_groups
    assert group[key] == pytest.approx(value)
    run.fault.detach()
    assert group[key] == right[key]


def test_groups_without_decay_keep_none(broken: Callable[..., Any]) -> None:
    """Biases and norms that have no weight decay get none."""
    run, _ = broken("wd_x100")
    assert run.task.optimizer.param_groups[1]["weight_decay"] == 0.0


@pytest.mark.parametrize(("kind", "p"), [("dropout_off", 0.0), ("dropout_high", 0.3)])
def test_dropout(kind: str, p: float, broken: Callable[..., Any]) -> None:
    """Every dropout layer has the wrong probability."""
    run, _ = broken(kind)
    found = {m.p for m in run.task.model.modules() if isinstance(m, torch.nn.Dropout)}
    assert found == {p}


def test_eval_mode_sticks(broken: Callable[..., Any]) -> None:
    """The model is in evaluation mode from the onset on."""
    run, _ = broken("stuck_in_eval")
    assert not any(m.training for m in run.task.model.modules())
    run.fault.detach()
    assert all(m.training for m in run.task.model.modules())


def test_setting_that_an_optimizer_has_not_is_refused() -> None:
    """SGD has no eps; the message says so."""
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with pytest.raises(ModelError, match="changes 'eps', which SGD has not"):
        faults.make("eps_large", step=1).attach(layer, optimizer)
