"""`report.text`: names, numbers and kinds as people read them."""

from __future__ import annotations

import doctest

import pytest

from flashback_core.report import (
    downsample,
    metric_words,
    palette,
    scales,
    sparkline,
    surprise,
    text,
)


@pytest.mark.parametrize(
    "module", [text, metric_words, downsample, surprise, scales, sparkline, palette]
)
def test_examples_in_docstrings(module: object) -> None:
    """Every example in these files gives what it says."""
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]  # modules are passed


@pytest.mark.parametrize("char", ["\u202e", "\u2066", "\u200f", "\x1b", "\x00", "\ufeff", "\ud800"])
def test_marks_that_disturb_text_become_visible(char: str) -> None:
    """Direction marks, escape codes and lone surrogates appear as code points."""
    assert text.clean(f"a{char}b") == f"a<U+{ord(char):04X}>b"


def test_clean_is_one_short_line() -> None:
    """A name of 10 kB with line breaks is one line of at most 120 characters."""
    shown = text.clean("line\n" * 2000)
    assert len(shown) == 120
    assert "\n" not in shown


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not recorded"),
        (float("inf"), "Inf"),
        (-1234.5, "-1,234"),
        (1e-9, "1e-9"),
        (1e300, "1e300"),
    ],
)
def test_number(value: float | None, words: str) -> None:
    """Numbers are short, with a word for what is no number."""
    assert text.number(value) == words
