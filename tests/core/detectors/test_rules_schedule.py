"""The learning rate beside its scheduler: faults at their step, healthy schedules in silence."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.optim import lr_scheduler as torch_lr

from flashback_core.detectors.rules import CertainRules
from flashback_core.forensics.schedules import lr_factor
from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable

Floats = npt.NDArray[np.float64]
Make = Callable[[torch.optim.Optimizer], Any]
Act = Callable[[int, Any, torch.optim.Optimizer], None]
N, T0 = 1000, 400

SCHEDULERS: dict[str, Make] = {
    "LambdaLR": lambda o: torch_lr.LambdaLR(o, lambda t: 0.99**t),
    "MultiplicativeLR": lambda o: torch_lr.MultiplicativeLR(o, lambda t: 0.995),
    "StepLR": lambda o: torch_lr.StepLR(o, 200),
    "StepLR often": lambda o: torch_lr.StepLR(o, 37, gamma=0.7),
    "MultiStepLR": lambda o: torch_lr.MultiStepLR(o, [150, 600, 900]),
    "ConstantLR": torch_lr.ConstantLR,
    "ConstantLR long": lambda o: torch_lr.ConstantLR(o, 0.1, 12),
    "LinearLR": torch_lr.LinearLR,
    "LinearLR down": lambda o: torch_lr.LinearLR(o, 1, 0.1, 700),
    "ExponentialLR": lambda o: torch_lr.ExponentialLR(o, 0.99),
    "ExponentialLR fast": lambda o: torch_lr.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: torch_lr.PolynomialLR(o, 900, 2.0),
    "PolynomialLR root": lambda o: torch_lr.PolynomialLR(o, 900, 0.5),
    "CosineAnnealingLR": lambda o: torch_lr.CosineAnnealingLR(o, 1000),
    "CosineAnnealingLR again": lambda o: torch_lr.CosineAnnealingLR(o, 50, eta_min=1e-5),
    "CosineAnnealingWarmRestarts": lambda o: torch_lr.CosineAnnealingWarmRestarts(o, 100),
    "CosineAnnealingWarmRestarts x2": lambda o: torch_lr.CosineAnnealingWarmRestarts(o, 50, 2),
    "CosineAnnealingWarmRestarts half": lambda o: torch_lr.CosineAnnealingWarmRestarts(
        o, 100, eta_min=5e-4
    ),
    "CyclicLR": lambda o: torch_lr.CyclicLR(o, 1e-4, 1e-3, 100),
    "CyclicLR short": lambda o: torch_lr.CyclicLR(o, 1e-4, 1e-3, 5, 5),
    "CyclicLR triangular2": lambda o: torch_lr.CyclicLR(o, 1e-4, 1e-3, 100, mode="triangular2"),
    "CyclicLR exp": lambda o: torch_lr.CyclicLR(
        o, 1e-4, 1e-3, 60, 20, mode="exp_range", gamma=0.999
    ),
    "CyclicLR steep up": lambda o: torch_lr.CyclicLR(o, 1e-4, 1e-3, 10, 90),
    "CyclicLR steep down": lambda o: torch_lr.CyclicLR(o, 1e-4, 1e-3, 90, 10),
    "OneCycleLR": lambda o: torch_lr.OneCycleLR(o, 1e-3, N + 1),
    "OneCycleLR three": lambda o: torch_lr.OneCycleLR(o, 1e-3, N + 1, three_phase=True),
    "OneCycleLR linear": lambda o: torch_lr.OneCycleLR(o, 1e-3, N + 1, anneal_strategy="linear"),
    "SequentialLR": lambda o: torch_lr.SequentialLR(
        o, [torch_lr.LinearLR(o, 0.01, 1, 50), torch_lr.CosineAnnealingLR(o, 950)], [50]
    ),
    "SequentialLR of constants": lambda o: torch_lr.SequentialLR(
        o, [torch_lr.ConstantLR(o, 0.1, 10), torch_lr.ExponentialLR(o, 0.995)], [10]
    ),
    "ChainedScheduler": lambda o: torch_lr.ChainedScheduler(
        [torch_lr.ConstantLR(o, 0.5, 8), torch_lr.ExponentialLR(o, 0.995)], o
    ),
    "ReduceLROnPlateau": lambda o: torch_lr.ReduceLROnPlateau(o, patience=40),
}


def scheduled(
    make: Make, *, every: int = 1, times: Callable[[int], int] | None = None, act: Act | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Columns of a run whose scheduler is stepped after every `every`-th update."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler, rows = make(optimizer), list[tuple[float, float, int]]()
    takes_loss = isinstance(scheduler, torch_lr.ReduceLROnPlateau)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own on the order of the steps
        for t in range(N):
            if act:
                act(t, scheduler, optimizer)
            rate = float(optimizer.param_groups[0]["lr"])
            counter = getattr(scheduler, "last_epoch", -1)
            rows.append((rate, float(scheduler.get_last_lr()[0]), counter))
            for _ in range((times(t) if times else 1) if (t + 1) % every == 0 else 0):
                scheduler.step(1.0) if takes_loss else scheduler.step()
    lr, plan, counters = zip(*rows, strict=True)
    return {
        "lr": np.array(lr, np.float32),
        "exact:lr_scheduled": np.array(plan),
        "exact:scheduler_step": np.array(counters, np.int64),
    }


def found(columns: dict[str, npt.NDArray[Any]], *events: dict[str, Any]) -> list[Finding]:
    """Findings on a run of these columns, in chunks."""
    table = MemoryTable(np.arange(len(columns["lr"])), columns, events=events)
    rules = CertainRules()
    chunks = (table[start : start + 96] for start in range(0, len(table), 96))
    return [f for chunk in chunks for f in rules.update(chunk, events)] + rules.finish()


def kinds(findings: list[Finding]) -> list[tuple[str, int, str]]:
    """Kind, step and severity of each."""
    return [(f.kind, f.step, f.severity) for f in findings]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_healthy_schedulers(name: str) -> None:
    """No scheduler of torch is bad, its own word known or not; known, it is not even a change."""
    columns = scheduled(SCHEDULERS[name])
    assert found(columns) == []
    inferred = found({"lr": columns["lr"]})
    assert [f for f in inferred if f.severity == "bad"] == []


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_stepped_once_an_epoch(name: str) -> None:
    """The same where a scheduler moves at the start of each epoch."""
    columns = scheduled(SCHEDULERS[name], every=20)
    assert found(columns) == []
    epochs = {"lr": columns["lr"], "exact:epoch": np.arange(N) // 20}
    assert [f for f in found(epochs) if f.severity == "bad"] == []


FACTORS = ("cosine", "linear", "constant", "inverse_sqrt", "wsd", "step", "sgdr", "cyclic",
           "one_cycle")  # fmt: skip


@pytest.mark.parametrize("name", FACTORS)
def test_healthy_schedules_of_the_data_set(name: str) -> None:
    """Nor is a schedule of the data set, with warm-ups of several lengths."""
    for planned, warmup, n in itertools.product((400, 1000, 10_000), (1, 20, 60), (500, 1200)):
        factors = [lr_factor(name, t, planned_steps=planned, warmup=warmup) for t in range(n)]
        findings = found({"lr": np.array(factors, np.float32)})
        assert [f for f in findings if f.severity == "bad"] == []


CURVES = ("CosineAnnealingLR", "LinearLR down", "ExponentialLR", "PolynomialLR", "StepLR",
          "CosineAnnealingWarmRestarts", "CyclicLR", "SequentialLR", "LambdaLR")  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("n", [2, 4, 16])
def test_stepped_several_times_per_update(name: str, n: int) -> None:
    """The first update with a rate that runs ahead is named, and nothing before it."""
    findings = found(scheduled(SCHEDULERS[name], times=lambda t: n if t >= T0 - 1 else 1))
    assert kinds(findings) == [("schedule_step", T0, "bad")]


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("ahead", [10, 150, 400])
def test_a_schedule_that_jumps_ahead(name: str, ahead: int) -> None:
    """However small its step in the rate, a jump of the schedule is bad at its step."""

    def jump(t: int, scheduler: Any, _: object) -> None:
        for _ in range(ahead if t == T0 else 0):
            scheduler.step()

    assert kinds(found(scheduled(SCHEDULERS[name], act=jump)))[0] == ("schedule_step", T0, "bad")


@pytest.mark.parametrize("back", [1, T0])
def test_a_schedule_that_goes_back(back: int) -> None:
    """One step late, and all over again."""
    memory: list[Any] = []

    def go_back(t: int, scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
        if t == T0 - back:
            rate = optimizer.param_groups[0]["lr"]
            memory[:] = [copy.deepcopy(scheduler.state_dict()), rate]
        if t == T0:
            scheduler.load_state_dict(memory[0])
            optimizer.param_groups[0]["lr"] = memory[1]

    findings = found(scheduled(SCHEDULERS["CosineAnnealingLR"], act=go_back))
    assert kinds(findings)[0] == ("schedule_step", T0, "bad")


@pytest.mark.parametrize("name", CURVES)
def test_a_rate_that_drifts_away(name: str) -> None:
    """The first row at which something else than the scheduler set the rate is named."""
    columns = scheduled(SCHEDULERS[name])
    ramp = 1 + 3 * np.clip((np.arange(N) - T0 + 1) / 300, 0, 1)
    columns["lr"] = (columns["lr"] * ramp).astype(np.float32)
    assert kinds(found(columns))[0] == ("lr_off_schedule", T0, "bad")


def test_a_constant_factor_is_a_habit() -> None:
    """A group with half the rate is healthy; a factor that comes later is not, until declared."""
    columns = scheduled(SCHEDULERS["CosineAnnealingLR"])
    columns["lr"] *= np.float32(0.5)
    assert found(columns) == []
    columns["lr"][T0:] *= np.float32(1.01)
    assert kinds(found(columns)) == [("lr_off_schedule", T0, "bad")]
    event = {"event": "expect", "step": T0, "kind": "lr_milestone"}
    assert found(columns, event) == []


def test_a_second_scheduler_is_a_habit() -> None:
    """Where the ratio differs from the first rows on, it says nothing."""
    columns = scheduled(SCHEDULERS["CosineAnnealingLR"])
    columns["lr"] *= np.linspace(0.1, 1.0, N).astype(np.float32)
    assert [f for f in found(columns) if f.severity == "bad"] == []


def test_skipped_steps_may_move_the_scheduler_or_not() -> None:
    """A scheduler that waits for the scaler, and one that does not, are both healthy."""
    skipped = (np.arange(N) % 50 == 7).astype(np.int32)
    columns = scheduled(SCHEDULERS["CosineAnnealingLR"]) | {"exact:step_skipped": skipped}
    assert found(columns) == []
    waits = scheduled(SCHEDULERS["CosineAnnealingLR"], times=lambda t: int(t % 50 != 7))
    assert found(waits | {"exact:step_skipped": skipped}) == []


def test_a_scheduler_that_stops_is_a_change() -> None:
    """Loops stop to step a scheduler that is at its end; that is said, and not bad."""
    columns = scheduled(SCHEDULERS["LinearLR down"], times=lambda t: int(t < 800))
    assert kinds(found(columns)) == [("schedule_stopped", 801, "change")]


@pytest.mark.parametrize("amount", [2, 30])
def test_epochs_that_count_twice(amount: int) -> None:
    """A scheduler that moves once an epoch and then by more is bad there."""
    columns = scheduled(
        SCHEDULERS["StepLR"], every=50, times=lambda t: amount if t >= T0 - 1 else 1
    )
    assert kinds(found(columns)) == [("schedule_step", T0, "bad")]


@pytest.mark.parametrize("name", ["CosineAnnealingLR", "PolynomialLR", "ExponentialLR"])
@pytest.mark.parametrize("n", [2, 4])
def test_a_curve_followed_faster_is_seen_without_a_scheduler(name: str, n: int) -> None:
    """A curve that goes on as its own continuation, N times as fast, is bad at its step."""
    columns = scheduled(SCHEDULERS[name], times=lambda t: n if t >= T0 - 1 else 1)
    assert kinds(found({"lr": columns["lr"]}))[0] == ("schedule_step", T0, "bad")


@pytest.mark.parametrize("cooldown", [100, 200, 250, 300])
def test_a_knot_is_a_change(cooldown: int) -> None:
    """A curve that ends in a straight line bends there, by whole numbers too."""
    t = np.arange(N, dtype=np.float64)
    start = N - cooldown
    for curve in (1e-3 / np.sqrt(1 + t / 20), 1e-3 * (0.55 + 0.45 * np.cos(np.pi * t / 2000))):
        lr = np.where(t < start, curve, curve[start] * (1 - (t - start) / cooldown))
        (finding,) = found({"lr": lr.astype(np.float32)})
        assert (finding.kind, finding.severity) == ("schedule_bent", "change")
        assert abs(finding.step - start) <= 1


def test_a_rate_that_climbs_again_is_a_change() -> None:
    """After a stretch in which it did not, the first climb is said."""
    lr = np.full(N, 1e-3)
    lr[T0:] *= 1 + 3 * np.clip((np.arange(N)[T0:] - T0 + 1) / 300, 0, 1)
    findings = found({"lr": lr.astype(np.float32)})
    assert kinds(findings)[0] == ("schedule_turned", T0, "change")


@pytest.mark.parametrize("start", [5, 60, 300])
@pytest.mark.parametrize("factor", [1.5, 4.0, 60.0])
def test_rises_without_a_scheduler(start: int, factor: float) -> None:
    """A spike is bad, and so is a rise that stays, but for the end of a short constant warm-up."""
    for rows in (slice(start, start + 1), slice(start, None)):
        lr = np.full(N, 1e-3)
        lr[rows] *= factor
        first = found({"lr": lr})[0]
        is_warm_up = start == 5 and rows.stop is None
        expected = "change" if is_warm_up else "bad"
        assert (first.step, first.severity) == (start, expected)
