"""Events of healthy runs: what a run may do on purpose, at a step or every so often.

An event has the phases of `flashback_core.faults.Phases`; `join` gives it the task, and `declares`
says what the run's owner would tell ``Recorder.expect``.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashback_core.faults.batches import replaced
from flashback_core.faults.phases import Phases
from flashback_core.forensics.sources import Batch, Source
from flashback_core.forensics.tasks import Task

__all__ = [
    "Change",
    "Checkpoints",
    "Evaluations",
    "Event",
    "ExactResume",
    "MixedSource",
    "NoisyLabelsAlways",
    "OutlierSamples",
    "PaddedLabels",
    "Pauses",
    "Periodic",
    "ShortSamples",
    "SwappedAverage",
    "TrainedPart",
]  # fmt: skip

PADDING = -100


class Event(Phases):
    """Something that a healthy run does.

    Args:
        step: First step at which it does it.
        declares: Word for ``Recorder.expect``, or None for what nobody would declare.
    """

    def __init__(self, step: int = 0, declares: str | None = None) -> None:
        """See the class."""
        self.step, self.declares = step, declares
        self.task: Task

    def join(self, task: Task) -> None:
        """Take part in `task`."""
        self.task = task
        task.acts.append(self)

    def rng(self, step: int) -> np.random.Generator:
        """Random numbers of this event at `step`."""
        return np.random.default_rng([self.task.config.seed, step, 23])


class Change(Event):
    """Call `change(task)` once, at the start of `step`."""

    def __init__(
        self, step: int, change: Callable[[Task], None], declares: str | None = None
    ) -> None:
        """See the class."""
        super().__init__(step, declares)
        self.change = change

    def on_step_start(self, step: int) -> None:
        """Make the change."""
        if step == self.step:
            self.change(self.task)


class MixedSource(Event):
    """From `step` on a share of the samples comes from another text.

    Args:
        step: First step.
        source: The other text.
        share: Largest share, in [0, 1].
        ramp: Steps over which the share rises; 0 is at once.
        declares: See `Event`.
    """

    def __init__(
        self, step: int, source: Source, share: float, ramp: int = 0, declares: str | None = None
    ) -> None:
        """See the class."""
        super().__init__(step, declares)
        self.source, self.share, self.ramp = source, share, ramp

    def batch(self, step: int, batch: Batch) -> Batch:
        """Replace some samples."""
        if step < self.step:
            return batch
        share = self.share * min(1.0, (step - self.step + 1) / max(self.ramp, 1))
        rows = len(batch["x"])
        hit = self.rng(step).random(rows) < share
        other = self.source.draw(step + 2**24, rows, 0)
        chosen = torch.from_numpy(hit)
        return {
            "x": torch.where(chosen[:, None], other["x"], batch["x"]),
            "y": torch.where(chosen[:, None], other["y"], batch["y"]),
            "ids": np.where(hit, other["ids"] + 2**41, batch["ids"]),
        }


class OutlierSamples(Event):
    """A few samples of the data set are noise, as odd documents are: the same ones in every epoch.

    Args:
        share: Share of the steps that have one, about.
    """

    def __init__(self, share: float) -> None:
        """See the class."""
        super().__init__()
        self.share = share

    def batch(self, step: int, batch: Batch) -> Batch:
        """Replace the samples that are noise."""
        seed, ids = self.task.config.seed, np.asarray(batch["ids"]).astype(np.uint64)
        spread = ((ids ^ np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        odd = np.flatnonzero(spread / 2.0**32 < self.share / len(ids))
        if not odd.size:
            return batch
        x, y = batch["x"].clone(), batch["y"].clone()
        for row in odd.tolist():
            rng = np.random.default_rng([seed, int(ids[row]), 23])
            if x.is_floating_point():
                x[row] = torch.from_numpy(rng.normal(0.0, 1.5, tuple(x.shape[1:]))).to(x)
            else:
                noise = torch.from_numpy(rng.integers(0, 256, x.shape[1] + 1))
                x[row], y[row] = noise[:-1], noise[1:]
        return {**batch, "x": x, "y": y}


class PaddedLabels(Event):
    """Samples have random lengths: labels past the end are masked."""

    def batch(self, step: int, batch: Batch) -> Batch:
        """Mask labels."""
        length = batch["y"].shape[1]
        ends = self.rng(step).integers(max(2, length // 4), length + 1, len(batch["y"]))
        is_past = torch.arange(length)[None, :] >= torch.from_numpy(ends)[:, None]
        return {**batch, "y": batch["y"].masked_fill(is_past, PADDING)}


class NoisyLabelsAlways(Event):
    """A share of the labels is wrong from the first step on: a hard data set, not a fault."""

    def __init__(self, share: float) -> None:
        """See the class."""
        super().__init__()
        self.share = share

    def batch(self, step: int, batch: Batch) -> Batch:
        """Replace labels."""
        y, rng = batch["y"], self.rng(step)
        top = 256 if self.task.config.is_text else 10
        noise = torch.from_numpy(np.asarray(rng.integers(0, top, tuple(y.shape))))
        hit = torch.from_numpy(rng.random(tuple(y.shape)) < self.share)
        changed: Batch = replaced(batch, y=torch.where(hit, noise, y))
        return changed


class ShortSamples(Event):
    """Samples are cut to half their length before `step`."""

    def batch(self, step: int, batch: Batch) -> Batch:
        """Cut samples."""
        if step >= self.step:
            return batch
        half = batch["x"].shape[1] // 2
        return {**batch, "x": batch["x"][:, :half], "y": batch["y"][:, :half]}


class Periodic(Event):
    """Calls `act` every `period` steps, between two steps."""

    def __init__(self, period: int) -> None:
        """See the class."""
        super().__init__()
        self.period = period

    def on_step_start(self, step: int) -> None:
        """Act when it is time."""
        if step and step % self.period == 0:
            start = time.perf_counter()
            self.act(step)
            if self.task.pause is not None:
                self.task.pause(time.perf_counter() - start)

    def act(self, step: int) -> None:
        """What is done."""
        raise NotImplementedError


class Pauses(Periodic):
    """Wait, as for a slow disk."""

    def __init__(self, period: int, seconds: float) -> None:
        """See the class."""
        super().__init__(period)
        self.seconds = seconds

    def act(self, step: int) -> None:
        """Wait."""
        time.sleep(self.seconds)


class Evaluations(Periodic):
    """Evaluate on held-out batches, in evaluation mode."""

    def act(self, step: int) -> None:
        """Evaluate."""
        for _ in range(3):
            self.task.evaluate()


class Checkpoints(Periodic):
    """Copy all state, as a checkpoint does."""

    def act(self, step: int) -> None:
        """Copy."""
        copy.deepcopy((self.task.model.state_dict(), self.task.optimizer.state_dict()))


class ExactResume(Event):
    """Save everything and load it again: the same trajectory goes on."""

    def on_step_start(self, step: int) -> None:
        """Save and load."""
        if step != self.step:
            return
        task = self.task
        parts: list[Any] = [task.model, task.optimizer, task.scheduler, task.scaler]
        for part in parts:
            if part is not None:
                part.load_state_dict(copy.deepcopy(part.state_dict()))


class LossScale(Event):
    """Another loss scaler for a float16 task.

    Args:
        scale: Its first scale.
        interval: Steps without an overflow after which the scale doubles.
    """

    def __init__(self, scale: float, interval: int) -> None:
        """See the class."""
        super().__init__()
        self.scale, self.interval = scale, interval

    def join(self, task: Task) -> None:
        """Replace the scaler."""
        super().join(task)
        task.scaler = torch.amp.GradScaler(
            "cpu", init_scale=self.scale, growth_interval=self.interval
        )


class SwappedAverage(Periodic):
    """Keep an average of the weights, and evaluate with it in their place now and then."""

    def __init__(self, period: int) -> None:
        """See the class."""
        super().__init__(period)
        self.average: list[Tensor] | None = None

    @torch.no_grad()
    def after_update(self, step: int) -> None:
        """Update the average."""
        weights = list(self.task.model.parameters())
        if self.average is None:
            self.average = [w.detach().clone() for w in weights]
        torch._foreach_lerp_(self.average, [w.detach() for w in weights], 0.02)

    @torch.no_grad()
    def act(self, step: int) -> None:
        """Swap in, evaluate, swap out."""
        weights = list(self.task.model.parameters())
        saved = [w.detach().clone() for w in weights]
        for weight, average in zip(weights, self.average or saved, strict=True):
            weight.copy_(average)
        self.task.evaluate()
        for weight, old in zip(weights, saved, strict=True):
            weight.copy_(old)


class TrainedPart(Event):
    """Parameters of some names are trained only from `step` on, or only until `step`.

    Args:
        step: When it changes.
        part: Text in the names of the parameters.
        is_frozen_after: Whether they are frozen from `step` on, rather than before it.
        declares: See `Event`.
    """

    def __init__(
        self, step: int, part: str, *, is_frozen_after: bool, declares: str | None = None
    ) -> None:
        """See the class."""
        super().__init__(step, declares)
        self.part, self.is_frozen_after = part, is_frozen_after

    def join(self, task: Task) -> None:
        """Freeze at once where the part is frozen first."""
        super().join(task)
        self._train(self.is_frozen_after)

    def on_step_start(self, step: int) -> None:
        """Freeze or unfreeze."""
        if step == self.step:
            self._train(not self.is_frozen_after)

    def _train(self, is_trained: bool) -> None:
        for name, parameter in self.task.model.named_parameters():
            if self.part in name:
                parameter.requires_grad_(is_trained)
                parameter.grad = None
