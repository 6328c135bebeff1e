"""`report.batch`: which batch it was."""

from __future__ import annotations

import numpy as np

from flashback_core.report.batch import batch_at
from flashback_core.table import MemoryTable


def test_a_known_batch(make_run) -> None:
    """Epoch, index and fingerprint of a step are read from the exact fields."""
    batch = batch_at(make_run(), 160)
    assert batch is not None
    assert batch.words == "epoch 1, batch 10"
    assert len(batch.fingerprint or "") == 16
    assert batch.seen_at == ()


def test_a_batch_that_came_before(make_run) -> None:
    """Other steps with the same fingerprint are named."""
    table = make_run()
    hashes = table.column("exact:batch_hash")
    hashes[260] = hashes[77]
    batch = batch_at(table, 260)
    assert batch is not None
    assert batch.seen_at == (77,)
    assert ("Other steps with this batch", "77") in batch.rows


def test_nothing_known() -> None:
    """A run without batches, unknown fields and unknown steps give none."""
    bare = MemoryTable(np.arange(3), {"loss": [1.0, 2, 3]})
    unknown = MemoryTable(np.arange(3), {"exact:batch_hash": [0] * 3, "exact:epoch": [-1] * 3})
    assert batch_at(bare, 1) is None
    assert batch_at(unknown, 1) is None
    assert batch_at(bare, 99) is None
