"""Features: a run's metrics in coordinates that have no scale.

Logarithms of norms, logits of rates, shares of a whole, the largest entry over the norm, histograms
by their moments, and steps of the logarithm of the parameter norm. So a change of the loss's scale,
of the model's width or of the units of the learning rate moves every feature by a constant, which
the baseline takes away again. Groups may have any names and any number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from flashback_core.baseline import fill_forward
from flashback_core.bounds import bounded
from flashback_core.schema import N_BINS
from flashback_core.table import StepTable

__all__ = ["FAMILIES", "FLOORS", "Feature", "Features", "features"]

Floats = npt.NDArray[np.float64]

FAMILIES = (
    "loss", "gradient", "update", "update_lr", "composition", "peak", "sign", "histogram",
    "parameter",
)  # fmt: skip
"""``update_lr`` holds update norms divided by the learning rate, so that a schedule does not show;
``update`` holds them as they are, where the learning rate is not known. The rest is as the
docstring of this file says."""

FLOORS = {"parameter": 1e-6, "histogram": 0.02}
"""Smallest scale of a feature by family, `DEFAULT_FLOOR` for the rest: in smooth runs a change of a
few per cent is no evidence, however small the noise."""
DEFAULT_FLOOR = 5e-3

RATE_EDGE = 1e-4  # keeps the logit of a rate of 0 or 1 finite
TINY_RATE = 1e-3
LOSS_UNIT = 1e-6  # below this a loss counts as zero, and its logarithm is flat


@dataclass(frozen=True, slots=True)
class Feature:
    """One series of a run: which metric it is made of, its family, group and phase.

    Attributes:
        metric: The metric of the index that people look up.
        label: What the feature is, in words; for a logarithm the quantity without it.
        family: One of `FAMILIES`.
        group: Parameter group, or "" for the whole model.
        phase: ``before`` or ``after``, as in `schema.Metric`.
    """

    metric: str
    family: str
    group: str
    phase: str
    label: str


@dataclass(frozen=True)
class Features:
    """All features of a run.

    Attributes:
        items: What each row of `values` is.
        values: Finite values of shape (features, rows).
        first: Row of the first finite value of each feature; the number of rows where none is.
    """

    items: tuple[Feature, ...]
    values: Floats
    first: npt.NDArray[np.int64]

    @cached_property
    def family(self) -> npt.NDArray[np.str_]:
        """Family of each feature."""
        return np.array([item.family for item in self.items], dtype=np.str_)

    @cached_property
    def is_after(self) -> npt.NDArray[np.bool_]:
        """Whether each feature describes the update rather than the gradient."""
        return np.array([item.phase == "after" for item in self.items], dtype=bool)

    @cached_property
    def floor(self) -> Floats:
        """Smallest scale of each feature, of shape (features, 1)."""
        floors = [FLOORS.get(item.family, DEFAULT_FLOOR) for item in self.items]
        return np.array(floors).reshape(-1, 1)


def features(table: StepTable) -> Features:
    """The features of the rows of `table`; a metric that is not there gives none.

    Rows of skipped steps and values that are not finite take the value of the row before; so do the
    updates of steps whose learning rate is next to nothing, which are mostly rounding.
    """
    items, rows = [], []
    skipped = _skipped(table)
    blurred = skipped | _is_tiny(table)
    for item, values in _series(table):
        items.append(item)
        rows.append(np.where(blurred if item.phase == "after" else skipped, np.nan, values))
    if not rows or not len(table):
        items.clear()
        return Features((), np.empty((0, len(table))), np.empty(0, np.int64))
    raw = np.stack(rows)
    finite = np.isfinite(raw)
    first = np.where(finite.any(axis=1), finite.argmax(axis=1), len(table))
    return Features(tuple(items), fill_forward(raw), first)


def _skipped(table: StepTable) -> npt.NDArray[np.bool_]:
    if "exact:step_skipped" in table:
        return np.asarray(table.column("exact:step_skipped") == 1)
    return np.zeros(len(table), dtype=bool)


def _is_tiny(table: StepTable) -> npt.NDArray[np.bool_]:
    """Rows whose learning rate is below `TINY_RATE` of the largest so far."""
    if "lr" not in table:
        return np.zeros(len(table), dtype=bool)
    lr = np.nan_to_num(_column(table, "lr"), nan=np.inf)
    largest = np.maximum.accumulate(np.where(np.isfinite(lr), lr, 0.0))
    return np.asarray(lr < TINY_RATE * largest)


def _series(table: StepTable) -> Iterator[tuple[Feature, Floats]]:
    """Every feature with its values; NaN where it is not defined."""
    if "loss" in table:
        loss = np.arcsinh(_column(table, "loss") / LOSS_UNIT)
        yield Feature("loss", "loss", "", "before", "loss"), loss
    yield from _gradients(table)
    yield from _updates(table)
    yield from _histograms(table)


def _gradients(table: StepTable) -> Iterator[tuple[Feature, Floats]]:
    yield from _norms(table, "", "grad_norm", "grad_max", "gradient", "before")
    for name in sorted(n for n in table.names if n.startswith("grad_norm_p")):
        yield Feature(name, "gradient", "", "before", name), _log_of(_column(table, name))
    for group in _groups(table):
        yield from _norms(table, group, "grad_norm", "max_abs", "gradient", "before")
        name = f"group:{group}:sign_flip"
        if name in table:
            rate = _logit(_column(table, name))
            rate[_is_zero(table, f"group:{group}:grad_norm")] = np.nan
            yield Feature(name, "sign", group, "before", name), rate


def _updates(table: StepTable) -> Iterator[tuple[Feature, Floats]]:
    family = "update_lr" if "lr" in table else "update"
    for group in ("", *_groups(table)):
        yield from _norms(table, group, "update_norm", "update_max", family, "after")
        name = f"group:{group}:param_norm" if group else "param_norm"
        if name in table:
            moved = _steps(_log(table, name))
            yield Feature(name, "parameter", group, "after", f"growth of {name}"), moved


def _norms(
    table: StepTable, group: str, norm: str, peak: str, family: str, phase: str
) -> Iterator[tuple[Feature, Floats]]:
    """A norm by itself, over the learning rate, over the whole model's, and the peak over it."""
    prefix = f"group:{group}:" if group else ""
    if prefix + norm not in table:
        return
    size = _log(table, prefix + norm)
    metric = prefix + norm
    by_lr = family == "update_lr"
    rate = fill_forward(_log(table, "lr")) if by_lr else 0.0
    yield Feature(metric, family, group, phase, f"{metric} / lr" if by_lr else metric), size - rate
    if group and norm in table:
        label = f"{metric} / {norm}"
        yield Feature(metric, "composition", group, phase, label), size - _log(table, norm)
    if prefix + peak in table:
        label = f"{prefix}{peak} / {metric}"
        yield Feature(prefix + peak, "peak", group, phase, label), _log(table, prefix + peak) - size


