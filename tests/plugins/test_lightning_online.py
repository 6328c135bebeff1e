"""FlashbackCallback while the run goes on: health, actions at the first bad step, prevention."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import flashback_core as fb
from flashback_core.report.model import Finding

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402  # after importorskip
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from flashback_plugins._lightning_prevent import Prevention  # noqa: E402
from flashback_plugins.lightning import FlashbackCallback  # noqa: E402
from tests.plugins._lightning_modules import loader, make_net  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:.*LeafSpec.*")

WRONG = 9


def fit(
    *callbacks: Any, wrong: int | None = WRONG, optimizer: str = "adamw", **settings: Any
) -> tuple[Any, Any]:
    """Train three epochs of seven batches, with an infinite loss at batch `wrong`."""
    module = make_net(pl.LightningModule, optimizer=optimizer)
    module.blow_up_at = wrong
    quiet = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 3,
        "callbacks": list(callbacks),
    }  # fmt: skip
    trainer = pl.Trainer(**quiet | settings)
    trainer.fit(module, loader())
    return trainer, module


def test_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first step that is NaN or infinite is said once, while the run goes on."""
    with caplog.at_level("INFO"):
        trainer, _ = fit(FlashbackCallback(tmp_path))
    said = [r.message for r in caplog.records if "went wrong" in r.message]
    assert len(said) == 1
    assert f"step {WRONG} went wrong (nonfinite)" in said[0]
    assert trainer.global_step == 21


def test_stop(tmp_path: Path) -> None:
    """`stop` ends the fit after the bad step."""
    trainer, _ = fit(FlashbackCallback(tmp_path, on_detect="stop"))
    assert trainer.global_step == WRONG + 1


def test_checkpoint_and_function(tmp_path: Path) -> None:
    """Several actions: the state is kept, a function gets the finding and the trainer."""
    calls: list[tuple[Finding, int]] = []
    note = lambda finding, trainer: calls.append((finding, trainer.global_step))  # noqa: E731  # short
    fit(FlashbackCallback(tmp_path, on_detect=["checkpoint", note]))
    kept = torch.load(
        tmp_path / "checkpoints" / f"detected-after-step-{WRONG}.ckpt", weights_only=True
    )
    assert kept["global_step"] == WRONG + 1
    assert [(f.step, f.kind, step) for f, step in calls] == [(WRONG, "nonfinite", WRONG + 1)]


def test_tensorboard_gets_the_alert(tmp_path: Path) -> None:
    """TensorBoard gets the finding as text at its step, once, whatever is to be done then."""
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    fit(FlashbackCallback(on_detect=[]), logger=logger)
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    (name,) = [n for n in events.Tags()["tensors"] if n.startswith("flashback/alert")]
    (alert,) = events.Tensors(name)
    assert alert.step == WRONG
    (text,) = alert.tensor_proto.string_val
    assert text.decode().startswith(f"**flashback: first bad step {WRONG} (nonfinite)**\n\nStep")


def test_a_function_that_fails(tmp_path: Path) -> None:
    """A function of the user's that fails is one warning; the training goes on."""

    def fails(finding: Finding, trainer: Any) -> None:
        raise RuntimeError

    with pytest.warns(fb.errors.FlashbackWarning, match="on_detect failed"):
        trainer, _ = fit(FlashbackCallback(tmp_path, on_detect=fails))
    assert trainer.global_step == 21
    assert len(fb.StepSketchIndex(tmp_path / "sketch")) == 21


SHUFFLED, LATE = 230, 48
"""Step from which labels are shuffled, and how many rows later that is known at most."""


class Points(torch.utils.data.IterableDataset[Any]):
    """Points and their classes; from step `SHUFFLED` on too large, with classes of others."""

    def __iter__(self) -> Any:
        """The same 340 batches each time."""
        made = torch.Generator().manual_seed(1)
        teacher = torch.randn(8, 4, generator=made)
        for step in range(340):
            x = torch.randn(32, 8, generator=made)
            y = (x @ teacher).argmax(1)
            other = y[torch.randperm(32, generator=made)]
            yield (x, y) if step < SHUFFLED else (4 * x, other)


class Classifier(pl.LightningModule):
    """A small classifier that logs its health as others see it.

    Attributes:
        health: The health after each step.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 24), torch.nn.Tanh(), torch.nn.Linear(24, 4)
        )
        self.health: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The loss."""
        if "flashback/health" in self.trainer.callback_metrics:
            self.health.append(float(self.trainer.callback_metrics["flashback/health"]))
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_shuffled(callback: FlashbackCallback, **settings: Any) -> tuple[Any, Classifier]:
    """Train on labels that are shuffled after a while."""
    module = Classifier()
    quiet = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1,
        "callbacks": [callback],
    }  # fmt: skip
    trainer = pl.Trainer(**quiet | settings)
    trainer.fit(module, torch.utils.data.DataLoader(Points(), batch_size=None))
    return trainer, module


