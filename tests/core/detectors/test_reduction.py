"""Reduction: a few statistics per family and test."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.features import Feature
from flashback_core.detectors.reduction import Reduction, consensus
from flashback_core.detectors.score_stream import SCALES


def items(n: int, family: str = "gradient") -> list[Feature]:
    """Features of `n` groups."""
    return [Feature("m", family, f"g{i}", "before", f"m{i}") for i in range(n)]


def test_one_odd_group_is_no_consensus() -> None:
    """The consensus is the median over groups: one that moves alone does not move it."""
    z = np.array([[0.1, 9.0, 9.0], [0.2, 0.1, 8.0], [-0.1, 0.2, 9.0], [0.3, -0.1, 0.1]])
    np.testing.assert_allclose(consensus(z), [0.15, 0.15, 8.5])


def test_still_groups_have_no_say() -> None:
    """Groups without a deviation are not counted, and two groups are no consensus."""
    np.testing.assert_allclose(consensus(np.array([[5.0], [4.0], [3.0], [0.0]])), [4.0])
    np.testing.assert_allclose(consensus(np.array([[5.0], [4.0], [0.0]])), [0.0])


def test_signs_must_agree() -> None:
    """Groups that move apart are no consensus."""
    assert consensus(np.array([[9.0], [-9.0], [8.0], [-8.0]])) == 0.0


def test_what_each_statistic_is() -> None:
    """Largest, third largest, root mean square and consensus of five groups."""
    reduction = Reduction(items(5))
    score = np.tile(np.array([[5.0], [4.0], [3.0], [2.0], [1.0]]), (4, 1, 1))
    found = dict(zip(reduction.names, reduction(-score, score)[:, 0], strict=True))
    assert found["gradient/point/largest"] == 5.0
    assert found["gradient/window5/third"] == 3.0
    assert found["gradient/window16/rms"] == pytest.approx(np.sqrt(11.0))
    assert found["gradient/window48/consensus"] == 3.0
    assert [list(SCALES)[k] for k in reduction.tests[:4]] == list(SCALES)


def test_small_families_have_fewer() -> None:
    """Three features have no third largest; updates without learning rate have point tests only."""
    names = Reduction([*items(3), *items(3, "update")]).names
    assert "gradient/point/third" not in names
    assert {n.split("/")[1] for n in names if n.startswith("update/")} == {"point"}


@pytest.mark.parametrize("n", [1, 2, 16])
def test_rows_are_apart(n: int) -> None:
    """Rows reduced a few at a time are, to the last bit, those reduced together."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((4, 30, 48))
    reduction = Reduction(items(30))
    parts = [reduction(z[..., i : i + n], np.abs(z[..., i : i + n])) for i in range(0, 48, n)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), reduction(z, np.abs(z)))
