"""Rules that read the loss and the gradient norm, as training frameworks ship them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashback_core.forensics.peers.base import Bools, CalibratedPeer, Peer, column
from flashback_core.table import StepTable

__all__ = [
    "FiniteCheck", "KillLossSpike", "LossZScore", "MegatronSpike", "SixSigma", "SoupMedian",
    "SpikeDetection", "WandbZScore", "ZClip",
]  # fmt: skip

Floats = npt.NDArray[np.float64]


def _trailing(x: Floats, window: int) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the `window` values before each; nan before they are there."""
    n = len(x)
    mean, std = np.full(n, np.nan), np.full(n, np.nan)
    if n > window:
        before = np.lib.stride_tricks.sliding_window_view(x, window)[:-1]
        with np.errstate(invalid="ignore", over="ignore"):
            mean[window:], std[window:] = before.mean(axis=1), before.std(axis=1, ddof=1)
    return mean, std


class LossZScore(CalibratedPeer):
    """Textbook z-score of the loss."""

    name = "loss z-score"
    doc = (
        "loss over the mean of the 64 before, in standard deviations; 10 alarms / 100k in training"
    )

    def score(self, table: StepTable) -> Floats:
        """Standard deviations above the mean of the 64 losses before."""
        loss = column(table, "loss")
        mean, std = _trailing(loss, 64)
        with np.errstate(invalid="ignore", divide="ignore"):
            z = (loss - mean) / std
        return np.where(np.isfinite(z), z, np.where(np.isfinite(loss), 0.0, 1e9))


class WandbZScore(Peer):
    """The z-score automation of a tracker."""

    name = "W&B z-score automation"
    doc = "|loss − mean| > 3 standard deviations of the 30 before"

    def alarms(self, table: StepTable) -> Bools:
        """Rows off by more than three standard deviations."""
        loss = column(table, "loss")
        mean, std = _trailing(loss, 30)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(loss - mean) > 3.0 * std)


class ZClip(Peer):
    """ZClip, which clips a gradient where this alarms; the recorded run was not clipped by it."""

    name = "ZClip"
    doc = "grad norm: exponential mean and variance (α 0.97, 25 steps of warm-up), z > 2.5"

    def alarms(self, table: StepTable) -> Bools:
        """Rows at which the norm would be clipped."""
        norm = column(table, "grad_norm")
        out = np.zeros(len(norm), bool)
        first = norm[:25][np.isfinite(norm[:25])]
        if len(norm) <= 25 or not len(first):
            return out
        mean, variance = float(first.mean()), float(first.var())
        for i in range(25, len(norm)):
            if not np.isfinite(norm[i]):
                continue
            std = np.sqrt(variance) + 1e-6
            z = (norm[i] - mean) / std
            out[i] = z > 2.5
            kept = mean + 2.5**2 / z * std if out[i] else norm[i]
            mean = 0.97 * mean + 0.03 * kept
            variance = 0.97 * variance + 0.03 * (kept - mean) ** 2
        return out


class SixSigma(Peer):
    """SkipStep of OLMo-core; one NaN makes its window NaN for 128 steps, as there."""

    name = "OLMo 6 σ / 128"
    doc = "loss or grad norm over the mean of the last 128 by 6 standard deviations (64 at least)"

    def alarms(self, table: StepTable) -> Bools:
        """Rows whose update would be skipped."""
        return _six_sigma(column(table, "loss")) | _six_sigma(column(table, "grad_norm"))


def _six_sigma(x: Floats, window: int = 128, least: int = 64) -> Bools:
    out = np.zeros(len(x), bool)
    for i in range(least, len(x)):
        before = x[max(0, i - window) : i]
        with np.errstate(invalid="ignore", over="ignore"):
            # with a NaN in the window the comparison is false and the step is skipped, as there
            out[i] = not x[i] - before.mean() <= 6.0 * before.std(ddof=1)
    return out


class SpikeDetection(Peer):
    """Lightning's callback."""

    name = "Lightning SpikeDetection"
    doc = "loss rises and is ≥ 2 means away from the mean of the last 10; 100 steps of warm-up"

    def alarms(self, table: StepTable) -> Bools:
        """Rows at which it would raise; a spike does not enter the mean."""
        loss = column(table, "loss")
        out = np.zeros(len(loss), bool)
        kept: list[float] = []
        for i, value in enumerate(loss):
            if i >= 100 and kept:
                mean = float(np.mean(kept[-10:]))
                rises = value - kept[-1] > 0
                out[i] = not np.isfinite(value) or (rises and abs(value - mean) >= 2 * abs(mean))
            if not out[i]:
                kept.append(float(value))
        return out


class KillLossSpike(Peer):
    """The callback of llm-foundry."""

    name = "llm-foundry KillLossSpike"
    doc = "loss ≥ 2 × the mean of the last 100 five times in a row, or half of them above 10"

    def alarms(self, table: StepTable) -> Bools:
        """Rows at which it would stop the run."""
        loss = column(table, "loss")
        mean, _ = _trailing(loss, 100)
        with np.errstate(invalid="ignore"):
            high = loss >= 2.0 * mean
        five = np.convolve(high, np.ones(5), "full")[: len(loss)] >= 5
        above = np.zeros(len(loss), bool)
        if len(loss) > 100:
            part = np.lib.stride_tricks.sliding_window_view(loss > 10.0, 100)[:-1]
            above[100:] = part.mean(axis=1) >= 0.5
        return np.asarray(five | above)


class MegatronSpike(Peer):
    """The result checks of Megatron-LM's rerun machine, without the rerun."""

    name = "Megatron 10× / 100"
    doc = "loss not finite, gradient not finite, or loss > 10 × the largest of the first 100"

    def alarms(self, table: StepTable) -> Bools:
        """Rows whose result would be rejected; nothing is checked at the first."""
        loss = column(table, "loss")
        out = ~np.isfinite(loss) | (column(table, "nonfinite") > 0)
        if len(loss) > 100:
            with np.errstate(invalid="ignore"):
                out[100:] |= loss[100:] > 10.0 * np.fmax.reduce(np.abs(loss[:100]))
        out[:1] = False
        return np.asarray(out)


class FiniteCheck(Peer):
    """The check of torchtitan."""

    name = "torchtitan finite check"
    doc = "loss or gradient norm is not finite"

    def alarms(self, table: StepTable) -> Bools:
        """Rows with a number that is not finite."""
        return np.asarray(~np.isfinite(column(table, "loss")) | (column(table, "nonfinite") > 0))


class SoupMedian(Peer):
    """The rule of `soup rewind`."""

    name = "Soup 2 × median / 20"
    doc = "loss not finite, or > 2 × the median of the 20 before"

    def alarms(self, table: StepTable) -> Bools:
        """Rows that it would list."""
        loss = column(table, "loss")
        out = ~np.isfinite(loss)
        if len(loss) > 20:
            before = np.lib.stride_tricks.sliding_window_view(loss, 20)[:-1]
            with np.errstate(invalid="ignore"):
                out[20:] |= loss[20:] > 2.0 * np.nanmedian(np.nan_to_num(before), axis=1)
        return np.asarray(out)
