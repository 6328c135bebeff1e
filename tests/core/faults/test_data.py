"""Data faults on tensors, tuples and dicts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flashback_core import faults
from flashback_core.errors import ModelError


def attached(kind: str, step: int = 2, **choices: Any) -> faults.Fault:
    """A fault on a small language model."""
    model = nn.Sequential(nn.Embedding(256, 4), nn.Linear(4, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return faults.make(kind, step=step, seed=4, **choices).attach(model, optimizer)


def tokens(step: int) -> dict[str, Any]:
    """A batch of 8 samples of 16 bytes, labels shifted by one."""
    rng = np.random.default_rng(step)
    text = torch.from_numpy(rng.integers(0, 128, (8, 17)))
    return {"x": text[:, :-1], "y": text[:, 1:], "ids": np.arange(8) + 100 * step}


def rows_changed(a: Tensor, b: Tensor) -> int:
    """Rows that differ."""
    return int((a != b).reshape(len(a), -1).any(1).sum())


@pytest.mark.parametrize(
    ("kind", "strength", "n"),
    [("data_poison_heavy", None, 4), ("data_poison_subtle", None, 1),
     ("data_poison_subtle", 0.01, 1), ("data_poison_heavy", 0.75, 6)],
)  # fmt: skip
def test_poison_hits_a_share_of_the_samples(kind: str, strength: float | None, n: int) -> None:
    """Inputs and labels of the share are random bytes; the batch given is left as it was."""
    fault, batch = attached(kind, strength=strength), tokens(2)
    out = fault.batch(2, batch)
    assert rows_changed(out["x"], tokens(2)["x"]) == n
    assert rows_changed(out["y"], tokens(2)["y"]) == n
    assert torch.equal(batch["x"], tokens(2)["x"])
    assert int(out["x"].max()) > 128  # of the whole vocabulary
    assert np.array_equal(out["ids"], batch["ids"])


@pytest.mark.parametrize("kind", ["data_poison_heavy", "low_byte_noise"])
def test_batch_may_be_a_tensor_a_tuple_a_list_or_a_dict(kind: str) -> None:
    """The kind of container stays what it was."""
    x, y = tokens(2)["x"], tokens(2)["y"]
    for batch in (x, (x, y), [x, y], {"input_ids": x, "labels": y}):
        out = attached(kind, strength=0.5).batch(2, batch)
        assert type(out) is type(batch)
        first = out if isinstance(out, Tensor) else next(iter(_values(out)))
        assert not torch.equal(first, x)


def _values(batch: Any) -> Any:
    return batch.values() if isinstance(batch, dict) else batch


def test_images_get_noise_of_their_own_spread() -> None:
    """Floats are replaced by Gaussian noise of the same mean and deviation."""
    images = torch.randn(64, 8, 8) * 3 + 10
    out, labels = attached("data_poison_heavy", strength=1.0).batch(
        2, (images, torch.arange(64) % 10)
    )
    assert float(out.mean()) == pytest.approx(10, abs=0.3)
    assert float(out.std()) == pytest.approx(3, rel=0.1)
    assert int(labels.max()) < 10


def test_shuffled_sample_keeps_its_entries() -> None:
    """One sample has the same bytes in another order, and labels that fit."""
    out, clean = attached("shuffle5").batch(2, tokens(2)), tokens(2)
    (row,) = (out["x"] != clean["x"]).any(1).nonzero().flatten().tolist()
    assert sorted(out["x"][row].tolist()) == sorted(clean["x"][row].tolist())
    assert torch.equal(out["y"][row, :-1], out["x"][row, 1:])


def test_case_is_folded_in_inputs_and_labels() -> None:
    """No capital letter is left."""
    out = attached("case_fold").batch(2, tokens(2))
    for name in ("x", "y"):
        assert not bool(((out[name] >= 65) & (out[name] <= 90)).any())


def test_labels_are_shifted() -> None:
    """A label is the byte after the next; a class is the next class."""
    clean = tokens(2)
    out = attached("label_shift").batch(2, clean)
    assert torch.equal(out["y"][:, :-1], clean["y"][:, 1:])
    classes = torch.tensor([0, 1, 2])
    assert attached("label_shift").batch(2, (torch.zeros(3, 4), classes))[1].tolist() == [1, 2, 0]


def test_label_noise_hits_its_share() -> None:
    """About a tenth of the labels differ."""
    fault = attached("label_noise10")
    out = [fault.batch(s, tokens(s))["y"] != tokens(s)["y"] for s in range(2, 42)]
    assert float(torch.stack(out).float().mean()) == pytest.approx(0.1, abs=0.02)


def test_empty_targets_are_all_masked_and_can_be_hidden() -> None:
    """All labels are -100; the hiding log shows 0 for NaN and leaves other losses alone."""
    fault = attached("masked_nan_hidden")
    assert set(fault.batch(2, tokens(2))["y"].flatten().tolist()) == {-100}
    assert fault.logged_loss(2, math.nan) == 0.0
    assert fault.logged_loss(2, 1.5) == 1.5
    assert math.isnan(fault.logged_loss(1, math.nan))


def test_repeats_within_a_batch_carry_their_ids() -> None:
    """Repeated samples have the ids of the originals."""
    out = attached("dup_in_batch").batch(2, tokens(2))
    assert out["ids"][:3].tolist() == [200, 200, 202]
    half = attached("duplicate_batch_across_ranks").batch(2, tokens(2))
    assert half["ids"].tolist() == [200, 201, 202, 203] * 2
    assert torch.equal(half["x"][:4], half["x"][4:])


@pytest.mark.parametrize(
    ("kind", "sources"),
    [
        ("batch_dup1", [0, 1, 2, 2, 4, 5, 6, 7]),
        ("batch_stuck", [0, 1, 2, 2, 2, 2, 2, 2]),
        ("epoch_replay", [0, 1, 2, 0, 1, 2, 0, 1]),
    ],
)
def test_old_batches_come_back(kind: str, sources: list[int]) -> None:
    """Which step's batch each step trains on."""
    fault = attached(kind, step=3)
    seen = [int(fault.batch(s, tokens(s))["ids"][0]) // 100 for s in range(8)]
    assert seen == sources


def test_batch_that_is_not_understood_is_refused() -> None:
    """The message says what a batch may be."""
    with pytest.raises(ModelError, match="a dict with one of x, input_ids"):
        attached("data_poison_heavy").batch(2, {"pixels": torch.zeros(2)})
    with pytest.raises(ModelError, match="needs integer labels"):
        attached("label_noise10").batch(2, torch.zeros(4, 4))
    with pytest.raises(ModelError, match="repeats an earlier batch"):
        attached("batch_stuck").batch(5, tokens(5))
    with pytest.raises(ModelError, match="a batch of 1 sample"):
        attached("dup_in_batch").batch(2, torch.zeros(1, 4))
