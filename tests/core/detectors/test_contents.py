"""The rules on what samples hold: inputs and labels of samples that come again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.detectors.rules import CertainRules
from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable

N, T0, BATCH = 300, 200, 32
Ints = npt.NDArray[np.int64]
RULES = ["labels_changed", "inputs_changed"]


def known(first: int = 45) -> Ints:
    """Samples that came again: none in the first epoch, all after it."""
    return np.where(np.arange(N) < first, 0, BATCH)


def from_t0(values: npt.ArrayLike) -> Ints:
    """`values` from `T0` on, none before."""
    out = np.zeros(N, np.int64)
    out[T0:] = np.broadcast_to(values, N - T0)
    return out


def found(size: int = N, events: tuple[dict[str, Any], ...] = (), **fields: Ints) -> list[Finding]:
    """Findings on these exact fields in chunks of `size`, restarted after each."""
    columns = {"samples_known": known(), "inputs_changed": np.zeros(N, np.int64)} | fields
    table = MemoryTable(np.arange(N), {f"exact:{k}": v for k, v in columns.items()})
    rules = CertainRules(only=RULES)
    out: list[Finding] = []
    for i in range(0, N, size):
        rules = CertainRules.restore(json.loads(json.dumps(rules.state())))
        out += rules.update(table[i : i + size], events)
    return out


@pytest.mark.parametrize("size", [1, 7, N])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_labels_that_change(share: float, size: int) -> None:
    """Other labels on known inputs, of a tenth or of all samples: from the first such step on."""
    changed = np.random.default_rng(0).binomial(BATCH, share, N - T0)
    changed[0] = max(changed[0], 1)
    (finding,) = found(size, labels_changed=from_t0(changed))
    assert (finding.step, finding.kind, finding.severity) == (T0, "labels_changed", "bad")
    assert "none of" in finding.evidence[0]


@pytest.mark.parametrize("size", [1, 7, N])
def test_inputs_that_change(size: int) -> None:
    """Other inputs under the same id; labels of these samples are not compared."""
    (finding,) = found(size, inputs_changed=from_t0(BATCH), labels_changed=from_t0(0))
    assert (finding.step, finding.kind, finding.severity) == (T0, "inputs_changed", "bad")


def test_the_samples_are_named() -> None:
    """Evidence gives the ids that the recorder noted, or their rows in the batch."""
    event: dict[str, Any] = {"event": "samples", "step": T0, "what": "labels", "n": 9}
    event |= {"rows": [3, 5], "ids": [17, 4]}
    for known_ids, words in ((True, "ids 17, 4 and 7 more"), (False, f"step {T0} 3, 5 and 7 more")):
        told = event if known_ids else {k: v for k, v in event.items() if k != "ids"}
        (finding,) = found(1, (told,), labels_changed=from_t0(9))
        assert words in finding.evidence[1]


def test_augmentation_is_a_habit() -> None:
    """Samples that change at every step, or at a rate that they had from the start: nothing."""
    rng = np.random.default_rng(1)
    assert found(inputs_changed=known()) == []
    for share in (0.003, 0.01, 0.05, 0.5):
        assert found(inputs_changed=rng.binomial(known(), share)) == []


def test_too_little_to_compare_with() -> None:
    """A change among the first samples that come again, and one odd sample late: nothing."""
    early, odd = np.zeros(N, np.int64), np.zeros(N, np.int64)
    early[45:] = BATCH
    odd[T0] = 1
    assert found(inputs_changed=early) == []
    assert found(inputs_changed=odd) == []


def test_a_declared_change() -> None:
    """Data that changes where the loop says so is no fault."""
    event = {"event": "expect", "kind": "data", "step": T0}
    assert found(events=(event,), inputs_changed=from_t0(BATCH)) == []


def test_one_finding_a_fault() -> None:
    """A fault that passes and comes back after a rest is told twice, one that lasts once."""
    changed = from_t0(0)
    changed[100:110] = changed[250:260] = 5
    assert [f.step for f in found(labels_changed=changed)] == [100, 250]


def test_nothing_known() -> None:
    """Fields that are not known, or not there, say nothing."""
    assert found(samples_known=np.full(N, -1), labels_changed=np.full(N, -1)) == []
    assert found(labels_changed=np.zeros(N, np.int64), inputs_changed=np.full(N, -1)) == []
