"""Updates that all become larger by one factor, where no learning rate is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import flashback_core as fb
from flashback_core.detectors.rules import CertainRules
from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable

N, T0 = 300, 150
GROUPS = ("embed", "early", "late", "head")
Columns = dict[str, np.ndarray]


def norms(seed: int = 3, apart: float = 0.03) -> Columns:
    """Norms of gradients and updates by group; updates differ by so much from step to step."""
    rng = np.random.default_rng(seed)
    out = {f"group:{g}:grad_norm": np.exp(rng.normal(-1, 0.3, N)) for g in GROUPS}
    out |= {f"group:{g}:update_norm": np.exp(rng.normal(-4, apart, N)) for g in GROUPS}
    return out


def times(columns: Columns, rows: Any, by: float, what: str = "update_norm") -> Columns:
    """The same with some norms multiplied at some rows."""
    out = {name: values.copy() for name, values in columns.items()}
    for name in out:
        if name.endswith(what):
            out[name][rows] *= by
    return out


def found(columns: Columns, chunk: int = N, events: Any = (), steps: Any = None) -> list[Finding]:
    """Findings on the columns, given so many rows at a time, restored between them."""
    table = MemoryTable(np.arange(N) if steps is None else steps, columns, events=events)
    rules, out = CertainRules(only=["leap"]), []
    for start in range(0, N, chunk):
        out += rules.update(table[start : start + chunk], table.events)
        rules = CertainRules.restore(rules.state())
    return out + rules.finish()


@pytest.mark.parametrize("chunk", [N, 32, 1])
def test_a_rate_of_four_times_for_one_step(chunk: int) -> None:
    """All updates are four times as large once: that step, and the factor, are told."""
    (finding,) = found(times(norms(), T0, 4.0), chunk)
    assert (finding.step, finding.kind, finding.severity) == (T0, "update_jump", "bad")
    factor = float(finding.evidence[0].split(" times those before")[0].split()[-1])
    assert factor == pytest.approx(4.0, rel=0.1)
    assert "came back" in finding.evidence[0]
    assert finding.top_metrics[0].metric in norms()


@pytest.mark.parametrize("chunk", [N, 32, 1])
@pytest.mark.parametrize("rows", [slice(T0, None), slice(T0, T0 + 2), slice(40, 60)])
def test_a_rate_of_four_times_for_longer(chunk: int, rows: slice) -> None:
    """From there on, for two steps, or for some: the first of them is told, and nothing else."""
    (finding,) = found(times(norms(), rows, 4.0), chunk)
    assert (finding.step, finding.kind) == (rows.start, "update_jump")
    assert ("stayed so" in finding.evidence[0]) == (rows.stop != T0 + 2)


def test_a_warm_restart_is_none() -> None:
    """Updates that had shrunk come back to where they were; beyond that it is a leap."""
    shrunk = times(norms(), slice(80, T0), 0.1)
    assert found(shrunk) == []
    assert [f.step for f in found(times(shrunk, slice(T0, None), 3.0))] == [T0]


def test_a_leap_that_fades_is_none() -> None:
    """What an optimizer makes of one odd gradient is left half in the rows after it."""
    columns = norms()
    for i, by in enumerate((4.0, 1.6, 1.6, 1.4)):
        columns = times(columns, T0 + i, by)
    assert found(columns) == []


def test_nothing_where_a_rate_is_recorded() -> None:
    """The rules on the learning rate know better."""
    columns = times(norms(), T0, 4.0)
    assert found(columns | {"lr": np.full(N, 1e-3)}) == []


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(norms(), id="nothing happens"),
        pytest.param(times(norms(), slice(T0, None), 0.1), id="a smaller rate from there on"),
        pytest.param(times(norms(), T0, 0.25), id="a smaller step"),
        pytest.param(times(norms(), T0, 1.8), id="below twice"),
        pytest.param(times(norms(apart=0.4), T0, 4.0), id="updates that always differ that much"),
        pytest.param(
            times(times(norms(), T0, 4.0), T0, 4.0, "grad_norm"), id="the gradients did as well"
        ),
        pytest.param(times(norms(), T0, np.nan), id="updates that are not known"),
        pytest.param(times(norms(), T0, 0.0), id="a skipped step"),
        pytest.param(times(norms(), np.arange(5, N, 5), 4.0), id="each fifth step from the start"),
    ],
)
def test_what_is_no_jump(columns: Columns) -> None:
    """Milestones, odd batches, skipped steps and habits say nothing."""
    assert found(columns) == []


def test_groups_that_move_by_different_factors() -> None:
    """Nor do groups of which one stays: what was thawed moves alone."""
    for factors in ((1.5, 2.0, 5.0, 12.0), (4.0, 4.0, 4.0, 1.0)):
        columns = norms()
        for g, by in zip(GROUPS, factors, strict=True):
            columns[f"group:{g}:update_norm"][T0:] *= by
        assert found(columns) == []


def test_declared_and_before_a_gap() -> None:
    """A declared step is excused; rows with a gap between them are not compared."""
    columns = times(norms(), T0, 4.0)
    event = {"event": "expect", "step": T0, "kind": "lr_milestone"}
    assert found(columns, events=[event]) == []
    steps = np.arange(N)
    steps[T0:] += 50
    assert found(columns, steps=steps) == []


def test_a_group_without_updates_has_no_say() -> None:
    """Columns of NaN and of zeros beside those that know."""
    columns = times(norms(), T0, 4.0)
    columns |= {"group:none:update_norm": np.full(N, np.nan)}
    columns |= {"group:still:update_norm": np.zeros(N)}
    assert [f.step for f in found(columns)] == [T0]


@pytest.mark.parametrize("steps", [1, 30])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "NAdam"])
def test_real_training_without_its_rate(optimizer: str, steps: int, tmp_path: Any) -> None:
    """A rate of five times, for one step or from it on, is found without the column `lr`."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = [torch.nn.Linear(16, 32), torch.nn.Tanh()]
    layers += [torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)]
    model = torch.nn.Sequential(*layers)
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
    with fb.Recorder(tmp_path, model, opt, groups=lambda p: f"part{p.name[0]}") as rec:
        for step in range(120):
            x = torch.randn(64, 16)
            opt.param_groups[0]["lr"] = 5e-3 if 90 <= step < 90 + steps else 1e-3
            loss = torch.nn.functional.mse_loss(model(x), x[:, :4])
            opt.zero_grad()
            loss.backward()
            opt.step()
            rec.log(loss=loss)
    index = rec.index
    columns = {name: index.column(name) for name in index if name != "lr"}
    report = fb.detect(MemoryTable(index.steps, columns))
    assert (report.first_bad_step, report.kind) == (90, "update_jump")
