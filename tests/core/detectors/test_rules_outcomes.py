"""What a fault ends in, over rows as they come: as on the whole table, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.detectors.rules import OUTCOMES, CertainRules
from flashback_core.detectors.rules.samples import Samples
from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable

Floats = npt.NDArray[np.float64]
N = 700
T = np.arange(N, dtype=np.float64)


def run(seed: int) -> MemoryTable:
    """A loss and a norm that go somewhere, with holes."""
    rng = np.random.default_rng(seed)
    loss = 1.5 + 2 * np.exp(-T / rng.choice([20, 200])) + rng.choice([0, 0.02]) * rng.normal(size=N)
    start = int(rng.integers(50, N))
    loss[start:] += rng.choice([0, 0.01, 0.3]) * (T[start:] - start)
    if seed % 4 == 0:
        loss = 2.3 + 0.002 * T + 0.01 * rng.normal(size=N)
    norm = np.exp(0.3 * rng.normal(size=N))
    norm[start:] *= rng.choice([1.0, 1e5])
    for values in (loss, norm):
        values[rng.integers(0, N, 15)] = np.nan
    return MemoryTable(np.arange(N) * rng.choice([1, 100]), {"loss": loss, "grad_norm": norm})


def said(table: MemoryTable, cuts: Sequence[int], *, restart: bool = False) -> list[Finding]:
    """Findings of `table` in chunks that end at `cuts`."""
    rules, found, start = CertainRules(only=list(OUTCOMES)), list[Finding](), 0
    for stop in cuts:
        found += rules.update(table[start:stop], ())
        start = stop
        if restart:
            rules = CertainRules.restore(json.loads(json.dumps(rules.state(), allow_nan=False)))
    return found + rules.finish()


@pytest.mark.parametrize("seed", range(8))
def test_chunks_and_restarts_change_nothing(seed: int) -> None:
    """One chunk, single rows, and restarts: one answer."""
    table = run(seed)
    whole = said(table, [N])
    cuts = sorted({*np.random.default_rng(seed).integers(1, N, 40).tolist(), N})
    assert said(table, range(1, N + 1)) == whole
    assert said(table, cuts, restart=True) == whole


@pytest.mark.parametrize("seed", range(8))
def test_a_prefix_knows_no_later_row(seed: int) -> None:
    """What a prefix says, but for its end, is what the run says first."""
    table = run(seed)
    whole = CertainRules(only=list(OUTCOMES)).update(table, ())
    for rows in (100, 300, 500):
        part = CertainRules(only=list(OUTCOMES)).update(table[:rows], ())
        assert part == whole[: len(part)]


def test_the_state_does_not_grow() -> None:
    """A long run leaves as much as a short one."""
    rng = np.random.default_rng(3)
    rules, sizes = CertainRules(only=list(OUTCOMES)), []
    for i in range(40):
        loss = 1.5 + 1 / (1 + i) + 0.02 * rng.normal(size=5000)
        norm = np.exp(0.3 * rng.normal(size=5000))
        rules.update(MemoryTable(5000 * i + np.arange(5000), {"loss": loss, "grad_norm": norm}), ())
        sizes.append(len(json.dumps(rules.state())))
    assert max(sizes) < 60_000


def test_samples_do_not_depend_on_how_they_are_given() -> None:
    """Values one by one and all at once are the same samples, at even distances."""
    one, all_at_once, values = Samples(), Samples(), np.arange(5000.0)
    for value in values:
        one.add(np.array([value]))
    all_at_once.add(values)
    np.testing.assert_array_equal(one.values, all_at_once.values)
    assert set(np.diff(one.values)) == {one.stride}
    assert 128 <= len(one.values) <= 256
