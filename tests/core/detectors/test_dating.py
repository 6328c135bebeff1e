"""Dating: from an alarm back to the onset."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.detectors.dating import date
from flashback_core.detectors.features import Feature, Features

Floats = npt.NDArray[np.float64]


def made(*shifts: tuple[str, Floats], seed: int = 0) -> Features:
    """Features of noise plus `shifts`, each with its phase."""
    rng = np.random.default_rng(seed)
    values = np.stack([shift + rng.standard_normal(len(shift)) for _, shift in shifts])
    items = tuple(Feature("m", "loss", "", phase, f"m{i}") for i, (phase, _) in enumerate(shifts))
    return Features(items, values)


def step(at: int, size: float, rows: int = 300) -> Floats:
    """Zero, and `size` from row `at` on."""
    return np.where(np.arange(rows) < at, 0.0, size)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delay", [0, 2, 5])
def test_a_shift(seed: int, delay: int) -> None:
    """A lasting shift is dated to its first row, however late the alarm."""
    found = made(*[("before", step(200, 8.0))] * 3, seed=seed)
    onset = date(found, np.arange(3), 200 + delay, 5)
    assert onset.row == 200
    assert onset.first <= 200 <= onset.last
    assert 0 < onset.belief <= 1


def test_a_pulse() -> None:
    """One odd row is dated to itself."""
    pulse = step(200, 12.0)
    pulse[201:] = 0.0
    assert date(made(("after", pulse), ("after", pulse)), np.arange(2), 200, 1).row == 200


def test_the_gradient_follows_a_wrong_update() -> None:
    """Where the update goes wrong first and the gradient one row later, the update dates it."""
    found = made(("after", step(200, 9.0)), ("before", step(201, 9.0)), ("before", step(201, 9.0)))
    assert date(found, np.arange(3), 202, 5).row == 200


def test_a_wrong_batch_moves_all_at_once() -> None:
    """Where gradient and update move together, their common row is the date."""
    found = made(("after", step(200, 9.0)), ("before", step(200, 9.0)), ("before", step(200, 9.0)))
    assert date(found, np.arange(3), 202, 5).row == 200


def test_an_update_that_builds_up() -> None:
    """Momentum makes the update follow slowly; it does not make the date late."""
    since = np.arange(300) - 200
    slow = np.where(since < 0, 0.0, 10 * (1 - 0.6 ** (since.clip(0) + 1.0)))
    found = made(("after", slow), ("after", slow), ("before", step(200, 4.0)))
    assert date(found, np.arange(3), 206, 5).row == 200


def test_weak_evidence_has_a_wide_interval() -> None:
    """The weaker the shift, the wider the interval."""
    widths = []
    for size in (1.0, 8.0):
        onset = date(made(("before", step(200, size))), np.arange(1), 230, 16)
        widths.append(onset.last - onset.first)
    assert widths[0] > widths[1]


def test_at_the_edges_of_a_run() -> None:
    """An alarm in the last row, or with little before it, is dated all the same."""
    assert date(made(("before", step(79, 20.0, 80))), np.arange(1), 79, 1).row == 79
    assert date(made(("before", step(70, 20.0, 90))), np.arange(1), 72, 48).row == 70
