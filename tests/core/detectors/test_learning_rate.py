"""The learning rate against its own schedule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable
from tests.core.detectors.rules_on import RATE, said

Floats = npt.NDArray[np.float64]
T = np.arange(600, dtype=np.float64)
WARM = np.minimum(1.0, (T + 1) / 40)

SMOOTH = {
    "constant": np.full(600, 3e-4),
    "cosine": 1e-3 * WARM * (0.55 + 0.45 * np.cos(np.pi * T / 600)),
    "linear to zero": 1e-3 * WARM * (1 - T / 599),
    "from zero": 1e-3 * np.minimum(1.0, T / 40),
    "inverse root": 1e-3 * np.minimum((T + 1) / 40, np.sqrt(40 / (T + 1))),
    "cyclic": 1e-3 * (0.2 + 0.8 * np.abs(1 - (T % 200) / 100)),
    "warm-up, stable, decay": 1e-3 * WARM * np.minimum(1.0, (600 - T) / 120),
    "exponential": 1e-3 * 0.99**T,
}


def found(lr: Floats, *events: int, **more: Floats) -> list[Finding]:
    """Findings on `lr`, with milestones declared at `events`."""
    steps = [{"event": "expect", "step": step, "kind": "lr_milestone"} for step in events]
    columns = {"lr": lr, **{f"exact:{name}": values for name, values in more.items()}}
    return said(MemoryTable(np.arange(len(lr)), columns, events=steps), RATE)


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_schedules(name: str) -> None:
    """No usual schedule jumps: warm-ups and decays to zero included; a turn is a change."""
    kinds = [(f.step, f.kind, f.severity) for f in found(SMOOTH[name])]
    assert kinds == ([(101, "schedule_turned", "change")] if name == "cyclic" else [])


@pytest.mark.parametrize("name", ["constant", "cosine", "from zero", "inverse root"])
@pytest.mark.parametrize("step", [5, 60, 300])
@pytest.mark.parametrize("factor", [1.5, 4.0, 60.0])
def test_spikes_and_rises(name: str, step: int, factor: float) -> None:
    """A rise by a factor is bad at its step, whether it passes or stays."""
    for rows in (slice(step, step + 1), slice(step, None)):
        lr = SMOOTH[name].copy()
        lr[rows] *= factor
        if name != "constant" and step == 5 and factor == 1.5:
            continue  # hidden in the warm-up, which rises by a fifth a step itself
        ends_warm_up = name == "constant" and step == 5 and rows.stop is None
        findings = found(lr)
        assert findings[0].step == step
        assert findings[0].severity == ("change" if ends_warm_up else "bad")
        assert findings[0].kind == ("lr_milestone" if ends_warm_up else "lr_jump")


def test_a_milestone_is_a_change() -> None:
    """A drop that holds looks like a schedule; declared, it is nothing."""
    lr = np.where(T < 300, 1e-3, 1e-4)
    (finding,) = found(lr)
    assert (finding.step, finding.severity, finding.kind) == (300, "change", "lr_milestone")
    assert found(lr, 300) == []


def test_a_warm_restart_is_a_change() -> None:
    """From the bottom of a decay back to the earlier peak: a restart, not a fault."""
    phase = T % 200 / 200
    (one, two) = found(1e-3 * (0.05 + 0.475 * (1 + np.cos(np.pi * phase))))
    assert (one.step, one.severity, two.step, two.severity) == (200, "change", 400, "change")


def test_a_staircase_is_a_change() -> None:
    """A rate that rises once an epoch is a schedule."""
    findings = found(1e-3 * (1 + T // 100), epoch=(T // 100).astype(np.int64))
    assert {f.severity for f in findings} == {"change"}


@pytest.mark.parametrize("name", ["zero", "restarted warm-up"])
def test_falls_that_are_no_milestones(name: str) -> None:
    """A fall to zero and a warm-up in the middle of a run are bad."""
    lr = SMOOTH["constant"].copy()
    lr[300:] = 0.0 if name == "zero" else 3e-4 * np.minimum(1.0, (T[300:] - 299) / 60)
    finding = found(lr)[0]
    assert (finding.step, finding.severity) == (300, "bad")


def test_only_the_declared_jump_is_excused() -> None:
    """A declared milestone excuses its own step and no other."""
    lr = np.where(T < 300, 1e-3, 1e-4)
    lr[420:] *= 4
    assert [f.step for f in found(lr, 300)] == [420]


def test_too_few_steps_and_no_column() -> None:
    """Three steps say nothing of a schedule, and no learning rate is no finding."""
    assert found(np.array([1e-3, 1.0, 1e-3])) == []
    table = MemoryTable(np.arange(9), {"loss": np.ones(9)})
    assert said(table, RATE) == []
