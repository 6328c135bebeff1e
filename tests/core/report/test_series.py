"""`report.series`: runs with several optimizers."""

from __future__ import annotations

import numpy as np

from flashback_core.report.html import to_html
from flashback_core.report.series import OneOptimizer, one_optimizer
from flashback_core.table import MemoryTable


def two_optimizers(n: int = 400) -> MemoryTable:
    """Two optimizers that take turns, with losses near 1 and near 100."""
    turns = np.arange(n) % 2
    loss = np.where(turns == 0, 1.0, 100.0) + np.random.default_rng(0).normal(0, 0.1, n)
    return MemoryTable(np.arange(n), {"loss": loss, "exact:optimizer": turns.astype(np.int32)})


def test_the_rows_of_the_optimizer_that_went_wrong(make_bad) -> None:
    """A finding at a step of the second optimizer shows the second one's rows."""
    table = two_optimizers()
    report = make_bad(table, 201)
    series = one_optimizer(table, report.bad)
    assert isinstance(series, OneOptimizer)
    assert (series.optimizer, series.others) == (1, 1)
    np.testing.assert_array_equal(series.steps, np.arange(1, 400, 2))
    assert series.column("loss").min() > 90


def test_the_page_says_whose_rows_it_shows(make_bad) -> None:
    """A reader is told that rows of other optimizers are left out of the charts."""
    page = to_html(make_bad(two_optimizers(), 201, metrics=("loss",)))
    assert "Charts show the rows of optimizer 1" in page


def test_a_run_with_one_optimizer_is_left_alone(make_run) -> None:
    """Nothing is wrapped where there is nothing to take apart."""
    table = make_run(20)
    assert one_optimizer(table, None) is table
