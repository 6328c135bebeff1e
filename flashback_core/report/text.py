"""Words and numbers of a report: how a step, a value, a kind or a name is said to people.

Everything that comes from a run passes through `clean` before it is shown anywhere.
"""

from __future__ import annotations

import math
import unicodedata

__all__ = [
    "ABBREVIATIONS",
    "clean",
    "count",
    "number",
    "plural",
    "score_words",
    "step_span",
]

CERTAIN_SCORE = 1e6
"""Scores from here on stand for exact checks, which need no statistics."""

MAX_TEXT = 120
"""Characters of one name or value that are shown; longer ones are cut with an ellipsis."""

ABBREVIATIONS = {
    "lr": "learning rate: how far one optimizer step moves the weights",
    "NaN": "not a number: the result of an undefined computation such as 0/0",
    "Inf": "infinity: a number too large for its format",
    "norm": "length of a vector: the square root of the sum of its squared entries",
    "MAD": "median absolute deviation, a measure of spread that outliers do not move",
    "robust deviations": "distance from the median of the reference steps, in units of "
    "1.4826 x their median absolute deviation (the same as standard deviations for normal noise)",
    "ARL0": "average run length to a false alarm: mean number of healthy steps between two",
    "p10": "10 % of the values lie below",
    "CSV": "comma-separated values, a plain table",
}


def clean(value: object, limit: int = MAX_TEXT) -> str:
    """`value` as one line of harmless text of at most `limit` characters.

    Control characters, line breaks and marks that turn the direction of writing become visible
    code points such as ``<U+202E>``, so that no name can disturb the text round it.
    """
    text = value if isinstance(value, str) else str(value)
    text = text[: 4 * limit]
    shown = "".join(_visible(c) for c in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _visible(char: str) -> str:
    if char in "\t\n\r":
        return " "
    if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}:
        return f"<U+{ord(char):04X}>"
    return char


def number(value: float | None, digits: int = 4) -> str:
    """`value` for people: at most `digits` significant digits, thousands with commas.

    Examples:
        >>> number(0.000312345), number(1234567), number(2.0), number(float("nan"))
        ('0.0003123', '1,234,567', '2', 'NaN')
    """
    if value is None:
        return "not recorded"
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "−Inf"
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"


def score_words(score: float) -> str:
    """The score of a metric; a score beyond all statistics is called certain.

    Examples:
        >>> score_words(12.345), score_words(1e6)
        ('12.3', 'certain')
    """
    return "certain" if not abs(score) < CERTAIN_SCORE else number(abs(score), 3)


def count(value: int | None) -> str:
    """A whole number with commas.

    Examples:
        >>> count(1000000)
        '1,000,000'
    """
    return "none" if value is None else f"{int(value):,}"


def plural(n: int, one: str, many: str | None = None) -> str:
    """The number `n` with its noun.

    Examples:
        >>> plural(1, "step"), plural(1200, "step"), plural(0, "batch", "batches")
        ('1 step', '1,200 steps', '0 batches')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def step_span(interval: tuple[int, int]) -> str:
    """A credible interval in words: ``step 412`` or ``steps 410 to 415``."""
    first, last = interval
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
