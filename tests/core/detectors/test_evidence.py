"""Evidence: the metrics that moved themselves are named, not those that only stood beside them."""

from __future__ import annotations

import numpy as np

from flashback_core.detectors.evidence import Moves, moved_first, worth_telling
from flashback_core.detectors.features import Feature

ROWS = 20
ITEMS = (
    Feature("update_norm", "update_lr", "", "after", "update_norm / lr"),
    Feature("update_max", "peak", "", "after", "update_max / update_norm"),
    Feature("group:a:update_norm", "update_lr", "a", "after", "group:a:update_norm / lr"),
    Feature(
        "group:a:update_norm", "composition", "a", "after", "group:a:update_norm / update_norm"
    ),
    Feature(
        "hist_update:4", "histogram", "", "after", "mean bin of hist_update, less log4 update_norm,"
    ),
)


def moves_of(**moved: float) -> Moves:
    """Rows in which the feature `f0` moved so far at row 10, `f0_12` at row 12 and so on."""
    point = np.zeros((len(ITEMS), ROWS))
    for name, z in moved.items():
        feature, _, row = name[1:].partition("_")
        point[int(feature), int(row or 10)] = z
    return Moves(
        items=ITEMS, columns=(), start=0, steps=np.arange(ROWS), values=point, raw=point,
        point=point,
    )  # fmt: skip


def named(**moved: float) -> list[str]:
    """Metrics that are named for such rows."""
    return [score.metric for score in moved_first(moves_of(**moved), 10)]


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


def test_a_share_counts_from_the_row_at_which_the_group_moved_itself() -> None:
    """A group that only lost its share at the fault, and moved a step later, is named second."""
    assert named(f0=5.0, f3=-30.0, f2_11=6.0, f3_11=9.0) == ["update_norm", "group:a:update_norm"]
    assert named(f0=5.0, f3=-30.0, f2_11=6.0) == ["update_norm", "group:a:update_norm"]


def test_a_histogram_that_fell_behind_its_norm_is_not_named() -> None:
    """One huge entry lifts the norm; the histogram of all entries did not move."""
    assert named(f0=20.0, f4=-50.0) == ["update_norm"]
    assert named(f4=-50.0) == ["hist_update:4"]
    assert named(f0=5.0, f4=50.0) == ["hist_update:4", "update_norm"]


def test_evidence_tells_the_norm_and_not_the_shares_that_raised_the_alarm() -> None:
    """Members that moved because the whole did give way to what did move."""
    assert worth_telling(moves_of(f0=20.0, f3=-300.0), 10, [3], 3) == [0]
    assert worth_telling(moves_of(f2=9.0, f3=12.0), 10, [3], 3) == [3, 2]


def test_evidence_keeps_the_members_where_no_single_row_shows_it() -> None:
    """Members of a test over many rows need not move at the onset."""
    assert worth_telling(moves_of(), 10, [3, 0, 1, 2], 3) == [3, 0, 1]
    assert worth_telling(moves_of(f3=-30.0), 10, [3], 3) == [3]
