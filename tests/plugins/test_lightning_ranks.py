"""What the news of several ranks say about their weights."""

from __future__ import annotations

import pytest

from flashback_plugins._lightning_ranks import RankNews, divergence


def news(rank: int, weights: int = 7, changed_at: int | None = None) -> RankNews:
    """What a rank says at step 49."""
    return RankNews(rank=rank, step=49, changed_at=changed_at, tensors=("w",), weights=weights,
                    is_bad=False)  # fmt: skip


def test_agreement() -> None:
    """Equal weights, or a change that all ranks made (an average swapped in), are fine."""
    assert divergence([news(0), news(1)]) is None
    assert divergence([news(0, changed_at=9), news(1, changed_at=9)]) is None


@pytest.mark.parametrize("weights", [7, 8])
def test_a_change_on_one_rank(weights: int) -> None:
    """A change on one rank alone names rank and step, even if the weights have become equal."""
    found = divergence([news(0), news(1, weights, changed_at=12)])
    assert found is not None
    finding, rank = found
    assert (rank, finding.step, finding.kind) == (1, 12, "replica_divergence")


def test_different_digests() -> None:
    """Different weights alone name the rank where there is a majority."""
    two = divergence([news(0), news(1, 8)])
    three = divergence([news(0), news(1, 8), news(2)])
    assert two is not None
    assert three is not None
    assert (two[1], three[1]) == (-1, 1)
    assert two[0].interval == (0, 49)
