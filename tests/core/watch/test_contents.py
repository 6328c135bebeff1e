"""SampleContents counts the samples that are not what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flashback_core.detectors.rules import unusual as rule
from flashback_core.watch import contents
from flashback_core.watch.contents import SampleContents, inputs_and_labels

X = torch.randn(8, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8)
IDS = np.arange(8) + 100


def values(fields: dict[str, float]) -> tuple[float, ...]:
    """The three fields."""
    return fields["samples_known"], fields["inputs_changed"], fields["labels_changed"]


@pytest.mark.parametrize(
    "make", [lambda x, y: (x, y), lambda x, y: {"image": x, "label": y},
             lambda x, y: [x.numpy(), y.numpy()], lambda x, y: (x.bfloat16(), y[:, None] * 0.5)],
)  # fmt: skip
def test_what_changed(make: Any) -> None:
    """New samples, the same again, two with other inputs, three with other labels."""
    seen = SampleContents()
    assert values(seen.fields(IDS, make(X, Y))) == (0, 0, 0)
    order = torch.tensor([3, 1, 2, 0, 7, 6, 5, 4])
    assert values(seen.fields(IDS[order], make(X[order], Y[order]))) == (8, 0, 0)
    other = X.clone()
    other[:2] += 1.0
    assert values(seen.fields(IDS, make(other, Y))) == (8, 2, 0)
    labels = Y.clone()
    labels[5:] += 10
    assert values(seen.fields(IDS, make(other, labels))) == (8, 0, 3)
    assert values(seen.fields(IDS + 8, make(X, Y))) == (0, 0, 0)


def test_notes_go_by_what_the_rule_goes_by() -> None:
    """What is noted while recording is what the rule may speak of."""
    assert (contents.KNOWN, contents.HABIT) == (rule.KNOWN, rule.HABIT)


def test_samples_that_changed_are_noted() -> None:
    """Which ones, by id and row, once enough came as they were; not where it is usual."""
    seen, ids = SampleContents(), np.arange(40)
    x, y = torch.randn(40, 3), torch.zeros(40, dtype=torch.int64)
    for _ in range(4):
        seen.fields(ids, (x, y))
    labels = y.clone()
    labels[[7, 9]] = 1
    seen.fields(ids + 0, (x, labels))
    assert seen.notes == [{"event": "samples", "what": "labels", "n": 2, "rows": [7, 9],
                           "ids": [7, 9]}]  # fmt: skip
    seen.fields(ids, (x, labels))
    assert seen.notes == []
    for _ in range(3):
        seen.fields(ids, (torch.randn(40, 3), labels))
    assert seen.notes == []  # augmentation began: noted once, usual from then on


def test_without_ids() -> None:
    """Inputs stand for the sample: labels are compared, inputs cannot be."""
    seen = SampleContents()
    seen.fields(None, (X, Y))
    assert values(seen.fields(None, (X.flip(0), Y.flip(0)))) == (8, -1, 0)
    assert values(seen.fields(None, (X, Y + 1))) == (8, -1, 8)
    assert values(seen.fields(None, (X + 1, Y))) == (0, -1, 0)


def test_other_shapes_are_not_compared() -> None:
    """Padding to another length, or another type, makes other samples of the same ids."""
    seen = SampleContents()
    seen.fields(IDS, (X, Y))
    assert values(seen.fields(IDS, (X[:, :2], Y))) == (0, 0, 0)
    assert values(seen.fields(IDS, (X.double(), Y))) == (0, 0, 0)


def test_tokens_and_masked_labels() -> None:
    """Rows of labels are compared as a whole, negative ones too."""
    tokens, seen = torch.arange(24).reshape(4, 6), SampleContents()
    labels = tokens.masked_fill(tokens % 5 == 0, -100)
    seen.fields(np.arange(4), {"input_ids": tokens, "labels": labels})
    labels[2, 2] = -100
    found = seen.fields(np.arange(4), {"input_ids": tokens, "labels": labels})
    assert values(found) == (4, 0, 1)


@pytest.mark.parametrize(
    "batch", [X, (X,), (X, Y[:5]), (X[:, 0, 0], Y), (X[:0], Y[:0]), {"x": X}, {"x": "text", "y": Y},
              None, 3, (X.to("meta"), Y.to("meta")), (X.to_sparse(), Y)],
)  # fmt: skip
def test_nothing_to_compare(batch: Any) -> None:
    """A batch without inputs and labels of as many rows in host memory gives no fields."""
    assert inputs_and_labels(batch) is None
    assert SampleContents().fields(None, batch) == {}


def test_ids_that_do_not_fit() -> None:
    """Ids of another number than the samples are not theirs."""
    assert SampleContents().fields(IDS[:5], (X, Y)) == {}


def test_large_batches_cost_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many or large samples only the first are looked at."""
    many = torch.zeros(1000, 2)
    seen = SampleContents()
    ids = np.arange(1000)
    seen.fields(ids, (many, torch.zeros(1000)))
    assert seen.fields(ids, (many, torch.zeros(1000)))["samples_known"] == contents.MOST_ROWS
    monkeypatch.setattr(contents, "MOST_BYTES", 3 * X[0].numel() * X.element_size())
    seen = SampleContents()
    seen.fields(IDS, (X, Y))
    assert seen.fields(IDS, (X, Y))["samples_known"] == 3


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table doubles up to its limit; what has no place is forgotten, never called changed."""
    monkeypatch.setattr(contents, "MOST_SLOTS", 4096)
    seen, rng = SampleContents(), np.random.default_rng(0)
    truth = rng.integers(0, 5, 20_000)
    for _ in range(400):
        ids = rng.choice(20_000, 64, replace=False)
        x = torch.from_numpy(np.stack([ids, ids * 2], 1))
        found = seen.fields(ids, (x, torch.from_numpy(truth[ids])))
        assert values(found)[1:] == (0, 0)
    assert found["samples_known"] > 0
    assert seen._table.shape == (3, 4096)
