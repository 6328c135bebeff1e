"""One pass over a tensor per half of a step, compiled by numba.

Everything that is read per entry is read once, in blocks of 2 048 entries that stay in the first
cache. Within a block sums run in float32 lanes, counts in float32 or int32 lanes (exact there), and
are carried into float64 and int64 per block: relative errors stay near 1e-7. A block whose largest
magnitude makes float32 squares vanish or overflow is squared again in float64.

The floating-point flags allow reordering, never the assumption that there is no NaN or infinity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

__all__ = ["BLOCK", "changed_pass", "checksum_pass", "gradient_pass", "update_pass"]

BLOCK = 2048
_FAST = {"reassoc", "contract", "nsz", "arcp"}
_OPTIONS: dict[str, Any] = {
    "fastmath": _FAST, "boundscheck": False, "error_model": "numpy", "nogil": True, "cache": True,
}  # fmt: skip

_ABS = np.int32(0x7FFFFFFF)
_INF = np.int32(0x7F800000)
_ZERO, _ONE = np.float32(0), np.float32(1)
_NONE = np.int32(0)
_LOW = np.int32(0xFFFF)
_TINY = np.float32(1e-15).view(np.int32)
_HUGE = np.float32(1e16).view(np.int32)


@intrinsic
def _floats(typing_context, address):
    """An address as a pointer to float32."""
    return _pointer(types.float32)


@intrinsic
def _words(typing_context, address):
    """An address as a pointer to int32."""
    return _pointer(types.int32)


def _pointer(kind):
    def generate(context, builder, signature, arguments):
        target = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], target)

    return types.CPointer(kind)(types.int64), generate


@intrinsic
def _ones(typing_context, word):
    """Number of set bits of a uint32."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint32(types.uint32), generate


@intrinsic
def _below_zero(typing_context, address):
    """Bit j is set where the j-th of 32 float32 at `address` is below zero."""
    return _compare("<")


@intrinsic
def _above_zero(typing_context, address):
    """Bit j is set where the j-th of 32 float32 at `address` is above zero."""
    return _compare(">")


def _compare(operator):
    """32 comparisons as one vector: no compiler finds this in a loop that packs bits."""

    def generate(context, builder, signature, arguments):
        vector = ir.VectorType(ir.FloatType(), 32)
        pointer = builder.inttoptr(arguments[0], vector.as_pointer())
        values = builder.load(pointer, align=4)
        zeros = ir.Constant(vector, [0.0] * 32)
        return builder.bitcast(builder.fcmp_ordered(operator, values, zeros), ir.IntType(32))

    return types.uint32(types.int64), generate


@intrinsic
def _at_least(typing_context, address, threshold):
    """How many of 64 bytes at `address` are `threshold` or more."""

    def generate(context, builder, signature, arguments):
        vector = ir.VectorType(ir.IntType(8), 64)
        pointer = builder.inttoptr(arguments[0], vector.as_pointer())
        values = builder.load(pointer, align=1)
        lane = builder.insert_element(
            ir.Constant(vector, ir.Undefined), arguments[1], ir.Constant(ir.IntType(32), 0)
        )
        order = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        splat = builder.shuffle_vector(lane, ir.Constant(vector, ir.Undefined), order)
        reached = builder.icmp_unsigned(">=", values, splat)
        return builder.ctpop(builder.bitcast(reached, ir.IntType(64)))

    return types.int64(types.int64, types.uint8), generate


@njit(**_OPTIONS)
def _moments(x, bits, n):
    """Sum and sum of squares of the finite entries, and the number of the others."""
    total, square, bad = _ZERO, _ZERO, _ZERO
    for i in range(n):
        finite = (bits[i] & _ABS) < _INF
        value = x[i] if finite else _ZERO
        total += value
        square += value * value
        bad += _ZERO if finite else _ONE
    return total, square, bad


@njit(**_OPTIONS)
def _zeros(bits, n, mask):
    """Words of which no bit under `mask` is set."""
    count = _NONE
    for i in range(n):
        count += np.int32(1) if (bits[i] & mask) == _NONE else _NONE
    return count


@njit(**_OPTIONS)
def _square(x, n):
    """Sum of squares, whatever the entries are."""
    square = _ZERO
    for i in range(n):
        square += x[i] * x[i]
    return square


@njit(**_OPTIONS)
def _peak(bits, n):
    """Largest finite magnitude, as bits."""
    best = _NONE
    for i in range(n):
        magnitude = np.int32(bits[i] & _ABS)
        finite = magnitude if magnitude < _INF else _NONE
        best = finite if finite > best else best
    return best


@njit(**_OPTIONS)
def _wide_square(x, bits, n):
    """Sum of squares of the finite entries in float64."""
    square = 0.0
    for i in range(n):
        if (bits[i] & _ABS) < _INF:
            square += np.float64(x[i]) * np.float64(x[i])
    return square


