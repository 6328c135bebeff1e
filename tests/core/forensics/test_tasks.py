"""Every task learns, repeats bit for bit and keeps its phases apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flashback_core import faults
from flashback_core.faults import Phases
from flashback_core.forensics.config import SIZES, TaskConfig
from flashback_core.forensics.optimizers import LEARNING_RATES
from flashback_core.forensics.tasks import Task, build


def config_of(family: str, size: str, **changes: Any) -> TaskConfig:
    """A task with a short schedule."""
    images = family in ("mlp", "cnn", "vit", "denoiser")
    defaults = {"batch": 32 if images else 8, "warmup": 10, "planned_steps": 200}
    if family == "lora":
        defaults |= {"pretrain_steps": 12}
    return TaskConfig(family=family, size=size, **{**defaults, **changes})


def losses(task: Task, n: int) -> list[float]:
    """Losses of the first steps."""
    return [task.step(step).loss for step in range(n)]


SLOW = {("gpt", "tiny"), ("gpt", "mini"), ("moe", "mini"), ("lora", "mini")}


@pytest.mark.parametrize(
    ("family", "size"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (pair in SLOW)) for pair in SIZES],
)
def test_family_learns(family: str, size: str) -> None:
    """The loss falls within a few dozen steps, and two builds do the same."""
    n = 24
    config = config_of(family, size, dropout=0.05)
    found = losses(build(config), n)
    assert np.mean(found[-5:]) < np.mean(found[:5])
    assert losses(build(config), 3) == found[:3]


@pytest.mark.parametrize("optimizer", LEARNING_RATES)
def test_optimizer_learns(optimizer: str) -> None:
    """Every optimizer brings the loss down."""
    found = losses(build(config_of("gpt", "micro", optimizer=optimizer)), 30)
    assert np.mean(found[-5:]) < np.mean(found[:5]) - 0.2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precision_learns(precision: str) -> None:
    """Under autocast the loss stays near that of float32."""
    exact = losses(build(config_of("mlp", "micro")), 20)
    found = losses(build(config_of("mlp", "micro", precision=precision)), 20)
    assert found[-1] < found[0]
    assert found == pytest.approx(exact, abs=0.1)


def test_published_set_up_has_its_size() -> None:
    """The tiny transformer has 0.54 million parameters."""
    assert build(config_of("gpt", "tiny")).n_params == 543_000


def test_phases_come_in_order() -> None:
    """An act is called in each phase once, and sees what the phase promises."""
    seen: list[str] = []
    task = build(config_of("gpt", "micro", clip=0.01))

    class Watch(Phases):
        """Notes every phase."""

        def on_step_start(self, step: int) -> None:
            seen.append("start")

        def batch(self, step: int, batch: Any) -> Any:
            seen.append("batch")
            return batch

        def on_backward(self, step: int) -> None:
            seen.append("backward")

        def on_gradients(self, step: int) -> None:
            seen.append(f"gradients {norm(task) > 0.02}")

        def before_update(self, step: int) -> None:
            seen.append(f"before {norm(task) > 0.02}")

        def after_update(self, step: int) -> None:
            seen.append("after")

        def logged_loss(self, step: int, loss: float) -> float:
            seen.append("logged")
            return loss

    task.acts.append(Watch())
    task.watch = lambda: seen.append("watch")
    task.step(0)
    assert seen == [
        "start", "batch", "backward", "gradients True", "watch", "before False", "after", "logged",
    ]  # fmt: skip


def norm(task: Task) -> float:
    """Norm of all gradients."""
    grads = [p.grad for p in task.model.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(grads))


def test_data_and_dropout_depend_on_seed_and_step_alone() -> None:
    """A fault changes neither the batches nor the dropout of later steps."""
    config = config_of("gpt", "micro", dropout=0.2)
    healthy, broken = build(config), build(config)
    broken.attach(faults.make("nan_one", step=1))
    ids = [[t.step(s).batch_ids.tolist() for s in range(4)] for t in (healthy, broken)]
    assert ids[0] == ids[1]


def test_parts_of_a_batch_give_its_gradient() -> None:
    """Accumulating over parts gives the gradient of the whole batch."""
    one, two = (build(config_of("gpt", "micro", micro_batches=n, dropout=0.0)) for n in (1, 2))
    assert one.step(0).loss == pytest.approx(two.step(0).loss, rel=1e-5)
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-6)


def test_adapters_train_only_themselves() -> None:
    """In a LoRA task the base is frozen and starts as the pre-trained model."""
    task = build(config_of("lora", "mini"))
    trained = {n for n, p in task.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    frozen = [p.clone() for n, p in task.model.named_parameters() if n not in trained]
    first = task.step(0).loss
    assert first < 5.0  # the base knows its text
    now = [p for n, p in task.model.named_parameters() if n not in trained]
    assert all(map(torch.equal, frozen, now))


def test_evaluation_leaves_no_trace() -> None:
    """Weights, modes and the next loss are as without it."""
    config = config_of("cnn", "mini")
    one, two = build(config), build(config)
    assert one.step(0).loss == two.step(0).loss
    assert two.evaluate() > 0
    assert one.step(1).loss == two.step(1).loss
    assert all(m.training for m in two.model.modules())


def test_scaler_skips_and_says_so() -> None:
    """A step that overflows is skipped and told."""
    task = build(config_of("mlp", "micro", precision="fp16"))
    task.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = [p.detach().clone() for p in task.model.parameters()]
    assert task.step(0).is_skipped
    assert all(map(torch.equal, before, task.model.parameters()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "rnn"}, "there is no rnn/mini"),
        ({"optimizer": "adam"}, "optimizer is one of adamw"),
        ({"schedule": "cos"}, "schedule is one of cosine"),
        ({"data": "books"}, "data is one of code"),
        ({"family": "cnn", "optimizer": "muon"}, "muon needs weight matrices"),
    ],
)
def test_config_is_checked(changes: dict[str, Any], message: str) -> None:
    """Choices that are not known are told with those that are."""
    with pytest.raises(ValueError, match=message):
        build(TaskConfig(**changes))
