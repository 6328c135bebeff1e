"""Histograms as features: mean bin and width, and when they say nothing.

Where nearly all entries share a bin (Lion moves all weights by one size) the mean only says that an
edge of bins was crossed; such a histogram is a *lump*, also while it crosses the edge, and silent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.compiled import kernels
from flashback_core.schema import N_BINS

__all__ = ["joined", "moments"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

ONE_BIN = 0.8
"""Share of one bin from which on a histogram says only that an edge was crossed."""
SPILT = 0.03
"""Share that it may have lost while it lies in the two bins at an edge."""
CROSSING = 32
"""Rows that it may take to cross an edge."""
_BINS = np.arange(N_BINS, dtype=np.float64)[:, None]


def moments(raw: Floats, bins: npt.NDArray[np.int64], lump: Floats) -> tuple[Floats, Floats, Bools]:
    """Mean bin and width of each histogram in each row, NaN where it is none, and which are lumps.

    Args:
        raw: Columns, (columns, rows).
        bins: Where among them the bins of each histogram are, (histograms, bins).
        lump: Share of what lay in one bin and still lay in two at the row before, 0 for none, and
            rows since it lay in one; brought up to date; (histograms, 2).
    """
    compiled = kernels(is_worth_it=False)
    if compiled is not None:
        means, spreads = np.empty((2, len(bins), raw.shape[1]))
        silent = np.empty(means.shape, bool)
        bounds = (ONE_BIN, SPILT, float(CROSSING))
        compiled.histogram_pass(raw, bins, bounds, lump, means, spreads, silent)
        return means, spreads, silent
    share = _shares(raw[bins])
    means = _sum(_BINS * share)
    spreads = np.sqrt(np.maximum(_sum(_BINS**2 * share) - means**2, 1e-9))
    return means, spreads, _lumps(share, lump)


def joined(found: Floats, silent: Bools, past: Floats) -> Floats:
    """Moments of one histogram without the rows at which it is silent; (2, rows).

    Where it speaks again it goes on from where it stopped: what moved meanwhile did so unheard, and
    only what moved from the last silent row on is left, or since it stopped if that is less.

    Args:
        found: Mean and width, of silent rows too, (2, rows).
        silent: Rows at which it says nothing.
        past: What is added to the moments, the moments of the last row and what was last said,
            (3, 2), and in a fourth row whether it was silent then; brought up to date.
    """
    shift, last, said = past[:3]
    out = found + shift[:, None]
    out[:, silent] = np.nan
    at = np.flatnonzero(np.isfinite(found).all(axis=0))
    if not len(at):
        return np.asarray(out)
    is_silent = silent[at]
    was = np.concatenate([[past[3, 0] > 0], is_silent[:-1]])
    for k in np.flatnonzero(was & ~is_silent):
        spoke = at[:k][~is_silent[:k]]
        held = out[:, spoke[-1]] if len(spoke) else said
        if np.isfinite(held).all():
            now = found[:, at[k]]
            late, whole = now - (found[:, at[k - 1]] if k else last), now - (held - shift)
            shift = held + np.where(np.abs(late) < np.abs(whole), late, whole) - now
            rest = at[k:][~is_silent[k:]]
            out[:, rest] = found[:, rest] + shift[:, None]
    spoke = at[~is_silent]
    past[:3] = shift, found[:, at[-1]], out[:, spoke[-1]] if len(spoke) else said
    past[3] = is_silent[-1]
    return np.asarray(out)


def _lumps(share: Floats, lump: Floats) -> Bools:
    """Rows at which all but lies in one bin, or in two since it did; (histograms, rows)."""
    one, two = share.max(axis=1), (share[:, 1:] + share[:, :-1]).max(axis=1)
    is_one = one > ONE_BIN
    joined = np.column_stack([lump[:, 0], np.where(is_one, one, 0.0)])
    at = np.arange(joined.shape[1])
    since = np.maximum.accumulate(np.where(joined > 0, at, 0), axis=1)[:, 1:]
    last, rows = np.take_along_axis(joined, since, axis=1), at[1:]
    age = rows - since + np.where(since == 0, lump[:, 1:], 0.0)
    stays = is_one | ((two >= last - SPILT) & (age <= CROSSING))  # NaN does not
    left = np.maximum.accumulate(np.where(stays, 0, rows), axis=1)
    found = (last > 0) & (since >= left)
    lump[:] = np.where(found[:, -1:], np.stack([last[:, -1], age[:, -1]], axis=1), 0.0)
    return np.asarray(found)


def _shares(counts: Floats) -> Floats:
    """Share of each bin, (…, bins, rows); NaN in rows whose counts are none."""
    usable = ((counts >= 0) & (counts < np.inf)).all(axis=-2, keepdims=True)
    total = _sum(np.where(usable, counts, 0.0))[..., None, :]
    return np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 1e-9)


def _sum(values: Floats) -> Floats:
    """Sum along the axis before the last, in the same order however many columns there are."""
    return np.asarray(np.cumsum(values, axis=-2)[..., -1, :])