@njit(**_OPTIONS)
def _count_reached(bits, n, peak, codes, reached):
    """Add to ``reached[b]`` how many magnitudes lie in histogram bin b or above.

    Bins are read off the top byte of the magnitude; comparing 64 bytes with each of 15 thresholds
    is cheaper than one scattered increment per entry.
    """
    for i in range(n):
        codes[i] = np.uint8(np.uint32(bits[i] & _ABS) >> np.uint32(24))
    padded = (n + 63) & ~63
    for i in range(n, padded):
        codes[i] = np.uint8(0)
    start = codes.ctypes.data
    for b in range(1, 16):
        threshold = 48 + b
        if threshold > peak:
            break
        count = np.int64(0)
        for at in range(0, padded, 64):
            count += np.int64(_at_least(start + at, np.uint8(threshold)))
        if count == 0:
            break
        reached[b] += count


@njit(**_OPTIONS)
def _fill_bins(reached, entries, bad, bins):
    """Histogram from counts reached; non-finite entries stand in the last bin and leave."""
    reached[0] = entries
    for b in range(15):
        bins[b] += reached[b] - reached[b + 1]
    bins[15] += reached[15] - bad


@njit(**_OPTIONS)
def _flips(address, x, n, signs, start):
    """Entries whose sign differs from their last non-zero sign; `signs` keeps one bit each."""
    flips = np.int64(0)
    whole = n >> 5
    for w in range(whole):
        negative, positive = _below_zero(address + 128 * w), _above_zero(address + 128 * w)
        last = signs[start + w]
        flipped = np.uint32((negative & ~last) | (positive & last))
        flips += np.int64(_ones(flipped))
        signs[start + w] = last ^ flipped
    if n & 31:
        negative, positive = np.uint32(0), np.uint32(0)
        for j in range(n & 31):
            value = x[(whole << 5) + j]
            bit = np.uint32(1) << np.uint32(j)
            negative |= bit if value < _ZERO else np.uint32(0)
            positive |= bit if value > _ZERO else np.uint32(0)
        last = signs[start + whole]
        flipped = np.uint32((negative & ~last) | (positive & last))
        flips += np.int64(_ones(flipped))
        signs[start + whole] = last ^ flipped
    return flips


@njit(**_OPTIONS)
def _difference(p, before, u, n):
    """``u = p - before``, then ``before = p``."""
    for i in range(n):
        value = p[i]
        u[i] = value - before[i]
        before[i] = value


@njit(**_OPTIONS)
def _rounded(bits):
    """The float32 of these bits."""
    one = np.empty(1, np.int32)
    one[0] = bits
    return np.float64(one.view(np.float32)[0])


@njit(
    "void(int64[::1],int64[::1],int64[::1],int64[::1],uint32[::1],uint8[::1],"
    "float64[:,::1],float64[:,::1],int64[:,::1],int64[::1],float64[::1],int64[::1],int64,int64)",
    **_OPTIONS,
)
def gradient_pass(
    addresses,
    sizes,
    groups,
    offsets,
    signs,
    known,
    moments,
    peaks,
    counts,
    bins,
    squares,
    units,
    every,
    phase,
):
    """Add the gradients at `addresses` (0: none) to the sums; see `StepSums` for the arrays."""
    codes = np.zeros(BLOCK, np.uint8)
    reached = np.zeros(16, np.int64)
    entries, bad_counted = np.int64(0), np.int64(0)
    for t in range(addresses.shape[0]):
        if addresses[t] == 0:
            continue
        g, n_all = groups[t], sizes[t]
        square_all, peak, bad_all, flips = 0.0, _NONE, np.int64(0), np.int64(0)
        for at in range(0, n_all, BLOCK):
            n = min(BLOCK, n_all - at)
            x = carray(_floats(addresses[t] + 4 * at), (n,))
            bits = carray(_words(addresses[t] + 4 * at), (n,))
            total, square32, bad = _moments(x, bits, n)
            block_peak = _peak(bits, n)
            square = np.float64(square32)
            if block_peak > _HUGE or (block_peak < _TINY and block_peak > _NONE):
                square = _wide_square(x, bits, n)
            moments[g, 0] += np.float64(total)
            square_all += square
            bad_all += np.int64(bad)
            peak = max(peak, block_peak)
            flips += _flips(addresses[t] + 4 * at, x, n, signs, offsets[t] + (at >> 5))
            if (units[t] + (at >> 16)) % every == phase:
                entries += n
                bad_counted += np.int64(bad)
                _count_reached(bits, n, 127 if bad else block_peak >> 24, codes, reached)
        moments[g, 1] += square_all
        squares[t] = square_all
        peaks[g, 0] = max(peaks[g, 0], _rounded(peak))
        counts[g, 0] += n_all
        counts[g, 1] += bad_all
        if known[t]:
            counts[g, 2] += flips
            counts[g, 3] += n_all
        known[t] = 1
    _fill_bins(reached, entries, bad_counted, bins)


