"""Scores by numba: to the last bit those of numpy, and interchangeable with them at any row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.detectors.compiled import kernels
from flashback_core.detectors.score_flat import FlatScores
from flashback_core.detectors.score_fused import FusedScores

pytest.importorskip("numba")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
N_FEATURES = 9


@pytest.fixture(autouse=True)
def _with_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about numba, whichever backend the others run with."""
    monkeypatch.delenv("FLASHBACK_BACKEND", raising=False)


def fused(floor: Floats | None = None) -> FusedScores:
    """Compiled scores of a run that begins."""
    module = kernels(is_worth_it=True)
    assert module is not None, "numba is installed, and the kernels do not load"
    return FusedScores(flat() if floor is None else FlatScores(floor), module)


def flat() -> FlatScores:
    """The same in numpy."""
    return FlatScores(np.linspace(0.001, 0.5, N_FEATURES)[:, None])


def rows(n: int) -> tuple[Floats, Ints]:
    """Features with jumps, ties, heavy tails and constants; the last begins at row 117."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((N_FEATURES, n)).cumsum(axis=1) / 10
    x[1] = rng.standard_t(1.5, n)
    x[2] = np.round(x[2])
    x[3] = 2.0
    x[4, n // 2 :] += 50.0
    x[5] = rng.integers(0, 2, n) * 1e99
    x[-1, :117] = x[-1, 117]
    first = np.zeros(N_FEATURES, np.int64)
    first[-1] = 117
    return x, first


def seen(first: Ints, stop: int) -> Ints:
    """First rows as they are known after `stop` rows."""
    return np.where(first < stop, first, -1)


@pytest.mark.parametrize("sizes", [(1,), (32,), (7, 300, 1, 64), (900,)], ids=str)
def test_every_bit(sizes: tuple[int, ...]) -> None:
    """Deviations and scores are those of numpy, whichever stretches the rows come in."""
    x, first = rows(900)
    one, other, at = flat(), fused(), 0
    while at < 900:
        size = sizes[at % len(sizes)]
        part, known = x[:, at : at + size], seen(first, at + size)
        for a, b in zip(one.update(part, known), other.update(part, known), strict=True):
            np.testing.assert_array_equal(a, b)
        at += size


@pytest.mark.parametrize("at", [0, 1, 100, 256, 320, 777])
def test_states_are_interchangeable(at: int) -> None:
    """Either goes on from the state of the other, at any row."""
    x, first = rows(900)
    one, other = flat(), fused()
    if at:
        one.update(x[:, :at], seen(first, at))
        other.update(x[:, :at], seen(first, at))
    left, right = one.state(), other.state()
    assert left.keys() <= right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)
    one, other = flat(), fused()
    one.restore(right)
    other.restore(left)
    for a, b in zip(one.update(x[:, at:], first), other.update(x[:, at:], first), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_state_is_a_copy() -> None:
    """Rows that come later do not change a state that was taken before."""
    x, first = rows(400)
    stream = fused()
    stream.update(x[:, :200], first)
    state = stream.state()
    before = {name: np.array(value) for name, value in state.items()}
    stream.update(x[:, 200:], first)
    for name, value in before.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)


def test_no_features_and_no_rows() -> None:
    """Nothing to score is no error, and rows are counted."""
    stream = fused(np.empty((0, 1)))
    z, score = stream.update(np.empty((0, 5)), np.empty(0, np.int64))
    assert (z.shape, score.shape, stream.row) == ((4, 0, 5), (4, 0, 5), 5)
    assert fused().update(np.empty((N_FEATURES, 0)), np.zeros(N_FEATURES, np.int64))[0].size == 0
