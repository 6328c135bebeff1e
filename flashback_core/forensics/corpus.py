"""Training data that is always at hand: Python's own files, scikit-learn's digits, a generator.

Three texts, each a flat array of bytes:

* ``code``: the source files of the standard library, in the order of their paths;
* ``prose``: the language reference that `pydoc` ships, natural language;
* ``tables``: the character tables of `encodings`, monotonous.

They are the same for one Python version and differ a little between versions. ``markov`` is a
made-up source without long-range structure: nine in ten bytes follow from the one before, so that a
run on it is smooth.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.extras import extra

__all__ = ["TEXT_SOURCES", "digits", "markov", "text", "windows"]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

TEXT_SOURCES = ("code", "prose", "tables")
CODE_BYTES = 4_000_000  # enough that a run of 20,000 small batches seldom sees a window twice
MARKOV_STATES = 64
_LEFT_OUT = {"site-packages", "test", "tests", "encodings", "pydoc_data", "__pycache__"}


@lru_cache(maxsize=len(TEXT_SOURCES))
def text(source: str = "code") -> Bytes:
    """The bytes of one text source, read-only, shape (bytes,).

    Raises:
        ValueError: If there is no such source.
        FileNotFoundError: If this Python has no standard library on disk.
    """
    if source not in TEXT_SOURCES:
        msg = f"text source {source!r} is not one of {', '.join(TEXT_SOURCES)}"
        raise ValueError(msg)
    parts, size = [], 0
    for path in _files(source):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= CODE_BYTES:
            break
    found = np.frombuffer(b"".join(parts), np.uint8)
    if found.size < 10_000:
        msg = (
            f"found only {found.size} bytes of {source} text below {_library()}; the forensics "
            "runs train on the standard library's source files, so run them with a Python that "
            "has them on disk"
        )
        raise FileNotFoundError(msg)
    return found


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _files(source: str) -> Iterator[Path]:
    root = _library()
    if source == "prose":
        return iter([root / "pydoc_data" / "topics.py"])
    if source == "tables":
        return iter(sorted((root / "encodings").glob("*.py")))
    found = (p for p in root.rglob("*.py") if not _LEFT_OUT & set(p.relative_to(root).parts))
    return iter(sorted(found, key=lambda p: p.relative_to(root).as_posix()))


def windows(source: Bytes, starts: Ints, length: int) -> Ints:
    """Windows of a text.

    Args:
        source: The text, shape (bytes,).
        starts: First byte of each window, shape (n,); at most ``len(source) - length``.
        length: Bytes in a window.

    Returns:
        Integers of shape (n, length).
    """
    found: Ints = source[starts[:, None] + np.arange(length)].astype(np.int64)
    return found


def markov(rng: np.random.Generator, n: int, length: int) -> Ints:
    """Sequences in which nine in ten bytes follow from the one before, shape (n, length)."""
    chance = rng.random((n, length)) < 0.9
    free = rng.integers(0, MARKOV_STATES, (n, length))
    out = np.empty((n, length), np.int64)
    out[:, 0] = free[:, 0]
    for i in range(1, length):
        out[:, i] = np.where(chance[:, i], (out[:, i - 1] * 5 + 7) % MARKOV_STATES, free[:, i])
    return out


@lru_cache(maxsize=1)
def digits() -> tuple[Floats, Ints]:
    """Scikit-learn's handwritten digits: images of shape (1797, 8, 8) in [-1, 1], and labels.

    Raises:
        MissingExtraError: If scikit-learn is not installed.
    """
    with extra("forensics", package="sklearn"):
        from sklearn.datasets import load_digits
    found: Any = load_digits()
    images = (found.images / 8.0 - 1.0).astype(np.float32)
    return images, found.target.astype(np.int64)