@njit(
    "void(int64[::1],int64[::1],int64[::1],int64[::1],float32[::1],"
    "float64[:,::1],float64[:,::1],int64[:,::1],int64[::1],int64[::1],int64[::1],int64,int64)",
    **_OPTIONS,
)
def update_pass(
    addresses,
    sizes,
    groups,
    offsets,
    snapshot,
    moments,
    peaks,
    counts,
    bins,
    still,
    units,
    every,
    phase,
):
    """Add weights minus `snapshot` to the sums; the snapshot becomes the weights."""
    codes = np.zeros(BLOCK, np.uint8)
    reached = np.zeros(16, np.int64)
    u = np.empty(BLOCK, np.float32)
    u_bits = u.view(np.int32)
    entries, bad_counted = np.int64(0), np.int64(0)
    for t in range(addresses.shape[0]):
        g, n_all = groups[t], sizes[t]
        for at in range(0, n_all, BLOCK):
            n = min(BLOCK, n_all - at)
            p = carray(_floats(addresses[t] + 4 * at), (n,))
            p_bits = carray(_words(addresses[t] + 4 * at), (n,))
            before = snapshot[offsets[t] + at : offsets[t] + at + n]
            _difference(p, before, u, n)
            _, square32, bad = _moments(u, u_bits, n)
            peak = _peak(u_bits, n)
            square = np.float64(square32)
            if peak > _HUGE or (peak < _TINY and peak > _NONE):
                square = _wide_square(u, u_bits, n)
            weight = np.float64(_square(p, n))
            if not (weight < 1e30 and weight > 1e-24):
                weight = _wide_square(p, p_bits, n)
            moments[g, 2] += square
            moments[g, 3] += weight
            peaks[g, 1] = max(peaks[g, 1], _rounded(peak))
            counts[g, 5] += np.int64(bad)
            unmoved = np.int64(_zeros(u_bits, n, _ABS))
            counts[g, 7] += unmoved
            still[t] += unmoved
            counts[g, 8] += np.int64(_zeros(p_bits, n, _LOW))
            if (units[t] + (at >> 16)) % every == phase:
                entries += n
                bad_counted += np.int64(bad)
                _count_reached(u_bits, n, 127 if bad else peak >> 24, codes, reached)
        counts[g, 4] += n_all
        counts[g, 6] += n_all
    _fill_bins(reached, entries, bad_counted, bins)


@njit(**_OPTIONS)
def _checksum(words, n, start):
    """Sum of the words and sum of the words times 2 i + 1, both modulo 2**32."""
    plain, weighted = np.uint32(0), np.uint32(0)
    for i in range(n):
        word = np.uint32(words[i])
        plain = np.uint32(plain + word)
        odd = np.uint32(np.uint32(2) * np.uint32(start + i) + np.uint32(1))
        weighted = np.uint32(weighted + np.uint32(word * odd))
    return plain, weighted


@njit("void(int64[::1],int64[::1],uint64[::1])", **_OPTIONS)
def checksum_pass(addresses, sizes, out):
    """Checksums of the 32-bit words at `addresses`, see `flashback_core.sketch.checksum`."""
    for t in range(addresses.shape[0]):
        plain, weighted = np.uint32(0), np.uint32(0)
        for at in range(0, sizes[t], BLOCK):
            n = min(BLOCK, sizes[t] - at)
            words = carray(_words(addresses[t] + 4 * at), (n,))
            a, b = _checksum(words, n, at)
            plain = np.uint32(plain + a)
            weighted = np.uint32(weighted + b)
        out[t] = (np.uint64(weighted) << np.uint64(32)) | np.uint64(plain)


@njit(**_OPTIONS)
def _differing(a, b, n):
    """How many words differ."""
    count = _NONE
    for i in range(n):
        count += np.int32(1) if a[i] != b[i] else _NONE
    return count


@njit("void(int64[::1],int64[::1],int64[::1],int32[::1],int64[::1])", **_OPTIONS)
def changed_pass(addresses, sizes, offsets, snapshot, out):
    """Words at `addresses` that differ from `snapshot`, for each tensor."""
    for t in range(addresses.shape[0]):
        count = np.int64(0)
        for at in range(0, sizes[t], BLOCK):
            n = min(BLOCK, sizes[t] - at)
            words = carray(_words(addresses[t] + 4 * at), (n,))
            kept = snapshot[offsets[t] + at : offsets[t] + at + n]
            count += np.int64(_differing(words, kept, n))
        out[t] = count
