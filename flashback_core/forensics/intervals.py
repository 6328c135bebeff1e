"""Confidence intervals of shares and of rates, 95 % unless said otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["binomial_tail", "poisson", "wilson"]

Z95 = 1.959963984540054


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson score interval of a share; (nan, nan) of nothing.

    Examples:
        >>> low, high = wilson(6, 6)
        >>> round(low, 2), high
        (0.61, 1.0)
    """
    if n == 0:
        return math.nan, math.nan
    share, z2 = hits / n, Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = 0.0 if hits == 0 else max(0.0, middle - half)
    return low, 1.0 if hits == n else min(1.0, middle + half)


def poisson(count: int, exposure: float) -> tuple[float, float]:
    """Exact (Garwood) interval of a rate: events per unit of exposure; (nan, nan) of nothing.

    Examples:
        >>> low, high = poisson(0, 1.0)
        >>> low, round(high, 2)
        (0.0, 3.69)
    """
    if exposure <= 0:
        return math.nan, math.nan
    top = count + 10.0 * math.sqrt(count + 1) + 10.0
    low = 0.0
    if count:
        low = _root(lambda mean: 1.0 - _cdf(count - 1, mean) - 0.025, 0.0, top)
    high = _root(lambda mean: 0.025 - _cdf(count, mean), 0.0, top)
    return low / exposure, high / exposure


def binomial_tail(hits: int, n: int, chance: float) -> float:
    """Probability of `hits` or more of `n` where each has the chance `chance`; nan of nothing.

    Examples:
        >>> binomial_tail(1, 2, 0.5)
        0.75
    """
    if n == 0 or math.isnan(chance):
        return math.nan
    terms = (math.comb(n, k) * chance**k * (1.0 - chance) ** (n - k) for k in range(hits, n + 1))
    return min(1.0, math.fsum(terms))


def _cdf(count: int, mean: float) -> float:
    """Probability of at most `count` events."""
    if mean <= 0:
        return 1.0
    terms = (i * math.log(mean) - mean - math.lgamma(i + 1) for i in range(count + 1))
    return math.fsum(math.exp(term) for term in terms)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