def _histograms(table: StepTable) -> Iterator[tuple[Feature, Floats]]:
    rate = "lr" if "lr" in table else "update_norm"
    for kind, phase, unit in (("grad", "before", "grad_norm"), ("update", "after", rate)):
        names = [f"hist_{kind}:{i}" for i in range(N_BINS)]
        if not all(name in table for name in names):
            continue
        counts = np.stack([_column(table, name) for name in names])
        bins = np.arange(N_BINS, dtype=np.float64)
        share = _shares(counts)
        mean = bins @ share
        spread = np.sqrt(np.maximum(bins**2 @ share - mean**2, 1e-9))
        scale = fill_forward(_log(table, unit)) / np.log(4.0) if unit in table else 0.0
        center, edge = round_bin(mean), round_bin(mean + spread)
        for bin_, values, label in (
            (center, mean - scale, f"mean bin of hist_{kind}, less log4 {unit},"),
            (edge, spread, f"width of hist_{kind} in bins"),
        ):
            yield Feature(f"hist_{kind}:{bin_}", "histogram", "", phase, label), values


def _shares(counts: Floats) -> Floats:
    """Share of each bin; NaN in rows whose counts are none."""
    usable = np.all(np.isfinite(counts) & (counts >= 0), axis=0)
    total = np.where(usable, counts.sum(axis=0, where=usable), 0.0)
    return np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 1e-9)


def round_bin(mean: Floats) -> int:
    """The bin that the first finite value of `mean` falls in: the one that people look up."""
    known = mean[np.isfinite(mean)]
    return int(np.clip(np.rint(known[0]), 0, N_BINS - 1)) if len(known) else 0


def _groups(table: StepTable) -> tuple[str, ...]:
    """Names of the groups, in a fixed order whatever the order of the columns."""
    parts = (name.split(":") for name in table.names if name.startswith("group:"))
    return tuple(sorted({part[1] for part in parts if len(part) == 3}))


def _column(table: StepTable, name: str) -> Floats:
    return bounded(table.column(name))


def _log(table: StepTable, name: str) -> Floats:
    """Logarithm of the column; NaN all through where it is missing."""
    return _log_of(_column(table, name)) if name in table else np.full(len(table), np.nan)


def _log_of(values: Floats) -> Floats:
    """Logarithm; NaN where the value is not positive and finite."""
    usable = np.isfinite(values) & (values > 0)
    return np.where(usable, np.log(np.where(usable, values, 1.0)), np.nan)


def _logit(rate: Floats) -> Floats:
    known = np.clip(np.where(np.isfinite(rate), rate, np.nan), 0.0, 1.0)
    return np.asarray(np.log((known + RATE_EDGE) / (1 - known + RATE_EDGE)))


def _is_zero(table: StepTable, name: str) -> npt.NDArray[np.bool_]:
    if name not in table:
        return np.zeros(len(table), dtype=bool)
    return np.asarray(_column(table, name) == 0)


def _steps(values: Floats) -> Floats:
    """Difference to the row before; NaN at the first row."""
    return np.diff(values, prepend=np.nan)
