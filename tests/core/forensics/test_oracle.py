"""How visible a fault is against its twin."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.forensics.oracle import LARGEST, VISIBLE, visibility
from flashback_core.table import MemoryTable

N = 400


def pair(change: float, at: int = 200, length: int = N) -> tuple[MemoryTable, MemoryTable]:
    """A run and its twin; noise of 0.1 in the logarithm, shifted by `change` from a step on."""
    noise = np.random.default_rng(1).normal(0.0, 0.1, (2, N))
    quiet = {"grad_norm": np.exp(noise[0]), "loss": np.exp(noise[1]), "lr": np.ones(N)}
    shifted = noise[0].copy()
    shifted[at : at + length] += change
    loud = quiet | {"grad_norm": np.exp(shifted), "lr": np.where(np.arange(N) < at, 1.0, 9.0)}
    return MemoryTable(np.arange(N), loud), MemoryTable(np.arange(N), quiet)


def test_point_effect_is_in_units_of_noise() -> None:
    """One step off by one, at a noise of 0.1, is about ten."""
    found = visibility(*pair(1.0, length=1), step=200)
    assert found.point == pytest.approx(10.0, rel=0.2)
    assert found.metric == "grad_norm"
    assert found.d_prime >= VISIBLE


def test_lasting_effect_adds_up() -> None:
    """Half a unit of noise over 150 steps is as much as its root says."""
    found = visibility(*pair(0.05), step=200)
    assert found.window == pytest.approx(0.5 * np.sqrt(150), rel=0.2)
    assert found.d_prime == pytest.approx(max(found.point, 0.4 * found.window))


def test_equal_runs_are_invisible() -> None:
    """Nothing moved; a learning rate alone is no effect."""
    found = visibility(*pair(0.0), step=200)
    assert (found.d_prime, found.metric) == (0.0, "")


def test_nan_is_as_visible_as_can_be() -> None:
    """A metric that is lost at the fault."""
    run, twin = pair(0.0)
    loss = run.column("loss").copy()
    loss[200:] = np.nan
    broken = MemoryTable(run.steps, {"loss": loss, "grad_norm": run.column("grad_norm")})
    assert visibility(broken, twin, step=200).d_prime == LARGEST


def test_later_fault_does_not_count() -> None:
    """Steps from `stop` on belong to another fault."""
    run, twin = pair(3.0, at=250)
    assert visibility(run, twin, step=200, stop=250).d_prime == 0.0
    assert visibility(run, twin, step=200).d_prime > VISIBLE


def test_single_count_in_an_empty_bin_is_noise() -> None:
    """A histogram bin that is always empty in the twin, and holds one entry at the fault."""
    steps, empty = np.arange(N), np.zeros(N, np.int64)
    one, many = empty.copy(), empty.copy()
    one[200], many[200] = 1, 500
    twin = MemoryTable(steps, {"hist_update:13": empty})
    assert visibility(MemoryTable(steps, {"hist_update:13": one}), twin, step=200).d_prime < 2
    assert visibility(MemoryTable(steps, {"hist_update:13": many}), twin, step=200).d_prime > 50


def test_drifting_apart_is_no_effect() -> None:
    """Weight norms that walk apart slowly after a harmless change move no faster than before."""
    rng = np.random.default_rng(4)
    walk = np.cumsum(rng.normal(0.0, 1e-3, (2, N)), axis=1)
    other = np.concatenate([walk[0, :200], walk[0, 199] + walk[1, :200] - walk[1, 0]])
    tables = [MemoryTable(np.arange(N), {"param_norm": np.exp(w)}) for w in (other, walk[0])]
    assert visibility(tables[0], tables[1], step=200).d_prime < VISIBLE


def test_counter_that_was_always_zero_is_certain() -> None:
    """One non-finite entry."""
    steps, none = np.arange(N), np.zeros(N, np.int64)
    one = none.copy()
    one[200] = 1
    twin = MemoryTable(steps, {"nonfinite": none})
    assert visibility(MemoryTable(steps, {"nonfinite": one}), twin, step=200).d_prime == LARGEST
