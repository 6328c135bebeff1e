"""Made-up rows, and ways to write them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashback_core.index import StepSketchIndex
from flashback_core.schema import SketchSchema

Row = tuple[np.ndarray, dict[str, Any]]


@functools.cache
def made_up_row(step: int) -> Row:
    """Values and exact fields that depend on the step alone, each metric in its own range."""
    rng = np.random.default_rng(step)
    metrics = SketchSchema().metrics
    values = rng.normal(0, 1, len(metrics))
    counts = [i for i, m in enumerate(metrics) if m.dtype == "i8"]
    values[counts] = rng.integers(0, 10**6, len(counts))
    values[rng.integers(0, 16)] = rng.choice([np.nan, np.inf, -np.inf, 1e-42, -0.0])
    values[[i for i in counts if i < 16]] = step  # the count among the scalars
    exact = {"batch_hash": int(rng.integers(0, 2**64, dtype=np.uint64)), "epoch": step // 100}
    values.flags.writeable = False
    return values, exact


def stored(values: np.ndarray) -> np.ndarray:
    """What an index gives back: rounded to the dtypes of the metrics."""
    out = np.array(values, np.float64)
    single = [i for i, m in enumerate(SketchSchema().metrics) if m.dtype == "f4"]
    out[..., single] = out[..., single].astype(np.float32)
    return out


def write_rows(path: Path, steps: range, **options: Any) -> None:
    """Append rows of `steps` to the index at `path` and close it."""
    with StepSketchIndex(path, "a", **options) as index:
        for step in steps:
            index.append(step, *made_up_row(step))


@pytest.fixture
def row() -> Callable[[int], Row]:
    """`made_up_row`."""
    return made_up_row


@pytest.fixture
def as_stored() -> Callable[[np.ndarray], np.ndarray]:
    """`stored`."""
    return stored


@pytest.fixture
def write() -> Callable[..., None]:
    """`write_rows`."""
    return write_rows


@pytest.fixture
def check_rows() -> Callable[[StepSketchIndex], None]:
    """Checks that each row of an index is the made-up row of its step, bit for bit."""

    def check(index: StepSketchIndex) -> None:
        expected = [stored(made_up_row(step)[0]) for step in index.steps.tolist()]
        if expected:
            np.testing.assert_array_equal(index.values, np.stack(expected))
            hashes = [made_up_row(step)[1]["batch_hash"] for step in index.steps.tolist()]
            assert index["exact:batch_hash"].tolist() == hashes

    return check
