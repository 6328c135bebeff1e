"""Indexes that released format versions wrote are read as they were meant.

What the rows hold is said by formulas here, not by a file that could change with the code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.schema import EXACT_FIELDS, SketchSchema

HOME = Path(__file__).parent / "index-v1"
SCHEMA = SketchSchema(groups=("embed", "other"))
RUN = {"model": "Gpt", "parameters": 12345}


def values_at(step: int, attempt: int = 0) -> np.ndarray:
    """Metrics of a step; all of them fit float32 exactly.

    Args:
        step: The step.
        attempt: How often the run had been resumed.
    """
    values = np.arange(len(SCHEMA)) / 8 + step * 16 + attempt / 64
    for i, metric in enumerate(SCHEMA.metrics):
        if metric.dtype == "i8":
            values[i] = 2**40 + 1000 * step + i + attempt
    values[0] = [1.5, np.nan, np.inf, -np.inf, -0.0, 2.0**-140][step % 6]  # the loss
    if step % 5 == 3:
        values[SCHEMA.position("hist_grad:2")] = np.nan  # a count that is not known
    return values


def exact_at(step: int) -> dict[str, Any]:
    """Exact fields of a step."""
    return {"batch_hash": 2**64 - 1 - step, "batch_index": -step, "epoch": step // 4, "rank": 3}


def check(
    index: fb.StepSketchIndex, attempts: dict[int, int], lost: set[str] = frozenset()
) -> None:
    """Every value of every row is the one that the formulas say; `lost` columns of some are NaN."""
    assert index.steps.tolist() == list(attempts)
    assert index.names == SCHEMA.names
    assert index.schema == SCHEMA
    assert index.run == RUN
    expected = np.stack([values_at(step, attempt) for step, attempt in attempts.items()])
    for i, metric in enumerate(SCHEMA.metrics):
        found = index[metric.name]
        if metric.name in lost:
            assert np.isnan(found[:5]).all()
            found, expected_column = found[5:], expected[5:, i]
        else:
            expected_column = expected[:, i]
        np.testing.assert_array_equal(found, expected_column, err_msg=metric.name)
        has_unknown = np.isnan(found).any() or metric.name in lost
        assert found.dtype == ("f8" if metric.dtype == "i8" and has_unknown else metric.dtype)
    assert np.signbit(index["loss"][4]) or 4 not in attempts
    for field in EXACT_FIELDS[:13]:  # those of version 1
        values = [exact_at(step).get(field.name, field.absent) for step in attempts]
        np.testing.assert_array_equal(
            index[field.column], np.array(values, field.dtype), strict=True
        )


def expects(*steps: int) -> list[dict[str, Any]]:
    """The events of these steps."""
    return [{"event": "expect", "step": step, "kind": "lr_milestone"} for step in steps]


def test_tail_only() -> None:
    """A run that was killed before its first segment."""
    index = fb.StepSketchIndex(HOME / "tail-only")
    check(index, dict.fromkeys(range(6), 0))
    assert list(index.events) == expects(2)


def test_segments_and_tail() -> None:
    """Two sealed segments and a tail."""
    index = fb.StepSketchIndex(HOME / "segments-and-tail")
    check(index, dict.fromkeys(range(12), 0))
    assert list(index.events) == expects(2, 6, 10)


def test_resumed() -> None:
    """A run that was resumed twice: the last attempt counts, the others are kept."""
    index = fb.StepSketchIndex(HOME / "resumed")
    check(index, dict.fromkeys(range(3), 0) | dict.fromkeys(range(3, 6), 2))
    old = index.superseded
    assert old.steps.tolist() == [3, 4, 5, 6, 7, 5, 6]
    rows = [*((s, 0) for s in range(3, 8)), (5, 1), (6, 1)]
    np.testing.assert_array_equal(old.values, np.stack([values_at(*row) for row in rows]))
    assert [(e["event"], e["step"]) for e in index.events] == [
        ("expect", 2), ("expect", 6), ("resume", 5), ("expect", 6), ("resume", 3),
    ]  # fmt: skip


def test_damaged() -> None:
    """One flipped bit in a column, and a tail that was cut short: the rest is read."""
    index = fb.StepSketchIndex(HOME / "damaged")
    check(index, dict.fromkeys([*range(5), 10], 0), lost={"update_norm"})
    damage = [event for event in index.events if event["event"] == "damage"]
    assert [(e["file"], e["why"].partition(":")[0]) for e in damage] == [
        ("segment-000000.parquet", "column 'update_norm'"),
        ("tail-000001.bin", "incomplete record at the end"),
    ]


@pytest.mark.parametrize("name", ["tail-only", "segments-and-tail", "resumed", "damaged"])
def test_it_can_be_continued(tmp_path: Path, name: str) -> None:
    """A later version goes on where the old one stopped."""
    import shutil

    shutil.copytree(HOME / name, tmp_path / "i")
    before = fb.StepSketchIndex(HOME / name)
    with fb.StepSketchIndex(tmp_path / "i", "a") as index:
        last = index.last_step
        assert last == before.steps[-1]
        index.append(last + 1, values_at(last + 1), exact_at(last + 1))
    after = fb.StepSketchIndex(tmp_path / "i")
    assert after.steps.tolist() == [*before.steps.tolist(), last + 1]
    np.testing.assert_array_equal(after.values[:-1], before.values)
    np.testing.assert_array_equal(after.values[-1], values_at(last + 1))
