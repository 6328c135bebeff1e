"""The workloads that costs are measured on, and the clock: processor time of the process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from small_gpt import SmallGPT

CONTEXT = 64


class BenchGPT(SmallGPT):
    """The transformer of the examples, at a chosen size and a context of 64."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__(width, depth, heads)
        self.wpe = torch.nn.Embedding(CONTEXT, width)


SIZES = {"A": (100, 4, 4, 8), "B": (320, 8, 8, 8), "C": (160, 83, 4, 1)}
"""Width, depth, heads, batch. A: 0.54 M parameters, B: 10 M, C: 25 M in 1 000 tensors."""


def model(name: str) -> tuple[BenchGPT, Iterator[torch.Tensor]]:
    """A model and its batches of (batch, 65) bytes."""
    torch.manual_seed(0)
    width, depth, heads, size = SIZES[name]
    return BenchGPT(width, depth, heads), _batches(size)


def _batches(size: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(97, 123, (100_000,), generator=generator)
    while True:
        starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=generator)
        yield torch.stack([text[i : i + CONTEXT + 1] for i in starts])


def clock() -> float:
    """Processor time of the whole process in ms, all threads."""
    return time.process_time() * 1e3


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(_cell(c) for c in row)} |")
    print()


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def median(values: Sequence[float]) -> float:
    """Median of the second half of the rounds, the first half warms up."""
    return float(np.median(values[len(values) // 3 :]))
