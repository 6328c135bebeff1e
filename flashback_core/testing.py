"""Made-up runs, and checks that every detector passes; for other people's detectors too.

Examples:
    >>> import pytest
    >>> @pytest.mark.parametrize("check", DETECTOR_CHECKS, ids=lambda check: check.__name__)
    ... def test_my_detector(check):
    ...     check(MyDetector())
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.base import Detector
from flashback_core.report.model import DetectionReport
from flashback_core.schema import N_BINS, SketchSchema
from flashback_core.table import MemoryTable

__all__ = ["DETECTOR_CHECKS", "FAULTS", "healthy_run", "run_with_fault"]

Floats = npt.NDArray[np.float64]

GROUP_SIZES = (16384, 49152, 16384, 65536, 65536, 640, 16384, 0)
FAULTS = ("gradient_jump", "update_jump", "lr_jump", "nonfinite")
"""Faults that `run_with_fault` can make up."""


def healthy_run(
    n_steps: int = 400, *, seed: int = 0, schema: SketchSchema | None = None
) -> MemoryTable:
    """A made-up run in which nothing goes wrong: all metrics of the schema, smooth with noise.

    Args:
        n_steps: Rows.
        seed: Seed of the noise.
        schema: Metrics; the default schema when None.

    Returns:
        A table with every metric and the exact fields `step_skipped` and `optimizer`.
    """
    schema = schema or SketchSchema()
    rng = np.random.default_rng(seed)
    t = np.arange(n_steps, dtype=np.float64)
    columns = dict(_scalars(t, rng))
    for i, group in enumerate(schema.groups):
        columns |= _group(group, GROUP_SIZES[i % len(GROUP_SIZES)], columns, rng)
    columns |= _totals(schema, columns)
    columns |= _histograms(columns, rng)
    data: dict[str, npt.NDArray[Any]] = {name: columns[name] for name in schema.names}
    data["exact:step_skipped"] = np.zeros(n_steps, np.int32)
    data["exact:optimizer"] = np.zeros(n_steps, np.int32)
    return MemoryTable(np.arange(n_steps), data, source="made up")


def run_with_fault(
    *, first_bad_step: int, n_steps: int = 400, kind: str = "gradient_jump", seed: int = 0
) -> MemoryTable:
    """A made-up run that goes wrong at a known step.

    Args:
        first_bad_step: Step of the fault.
        n_steps: Rows.
        kind: One of `FAULTS`: gradients (and the loss) 20 times as large from there on, updates 20
            times as large, the learning rate 20 times as large for one step with its update, or
            NaN in one group's gradient and in the loss from the next step on.
        seed: Seed of the noise.
    """
    if kind not in FAULTS:
        msg = f"fault {kind!r} is none of {', '.join(FAULTS)}"
        raise ValueError(msg)
    table = healthy_run(n_steps, seed=seed)
    columns = {name: np.array(table.column(name)) for name in table}
    _FAULTS[kind](columns, first_bad_step)
    return MemoryTable(table.steps, columns, source=f"made up, {kind} at step {first_bad_step}")


def _scalars(t: Floats, rng: np.random.Generator) -> Mapping[str, Floats]:
    n = len(t)
    lr = 1e-3 * np.minimum(1.0, (t + 1) / 20) * (0.55 + 0.45 * np.cos(np.pi * t / max(n, 1)))
    return {
        "loss": (2.0 + 3.5 * np.exp(-t / 60)) * np.exp(0.04 * rng.standard_normal(n)),
        "lr": lr,
        "odd": 0.12 * rng.standard_normal(n),  # one batch moves all gradients together
        "nonfinite": np.zeros(n),
        "step_wall_ms": 20 + rng.random(n),
        "batch_id_mean": 5e4 + 1e3 * rng.standard_normal(n),
        "batch_uniq_frac": np.ones(n),
    }


def _group(
    group: str, size: int, columns: Mapping[str, Floats], rng: np.random.Generator
) -> dict[str, Floats]:
    lr, n = columns["lr"], len(columns["lr"])
    zero = np.zeros(n)

    def noisy(sigma: float) -> Floats:
        return np.exp(sigma * rng.standard_normal(n))

    norm = 0.3 * np.exp(columns["odd"]) * noisy(0.06) if size else zero
    update = lr * np.sqrt(size) * 0.3 * noisy(0.03)
    weights = np.sqrt(size) * 0.05 * np.exp(np.cumsum(lr) * 0.01)
    flips = np.clip(0.45 + 0.01 * rng.standard_normal(n), 0, 1) if size else zero
    values = {
        "grad_norm": norm,
        "max_abs": norm * 0.08 * noisy(0.15),
        "var": norm**2 / max(size, 1),
        "sign_flip": flips,
        "nonfinite": zero,
        "update_norm": update,
        "update_max": update * 0.05 * noisy(0.1),
        "update_nonfinite": zero,
        "param_norm": weights,
        "upd_param_ratio": update / weights if size else np.full(n, np.nan),
    }
    return {f"group:{group}:{name}": value for name, value in values.items()}


def _totals(schema: SketchSchema, columns: Mapping[str, Floats]) -> dict[str, Floats]:
    def of(metric: str) -> Floats:
        return np.stack([columns[f"group:{g}:{metric}"] for g in schema.groups])

    totals = {
        m: np.sqrt((of(m) ** 2).sum(axis=0)) for m in ("grad_norm", "update_norm", "param_norm")
    }
    norms = of("grad_norm")
    quantiles = {n: np.full(norms.shape[1], np.nan) for n in schema.names if "grad_norm_p" in n}
    for name in quantiles:
        quantiles[name] = np.quantile(norms[norms.any(axis=1)], int(name[-2:]) / 100, axis=0)
    peaks = {"grad_max": of("max_abs").max(axis=0), "update_max": of("update_max").max(axis=0)}
    return totals | quantiles | peaks


def _histograms(columns: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
    n, size = len(columns["lr"]), sum(GROUP_SIZES)
    counts: dict[str, Floats] = {}
    for kind, norm in (("grad", columns["grad_norm"]), ("update", columns["update_norm"])):
        center = 15.5 + np.log(norm / np.sqrt(size)) / np.log(4.0)
        away = np.arange(N_BINS) - np.clip(center, 0, 15)[:, None]
        share = np.exp(-(away**2) / 2.5) + 1e-7
        share *= np.exp(0.01 * rng.standard_normal((n, N_BINS)))
        rows = np.floor(size * share / share.sum(axis=1, keepdims=True))
        counts |= {f"hist_{kind}:{i}": rows[:, i] for i in range(N_BINS)}
    return counts


def _times(columns: dict[str, npt.NDArray[Any]], parts: tuple[str, ...], rows: slice) -> None:
    for name in columns:
        if name.split(":")[-1] in parts or name in parts:
            columns[name][rows] *= 20


def _shift_bins(columns: dict[str, npt.NDArray[Any]], kind: str, rows: slice) -> None:
    """Two bins up, a factor of 16."""
    counts = np.stack([columns[f"hist_{kind}:{i}"][rows] for i in range(N_BINS)])
    counts = np.concatenate([np.zeros_like(counts[:2]), counts[:-3], counts[-3:].sum(0)[None]])
    for i in range(N_BINS):
        columns[f"hist_{kind}:{i}"][rows] = counts[i]


def _gradient_jump(columns: dict[str, npt.NDArray[Any]], at: int) -> None:
    names = ("grad_norm", "max_abs", "grad_max", *(n for n in columns if "grad_norm_p" in n))
    _times(columns, names, slice(at, None))
    _shift_bins(columns, "grad", slice(at, None))
    columns["loss"][at:] *= 3


def _update_jump(columns: dict[str, npt.NDArray[Any]], at: int) -> None:
    _times(columns, ("update_norm", "update_max", "upd_param_ratio"), slice(at, None))
    _shift_bins(columns, "update", slice(at, None))


def _lr_jump(columns: dict[str, npt.NDArray[Any]], at: int) -> None:
    _times(columns, ("lr", "update_norm", "update_max", "upd_param_ratio"), slice(at, at + 1))
    _shift_bins(columns, "update", slice(at, at + 1))
    columns["loss"][at + 1 : at + 6] *= 3


def _nonfinite(columns: dict[str, npt.NDArray[Any]], at: int) -> None:
    """One NaN in the gradient at `at`; from the next step on no weight is finite any more."""
    counts = [n for n in columns if n.startswith("group:") and n.endswith("nonfinite")]
    columns[counts[0]][at] = columns["nonfinite"][at] = 1
    after = slice(at + 1, None)
    for i, name in enumerate(counts):
        columns[name][after] = GROUP_SIZES[i // 2 % len(GROUP_SIZES)]
    columns["nonfinite"][after] = sum(GROUP_SIZES)
    for name in columns:
        if name.split(":")[-1].startswith(
            ("grad_", "update_norm", "update_max", "max_abs", "param")
        ):
            columns[name][after] = 0.0
    columns["loss"][after] = np.nan


_FAULTS: dict[str, Callable[[dict[str, npt.NDArray[Any]], int], None]] = {
    "gradient_jump": _gradient_jump,
    "update_jump": _update_jump,
    "lr_jump": _lr_jump,
    "nonfinite": _nonfinite,
}


def check_leaves_index_alone(detector: Detector) -> None:
    """`predict` changes neither the index nor its own next answer."""
    index = run_with_fault(first_bad_step=120)
    before = copy.deepcopy(index)
    assert detector.predict(index) == detector.predict(index)
    np.testing.assert_array_equal(index.values, before.values)


def check_is_silent_on_a_healthy_run(detector: Detector) -> None:
    """A run in which nothing goes wrong is healthy."""
    report = detector.predict(healthy_run())
    assert report.status == "healthy"
    assert report.first_bad_step is None


def check_finds_a_jump(detector: Detector) -> None:
    """Gradients and a loss many times as large from one step on are found at that step."""
    report = detector.predict(run_with_fault(first_bad_step=250))
    assert report.status == "bad"
    assert report.first_bad_step == 250


def check_finds_a_non_finite_step(detector: Detector) -> None:
    """NaN is found within a step of where it begins, and one NaN blinds nothing."""
    step = detector.predict(run_with_fault(first_bad_step=120, kind="nonfinite")).first_bad_step
    assert step is not None
    assert 119 <= step <= 121


def check_survives_odd_tables(detector: Detector) -> None:
    """No row, one row, no metric, columns of NaN and constants: an answer, no exception."""
    whole = healthy_run(80)
    constant = {name: np.ones(80) for name in whole.names}
    empty = {name: np.full(80, np.nan) for name in whole.names if name != "loss"}
    odd = (
        whole[:0], whole[:1], whole[:5], MemoryTable(np.arange(80), {}),
        MemoryTable(np.arange(80), constant), MemoryTable(np.arange(80), empty),
        whole[["loss"]], whole[["loss", "grad_norm"]],
    )  # fmt: skip
    for index in odd:
        assert isinstance(detector.predict(index), DetectionReport)


def check_ignores_the_order_of_columns(detector: Detector) -> None:
    """The order of the columns changes no verdict."""
    index = run_with_fault(first_bad_step=250)
    turned = index[list(index)[::-1]]
    assert detector.predict(index).first_bad_step == detector.predict(turned).first_bad_step


def check_report_round_trips(detector: Detector) -> None:
    """A report comes back from its JSON as it was."""
    report = detector.predict(run_with_fault(first_bad_step=250))
    assert DetectionReport.from_json(report.to_json()) == report


DETECTOR_CHECKS: tuple[Callable[[Detector], None], ...] = (
    check_leaves_index_alone,
    check_is_silent_on_a_healthy_run,
    check_finds_a_jump,
    check_finds_a_non_finite_step,
    check_survives_odd_tables,
    check_ignores_the_order_of_columns,
    check_report_round_trips,
)
"""Functions of one argument, the detector; each raises AssertionError where a promise is broken."""
