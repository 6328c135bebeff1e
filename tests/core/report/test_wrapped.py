"""`report.wrapped`: a table that says what the one inside it says."""

from __future__ import annotations

import numpy as np

from flashback_core.report.wrapped import WrappedTable


def test_everything_passes(spiked) -> None:
    """Steps, names, events, source and columns are those of the run, unread until asked for."""
    table, wrapped = spiked.table, WrappedTable(spiked.table)
    assert (wrapped.names, wrapped.exact_names) == (table.names, table.exact_names)
    assert (wrapped.events, wrapped.source, len(wrapped)) == (table.events, table.source, 400)
    assert wrapped.steps is table.steps
    np.testing.assert_array_equal(wrapped["loss"], table["loss"])
