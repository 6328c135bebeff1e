"""The definition of every metric: numpy, float64, one tensor at a time. Slow and obvious.

Entries are taken as float32 (bfloat16 and float16 fit exactly; float64 weights are subtracted in
float64 first and the update is rounded to float32). Sums run over the finite entries; entries that
are NaN or infinite are counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flashback_core.schema import N_BINS
from flashback_core.sketch.sums import StepSums, empty_sums

__all__ = [
    "add_gradient",
    "add_update",
    "bin_of",
    "changed_entries",
    "magnitude_bins",
    "reference_sums",
]

Array = npt.NDArray[np.floating]
Signs = npt.NDArray[np.int8]


def bin_of(magnitude: Array) -> npt.NDArray[np.int64]:
    """Histogram bin of each finite magnitude; see `schema.N_BINS` for the bounds.

    Examples:
        >>> bin_of(np.array([0.0, 1e-30, 0.4, 0.5, 1.9, 1e30])).tolist()
        [0, 0, 14, 15, 15, 15]
    """
    _, exponent = np.frexp(magnitude.astype(np.float64))
    # frexp gives x = m * 2**e with m in [0.5, 1): the binary exponent of x is e - 1
    half = (exponent.astype(np.int64) - 1 + 127) >> 1
    return np.where(magnitude == 0, 0, np.clip(half - 48, 0, N_BINS - 1))


def magnitude_bins(values: Array) -> npt.NDArray[np.int64]:
    """Counts of the finite entries in the 16 magnitude bins."""
    finite = values[np.isfinite(values)]
    return np.bincount(bin_of(np.abs(finite)), minlength=N_BINS)


def add_gradient(
    sums: StepSums, group: int, tensor: int, grad: Array, signs: Signs, has_history: bool
) -> None:
    """Add one tensor's gradient.

    Args:
        sums: Added to in place.
        group: Row of the tensor's group.
        tensor: Position of the tensor.
        grad: Its gradient, any shape.
        signs: int8, the last non-zero sign of each entry (-1, 1; 0 before any), flat; updated.
        has_history: Whether `signs` holds the signs of an earlier step; if not, no flip counts.
    """
    x = np.asarray(grad, np.float32).astype(np.float64).ravel()
    finite = np.isfinite(x)
    y = x[finite]
    sums.moments[group, 0] += y.sum()
    sums.moments[group, 1] += (y * y).sum()
    sums.tensor_sumsq[tensor] = (y * y).sum()
    sums.peaks[group, 0] = max(sums.peaks[group, 0], np.abs(y).max(initial=0.0))
    sums.counts[group, 0] += x.size
    sums.counts[group, 1] += x.size - y.size
    sign = np.nan_to_num(np.sign(x)).astype(np.int8)
    if has_history:
        sums.counts[group, 2] += int(np.count_nonzero((sign != 0) & (sign != signs)))
        sums.counts[group, 3] += x.size
    signs[sign != 0] = sign[sign != 0]
    sums.bins[0] += magnitude_bins(x)


def add_update(
    sums: StepSums, group: int, tensor: int, before: Array, after: Array, narrow: bool = True
) -> None:
    """Add one tensor's update ``after - before``, both of any one shape, to `sums` in place.

    `narrow` says that the weights are float32 themselves, so that their low bits mean something.
    """
    wide = np.float64 if np.asarray(after).dtype == np.float64 else np.float32
    with np.errstate(invalid="ignore", over="ignore"):
        update = (np.asarray(after, wide) - np.asarray(before, wide)).astype(np.float32)
        p = np.asarray(after, np.float32).astype(np.float64).ravel()
    u = update.astype(np.float64).ravel()
    finite = u[np.isfinite(u)]
    weights = p[np.isfinite(p)]
    sums.moments[group, 2] += (finite * finite).sum()
    sums.moments[group, 3] += (weights * weights).sum()
    sums.peaks[group, 1] = max(sums.peaks[group, 1], np.abs(finite).max(initial=0.0))
    sums.counts[group, 4] += u.size
    sums.counts[group, 5] += u.size - finite.size
    sums.counts[group, 6] += p.size
    sums.bins[1] += magnitude_bins(u)
    sums.counts[group, 7] += int(np.count_nonzero(u == 0))
    sums.still[tensor] += int(np.count_nonzero(u == 0))
    if narrow and wide == np.float32:
        words = np.ascontiguousarray(after, np.float32).view(np.uint32)
        sums.counts[group, 8] += int(np.count_nonzero((words & 0xFFFF) == 0))


def reference_sums(
    grads: Sequence[Array | None],
    before: Sequence[Array],
    after: Sequence[Array],
    groups: Sequence[int],
    n_groups: int,
    signs: list[Signs | None],
    start: Sequence[Array] | None = None,
    narrow: Sequence[bool] | None = None,
) -> StepSums:
    """Sums of one step over all tensors.

    Args:
        grads: Gradient of each tensor, None where it has none (which is not the same as zero).
        before: Weights before the step.
        after: Weights after it, same shapes.
        groups: Group of each tensor.
        n_groups: Number of groups.
        signs: Last non-zero signs of each tensor, None before its first gradient; updated.
        narrow: Whether each tensor's weights are float32; all of them if None.
        start: Weights when the gradients were read, if something changed them since `before`.
    """
    sums = empty_sums(n_groups, len(grads))
    for i, (grad, old, new, group) in enumerate(zip(grads, before, after, groups, strict=True)):
        if grad is not None:
            known = signs[i]
            # a sign of +1 stands for "none yet", as a cleared bit does in the fast forms
            have = known if known is not None else np.ones(np.size(grad), np.int8)
            add_gradient(sums, group, i, grad, have, known is not None)
            signs[i] = have
        add_update(sums, group, i, old, new, narrow is None or narrow[i])
        if start is not None:
            sums.changed[i] = changed_entries(old, start[i])
    return sums


def changed_entries(before: Array, now: Array) -> int:
    """Entries whose bits differ (a NaN equals itself, 0.0 is not -0.0)."""
    word = np.dtype(f"u{np.asarray(now).dtype.itemsize}")
    a, b = np.ascontiguousarray(before).view(word), np.ascontiguousarray(now).view(word)
    return int(np.count_nonzero(a != b))
