"""StepTable and MemoryTable: the shape that everything reads."""

from __future__ import annotations

import numpy as np
import pytest

import flashback_core.table
from flashback_core.errors import MissingExtraError, SchemaError
from flashback_core.table import MemoryTable


def table() -> MemoryTable:
    """Four rows, two metrics, one exact field."""
    columns = {
        "loss": [4.0, 3.0, np.nan, 1.0],
        "nonfinite": np.array([0, 1, 2, 3]),
        "exact:batch_hash": np.array([1, 2, 3, 2**64 - 1], np.uint64),
    }
    return MemoryTable([1, 2, 5, 9], columns, events=[{"event": "resume", "step": 5}], source="x")


def test_names_and_sizes() -> None:
    """Metrics and exact fields are told apart; `len` counts rows, iterating gives columns."""
    t = table()
    assert t.names == ("loss", "nonfinite")
    assert t.exact_names == ("exact:batch_hash",)
    assert list(t) == ["loss", "nonfinite", "exact:batch_hash"]
    assert len(t) == 4
    assert "loss" in t
    assert "lr" not in t
    assert t.values.shape == (4, 2)
    assert t.values.dtype == np.float64
    assert repr(t) == "<MemoryTable of x: 4 rows, 2 metrics>"


def test_rows_by_slice_mask_and_step() -> None:
    """Rows keep their steps, columns their dtypes, tables their events and source."""
    t = table()
    for part, steps in (
        (t[1:3], [2, 5]), (t[-1:], [9]), (t[::2], [1, 5]), (t[:0], []),
        (t[t["nonfinite"] > 0], [2, 5, 9]), (t.between(2, 8), [2, 5]), (t.between(6, 8), []),
    ):  # fmt: skip
        assert part.steps.tolist() == steps
        assert part["exact:batch_hash"].dtype == np.uint64
        assert part.events == t.events
        assert part.source == "x"
    assert t.row_of(5) == 2
    with pytest.raises(KeyError):
        t.row_of(6)


def test_columns_by_names() -> None:
    """A list or tuple of names gives a table of these columns in this order."""
    for names in (["nonfinite", "loss"], ("nonfinite", "loss")):
        assert list(table()[names]) == ["nonfinite", "loss"]
    with pytest.raises(SchemaError, match=r"'los' is not among the 3.*close to it: loss"):
        table()["los"]


def test_numbers_are_no_keys() -> None:
    """Neither a Python nor a numpy integer picks a row."""
    for key in (0, np.int64(0)):
        with pytest.raises(TypeError, match="neither a column name nor a slice"):
            table()[key]


def test_steps_must_increase() -> None:
    """Steps out of order and columns of another length are refused with their place."""
    with pytest.raises(ValueError, match="row 2 has step 1 after 2"):
        MemoryTable([1, 2, 1], {"loss": np.zeros(3)})
    with pytest.raises(ValueError, match=r"'loss' has shape \(2,\), expected \(3,\)"):
        MemoryTable([1, 2, 3], {"loss": np.zeros(2)})
    assert len(MemoryTable([1, 2, 1], {"loss": np.zeros(3)}, ordered=False)) == 3


def test_to_arrow_and_pandas() -> None:
    """Both hold all columns; pandas is indexed by step, and its absence is said clearly."""
    t = table()
    assert t.to_arrow().column_names == ["step", *t]
    frame = t.to_pandas()
    assert frame.index.tolist() == [1, 2, 5, 9]
    assert frame["exact:batch_hash"].iloc[-1] == 2**64 - 1


def test_no_pandas(monkeypatch) -> None:
    """Without pandas the error says what to install."""
    monkeypatch.setattr(flashback_core.table, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        table().to_pandas()


def test_an_empty_table() -> None:
    """No rows and no columns is a table too."""
    t = MemoryTable([], {})
    assert len(t) == 0
    assert t.values.shape == (0, 0)
    assert list(t) == []
