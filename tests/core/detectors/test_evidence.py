"""Evidence: the metrics that moved themselves are named, not those that only stood beside them."""

from __future__ import annotations

import numpy as np

from flashback_core.detectors.evidence import Moves, moved_first
from flashback_core.detectors.features import Feature

ROWS = 20
ITEMS = (
    Feature("update_norm", "update_lr", "", "after", "update_norm / lr"),
    Feature("update_max", "peak", "", "after", "update_max / update_norm"),
    Feature("group:a:update_norm", "update_lr", "a", "after", "group:a:update_norm / lr"),
    Feature(
        "group:a:update_norm", "composition", "a", "after", "group:a:update_norm / update_norm"
    ),
)


def named(**moved: float) -> list[str]:
    """Metrics that are named where the features `f0`, `f1` … moved so far at row 10."""
    point = np.zeros((len(ITEMS), ROWS))
    for name, z in moved.items():
        point[int(name[1:]), 10] = z
    moves = Moves(
        items=ITEMS, columns=(), start=0, steps=np.arange(ROWS), values=point, raw=point,
        point=point,
    )  # fmt: skip
    return [score.metric for score in moved_first(moves, 10)]


def test_the_norm_that_grew_is_named_alone() -> None:
    """A larger norm makes every share and every peak smaller; they did not move themselves."""
    assert named(f0=20.0, f1=-9.0, f3=-8.0) == ["update_norm"]


def test_a_largest_entry_that_grew_is_named() -> None:
    """A single huge entry stands above its norm."""
    assert named(f0=5.0, f1=30.0) == ["update_max", "update_norm"]


def test_a_largest_entry_that_fell_alone_is_named() -> None:
    """Without a norm that moved, the entry did."""
    assert named(f1=-9.0) == ["update_max"]


def test_a_group_that_moved_is_named() -> None:
    """With its share, if it moved itself."""
    assert named(f2=9.0, f3=12.0) == ["group:a:update_norm"]
