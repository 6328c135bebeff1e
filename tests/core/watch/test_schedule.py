"""What a run's own scheduler says stands beside the rate that was used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import flashback_core as fb
from flashback_core.errors import FlashbackWarning, ModelError
from flashback_core.watch.schedule import ScheduleWatch, is_scheduler

STEPS = 8


def _parts() -> tuple[nn.Linear, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


class Loop:
    """A tiny training with a scheduler, and a place to meddle before each step."""

    def __init__(self, folder: Path, make: Any) -> None:
        self.folder = folder
        self.model, self.optimizer = _parts()
        self.scheduler = make(self.optimizer)

    def meddle(self, step: int) -> None:
        """Overridden."""

    def run(self, **options: Any) -> fb.StepSketchIndex:
        """Train; returns the index."""
        options = {"scheduler": self.scheduler} | options
        rec = fb.Recorder(self.folder, self.model, self.optimizer, write_report=False, **options)
        with rec:
            for step in range(STEPS):
                self.meddle(step)
                self.optimizer.zero_grad()
                self.model(torch.ones(3, 4)).square().mean().backward()
                self.optimizer.step()
                self.advance()
                rec.log()
        return rec.index

    def advance(self) -> None:
        """Step the scheduler."""
        self.scheduler.step()


SCHEDULERS = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch warns of its own call
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_healthy_run(tmp_path: Path, name: str) -> None:
    """The rate that was used is the scheduled one, and the counter is the step."""
    index = Loop(tmp_path, SCHEDULERS[name]).run()
    np.testing.assert_array_equal(index["exact:lr_scheduled"], index["lr"])
    assert index["exact:scheduler_step"].tolist() == list(range(STEPS))


def test_a_plateau(tmp_path: Path) -> None:
    """ReduceLROnPlateau has a rate and a counter too."""

    class Plateau(Loop):
        def advance(self) -> None:
            self.scheduler.step(1.0)

    index = Plateau(tmp_path, lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1)).run()
    np.testing.assert_array_equal(index["exact:lr_scheduled"], index["lr"])
    assert len(set(index["lr"])) > 1


def test_a_rate_off_its_schedule(tmp_path: Path) -> None:
    """A rate that something else set differs from the scheduled one at that step alone."""

    class Spike(Loop):
        def meddle(self, step: int) -> None:
            if step in (4, 5):
                group = self.optimizer.param_groups[0]
                group["lr"] = group["lr"] * 3 if step == 4 else self.scheduler.get_last_lr()[0]

    index = Spike(tmp_path, lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step)).run()
    off = index["lr"] != index["exact:lr_scheduled"]
    assert np.flatnonzero(off).tolist() == [4]


def test_a_schedule_that_starts_over(tmp_path: Path) -> None:
    """A scheduler stepped twice shows in its counter."""

    class Twice(Loop):
        def meddle(self, step: int) -> None:
            if step == 5:
                self.scheduler.step()

    index = Twice(tmp_path, SCHEDULERS["cosine"]).run()
    assert index["exact:scheduler_step"].tolist() == [0, 1, 2, 3, 4, 6, 7, 8]


def test_no_scheduler(tmp_path: Path) -> None:
    """Without one both fields are not known."""
    index = Loop(tmp_path, SCHEDULERS["cosine"]).run(scheduler=None)
    assert np.isnan(index["exact:lr_scheduled"]).all()
    assert set(index["exact:scheduler_step"]) == {-1}


def test_a_scheduler_that_fails(tmp_path: Path) -> None:
    """A scheduler's own error is one warning; the other watches and the training go on."""

    class Broken(lr_scheduler.LambdaLR):
        fails = False

        def get_last_lr(self) -> Any:
            if self.fails:
                raise RuntimeError("no rate")
            return super().get_last_lr()

        def step(self, epoch: int | None = None) -> None:
            self.fails = self.last_epoch >= 3
            super().step(epoch)

    loop = Loop(tmp_path, lambda o: Broken(o, lambda _: 1.0))
    with pytest.warns(FlashbackWarning, match="the scheduler failed"):
        index = loop.run()
    assert len(index.steps) == STEPS
    assert np.isnan(index["exact:lr_scheduled"][-1])
    assert (index["exact:config_hash"] != 0).all()


def test_several_schedulers() -> None:
    """Each counts for its optimizer; two of one optimizer that disagree tell nothing."""
    (_, first), (_, second) = _parts(), _parts()
    a = lr_scheduler.ConstantLR(first, factor=0.5)
    b = lr_scheduler.ConstantLR(second, factor=1.0)
    watch = ScheduleWatch([b, a], [first, second])
    assert watch.fields(0) == {"lr_scheduled": 0.05, "scheduler_step": 0}
    assert watch.fields(1) == {"lr_scheduled": 0.1, "scheduler_step": 0}
    c = lr_scheduler.ConstantLR(first, factor=0.1)
    assert watch
    assert not ScheduleWatch(None, [first])
    assert "lr_scheduled" not in ScheduleWatch([a, c], [first]).fields(0)


def test_a_wrapper_is_unpacked() -> None:
    """A wrapper with a scheduler inside, as Accelerate's, gives rate and counter."""
    _, optimizer = _parts()

    class Wrapper:
        def __init__(self, scheduler: Any) -> None:
            self.scheduler = scheduler

    wrapped = Wrapper(lr_scheduler.ConstantLR(optimizer, factor=0.5))
    assert is_scheduler(wrapped)
    fields = ScheduleWatch(wrapped, [optimizer]).fields(0)
    assert fields == {"lr_scheduled": 0.05, "scheduler_step": 0}


def test_no_scheduler_at_all(tmp_path: Path) -> None:
    """Something that is none is refused, with what was expected."""
    model, optimizer = _parts()
    with pytest.raises(ModelError, match="scheduler is a float; expected something with"):
        fb.Recorder(tmp_path, model, optimizer, scheduler=0.1)
