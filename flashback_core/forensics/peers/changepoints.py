"""Change-point methods: FOCuS, ruptures, river. The last two run the libraries themselves."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flashback_core.forensics.peers.base import (
    Bools,
    CalibratedPeer,
    Peer,
    column,
    innovations,
    log_scaled,
)
from flashback_core.table import StepTable

__all__ = [
    "Focus", "RiverAdwin", "RiverPageHinkley", "RupturesKernel", "RupturesPelt", "RupturesWindow",
]  # fmt: skip

Floats = npt.NDArray[np.float64]


class Focus(CalibratedPeer):
    """FOCuS: the largest CUSUM over all sizes of a change in mean, both directions."""

    name = "FOCuS"
    doc = "change in mean of the loss innovations, all sizes at once; 10 alarms / 100k in training"

    def score(self, table: StepTable) -> Floats:
        """Largest likelihood ratio over all onsets, at each row."""
        z = innovations(log_scaled(column(table, "loss")))
        return np.maximum(_focus(z), _focus(-z))


def _focus(z: Floats) -> Floats:
    """Largest (S_t − S_k)² / 2 (t − k) over k, for rises; k off the convex hull never wins."""
    out = np.zeros(len(z))
    times, sums, total = [0], [0.0], 0.0
    for t, value in enumerate(z, start=1):
        total += value
        at, height = np.asarray(times), np.asarray(sums)
        gain = np.maximum(total - height, 0.0)
        out[t - 1] = float(np.max(gain**2 / (2.0 * (t - at))))
        while len(times) > 1 and _is_above(times, sums, t, total):
            times.pop()
            sums.pop()
        times.append(t)
        sums.append(total)
    return out


def _is_above(times: Sequence[int], sums: Sequence[float], t: int, total: float) -> bool:
    """Whether the last point lies above the line from the one before it to the new one."""
    (t0, t1), (s0, s1) = times[-2:], sums[-2:]
    return (s1 - s0) * (t - t1) >= (total - s1) * (t1 - t0)


def _library(name: str) -> Any:
    """A package that has no types, and that is imported only where its peer runs."""
    return import_module(name)


_SIGNALS = ("loss", "grad_norm", "update_norm", "param_norm")


def _signals(table: StepTable) -> Floats:
    """Innovations of loss, gradient, update and weight norm, of shape (rows, 4)."""
    return np.stack([innovations(log_scaled(column(table, n))) for n in _SIGNALS], axis=1)


class _Ruptures(Peer):
    """A search of `ruptures` over the whole run: it sees the future."""

    needs = "ruptures"

    def alarms(self, table: StepTable) -> Bools:
        """The rows at which segments begin."""
        out = np.zeros(len(table), bool)
        if len(table) < 120:
            return out
        for row in self._changes(_signals(table)):
            if 0 < row < len(table):
                out[row] = True
        return out

    def _changes(self, signals: Floats) -> list[int]:
        raise NotImplementedError


_STRETCH = 3000
"""Rows that Pelt is given at a time: twice as many take it six times as long."""


class RupturesPelt(_Ruptures):
    """Pelt with the default cost and step, and the usual penalty; long runs in equal stretches."""

    name = "ruptures Pelt"
    doc = (
        "l2, jump 5, penalty 2 d log n, on innovations of four norms; offline, ≤ 3000 rows at once"
    )

    def _changes(self, signals: Floats) -> list[int]:
        found, start = [], 0
        for part in np.array_split(signals, -(-len(signals) // _STRETCH)):
            n, d = part.shape
            ends = _library("ruptures").Pelt(model="l2").fit_predict(part, pen=2 * d * np.log(n))
            found += [start + end for end in ends[:-1]]  # the last is where the stretch ends
            start += n
        return found


class RupturesWindow(_Ruptures):
    """Window with its defaults."""

    name = "ruptures Window"
    doc = "l2, width 100, penalty 2 d log n, on the innovations of four norms; offline"

    def _changes(self, signals: Floats) -> list[int]:
        n, d = signals.shape
        search = _library("ruptures").Window(width=100, model="l2")
        return list(search.fit_predict(signals, pen=2 * d * np.log(n)))


class RupturesKernel(_Ruptures):
    """KernelCPD with a Gaussian kernel."""

    name = "ruptures KernelCPD"
    doc = "Gaussian kernel, penalty 30, on the innovations of four norms; offline"

    def _changes(self, signals: Floats) -> list[int]:
        search = _library("ruptures").KernelCPD(kernel="rbf", min_size=5)
        return list(search.fit_predict(signals, pen=30))


class _River(Peer):
    """A drift detector of `river` on the loss, with its defaults."""

    needs = "river"
    detector: ClassVar[str]

    def alarms(self, table: StepTable) -> Bools:
        """Rows at which it reports a drift."""
        found = getattr(_library("river.drift"), self.detector)()
        out = np.zeros(len(table), bool)
        for row, value in enumerate(np.nan_to_num(column(table, "loss"), posinf=1e9)):
            found.update(float(value))
            out[row] = found.drift_detected
        return out


class RiverAdwin(_River):
    """ADWIN."""

    name, detector = "river ADWIN", "ADWIN"
    doc = "the loss, with the defaults"


class RiverPageHinkley(_River):
    """Page-Hinkley."""

    name, detector = "river PageHinkley", "PageHinkley"
    doc = "the loss, with the defaults"
