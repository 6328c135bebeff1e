"""Made-up runs and reports for the tests of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from flashback_core.report.model import DetectionReport, Finding, MetricScore
from flashback_core.schema import SketchSchema
from flashback_core.table import MemoryTable

MakeRun = Callable[..., MemoryTable]


def smooth_noise(rng: np.random.Generator, n: int, spread: float) -> np.ndarray:
    """Noise with a memory of about ten steps, standard deviation about `spread`."""
    white = rng.normal(0, spread, n + 32)
    return 0.7 * white[32:] + np.convolve(white, np.full(10, 0.3), "same")[32:]


def made_up_run(
    n: int = 400,
    *,
    seed: int = 0,
    fault_step: int | None = None,
    factor: float = 8.0,
    moved: Sequence[str] = ("lr", "update"),
    nan_from: int | None = None,
    events: Sequence[dict[str, Any]] = (),
    source: str = "runs/my-run",
) -> MemoryTable:
    """A run with all 128 metrics and the exact fields; from `fault_step` on some metrics jump.

    Args:
        n: Steps.
        seed: Of the noise.
        fault_step: Where metrics whose name holds one of `moved` are multiplied by `factor`.
        factor: Size of the jump.
        moved: Parts of metric names.
        nan_from: From here on the loss and the gradients of `attn_qkv` and later all are NaN.
        events: Of the table.
        source: Of the table.
    """
    rng = np.random.default_rng(seed)
    steps = np.arange(n)
    columns = {m.name: _metric(rng, m.name, m.dtype, steps) for m in SketchSchema().metrics}
    if fault_step is not None:
        for name, column in columns.items():
            if any(part in name for part in moved) and not name.startswith("hist_"):
                jump = np.where(steps >= fault_step, factor, 1.0)
                columns[name] = (column * jump).astype(column.dtype)
        _shift_histogram(columns, fault_step, "update" if "update" in moved else "grad")
    if nan_from is not None:
        _spoil(columns, nan_from)
    columns |= _exact(rng, n)
    return MemoryTable(steps, columns, events=events, source=source)


def _metric(rng: np.random.Generator, name: str, dtype: str, steps: np.ndarray) -> np.ndarray:
    n = len(steps)
    if name.startswith("hist_"):
        return _histogram(rng, name, n)
    if "nonfinite" in name:
        return np.zeros(n, np.int64)
    if name == "lr":
        return (
            3e-3
            * np.minimum(1, (steps + 1) / 60)
            * (0.55 + 0.45 * np.cos(np.pi * steps / max(n, 2)))
        )
    if name == "loss":
        return 1.2 + 4.5 * np.exp(-steps / (0.15 * n + 30)) + smooth_noise(rng, n, 0.06)
    if name == "batch_id_mean":
        return rng.normal(50_000, 2_000, n)
    if name == "batch_uniq_frac":
        return np.ones(n)
    level = 10 ** rng.uniform(-3, 0.5) if "update" not in name else 10 ** rng.uniform(-4, -2)
    drift = 1 + 0.4 * np.exp(-steps / (0.2 * n + 20))
    return (level * drift * np.exp(smooth_noise(rng, n, 0.1))).astype(np.dtype(dtype))


def _histogram(rng: np.random.Generator, name: str, n: int) -> np.ndarray:
    centre = 6.0 if "update" in name else 9.0
    share = np.exp(-0.5 * ((int(name.split(":")[1]) - centre) / 1.7) ** 2)
    return np.rint(200_000 * share * np.exp(smooth_noise(rng, n, 0.04))).astype(np.int64)


def _shift_histogram(columns: dict[str, np.ndarray], step: int, kind: str) -> None:
    old = np.stack([columns[f"hist_{kind}:{i}"] for i in range(16)])
    new = np.concatenate([np.zeros((1, old.shape[1]), np.int64), old[:-1]])
    for i in range(16):
        columns[f"hist_{kind}:{i}"] = np.where(np.arange(old.shape[1]) >= step, new[i], old[i])


def _spoil(columns: dict[str, np.ndarray], step: int) -> None:
    for name, column in columns.items():
        late = step if ":attn_qkv:" in name else step + 1
        if name in {"nonfinite", "group:attn_qkv:nonfinite"}:
            column[step:] = 3
            column[step + 1 :] = 180_000
        elif "update_nonfinite" in name:
            column[step:] = 11
        elif column.dtype.kind == "f" and (name == "loss" or ":" in name or "norm" in name):
            column[late:] = np.nan


def _exact(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    return {
        "exact:step_skipped": np.zeros(n, np.int32),
        "exact:epoch": (np.arange(n) // 150).astype(np.int32),
        "exact:batch_index": (np.arange(n) % 150).astype(np.int64),
        "exact:batch_hash": rng.integers(1, 2**63, n).astype(np.uint64),
        "exact:params_hash": rng.integers(1, 2**63, n).astype(np.uint64),
        "exact:config_hash": np.full(n, 0x1234ABCD, np.uint64),
        "exact:outside": np.zeros(n, np.int32),
    }


def bad_report(
    table: MemoryTable,
    step: int,
    *,
    kind: str = "lr_jump",
    interval: tuple[int, int] | None = None,
    metrics: Sequence[str] = ("lr", "update_norm", "group:mlp_in:update_norm"),
    evidence: Sequence[str] = ("lr rose from 0.003 to 0.024 between two steps.",),
    **more: Any,
) -> DetectionReport:
    """A bad report on `table` with one finding at `step`."""
    scores = tuple(
        MetricScore(metric=m, score=40.0 / (i + 1), step=step + i // 2)
        for i, m in enumerate(metrics)
    )
    finding = Finding(
        step=step,
        interval=interval or (step, step),
        kind=kind,
        confidence=0.97,
        severity="bad",
        evidence=tuple(evidence),
        top_metrics=scores,
    )
    return report_on(table, "bad", findings=(finding, *more.pop("others", ())), **more)


def report_on(
    table: MemoryTable | None, status: str, *, findings: Sequence[Finding] = (), **more: Any
) -> DetectionReport:
    """A report of `status` on `table`."""
    n = 0 if table is None else len(table)
    return DetectionReport(
        status=status,
        n_steps=n,
        first_step=int(table.steps[0]) if table is not None and n else None,
        last_step=int(table.steps[-1]) if table is not None and n else None,
        findings=tuple(findings),
        detector={"name": "first-bad-step", "version": "2"},
        source=table.source if table is not None else "report.json",
        table=table,
        **more,
    )


HOSTILE = (
    "</script><script>parent.hit=1</script>\"'><img src=x onerror=parent.hit=1>"
    "\u202egnp|`**[a](javascript:alert(1))\n# x"
)
"""A name that attacks HTML, Markdown tables, code spans, links and the direction of writing."""


def hostile_report() -> DetectionReport:
    """A report in which every text that a run can choose is an attack or 10 kB long."""
    steps = np.arange(0, 20_000, 50)
    rng = np.random.default_rng(0)
    loss = 2 + 4 * np.exp(-steps / 4000) + smooth_noise(rng, len(steps), 0.03)
    loss[260:] += 0.8
    names = (HOSTILE, f"group:{HOSTILE}:grad_norm", "Z" * 10_000, "=cmd|' /C calc'!A0")
    table = MemoryTable(
        steps,
        {"loss": loss} | dict.fromkeys(names, loss),
        events=(
            {"event": "expect", "step": 9000, "kind": HOSTILE},
            {"event": "groups", "groups": {HOSTILE: [{"name": HOSTILE, "numel": 3}]}},
            {"event": "run", "name": HOSTILE},
        ),
        source=HOSTILE,
    )
    return bad_report(
        table,
        13_000,
        kind=HOSTILE,
        metrics=names,
        evidence=(HOSTILE, "Z" * 10_000),
        facts={HOSTILE: HOSTILE, "nested": {"key": HOSTILE}},
    )


@pytest.fixture
def make_run() -> MakeRun:
    """`made_up_run`."""
    return made_up_run


@pytest.fixture
def make_bad() -> Callable[..., DetectionReport]:
    """`bad_report`."""
    return bad_report


@pytest.fixture
def make_report() -> Callable[..., DetectionReport]:
    """`report_on`."""
    return report_on


@pytest.fixture
def hostile() -> DetectionReport:
    """`hostile_report`."""
    return hostile_report()


@pytest.fixture
def loss_only() -> DetectionReport:
    """An export of another tool with the loss alone, logged every 50 steps, bad from 13000."""
    steps = np.arange(0, 20_000, 50)
    rng = np.random.default_rng(0)
    loss = 2 + 4 * np.exp(-steps / 4000) + smooth_noise(rng, len(steps), 0.03)
    loss[260:] += 0.8
    table = MemoryTable(steps, {"loss": loss}, source="exports/run 7.csv")
    return bad_report(
        table, 13_000, kind="loss_shift", interval=(12_950, 13_100), metrics=("loss",)
    )


@pytest.fixture
def with_nan() -> DetectionReport:
    """A run whose gradients and loss turn NaN at step 431."""
    table = made_up_run(600, nan_from=431, seed=3)
    metrics = ("group:attn_qkv:nonfinite", "nonfinite", "group:attn_qkv:grad_norm", "loss")
    return bad_report(table, 431, kind="nonfinite", metrics=metrics)


@pytest.fixture
def spiked() -> DetectionReport:
    """A run whose learning rate jumps at step 240."""
    return bad_report(made_up_run(fault_step=240, events=({"event": "resume", "step": 100},)), 240)


@pytest.fixture
def healthy() -> DetectionReport:
    """A healthy run."""
    return report_on(made_up_run(), "healthy", facts={"false_alarms_per_100k": 4.2})
