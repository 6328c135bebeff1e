"""StepSums: what every speed of the sketch adds up, and how it becomes metrics.

Sums, counts and maxima merge exactly over shards and replicas; norms, variances, rates and
quantiles are made from the merged sums, never averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.schema import GRADIENT_NORM_QUANTILES, N_BINS, SketchSchema

__all__ = [
    "COUNTS", "MOMENTS", "PEAKS", "StepSums", "add_sums", "empty_sums", "merge_sums",
    "metric_values",
]  # fmt: skip

MOMENTS = ("grad_sum", "grad_sumsq", "update_sumsq", "param_sumsq")
PEAKS = ("grad_max", "update_max")
COUNTS = (
    "grad_n", "grad_nonfinite", "flips", "flip_n", "update_n", "update_nonfinite", "param_n",
    "update_zero", "param_low16_zero",
)  # fmt: skip

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class StepSums:
    """Sums of one step. G groups, T tensors.

    Attributes:
        moments: float64 (G, 4), see `MOMENTS`, over finite entries.
        peaks: float64 (G, 2), see `PEAKS`, over finite entries.
        counts: int64 (G, 9), see `COUNTS`; ``*_n`` counts entries, finite or not; ``update_zero``
            entries that did not move, ``param_low16_zero`` float32 weights whose low 16 bits are
            zero, as after a rounding to bfloat16.
        bins: int64 (2, 16): gradient and update histograms, see `schema.N_BINS`.
        tensor_sumsq: float64 (T,): sum of squares of each tensor's gradient, NaN without one.
        still: int64 (T,): entries of each weight that the update moved by exactly zero.
        changed: int64 (T,): entries of each weight whose bits are not those that the step before
            left: something else than the optimizer wrote there.
    """

    moments: Floats
    peaks: Floats
    counts: Ints
    bins: Ints
    tensor_sumsq: Floats
    still: Ints
    changed: Ints


def empty_sums(n_groups: int, n_tensors: int) -> StepSums:
    """Sums of nothing: the neutral element of `merge_sums`."""
    return StepSums(
        moments=np.zeros((n_groups, len(MOMENTS))),
        peaks=np.zeros((n_groups, len(PEAKS))),
        counts=np.zeros((n_groups, len(COUNTS)), np.int64),
        bins=np.zeros((2, N_BINS), np.int64),
        tensor_sumsq=np.full(n_tensors, np.nan),
        still=np.zeros(n_tensors, np.int64),
        changed=np.zeros(n_tensors, np.int64),
    )


def add_sums(total: StepSums, part: StepSums, places: Sequence[int]) -> None:
    """Add the sums of the tensors at `places` to `total`, in place."""
    at = list(places)
    total.moments += part.moments
    np.maximum(total.peaks, part.peaks, out=total.peaks)
    total.counts += part.counts
    total.bins += part.bins
    total.tensor_sumsq[at] = part.tensor_sumsq
    total.changed[at] = part.changed
    total.still[at] = part.still


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
        still=np.sum([p.still for p in parts], axis=0),
        changed=np.sum([p.changed for p in parts], axis=0),
    )


_N_SCALARS = 11
_NAN = float("nan")


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
    # plain Python floats: for a few groups they are several times faster than numpy calls
    moments, peaks, counts = sums.moments.tolist(), sums.peaks.tolist(), sums.counts.tolist()
    out = [_NAN] * _N_SCALARS
    _scalars(moments, peaks, counts, out)
    out += _norm_quantiles(sums.tensor_sumsq)
    for m, p, c in zip(moments, peaks, counts, strict=True):
        out += _group(m, p, c)
    out += sums.bins.ravel().tolist()
    return np.array(out)


def _scalars(
    moments: list[list[float]], peaks: list[list[float]], counts: list[list[int]], out: list[float]
) -> None:
    if any(c[0] for c in counts):
        out[2] = math.sqrt(sum(m[1] for m in moments))
        out[3] = max(p[0] for p in peaks)
    if any(c[4] for c in counts):
        out[4] = math.sqrt(sum(m[2] for m in moments))
        out[5] = max(p[1] for p in peaks)
    if any(c[6] for c in counts):
        out[6] = math.sqrt(sum(m[3] for m in moments))
    out[7] = sum(c[1] for c in counts)


def _group(m: list[float], p: list[float], c: list[int]) -> list[float]:
    """The ten metrics of a group, as in `schema.GROUP_METRICS`."""
    grad_n, bad, flips, flip_n, update_n, update_bad, param_n, *_ = c
    finite = grad_n - bad
    mean_square = m[1] / finite if finite else _NAN
    update_norm = math.sqrt(m[2]) if update_n else _NAN
    param_norm = math.sqrt(m[3]) if param_n else _NAN
    return [
        math.sqrt(m[1]) if grad_n else _NAN,
        p[0] if grad_n else _NAN,
        max(mean_square - (m[0] / finite) ** 2, 0.0) if finite else _NAN,
        flips / flip_n if flip_n else _NAN,
        bad,
        update_norm,
        p[1] if update_n else _NAN,
        update_bad,
        param_norm,
        update_norm / param_norm if param_norm > 0 else _NAN,
    ]


def _norm_quantiles(tensor_sumsq: Floats) -> list[float]:
    """Linear quantiles of the norms of the tensors that have a gradient."""
    squares = np.sort(tensor_sumsq)  # NaN, a tensor without a gradient, comes last
    n = int(np.searchsorted(squares, np.inf, side="right"))
    if n == 0:
        return [_NAN] * len(GRADIENT_NORM_QUANTILES)
    out = []
    for q in GRADIENT_NORM_QUANTILES:
        low, share = divmod(q * (n - 1), 1.0)
        below = math.sqrt(squares[int(low)])
        above = math.sqrt(squares[min(int(low) + 1, n - 1)])
        out.append(below * (1 - share) + above * share)
    return out
