"""Features by numba: to the last bit those of numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.detectors.feature_stream import FeatureStream
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run

pytest.importorskip("numba")

from flashback_core.detectors.compiled import kernels


def spoilt() -> MemoryTable:
    """A run with holes, skipped steps, histograms of one bin, of none, and a loss that is late."""
    run, rng = healthy_run(300), np.random.default_rng(7)
    columns = {name: np.array(run.column(name), np.float64) for name in run.names}
    for values in columns.values():
        values[rng.random(300) < 0.04] = np.nan
    columns["loss"][:90] = np.nan
    columns["grad_norm"][200] = np.inf
    for i in range(16):
        columns[f"hist_grad:{i}"][100:110] = 0.0
        columns[f"hist_update:{i}"][150:160] = 1e6 if i == 5 else 1.0
        columns[f"hist_update:{i}"][160:250] = 5e5 if i in (5, 6) else 1.0  # over an edge, too long
    columns["exact:step_skipped"] = (rng.random(300) < 0.05).astype(np.int64)
    return MemoryTable(np.cumsum(rng.integers(1, 4, 300)), columns)


@pytest.mark.parametrize("size", [1, 32, 300])
def test_every_bit(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Values, first rows, names and states are those of numpy."""

    def taken(stream: FeatureStream) -> npt.NDArray[np.float64]:
        parts = [stream.update(table[i : i + size]) for i in range(0, 300, size)]
        return np.concatenate(parts, axis=1)

    table = spoilt()
    one, other = (FeatureStream((*table.names, *table.exact_names)) for _ in range(2))
    monkeypatch.setenv("FLASHBACK_BACKEND", "flat")
    expected = taken(one)
    monkeypatch.delenv("FLASHBACK_BACKEND")
    assert kernels(is_worth_it=True) is not None
    np.testing.assert_array_equal(taken(other), expected)
    assert other.items == one.items
    assert other.state().keys() == one.state().keys()
    for name, value in one.state().items():
        np.testing.assert_array_equal(other.state()[name], value, err_msg=name)
