"""`report.unseen`: what was not recorded."""

from __future__ import annotations

import numpy as np

from flashback_core.report.unseen import unseen
from flashback_core.table import MemoryTable


def test_a_full_run_saw_everything(make_run) -> None:
    """Nothing is missing in a run with all metrics and digests."""
    assert unseen(make_run()) == ()


def test_a_loss_alone(loss_only) -> None:
    """An export with the loss alone says what it cannot show, and how to record it."""
    found = unseen(loss_only.table)
    assert "The learning rate" in {u.what for u in found}
    assert all(u.how and u.consequence for u in found)


def test_fields_that_are_always_absent_count_as_missing() -> None:
    """A column of zeros that mean "not known" is not knowledge."""
    table = MemoryTable(np.arange(5), {"loss": [1.0] * 5, "exact:batch_hash": [0] * 5})
    assert "Which batch came at which step" in {u.what for u in unseen(table)}
