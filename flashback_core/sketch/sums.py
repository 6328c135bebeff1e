"""StepSums: what every speed of the sketch adds up, and how it becomes metrics.

Sums, counts and maxima merge exactly over shards and replicas; norms, variances, rates and
quantiles are made from the merged sums, never averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.schema import GRADIENT_NORM_QUANTILES, GROUP_METRICS, N_BINS, SketchSchema

__all__ = ["COUNTS", "MOMENTS", "PEAKS", "StepSums", "empty_sums", "merge_sums", "metric_values"]

MOMENTS = ("grad_sum", "grad_sumsq", "update_sumsq", "param_sumsq")
PEAKS = ("grad_max", "update_max")
COUNTS = ("grad_n", "grad_nonfinite", "flips", "flip_n", "update_n", "update_nonfinite", "param_n")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class StepSums:
    """Sums of one step. G groups, T tensors.

    Attributes:
        moments: float64 (G, 4), see `MOMENTS`, over finite entries.
        peaks: float64 (G, 2), see `PEAKS`, over finite entries.
        counts: int64 (G, 7), see `COUNTS`; ``*_n`` counts entries, finite or not.
        bins: int64 (2, 16): gradient and update histograms, see `schema.N_BINS`.
        tensor_sumsq: float64 (T,): sum of squares of each tensor's gradient, NaN without one.
    """

    moments: Floats
    peaks: Floats
    counts: Ints
    bins: Ints
    tensor_sumsq: Floats


def empty_sums(n_groups: int, n_tensors: int) -> StepSums:
    """Sums of nothing: the neutral element of `merge_sums`."""
    return StepSums(
        moments=np.zeros((n_groups, len(MOMENTS))),
        peaks=np.zeros((n_groups, len(PEAKS))),
        counts=np.zeros((n_groups, len(COUNTS)), np.int64),
        bins=np.zeros((2, N_BINS), np.int64),
        tensor_sumsq=np.full(n_tensors, np.nan),
    )


def merge_sums(parts: Sequence[StepSums]) -> StepSums:
    """Sums of a step whose tensors are spread over `parts` (shards of the same tensors).

    Raises:
        ValueError: If there are no parts, or parts of different shapes.
    """
    if not parts:
        msg = "merge_sums got no parts; give the sums of at least one shard"
        raise ValueError(msg)
    shapes = {(p.moments.shape, p.tensor_sumsq.shape) for p in parts}
    if len(shapes) > 1:
        msg = f"merge_sums got parts of different groups or tensors: {sorted(shapes)}"
        raise ValueError(msg)
    tensors = np.stack([p.tensor_sumsq for p in parts])
    seen = ~np.all(np.isnan(tensors), axis=0)
    return StepSums(
        moments=np.sum([p.moments for p in parts], axis=0),
        peaks=np.max([p.peaks for p in parts], axis=0),
        counts=np.sum([p.counts for p in parts], axis=0),
        bins=np.sum([p.bins for p in parts], axis=0),
        tensor_sumsq=np.where(seen, np.nansum(tensors, axis=0), np.nan),
    )


_N_SCALARS = 11
_QUANTILE_SHARES = np.array(GRADIENT_NORM_QUANTILES)


def metric_values(sums: StepSums, schema: SketchSchema) -> Floats:
    """The metrics of a step from its sums.

    Args:
        sums: Sums whose groups are those of `schema`, in the same order.
        schema: Decides names and positions.

    Returns:
        float64 of shape (len(schema),). What the sums do not know (``loss``, ``lr``,
        ``step_wall_ms``, ``batch_id_mean``, ``batch_uniq_frac``) is NaN; so is every gradient
        metric of a group without a gradient and every rate without a denominator.
    """
    out = np.full(len(schema), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        _scalars(sums, out)
        n_fixed = _N_SCALARS + len(_QUANTILE_SHARES)
        out[_N_SCALARS:n_fixed] = _norm_quantiles(sums.tensor_sumsq)
        n_grouped = len(schema.groups) * len(GROUP_METRICS)
        out[n_fixed : n_fixed + n_grouped] = _groups(sums).ravel()
        out[n_fixed + n_grouped :] = sums.bins.ravel()
    return out


def _scalars(sums: StepSums, out: Floats) -> None:
    totals = sums.counts.sum(axis=0)
    moments = sums.moments.sum(axis=0)
    if totals[0]:
        out[2] = moments[1] ** 0.5
        out[3] = sums.peaks[:, 0].max()
    if totals[4]:
        out[4] = moments[2] ** 0.5
        out[5] = sums.peaks[:, 1].max()
    if totals[6]:
        out[6] = moments[3] ** 0.5
    out[7] = totals[1]


def _groups(sums: StepSums) -> Floats:
    """Shape (G, 10), columns as in `schema.GROUP_METRICS`."""
    m, c = sums.moments, sums.counts
    nan = np.nan
    has_grad, has_update, has_param = c[:, 0] > 0, c[:, 4] > 0, c[:, 6] > 0
    finite = np.where(has_grad, c[:, 0] - c[:, 1], 0)
    var = np.maximum(m[:, 1] / finite - (m[:, 0] / finite) ** 2, 0.0)
    update_norm = np.where(has_update, np.sqrt(m[:, 2]), nan)
    param_norm = np.where(has_param, np.sqrt(m[:, 3]), nan)
    ratio = np.where(param_norm > 0, update_norm / param_norm, nan)
    columns = (
        np.where(has_grad, np.sqrt(m[:, 1]), nan),
        np.where(has_grad, sums.peaks[:, 0], nan),
        np.where(finite > 0, var, nan),
        np.where(c[:, 3] > 0, c[:, 2] / c[:, 3], nan),
        c[:, 1],
        update_norm,
        np.where(has_update, sums.peaks[:, 1], nan),
        c[:, 5],
        param_norm,
        ratio,
    )
    return np.stack(columns, axis=1)


def _norm_quantiles(tensor_sumsq: Floats) -> Floats:
    """Linear quantiles of the norms of the tensors that have a gradient."""
    norms = np.sort(np.sqrt(tensor_sumsq[~np.isnan(tensor_sumsq)]))
    if norms.size == 0:
        return np.full(len(_QUANTILE_SHARES), np.nan)
    position = _QUANTILE_SHARES * (norms.size - 1)
    low = position.astype(np.int64)
    high = np.minimum(low + 1, norms.size - 1)
    share = position - low
    return norms[low] * (1 - share) + norms[high] * share