def test_actions_at_a_statistical_fault(tmp_path: Path) -> None:
    """Labels that are shuffled end the fit soon: the state is kept, a function gets the finding."""
    calls: list[Finding] = []
    note = lambda finding, trainer: calls.append(finding)  # noqa: E731  # short
    callback = FlashbackCallback(tmp_path, on_detect=["checkpoint", "stop", note])
    trainer, module = fit_shuffled(callback)
    assert SHUFFLED < trainer.global_step <= SHUFFLED + LATE
    (finding,) = calls
    assert abs(finding.step - SHUFFLED) <= 2
    assert finding.confidence >= 0.9
    (kept,) = (tmp_path / "checkpoints").iterdir()
    assert kept.name == f"detected-after-step-{trainer.global_step - 1}.ckpt"
    assert callback.report is not None
    assert callback.report.first_bad_step == finding.step
    assert module.health == [1.0] * len(module.health)  # it was stopped at once
    assert float(trainer.callback_metrics["flashback/health"]) == 0.0


def test_health_after_a_statistical_fault(tmp_path: Path) -> None:
    """The health goes from 1 to 0 once, soon after the fault, and stays there."""
    trainer, module = fit_shuffled(FlashbackCallback(tmp_path))
    assert trainer.global_step == 340
    at = module.health.index(0.0)
    assert SHUFFLED < at <= SHUFFLED + LATE
    assert module.health == [1.0] * at + [0.0] * (len(module.health) - at)


@pytest.mark.parametrize(("sure", "steps"), [(0.995, 340), (0.5, 256)])
def test_sure(tmp_path: Path, sure: float, steps: int) -> None:
    """`sure` says from which confidence on a finding is acted on: later, or never."""
    trainer, _ = fit_shuffled(FlashbackCallback(tmp_path, on_detect="stop", sure=sure))
    assert trainer.global_step == steps


def test_unknown_action() -> None:
    """An action that is not known is refused at once."""
    with pytest.raises(ValueError, match="on_detect='halt'; expected 'warn', 'checkpoint', 'stop'"):
        FlashbackCallback(on_detect="halt")


@pytest.mark.parametrize(("wrong", "steps"), [(None, 21), (WRONG, 14)])
def test_health_for_early_stopping(tmp_path: Path, wrong: int | None, steps: int) -> None:
    """EarlyStopping can monitor `flashback/health`, and stops at the end of the bad epoch."""
    stopper = EarlyStopping("flashback/health", mode="max", patience=99, divergence_threshold=0.5,
                            check_on_train_epoch_end=True)  # fmt: skip
    trainer, _ = fit(FlashbackCallback(tmp_path), stopper, wrong=wrong)
    assert trainer.global_step == steps
    assert float(trainer.callback_metrics["flashback/health"]) == (0.0 if wrong else 1.0)


def test_health_for_model_checkpoint(tmp_path: Path) -> None:
    """ModelCheckpoint can monitor `flashback/health`: the best state is one of before the fault."""
    keeper = ModelCheckpoint(tmp_path / "kept", monitor="flashback/health", mode="max",
                             filename="{epoch}", save_on_train_epoch_end=True)  # fmt: skip
    fit(FlashbackCallback(tmp_path), keeper, enable_checkpointing=True)
    assert keeper.best_model_path.endswith("epoch=0.ckpt")
    assert keeper.best_model_score == 1.0


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "fused"])
def test_prevent_nonfinite(tmp_path: Path, optimizer: str) -> None:
    """A step with an infinite gradient is left out: one NaN costs one step, not the run."""
    callback = FlashbackCallback(tmp_path, prevent_nonfinite=True)
    trainer, module = fit(callback, optimizer=optimizer)
    index = fb.StepSketchIndex(tmp_path / "sketch")
    np.testing.assert_array_equal(np.flatnonzero(index["exact:step_skipped"]), [WRONG])
    assert index["nonfinite"][WRONG] > 0
    assert index["update_norm"][WRONG] == 0
    assert all(torch.isfinite(p).all() for p in module.parameters())
    assert np.isfinite(module.losses[WRONG + 1 :]).all()
    assert not hasattr(trainer.optimizers[0], "found_inf")


def test_a_fused_optimizer_is_told_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling a fused optimizer reads no number back to the host; any other one needs one."""
    reads: list[str] = []
    read = torch.Tensor.__bool__
    note = lambda tensor: (reads.append("bool"), read(tensor))[1]  # noqa: E731  # short
    monkeypatch.setattr(torch.Tensor, "__bool__", note)
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1.0, float("nan"), 1.0])
    counts = {}
    for name in (True, False):
        optimizer = torch.optim.AdamW([weight], fused=name)
        trainer = SimpleNamespace(optimizers=[optimizer], precision_plugin=None)
        Prevention(trainer).before_step(optimizer)
        counts[name] = len(reads)
        reads.clear()
    assert counts == {True: 0, False: 1}
    assert weight.grad is None


@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_prevention_changes_no_healthy_run(tmp_path: Path, optimizer: str) -> None:
    """Without a non-finite gradient, prevention changes no loss."""
    callback = FlashbackCallback(tmp_path, prevent_nonfinite=True)
    _, module = fit(callback, wrong=None, optimizer=optimizer)
    _, alone = fit(wrong=None, optimizer=optimizer)
    assert module.losses == alone.losses


@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_prevention_leaves_the_scaler_its_work(tmp_path: Path, optimizer: str) -> None:
    """Under a GradScaler the step is skipped by it, once, and its scale goes down."""
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    callback = FlashbackCallback(tmp_path, prevent_nonfinite=True)
    fit(callback, optimizer=optimizer, plugins=[precision])
    index = fb.StepSketchIndex(tmp_path / "sketch")
    np.testing.assert_array_equal(np.flatnonzero(index["exact:step_skipped"]), [WRONG])
    assert index["exact:loss_scale"][-1] == 512.0
