"""History: the last rows, by their place in the run."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.history import History


@pytest.mark.parametrize("sizes", [(1,), (3, 40), (500,), (7, 1, 64)])
def test_the_last_rows_are_there(sizes: tuple[int, ...]) -> None:
    """However they came, the rows that are kept are the last ones, at their places."""
    history, given, i = History((2,), 50), np.empty((2, 0)), 0
    while given.shape[1] < 700:
        new = np.arange(given.shape[1], given.shape[1] + sizes[i % len(sizes)], dtype=float)
        history.push(np.stack([new, -new]))
        given = np.concatenate([given, np.stack([new, -new])], axis=1)
        i += 1
        stop = given.shape[1]
        first = max(stop - 50, 0)
        np.testing.assert_array_equal(history.rows(first, stop), given[:, first:])
        assert history.stop == stop
        assert history.start <= first


def test_what_is_gone_is_left_out() -> None:
    """Rows that are asked for and gone are not made up; `first_of` says where it begins."""
    history = History((), 10)
    for i in range(400):
        history.push(np.array([float(i)]))
    found = history.rows(0, 400)
    assert found[0] == history.first_of(0)
    assert found[-1] == 399
    assert len(found) < 100


def test_state() -> None:
    """Restored, it goes on as it was."""
    one, other = History((3,), 8), History((3,), 8)
    rng = np.random.default_rng(0)
    one.push(rng.random((3, 30)))
    other.restore(one.state())
    more = rng.random((3, 5))
    one.push(more)
    other.push(more)
    np.testing.assert_array_equal(one.rows(27, 35), other.rows(27, 35))
