"""What is known of the batches of one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flashback_plugins._lightning_batch import Window, sample_ids


def window(**settings: Any) -> Window:
    """A window that looks for ids by itself."""
    return Window(**{"hashes": True, "ids_of": sample_ids} | settings)


def batch(first: int) -> dict[str, Any]:
    """Four samples."""
    return {"x": torch.arange(8.0).view(4, 2) + first, "ids": torch.arange(first, first + 4)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ids": torch.arange(3)}, True),
        ({"idx": [1, 2, 3]}, True),
        ({"index": np.arange(3)}, True),
        ({"ids": torch.rand(3)}, False),
        ({"ids": torch.tensor([True, False])}, False),
        ({"ids": torch.zeros(3, 4, dtype=torch.long)}, False),
        ({"ids": ["a", "b"]}, False),
        ({"input_ids": torch.arange(3)}, False),
        (torch.arange(3), False),
        (None, False),
    ],
)
def test_sample_ids(given: Any, expected: bool) -> None:
    """Integers, one per sample, under a usual key; token ids are none."""
    assert (sample_ids(given) is not None) == expected


def test_a_batch_that_came_before() -> None:
    """A batch seen again names the step that saw it."""
    seen = window()
    first = seen.add_batch(batch(0), 0)
    seen.clear()
    again = seen.add_batch(batch(0), 1)
    assert (first["batch_seen"], again["batch_seen"]) == (-1, 0)
    assert first["batch_hash"] == again["batch_hash"]
    assert (first["ids_seen"], again["ids_seen"]) == (0, 4)


def test_several_batches_of_one_step() -> None:
    """Hash and ids of an accumulated step are those of all its batches, in their order."""
    one, other = window(), window()
    for first in (0, 4):
        fields = one.add_batch(batch(first), 0)
    for first in (4, 0):
        turned = other.add_batch(batch(first), 0)
    assert fields["batch_id_mean"] == turned["batch_id_mean"] == 3.5
    assert fields["batch_hash"] != turned["batch_hash"]
    assert fields["duplicates"] == 0


def test_switched_off() -> None:
    """Without hashes and ids nothing is kept."""
    assert window(hashes=False, ids_of=None).add_batch(batch(0), 0) == {}


def test_odd_batches() -> None:
    """A batch without tensors is one of which nothing is known."""
    for odd in ("text", None, 3, [], {}, object()):
        assert "batch_hash" not in window().add_batch(odd, 0)


def test_mean_loss() -> None:
    """The loss of a step is the mean over its batches; None where no batch had one."""
    losses = window()
    assert losses.loss is None
    for value in (1.0, None, 4.0):
        losses.add_loss(None if value is None else torch.tensor(value, requires_grad=True))
    assert float(losses.loss) == 2.5
    assert not losses.loss.requires_grad
