"""RowBlock: rows that come one by one, as a table."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.row_block import RowBlock, RowView

NAMES = ("loss", "lr", "exact:config_hash", "exact:step_skipped", "exact:loss_scale")


def test_rows_become_columns() -> None:
    """Metrics, whole numbers with all their bits, and what a row lacks is unknown."""
    block = RowBlock(NAMES, 4)
    block.add(7, {"loss": 1.5, "lr": 0.1, "exact:config_hash": 2**64 - 1, "exact:step_skipped": 1})
    block.add(9, {"loss": None, "exact:config_hash": float("nan"), "more": 3.0})
    assert block.steps.tolist() == [7, 9]
    assert block.names == ("loss", "lr")
    np.testing.assert_array_equal(block.column("loss"), [1.5, np.nan])
    np.testing.assert_array_equal(block.column("lr"), [0.1, np.nan])
    assert block.column("exact:config_hash").tolist() == [2**64 - 1, 0]
    assert block.column("exact:step_skipped").dtype == np.int64
    assert int(block.column("exact:step_skipped")[0]) == 1
    assert np.isnan(block.column("exact:loss_scale")).all()
    np.testing.assert_array_equal(block.matrix(("lr", "loss")), [[0.1, np.nan], [1.5, np.nan]])


def test_rows_of_a_recorder() -> None:
    """Values in the order of the metrics, and exact fields by name, are the same row."""
    one, other = RowBlock(NAMES, 2), RowBlock(NAMES, 2)
    one.add(1, {"loss": 2.0, "lr": 0.5, "exact:config_hash": 5, "exact:loss_scale": 8.0})
    other.add_values(1, np.array([2.0, 0.5]), {"config_hash": 5, "loss_scale": 8.0, "epoch": 3})
    for name in NAMES:
        np.testing.assert_array_equal(one.column(name), other.column(name))


def test_full_since_and_clear() -> None:
    """It is full at its size, a part of it shares its rows, and it can be emptied."""
    block = RowBlock(("loss",), 3)
    for step in range(3):
        assert not block.is_full
        block.add(step, {"loss": float(step)})
    assert block.is_full
    assert block.since(1).column("loss").tolist() == [1.0, 2.0]
    assert len(block.since(3)) == 0
    block.clear()
    assert len(block) == 0


def test_an_unknown_column() -> None:
    """Asking for a column that is not there is an error."""
    with pytest.raises(KeyError):
        RowBlock(("loss",), 2).column("lr")


def test_bits_of_whole_numbers() -> None:
    """A negative number in a field without sign, or one too large for its sign, keeps its bits."""
    one, other = RowBlock(NAMES, 2), RowBlock(NAMES, 2)
    row = {"exact:config_hash": -1, "exact:step_skipped": 2**64 - 5}
    one.add(1, {"loss": 2.0, "lr": 0.5, **row})
    other.add_values(1, np.array([2.0, 0.5]), {name[6:]: value for name, value in row.items()})
    for block in (one, other):
        assert block.column("exact:config_hash").tolist() == [2**64 - 1]
        assert block.column("exact:step_skipped").tolist() == [-5]
        assert np.isnan(block.column("exact:loss_scale")).all()


def test_a_view_of_a_row() -> None:
    """Values by column, one or several, with what stands where the row has none."""
    view = RowView({"loss": 0, "lr": 1})
    plain = (("lr", 0.0), ("exact:epoch", 3.0), ("exact:rank", -1.0))
    mixed = (("exact:epoch", 3.0), ("more", 7.0), ("loss", 0.0))
    for loss, epoch in ((1.5, 4), (2.5, 5)):
        view.show(np.array([loss, 0.1]), {"epoch": epoch})
        assert view.get("loss") == loss
        assert (view.get("exact:epoch"), view.get("exact:rank", 9), view.get("more")) == (
            epoch, 9, None,
        )  # fmt: skip
        assert view.of(plain) == [0.1, epoch, -1.0]
        assert view.of(mixed) == [epoch, 7.0, loss]
