"""Features: a run's metrics in coordinates that have no scale, row by row.

Logarithms of norms, logits of rates, shares of a whole, the largest entry over the norm, histograms
by their moments, and steps of the logarithm of the parameter norm. So a change of the loss's scale,
of the model's width or of the units of the learning rate moves every feature by a constant, which
the baseline takes away again. Groups may have any names and any number.

Which features a run has follows from the names of its columns; their values come in stretches of
rows, in any lengths, and depend on no later row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.bounds import bounded
from flashback_core.detectors.compiled import kernels
from flashback_core.detectors.features import Part, columns_of, parts_of
from flashback_core.detectors.histograms import joined, moments
from flashback_core.schema import N_BINS
from flashback_core.table import StepTable

__all__ = ["FeatureStream"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RATE_EDGE = 1e-4  # keeps the logit of a rate of 0 or 1 finite
TINY_RATE = 1e-3
LOSS_UNIT = 1e-6  # below this a loss counts as zero, and its logarithm is flat
FAINT = 2.0**-23
"""A loss below this is rounding, and so are its gradients; of a loss that began below 1, below this
share of the largest so far."""
FAR = 1.5
"""Distance to the row before, over the one before it, from which on rows are missing between."""
SLOWEST = 30.0
"""A learning rate so many times below its largest counts as about that."""
LEAST_REST = 1e-6
"""Share of the square of a norm that is left to the other groups at least."""


class FeatureStream:
    """Features of rows as they come.

    Args:
        names: Columns of the run.

    Attributes:
        items: The features.
        first: Row of the first finite value of each feature, −1 before it came; (features,).
        row: Rows seen so far.
        raw: The columns of the last stretch, of shape (columns, rows).
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        parts = list(parts_of(sorted(self._names), self._names))
        self.items = tuple(part.item for part in parts)
        wanted = [c for part in parts for c in columns_of(part)]
        self._rate = "lr" if "lr" in self._names else "update_norm"
        extra = ["lr"] * ("lr" in self._names) + [self._rate] * (self._rate in self._names)
        self.columns = tuple(dict.fromkeys((*wanted, *extra)))
        self._at = {name: i for i, name in enumerate(self.columns)}
        self._plan(parts)
        self.row = 0
        self.raw = np.empty((len(self.columns), 0))
        self.first = np.full(len(parts), -1, np.int64)
        self._last = np.zeros(len(parts))
        self._last_log = np.full(len(self.columns), np.nan)
        self._last_lr = np.full(2, np.nan)
        self._peak_lr = 0.0
        self._peak_loss = 0.0
        self._last_step: int | None = None
        self._last_gap = 0.0

    def _plan(self, parts: list[Part]) -> None:
        def chosen(*how: str) -> npt.NDArray[np.int64]:
            return np.array([j for j, p in enumerate(parts) if p.how in how], np.int64)

        def at(rows: npt.NDArray[np.int64], side: str) -> npt.NDArray[np.int64]:
            return np.array([self._at[getattr(parts[j], side)] for j in rows], np.int64)

        self._after = np.array([p.item.phase == "after" for p in parts], bool)
        self._of_gradient = ~self._after
        self._of_gradient[[j for j, p in enumerate(parts) if p.how == "loss"]] = False
        self._logs = chosen("log", "ratio", "share", "by_lr")
        self._logs_of = at(self._logs, "top")
        self._ratios = chosen("ratio", "share")
        self._ratios_of = at(self._ratios, "bottom")
        self._shares = chosen("share")
        self._by_lr = chosen("by_lr")
        self._growth = chosen("growth")
        self._growth_of = at(self._growth, "top")
        self._loss = chosen("loss")
        self._logit = chosen("logit")
        self._logit_of = at(self._logit, "top")
        self._logit_by = np.array(
            [self._at.get(parts[j].bottom, -1) for j in self._logit], np.int64
        )
        self._mean = [(int(j), parts[j]) for j in chosen("mean")]
        bins = [[self._at[f"hist_{p.top}:{i}"] for i in range(N_BINS)] for _, p in self._mean]
        self._bins = np.array(bins, np.int64).reshape(-1, N_BINS)
        self._lump = np.zeros((len(bins), 2))  # what lay in one bin: its share, rows since it did
        self._past = np.zeros((len(bins), 4, 2))  # see `joined`
        self._past[:, 1:3] = np.nan

    def update(self, table: StepTable) -> Floats:
        """Values of the rows of `table`, which follow those before; (features, rows).

        Rows of skipped steps and values that are not finite take the value of the row before; so
        do the updates of steps whose learning rate is next to nothing, and the gradients of steps
        whose loss is, which are mostly rounding.
        Before its first finite value a feature is that value, as far as this stretch goes.
        """
        n = len(table)
        if not self.items or not n:
            self.row += n
            self.raw = np.empty((len(self.columns), n))
            return np.empty((len(self.items), n))
        self.raw = raw = _matrix(table, self.columns)
        rate = self._rate_so_far(raw)
        values = self._raw_features(raw, self._gaps(table.steps), _slowed(rate))
        skipped = _skipped(table)
        blurred = skipped | _is_tiny(rate, n)
        if blurred.any():
            values[:, skipped] = np.nan
            values[np.ix_(self._after, blurred)] = np.nan
        faint = self._is_faint(raw)
        if faint.any():
            values[np.ix_(self._of_gradient, faint)] = np.nan
        return self._filled(values)

    def _gaps(self, steps: npt.NDArray[np.int64]) -> Floats:
        """Steps since the row before; NaN where they are far more than at the row before that."""
        gaps, before = np.empty(len(steps)), np.empty(len(steps))
        gaps[0] = 1 if self._last_step is None else int(steps[0]) - self._last_step
        gaps[1:] = steps[1:] - steps[:-1]
        before[0], before[1:] = self._last_gap or gaps[0], gaps[:-1]
        self._last_step, self._last_gap = int(steps[-1]), float(gaps[-1])
        gaps[gaps > FAR * before] = np.nan
        return gaps

    def _raw_features(self, raw: Floats, gaps: Floats, slowed: Floats | float) -> Floats:
        """Every feature; NaN where it is not defined."""
        unusable = ~((raw > 0) & (raw < np.inf))
        logs = raw.copy()
        logs[unusable] = 1.0
        np.log(logs, out=logs)
        logs[unusable] = np.nan
        out = np.full((len(self.items), raw.shape[1]), np.nan)
        out[self._logs] = logs[self._logs_of]
        out[self._ratios] -= logs[self._ratios_of]
        if len(self._shares):
            out[self._shares] = _log_odds(out[self._shares])
        if len(self._by_lr):
            out[self._by_lr] -= self._carried(logs[self._at["lr"]], 0)
        if len(self._loss):
            out[self._loss] = np.arcsinh(raw[self._at["loss"]] / LOSS_UNIT)
        if len(self._logit):
            out[self._logit] = self._logits(raw)
        if len(self._growth):
            now, before = logs[self._growth_of], np.empty((len(self._growth), len(gaps)))
            before[:, 0], before[:, 1:] = self._last_log[self._growth_of], now[:, :-1]
            out[self._growth] = (now - before) / gaps * slowed
        self._last_log = logs[:, -1].copy()
        self._histograms(raw, logs, out)
        return out

    def _logits(self, raw: Floats) -> Floats:
        rate = raw[self._logit_of]
        known = np.clip(np.where(np.isfinite(rate), rate, np.nan), 0.0, 1.0)
        logit = np.log((known + RATE_EDGE) / (1 - known + RATE_EDGE))
        has = self._logit_by >= 0
        logit[has] = np.where(raw[self._logit_by[has]] == 0, np.nan, logit[has])
        return np.asarray(logit)

    def _histograms(self, raw: Floats, logs: Floats, out: Floats) -> None:
        """Mean bin and width; where one bin holds nearly all, neither says anything."""
        if not self._mean:
            return
        means, spreads, silent = moments(raw, self._bins, self._lump)
        rate = None
        for h, (j, part) in enumerate(self._mean):
            scale: Floats | float = 0.0
            if part.bottom == self._rate:
                if rate is None:
                    rate = self._carried(logs[self._at[self._rate]], 1)
                scale = rate / np.log(4.0)
            elif part.bottom:
                scale = logs[self._at[part.bottom]] / np.log(4.0)
            both = np.stack([means[h] - scale, spreads[h]])
            out[j : j + 2] = said = joined(both, silent[h], self._past[h])
            self._name_bins(j, part.top, np.where(np.isnan(said[0]), np.nan, means[h]), spreads[h])

    def _name_bins(self, j: int, kind: str, mean: Floats, spread: Floats) -> None:
        """Name the bins after the first histogram: those are the ones that people look up."""
        if not self.items[j].metric.endswith(":0") or self.first[j] >= 0:
            return
        known = np.flatnonzero(np.isfinite(mean))
        if len(known):
            at, items = known[0], list(self.items)
            for k, where in ((j, mean[at]), (j + 1, mean[at] + spread[at])):
                bin_ = int(np.clip(np.rint(where), 0, N_BINS - 1))
                items[k] = replace(items[k], metric=f"hist_{kind}:{bin_}")
            self.items = tuple(items)

    def _carried(self, values: Floats, slot: int) -> Floats:
        """`values` with what is not finite replaced by the last finite one before it."""
        if np.isfinite(values).all():
            self._last_lr[slot] = values[-1]
            return values
        filled = np.concatenate([self._last_lr[slot : slot + 1], values])
        at = np.where(np.isfinite(filled), np.arange(len(filled)), 0)
        filled = filled[np.maximum.accumulate(at)]
        self._last_lr[slot] = filled[-1]
        return filled[1:]

    def _rate_so_far(self, raw: Floats) -> tuple[Floats, Floats] | None:
        """The learning rate of each row and the largest up to it; None where there is none."""
        if "lr" not in self._at:
            return None
        lr = raw[self._at["lr"]]
        known = np.where(np.isfinite(lr), lr, 0.0)
        largest = np.maximum(np.maximum.accumulate(known), self._peak_lr)
        self._peak_lr = float(largest[-1])
        return lr, largest

    def _is_faint(self, raw: Floats) -> Bools:
        """Rows whose loss is next to nothing: the run knows its data by heart.

        A cross-entropy of float32 is then 0 or a few of its smallest steps, and the gradients are
        what one sample or rounding leaves of them.
        """
        if "loss" not in self._at:
            return np.zeros(raw.shape[1], bool)
        loss = raw[self._at["loss"]]
        known = np.where(np.isfinite(loss), loss, 0.0)
        largest = np.maximum(np.maximum.accumulate(known), self._peak_loss)
        self._peak_loss = float(largest[-1])
        return np.asarray((np.abs(known) < FAINT * np.minimum(largest, 1.0)) & np.isfinite(loss))

    def _filled(self, values: Floats) -> Floats:
        """Fill forward, from the rows before; note the first finite values."""
        compiled = kernels(is_worth_it=False)
        if compiled is not None:
            compiled.fill_pass(values, self._last, self.first, self.row)
            self.row += values.shape[1]
            return values
        finite = np.isfinite(values)
        new = (self.first < 0) & finite.any(axis=1)
        if new.any():
            at = finite[new].argmax(axis=1)
            self.first[new] = self.row + at
            self._last[new] = values[new, at]
        holes = np.flatnonzero(~finite.all(axis=1))
        if len(holes):
            rows = np.where(finite[holes], np.arange(1, values.shape[1] + 1), 0)
            np.maximum.accumulate(rows, axis=1, out=rows)
            joined = np.column_stack([self._last[holes], values[holes]])
            values[holes] = joined[np.arange(len(holes))[:, None], rows]
        self._last = values[:, -1].copy()
        self.row += values.shape[1]
        return values

    def state(self) -> dict[str, Any]:
        """All that later values depend on."""
        bins = {j: self.items[j].metric for i, _ in self._mean for j in (i, i + 1)}
        return {
            "row": self.row,
            "first": self.first.copy(),
            "last": self._last.copy(),
            "last_log": self._last_log,
            "last_lr": self._last_lr.copy(),
            "peak_lr": self._peak_lr,
            "peak_loss": self._peak_loss,
            "last_step": -1 if self._last_step is None else self._last_step,
            "last_gap": self._last_gap,
            "lump": self._lump.copy(),
            "past": self._past.copy(),
            "bins": np.array(list(bins.values()), np.str_),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.row, self._peak_lr = int(state["row"]), float(state["peak_lr"])
        self._peak_loss = float(state["peak_loss"])
        self._last_step = int(state["last_step"]) if self.row else None
        self._last_gap = float(state["last_gap"])
        self.first = np.array(state["first"], np.int64)
        self._last, self._last_log = np.array(state["last"]), np.array(state["last_log"])
        self._last_lr = np.array(state["last_lr"])
        self._lump = np.array(state["lump"], np.float64)
        self._past = np.array(state["past"], np.float64)
        items, places = list(self.items), [j for i, _ in self._mean for j in (i, i + 1)]
        for j, metric in zip(places, state["bins"], strict=True):
            items[j] = replace(items[j], metric=str(metric))
        self.items = tuple(items)


def _matrix(table: StepTable, columns: Sequence[str]) -> Floats:
    """The columns as one float64 array of shape (columns, rows)."""
    given = getattr(table, "matrix", None)
    if given is not None:
        return bounded(given(columns))
    return bounded(np.stack([np.asarray(table.column(c), np.float64) for c in columns]))


def _skipped(table: StepTable) -> Bools:
    if "exact:step_skipped" in table:
        return np.asarray(table.column("exact:step_skipped") == 1)
    return np.zeros(len(table), dtype=bool)


def _slowed(rate: tuple[Floats, Floats] | None) -> Floats | float:
    """By how much smaller than its largest value so far the learning rate of each row is."""
    if rate is None:
        return 1.0
    lr, largest = rate
    slowest = np.where(np.isfinite(lr), lr, 0.0) + largest / SLOWEST
    return np.divide(largest, slowest, out=np.ones_like(largest), where=slowest > 0)


def _is_tiny(rate: tuple[Floats, Floats] | None, n: int) -> Bools:
    """Rows whose learning rate is below `TINY_RATE` of the largest so far."""
    if rate is None:
        return np.zeros(n, bool)
    lr, largest = rate
    return np.asarray((lr < TINY_RATE * largest) & np.isfinite(lr))


def _log_odds(share: Floats) -> Floats:
    """Logarithms of norms over the norm of the other groups, from those over the norm of all."""
    rest = np.maximum(-np.expm1(2 * np.minimum(share, 0.0)), LEAST_REST)
    return np.asarray(share - 0.5 * np.log(rest))
