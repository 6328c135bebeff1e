"""Reading and replacing parts of a batch."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import torch

from flashback_core.faults.batches import (
    inputs,
    labels,
    map_rows,
    replaced,
    sprinkled,
    uniform_like,
)

X, Y = torch.zeros(3, 2), torch.tensor([0, 1, 2])


def test_inputs_and_labels_are_found() -> None:
    """By position in a tuple, by name in a dict."""
    for batch in ((X, Y), [X, Y], {"images": X, "labels": Y}, {"input_ids": X, "target": Y}):
        assert inputs(batch) is X
        assert labels(batch) is Y
    assert inputs(X) is X
    assert labels(X) is None
    assert labels({"x": X, "y": None}) is None


def test_replaced_is_a_copy() -> None:
    """The batch itself keeps its parts; what is not replaced is shared."""
    batch = {"x": X, "y": Y, "name": "a"}
    out = replaced(batch, x=X + 1)
    assert batch["x"] is X
    assert out["y"] is Y
    assert out["name"] == "a"
    assert replaced((X, Y, 7), y=Y + 1)[2] == 7


def test_rows_are_mapped_where_there_is_one_per_sample() -> None:
    """Tensors and arrays of as many rows as inputs are changed, others are not."""
    batch = {"x": X, "ids": np.arange(3), "scale": torch.ones(1)}
    out = map_rows(batch, lambda v: v[:2])
    assert len(out["x"]) == 2
    assert out["ids"].tolist() == [0, 1]
    assert out["scale"] is batch["scale"]


def test_random_values_keep_dtype_and_range() -> None:
    """Integers stay below the ceiling, floats follow the mean."""
    rng = np.random.default_rng(0)
    ints = uniform_like(torch.zeros(1000, dtype=torch.int32), rng, 5)
    assert ints.dtype == torch.int32
    assert set(ints.tolist()) == {0, 1, 2, 3, 4}
    floats = uniform_like(torch.full((1000,), 7.0), rng)
    assert abs(float(floats.mean()) - 7.0) < 1e-3


def test_named_tuples_are_kept() -> None:
    """A named tuple comes back as one."""
    pair = namedtuple("pair", ["x", "y"])
    assert replaced(pair(X, Y), x=X + 1).y is Y


def test_sprinkling_hits_at_least_one_entry_when_asked() -> None:
    """With a share of 0 one entry differs at the onset, and none otherwise."""
    rng = np.random.default_rng(0)
    noise = torch.zeros(3, 2)
    assert torch.equal(sprinkled(X, noise, 0.0, rng, at_least_one=False), X)
    assert int((sprinkled(X, noise, 0.0, rng, at_least_one=True) != X).sum()) == 1
    assert torch.equal(sprinkled(X, noise + 1, 1.0, rng, at_least_one=True), noise + 1)
