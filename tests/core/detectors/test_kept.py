"""The rule on gradients that nobody took away."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.rules import CertainRules
from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable


def found(kept: list[int], size: int = 1000) -> list[Finding]:
    """Findings on these values, in chunks of `size`."""
    table = MemoryTable(np.arange(len(kept)), {"exact:grads_kept": np.array(kept, np.int32)})
    rules, out = CertainRules(only=["kept"]), []
    for i in range(0, len(kept), size):
        out += rules.update(table[i : i + size], ())
        rules = CertainRules.restore(rules.state())
    return out


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_kept_after_new_ones(size: int) -> None:
    """At the very step, once for all that follow, and again after a rest."""
    kept = [-1, *[0] * 40, *[1] * 30, *[0] * 80, 1, 0]
    assert [(f.step, f.kind) for f in found(kept, size)] == [
        (41, "gradients_kept"), (151, "gradients_kept"),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_habits(size: int) -> None:
    """Kept from the start, kept before eight new ones came, or not known: nothing."""
    assert found([-1, *[1] * 60], size) == []
    assert found([-1, 0, 0, 1, *[0] * 60, 1, 1], size) == []
    assert found([-1] * 60, size) == []
