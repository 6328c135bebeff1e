"""Gradients whose largest entries become one and the same number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flashback_core.detectors.rules import CertainRules
from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable

N, T0 = 400, 150
GROUPS = ("embed", "body", "head")
RULE = ["capped"]


def peaks(digits: int | None = None, seed: int = 3) -> dict[str, np.ndarray]:
    """Largest gradients of some groups, with so many binary digits, and of the model."""
    rng = np.random.default_rng(seed)
    values = np.exp(rng.normal(-3, 0.3, (len(GROUPS), N))).astype(np.float32).astype(np.float64)
    if digits is not None:
        mantissa, exponent = np.frexp(values)
        values = np.ldexp(np.round(mantissa * 2**digits) / 2**digits, exponent)
    columns = {f"group:{g}:max_abs": v for g, v in zip(GROUPS, values, strict=True)}
    return columns | {"grad_max": values.max(axis=0)}


def cap(columns: dict[str, np.ndarray], rows: slice, top: float) -> dict[str, np.ndarray]:
    """The same with all that is larger than `top` set to it at some rows."""
    out = {name: values.copy() for name, values in columns.items()}
    for values in out.values():
        values[rows] = np.minimum(values[rows], top)
    return out


def found(columns: dict[str, Any], chunk: int = N, events: Any = ()) -> list[Finding]:
    """Findings on the columns, given so many rows at a time."""
    rules, out = CertainRules(only=RULE), []
    table = MemoryTable(np.arange(N), columns, events=events)
    for start in range(0, N, chunk):
        part = table[start : start + chunk]
        out += rules.update(part, table.events)
    return out + rules.finish()


@pytest.mark.parametrize("chunk", [N, 32, 1])
def test_a_cast_that_saturates(chunk: int) -> None:
    """All groups have one largest value, step after step: found at the first of these steps."""
    (finding,) = found(cap(peaks(), slice(T0, None), 0.02), chunk)
    assert (finding.step, finding.kind, finding.severity) == (T0, "gradients_capped", "bad")
    assert "none of 150 before" in finding.evidence[0]


@pytest.mark.parametrize("chunk", [N, 1])
def test_one_group_is_dated_to_its_first_step_too(chunk: int) -> None:
    """One group that stays at one number says so a step later; the date is the first."""
    columns = peaks()
    columns["group:head:max_abs"][T0:] = columns["grad_max"][T0:] = 0.7
    (finding,) = found(columns, chunk)
    assert finding.step == T0


def test_a_scale_of_each_step_s_own() -> None:
    """The number may differ from step to step: groups share it all the same."""
    columns = peaks()
    top = 0.02 * (1 + 0.1 * np.random.default_rng(5).random(N - T0))
    (finding,) = found(cap(columns, slice(T0, None), top))
    assert finding.step == T0


@pytest.mark.parametrize("digits", [None, 8, 11])
@pytest.mark.parametrize("seed", range(10))
def test_gradients_as_they_come(digits: int | None, seed: int) -> None:
    """float32 hardly ever has equal ones, bfloat16 (8 digits) by chance: no finding."""
    assert found(peaks(digits, seed)) == []


def test_clipping_by_value_is_a_habit() -> None:
    """What caps them from the start is the run's own way; a declared change may begin it."""
    assert found(cap(peaks(), slice(0, None), 0.02)) == []
    event = {"event": "expect", "step": T0, "kind": "clip"}
    assert found(cap(peaks(), slice(T0, None), 0.02), events=[event]) == []


def test_a_few_equal_ones_are_chance() -> None:
    """Three steps in a row are too few to say so after a hundred and fifty."""
    assert found(cap(peaks(), slice(T0, T0 + 3), 0.02)) == []


def test_zero_and_infinite_gradients_are_other_rules_business() -> None:
    """Nothing to train, or an overflow, is no cap."""
    for value in (0.0, np.inf, np.nan):
        columns = {name: values.copy() for name, values in peaks().items()}
        for values in columns.values():
            values[T0:] = value
        assert found(columns) == []


def test_real_gradients_through_float8(tmp_path: Any) -> None:
    """A training whose gradients begin to go through a cast whose scale does not fit."""
    import flashback_core as fb

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with fb.Recorder(tmp_path, model, optimizer) as rec:
        for step in range(120):
            x = torch.randn(32, 16)
            loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            if step >= 80:
                for p in model.parameters():
                    scaled = (p.grad * 3e5).clamp(-448, 448).to(torch.float8_e4m3fn)
                    p.grad = scaled.to(torch.float32) / 3e5
            optimizer.step()
            rec.log(loss=loss)
    assert rec.report is not None
    assert (rec.report.first_bad_step, rec.report.kind) == (80, "gradients_capped")
