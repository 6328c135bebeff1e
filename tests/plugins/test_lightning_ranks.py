"""What the news of several ranks say about what lies on them."""

from __future__ import annotations

import pytest

from flashback_plugins._lightning_news import STATE, WEIGHTS, Change, RankNews, divergence


def news(rank: int, weights: int = 7, changed_at: int | None = None, **more: object) -> RankNews:
    """What a rank says at step 49."""
    changes = () if changed_at is None else (change(changed_at),)
    return RankNews(rank=rank, step=49, weights=weights, **{"changes": changes, **more})  # type: ignore[arg-type]  # any field of it


def change(step: int, what: str = WEIGHTS) -> Change:
    """Something that changed before `step`."""
    return Change(step=step, what=what, tensors=("w",))


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


def test_a_change_behind_one_of_all_ranks() -> None:
    """A change that all ranks made does not hide one that a single rank made later."""
    both = (change(9), change(12))
    found = divergence([news(0, changed_at=9), news(1, changes=both)])
    assert found is not None
    assert (found[1], found[0].step) == (1, 12)


@pytest.mark.parametrize(("what", "kind"), [(WEIGHTS, "weights_changed"), (STATE, "state_changed")])
def test_a_change_of_a_shard(what: str, kind: str) -> None:
    """Of a sharded model it is said what changed, and on which rank its part lies."""
    sharded = {"weights": 0, "is_sharded": True}
    found = divergence([news(0, **sharded), news(1, changes=(change(12, what),), **sharded)])  # type: ignore[arg-type]  # any field of it
    assert found is not None
    assert (found[1], found[0].step, found[0].kind) == (1, 12, kind)
    assert f"The part of the {what} that lies on rank 1 changed" in found[0].evidence[0]


def test_a_rank_that_holds_nothing() -> None:
    """A rank without any part of the model cannot contradict the others."""
    empty = news(2, is_watching=False)
    assert divergence([news(0, changed_at=9), news(1, changed_at=9), empty]) is None


def test_different_digests() -> None:
    """Different weights alone name the rank where there is a majority."""
    two = divergence([news(0), news(1, 8)])
    three = divergence([news(0), news(1, 8), news(2)])
    assert two is not None
    assert three is not None
    assert (two[1], three[1]) == (-1, 1)
    assert two[0].interval == (0, 49)
