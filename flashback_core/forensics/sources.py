"""What a task trains on: batches that depend on the seed and the step alone."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.forensics import corpus
from flashback_core.forensics.config import TaskConfig

__all__ = ["Batch", "DigitSource", "NoiseSource", "Source", "TextSource", "make_source"]

Batch = dict[str, Any]
"""``x`` (inputs), ``y`` (labels) and ``ids`` (int64, one per sample)."""

Ints = npt.NDArray[np.int64]


class Source(Protocol):
    """Makes batches."""

    def draw(self, step: int, size: int, position: int) -> Batch:
        """The batch of `step`: `size` samples, of which `position` were drawn before."""


class TextSource:
    """Windows of a text at random places, or a generator's sequences."""

    def __init__(self, config: TaskConfig, data: str | None = None) -> None:
        """Read the text `data`, or that of `config`."""
        self.config = config
        self.name = data or config.data
        self._text = None if self.name == "markov" else corpus.text(self.name)

    def draw(self, step: int, size: int, position: int) -> Batch:
        """See `Source`."""
        rng = np.random.default_rng([self.config.seed, step, 11])
        length = self.config.context + 1
        if self._text is None:
            ids = rng.integers(0, 2**40, size)
            tokens = corpus.markov(rng, size, length)
        else:
            ids = self._starts(rng, size, position, len(self._text) - length)
            tokens = corpus.windows(self._text, ids, length)
        found = torch.from_numpy(tokens)
        return {"x": found[:, :-1].contiguous(), "y": found[:, 1:].contiguous(), "ids": ids}

    def _starts(self, rng: np.random.Generator, size: int, position: int, end: int) -> Ints:
        n = self.config.n_samples
        if n is None:
            return rng.integers(0, end, size)
        known = np.random.default_rng([self.config.seed, 5]).choice(end, n, replace=False)
        found: Ints = known[epoch_order(self.config.seed, n, position, size)]
        return found


def epoch_order(seed: int, n: int, position: int, size: int) -> Ints:
    """Sample numbers `position` … `position + size` of an order that is new in every epoch."""
    wanted = np.arange(position, position + size)
    out = np.empty(size, np.int64)
    for epoch in np.unique(wanted // n):
        order = np.random.default_rng([seed, int(epoch), 7]).permutation(n)
        here = wanted // n == epoch
        out[here] = order[wanted[here] % n]
    return out


class DigitSource:
    """Handwritten digits, every sample once per epoch."""

    def __init__(self, config: TaskConfig) -> None:
        """Load the images."""
        self.config = config
        self._images, self._labels = corpus.digits()

    def draw(self, step: int, size: int, position: int) -> Batch:
        """See `Source`."""
        ids = epoch_order(self.config.seed, len(self._labels), position, size)
        images = torch.from_numpy(self._images[ids])
        return {"x": images, "y": torch.from_numpy(self._labels[ids]), "ids": ids}


class NoiseSource(DigitSource):
    """Noisy digits, their noise level, and the noise to be predicted."""

    def draw(self, step: int, size: int, position: int) -> Batch:
        """See `Source`; ``level`` is the noise level in [0, 1], shape (size,)."""
        batch = super().draw(step, size, position)
        rng = np.random.default_rng([self.config.seed, step, 13])
        level = torch.from_numpy(rng.random(size).astype(np.float32))
        noise = torch.from_numpy(rng.standard_normal((size, 8, 8)).astype(np.float32))
        angle = (level * (torch.pi / 2))[:, None, None]
        noisy = batch["x"] * angle.cos() + noise * angle.sin()
        return {"x": noisy, "y": noise, "level": level, "ids": batch["ids"]}


def make_source(config: TaskConfig) -> Source:
    """The source of a task."""
    if config.is_text:
        return TextSource(config)
    return NoiseSource(config) if config.family == "denoiser" else DigitSource(config)
