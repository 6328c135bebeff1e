"""The data that ships with Python and scikit-learn."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from flashback_core.errors import MissingExtraError
from flashback_core.forensics import corpus


@pytest.mark.parametrize("source", corpus.TEXT_SOURCES)
def test_text_is_bytes_in_a_fixed_order(source: str) -> None:
    """Reading twice gives the same bytes, and enough of them."""
    first = corpus.text(source)
    corpus.text.cache_clear()
    assert np.array_equal(first, corpus.text(source))
    assert first.dtype == np.uint8
    assert first.size > 100_000


def test_unknown_text_is_refused() -> None:
    """The message lists the sources."""
    with pytest.raises(ValueError, match="'books' is not one of code, prose, tables"):
        corpus.text("books")


def test_python_without_its_library_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """An embedded Python may have no source files; that is said in words."""
    monkeypatch.setattr(corpus, "_library", lambda: tmp_path)
    corpus.text.cache_clear()
    with pytest.raises(FileNotFoundError, match="found only 0 bytes of code text"):
        corpus.text("code")
    corpus.text.cache_clear()


def test_windows_are_slices_of_the_text() -> None:
    """Row i starts at the i-th start."""
    source = np.arange(50, dtype=np.uint8)
    out = corpus.windows(source, np.array([3, 40]), 4)
    assert out.tolist() == [[3, 4, 5, 6], [40, 41, 42, 43]]


def test_markov_follows_its_rule_nine_times_in_ten() -> None:
    """Nine in ten bytes follow from the one before (or more, by chance)."""
    x = corpus.markov(np.random.default_rng(0), 50, 200)
    follows = x[:, 1:] == (x[:, :-1] * 5 + 7) % 64
    assert float(follows.mean()) == pytest.approx(0.9, abs=0.02)


def test_digits_are_scaled_images() -> None:
    """1797 images of 8×8 in [-1, 1] with their labels."""
    images, labels = corpus.digits()
    assert images.shape == (1797, 8, 8)
    assert (images.min(), images.max()) == (-1.0, 1.0)
    assert set(labels.tolist()) == set(range(10))


def test_missing_scikit_learn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Image tasks say what to install."""
    corpus.digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(MissingExtraError, match=r"flashback-plugins\[forensics\]"):
        corpus.digits()
    corpus.digits.cache_clear()
