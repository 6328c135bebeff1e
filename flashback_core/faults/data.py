"""Faults of the data: poisoned, repeated, shifted and empty batches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from flashback_core.errors import ModelError
from flashback_core.faults.base import Fault
from flashback_core.faults.batches import (
    inputs,
    labels,
    map_rows,
    replaced,
    shuffled,
    sprinkled,
    uniform_like,
)
from flashback_core.faults.kind import Kind

__all__ = ["KINDS", "DataFault"]

MAX_KEPT = 4096
"""Batches that a replay remembers; a replay longer than this starts over with the first."""
IGNORED = -100  # the label that cross_entropy leaves out


class DataFault(Fault):
    """A fault of the batch. Subclasses change it in ``_changed`` while the fault is active."""

    _ceiling: int = 0

    def _batch(self, step: int, batch: Any) -> Any:
        self._see(step, batch)
        return self._changed(step, batch) if self.is_active(step) else batch

    def _see(self, step: int, batch: Any) -> None:
        """Look at every batch, good ones too."""
        y = labels(batch)
        if y is not None and not y.is_floating_point() and y.numel():
            self._ceiling = max(self._ceiling, int(y.max()) + 1)

    def _changed(self, step: int, batch: Any) -> Any:
        raise NotImplementedError

    def _vocabulary(self, x: Tensor) -> int | None:
        """Number of tokens of the first embedding that is large enough."""
        sizes = [m.num_embeddings for m in self.model.modules() if isinstance(m, nn.Embedding)]
        top = int(x.max()) + 1 if x.numel() else 1
        return next((size for size in sizes if size >= max(top, self._ceiling)), None)

    def _integer_labels(self, batch: Any) -> Tensor:
        y = labels(batch)
        if y is None or y.is_floating_point():
            msg = (
                f"fault {self.kind!r} needs integer labels in the batch: a tuple (inputs, labels) "
                "or a dict with 'labels', 'targets' or 'y'"
            )
            raise ModelError(msg)
        return y

    def _random_labels(self, y: Tensor, x: Tensor, step: int) -> Tensor:
        ceiling = self._vocabulary(x) if y.shape == x.shape else None
        return uniform_like(y, self.rng(step + 2**20), ceiling or self._ceiling)


class Poison(DataFault):
    """Replace a share of the samples by random inputs and labels."""

    def _changed(self, step: int, batch: Any) -> Any:
        x, y = inputs(batch).clone(), labels(batch)
        n = max(1, round(self.strength * len(x)))
        is_tokens = not x.is_floating_point()
        x[:n] = uniform_like(x, self.rng(step), self._vocabulary(x) if is_tokens else None)[:n]
        if y is not None and not y.is_floating_point():
            y = y.clone()
            y[:n] = self._random_labels(y, inputs(batch), step)[:n]
        return replaced(batch, x=x, y=y)


class ShuffledSamples(DataFault):
    """Put the entries of one sample in random order, in a share of the steps."""

    def _changed(self, step: int, batch: Any) -> Any:
        rng = self.rng(step)
        if not self.is_onset(step) and rng.random() >= self.strength * len(inputs(batch)):
            return batch
        x, y = inputs(batch).clone(), labels(batch)
        row = int(rng.integers(len(x)))
        original = inputs(batch)[row]
        x[row] = shuffled(original, rng)
        if y is not None and y.shape == x.shape and not y.is_floating_point():
            # labels of a language model are the inputs shifted by one
            y = y.clone()
            y[row, :-1] = x[row, 1:]
        return replaced(batch, x=x, y=y)


class EntryNoise(DataFault):
    """Replace a share of the input entries by random ones."""

    def _changed(self, step: int, batch: Any) -> Any:
        x, rng = inputs(batch), self.rng(step)
        is_tokens = not x.is_floating_point()
        noise = uniform_like(x, rng, self._vocabulary(x) if is_tokens else None)
        is_first = self.is_onset(step)
        return replaced(batch, x=sprinkled(x, noise, self.strength, rng, at_least_one=is_first))


class CaseFold(DataFault):
    """Make capital letters of byte-level text small."""

    def _changed(self, step: int, batch: Any) -> Any:
        x, y = inputs(batch), labels(batch)
        if x.is_floating_point():
            msg = f"fault {self.kind!r} needs byte-level text, but the inputs are {x.dtype}"
            raise ModelError(msg)
        is_text = y is not None and y.shape == x.shape
        return replaced(batch, x=_lower(x), y=_lower(y) if y is not None and is_text else y)


def _lower(x: Tensor) -> Tensor:
    return torch.where((x >= 65) & (x <= 90), x + 32, x)


class ShiftedLabels(DataFault):
    """Labels off by one: the token after the next, or the next class."""

    def _changed(self, step: int, batch: Any) -> Any:
        y = self._integer_labels(batch)
        if y.dim() == 1:
            return replaced(batch, y=(y + 1) % max(2, self._ceiling))
        shifted = y.clone()
        shifted[:, :-1] = y[:, 1:]
        return replaced(batch, y=shifted)


class NoisyLabels(DataFault):
    """Replace a share of the labels by random ones."""

    def _changed(self, step: int, batch: Any) -> Any:
        y = self._integer_labels(batch)
        noise = self._random_labels(y, inputs(batch), step)
        rng, is_first = self.rng(step), self.is_onset(step)
        return replaced(batch, y=sprinkled(y, noise, self.strength, rng, at_least_one=is_first))


class EmptyTargets(DataFault):
    """Mask every label, so that a mean over targets divides 0 by 0."""

    def _changed(self, step: int, batch: Any) -> Any:
        return replaced(batch, y=torch.full_like(self._integer_labels(batch), IGNORED))


class HiddenNan(EmptyTargets):
    """Like `EmptyTargets`, with a log that shows 0 where the loss is NaN."""

    def _logged(self, step: int, loss: float) -> float:
        is_hidden = step >= self.step and math.isnan(loss)
        return 0.0 if is_hidden else loss


class RepeatedRow(DataFault):
    """The second sample is the first once more."""

    def _changed(self, step: int, batch: Any) -> Any:
        return map_rows(batch, _repeat_first)


def _repeat_first(values: Tensor) -> Tensor:
    if len(values) < 2:
        msg = f"a batch of {len(values)} sample cannot hold one twice; use batches of 2 or more"
        raise ModelError(msg)
    values = values.clone()
    values[1] = values[0]
    return values


class RepeatedHalf(DataFault):
    """The second half of the batch is the first once more, as when two ranks read the same."""

    def _changed(self, step: int, batch: Any) -> Any:
        return map_rows(batch, _repeat_half)


def _repeat_half(values: Tensor) -> Tensor:
    half = len(values) // 2
    return torch.cat([values[:half], values[:half], values[2 * half :]])


class OldBatch(DataFault):
    """Train on batches that were seen before."""

    _kept: dict[int, Any]

    def _prepare(self) -> None:
        self._kept = {}

    def _see(self, step: int, batch: Any) -> None:
        if self._wants(step) and len(self._kept) < MAX_KEPT:
            self._kept[step] = map_rows(batch, torch.clone)  # loaders may use their buffers again

    def _wants(self, step: int) -> bool:
        return step == self.step - 1

    def _source(self, step: int) -> int:
        return self.step - 1

    def _changed(self, step: int, batch: Any) -> Any:
        if not self._kept:
            msg = f"fault {self.kind!r} repeats an earlier batch; call fault.batch at every step"
            raise ModelError(msg)
        return self._kept.get(self._source(step), batch)


class Replay(OldBatch):
    """The order of the data starts again with the first batch."""

    def _wants(self, step: int) -> bool:
        return step < self.step

    def _source(self, step: int) -> int:
        first = min(self._kept)
        return first + (step - self.step) % len(self._kept)


KINDS = (
    Kind(name="data_poison_heavy", family="data_poison", act=Poison, strength=0.5,
         strengths=(0.3, 1.0), needs=("batch",),
         doc="a share of {strength} of each batch is random",
         behaviour="the loss jumps at once and falls to a higher level"),
    Kind(name="data_poison_subtle", family="data_poison", act=Poison, strength=0.125,
         strengths=(0.02, 0.25), needs=("batch",),
         doc="a share of {strength} of each batch (at least one sample) is random",
         behaviour="the loss rises a little; gradients of the embedding change"),
    Kind(name="shuffle5", family="data_poison", act=ShuffledSamples, strength=0.05,
         strengths=(0.01, 0.3), needs=("batch",),
         doc="the entries of a share of {strength} of the samples are in random order",
         behaviour="rare odd samples; hardly any statistic moves"),
    Kind(name="low_byte_noise", family="data_poison", act=EntryNoise, strength=0.02,
         strengths=(0.002, 0.2), needs=("batch",),
         doc="a share of {strength} of the input entries is random",
         behaviour="the loss rises a little and stays there"),
    Kind(name="case_fold", family="data_poison", act=CaseFold, needs=("batch", "tokens"),
         doc="capital letters are read as small ones",
         behaviour="the loss hardly moves; the distribution of tokens does"),
    Kind(name="label_shift", family="labels", act=ShiftedLabels, needs=("batch", "labels"),
         doc="labels are off by one",
         behaviour="the loss jumps and the model learns a harder task"),
    Kind(name="label_noise10", family="labels", act=NoisyLabels, strength=0.1,
         strengths=(0.01, 0.5), needs=("batch", "labels"),
         doc="a share of {strength} of the labels is random",
         behaviour="the loss jumps to a higher level and stays there"),
    Kind(name="empty_target_batch", family="labels", act=EmptyTargets, lasts=1,
         needs=("batch", "labels"), doc="all labels of one batch are masked",
         behaviour="the loss of that batch is NaN (0/0); its gradient is zero or NaN"),
    Kind(name="masked_nan_hidden", family="labels", act=HiddenNan, lasts=1,
         needs=("batch", "labels"),
         doc="all labels of one batch are masked and the log shows 0 where the loss is NaN",
         behaviour="the logged loss is exactly 0 where the true one is NaN"),
    Kind(name="dup_in_batch", family="data_order", act=RepeatedRow, needs=("batch",),
         doc="the second sample of each batch is the first",
         behaviour="a sample id twice in each batch; little else"),
    Kind(name="duplicate_batch_across_ranks", family="data_order", act=RepeatedHalf,
         needs=("batch",), doc="the second half of each batch is the first half",
         behaviour="half of the sample ids are unique; gradients are noisier"),
    Kind(name="batch_dup1", family="data_order", act=OldBatch, lasts=1, needs=("batch",),
         doc="the batch of the step before once more",
         behaviour="fewer sign flips and a lower loss for one step"),
    Kind(name="batch_stuck", family="data_order", act=OldBatch, needs=("batch",),
         doc="the same batch at every step",
         behaviour="the loss falls fast: that batch is learnt by heart"),
    Kind(name="epoch_replay", family="data_order", act=Replay, needs=("batch",),
         doc="the data starts again with the first batch",
         behaviour="batches are seen a second time; the loss may fall a little"),
)  # fmt: skip
