"""Check: one exact check that broke."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One exact check that broke: at which step, and its value before and then."""

    step: int
    name: str
    before: str
    at: str
    meaning: str
